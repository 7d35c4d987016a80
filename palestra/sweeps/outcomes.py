"""How the trials of a sweep have ended, as the study has it. Nothing heavy but Optuna is imported."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from optuna.trial import FrozenTrial, TrialState

STATES = ("succeeded", "failed", "pruned", "skipped", "running")
DEFINITION = "sweep"  # user attribute of the study: the sweep without what may differ between its processes
SKIPPED = "skipped"  # user attribute: why a trial was not run
FAILURE = "failure"  # user attribute: why it failed
VALUES = "values"  # user attribute: the objective of the run of each seed that ended, by seed
COUNTS = "counts"  # user attribute: what its runs have counted, all together, by unit; the usual one first
SECONDS = "seconds"  # user attribute: how long its runs have worked, all together
RETRY_OF = "retry_of"  # user attribute: the number of the trial that failed first, whose point and runs it takes over
PARENT = "parent"  # user attribute: the number of the trial from whose runs those of this one branch off
FAILED_BEFORE = "failed_before"  # user attribute: why the one that it takes over failed


def place_of(trial: FrozenTrial) -> int:
    """Return the number under which a trial's runs lie in the sweep's folder.

    It is its own or, of a trial that takes over a failed one, that of the latter.
    """
    first = trial.user_attrs.get(RETRY_OF)
    return first if type(first) is int and 0 <= first < trial.number else trial.number


def standing(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials, in the order of their numbers, without those that another one has taken over."""
    last = {place_of(trial): trial.number for trial in trials}
    return [trial for trial in trials if last[place_of(trial)] == trial.number]


def ranked(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials by their ranks, without those that another one has taken over."""
    return sorted(standing(trials), key=place_of)


def parent_of(trial: FrozenTrial) -> int | None:
    """Return the number of the trial from whose runs those of a trial branch off; None: they begin anew."""
    parent = trial.user_attrs.get(PARENT)
    return parent if type(parent) is int and 0 <= parent < trial.number else None


def lineage_of(trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trial after all from which it comes, the first one first. trials: those that stand."""
    known, found = {each.number: each for each in trials}, [trial]
    while (parent := known.get(-1 if (number := parent_of(found[0])) is None else number)) is not None:
        found.insert(0, parent)
    return found


def rank_of(trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> int:
    """Return the number that a trial would have if none had failed and been run again: by it its point is drawn.

    trials: all of the study, in the order of their numbers.
    """
    place = place_of(trial)
    return place - sum(place_of(each) != each.number for each in trials[:place])


def why_of(trial: FrozenTrial) -> str:
    """Return why a trial was skipped, why it failed, or why it was run again; "" for others."""
    facts = trial.user_attrs
    told = [str(facts[name]) for name in (SKIPPED, FAILURE) if facts.get(name)][:1]
    if place_of(trial) != trial.number:
        told.append(f"again, because trial {place_of(trial)} failed: {facts.get(FAILED_BEFORE)}")
    return "; ".join(told)


def best_of(trials: Sequence[FrozenTrial], goal: str) -> FrozenTrial | None:
    """Return the best complete trial, of equal ones the first."""
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    sign = 1.0 if goal == "max" else -1.0
    return max(done, key=lambda trial: (sign * (trial.value or 0.0), -trial.number), default=None)


def state_of(trial: FrozenTrial) -> str:
    """Return the state of a trial: succeeded, failed, pruned, skipped or running."""
    if SKIPPED in trial.user_attrs:
        return "skipped"
    names = {TrialState.COMPLETE: "succeeded", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
    return names.get(trial.state, "running")


def counts_text(states: Sequence[str]) -> str:
    """Say how many trials there are and how many in each state, as "3 trials: 2 succeeded, 1 failed"."""
    each = [f"{states.count(state):,} {state}" for state in STATES if state in states]
    return ": ".join(filter(None, [f"{len(states):,} trial{'s' * (len(states) != 1)}", ", ".join(each)]))


def value_of(trial: FrozenTrial) -> float | None:
    """Return the value of a trial or, if it was pruned, the last by which that was decided.

    A trial that was pruned between its seeds has none: Optuna takes the value of its last seed.
    """
    return None if state_of(trial) == "pruned" and trial.user_attrs.get(VALUES) else trial.value


def is_number(value: Any) -> bool:
    """Return whether a value is a number, which for Python true and false are, too, but not here."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def counts_of(trial: FrozenTrial) -> dict[str, float]:
    """Return what a trial's runs have counted, all together, by unit; {} if nobody has noted it."""
    counts = trial.user_attrs.get(COUNTS)
    found = counts if isinstance(counts, dict) else {}
    return {unit: num for unit, num in found.items() if is_number(num) and math.isfinite(num)}


def count_of(trial: FrozenTrial, unit: str) -> float:
    """Return how much a trial's runs have counted in a unit, all together."""
    return counts_of(trial).get(unit, 0)


def unit_of(limit: Any, counts: Iterable[Mapping[str, float]]) -> str:
    """Return the unit in which a sweep counts. limit: that of `budget.total`, or None. counts: of trials or runs."""
    return str(limit or next((unit for each in counts for unit in each), "opt_steps"))


def seconds_of(trial: FrozenTrial) -> float | None:
    """Return how long a trial's runs have worked, all together; None if nobody has measured it."""
    seconds = trial.user_attrs.get(SECONDS)
    return seconds if isinstance(seconds, int | float) and 0 <= seconds < math.inf else None
