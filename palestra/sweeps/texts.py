"""The progress of a sweep in words."""

import math
from collections.abc import Mapping
from datetime import datetime, timedelta

from palestra.recording.results import count_text, duration_text, label, printable
from palestra.sweeps.naming import short_keys
from palestra.sweeps.progress import EndedTrial, SweepProgress

MOST_SEEDS = 3  # whose values are shown one by one
MOST_RUNS = 4  # that a line names


def point_text(point: Mapping[str, str]) -> str:
    """Return a point as "learning_rate 0.003, gamma 0.99"."""
    names = short_keys(point)
    return printable(", ".join(f"{names[key]} {text}" for key, text in point.items()))


def value_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def seeds_text(trial: EndedTrial) -> str:
    """Return the values of a trial's seeds; "" for a single one."""
    if len(trial.values) < 2:
        return ""
    if len(trial.values) <= MOST_SEEDS:
        return f"seeds: {', '.join(map(value_text, trial.values))}"
    least, most = value_text(min(trial.values)), value_text(max(trial.values))
    return f"{len(trial.values)} seeds: {least} to {most}"


def trials_text(progress: SweepProgress) -> str:
    """Return how many trials have ended, as "3 of 8 trials"."""
    if progress.total is None:
        return f"{progress.num_ended:,} trial{'' if progress.num_ended == 1 else 's'}"
    return f"{progress.num_ended:,} of {progress.total:,} trial{'' if progress.total == 1 else 's'}"


def counts_text(progress: SweepProgress) -> str:
    """Return how many trials are in each state, as "3 succeeded, 1 failed, 2 running"."""
    return ", ".join(f"{count:,} {state}" for state, count in progress.counts.items())


def amount_text(progress: SweepProgress) -> str:
    """Return how much the runs have counted, as "1.2M of 5M env steps"; "" if nothing, and nothing limits it."""
    if not progress.count and math.isinf(progress.max_count):
        return ""
    limit = "" if math.isinf(progress.max_count) else f" of {count_text(progress.max_count)}"
    return f"{count_text(progress.count)}{limit} {label(progress.unit)}"


def worked_text(progress: SweepProgress, age_s: float = 0.0) -> str:
    """Return how long the sweep has worked, as "worked 0:12:33 of 1:00:00"."""
    limit = "" if math.isinf(progress.max_s) else f" of {duration_text(progress.max_s)}"
    return f"worked {duration_text(progress.worked_s + age_s)}{limit}"


def end_text(seconds: float, now: datetime) -> str:
    """Return when the sweep ends, as "about 12 min left, at 14:32"; "" if it is not known."""
    if not math.isfinite(seconds):
        return ""
    if seconds < 60:
        return "less than a minute left"
    end = now + timedelta(seconds=seconds)
    minutes = round(seconds / 60)
    if minutes < 100:
        left = f"{minutes} min"
    elif minutes < 48 * 60:
        left = f"{minutes // 60} h {minutes % 60} min"
    else:
        hours = round(minutes / 60)
        left = f"{hours // 24} d {hours % 24} h"
    days = (end.date() - now.date()).days
    on = "" if not days else f" on {end:%A}" if days < 7 else f" on {end.day} {end:%B}"
    return f"about {left} left, at {end:%H:%M}{on}"


def elsewhere_text(progress: SweepProgress) -> str:
    """Say what runs besides; "" if nothing does."""
    num = progress.num_elsewhere
    if not num:
        return ""
    return f"{num:,} more trial{'' if num == 1 else 's'} begun: other processes work on them, or they wait for a place"


def failures_text(progress: SweepProgress) -> list[str]:
    """Return lines that say how many trials failed, and why the first ones did."""
    num = progress.counts.get("failed", 0)
    if not num:
        return []
    shown = progress.first_failures
    lines = [f"{num:,} trial{'' if num == 1 else 's'} failed{', the first of them' if num > len(shown) else ''}:"]
    for trial in shown:
        lines.append(printable(f"  trial {trial.number}: {trial.reason}"))
        lines += [] if trial.log is None else [printable(f"    its log: {trial.log}")]
    return lines


def progress_line(progress: SweepProgress, now: datetime) -> str:
    """Return all of it in one line, for files and pipes."""
    texts = [f"{trials_text(progress)} done", counts_text(progress), amount_text(progress), worked_text(progress)]
    if (best := progress.best) is not None:
        texts.append(f"best: trial {best.number}, {progress.measure} {value_text(best.value)}")
    runs = [f"trial {run.trial} seed {run.seed} at {math.floor(100 * run.share)}%" for run in progress.runs]
    if runs:
        more = f" and {len(runs) - MOST_RUNS} more" if len(runs) > MOST_RUNS else ""
        texts.append(f"running: {', '.join(runs[:MOST_RUNS])}{more}")
    return " | ".join(filter(None, [*texts, elsewhere_text(progress), end_text(progress.seconds_left, now)]))
