"""What a user sees while a run goes: a live frame on a terminal, plain lines elsewhere, only errors when quiet.

A display is handed plain data (`Progress`) and knows nothing of the trainer. It never stops a run: odd values are drawn
as they are, and a frame that fails is left out and reported once.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from time import monotonic
from types import TracebackType
from typing import Literal, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from palestra.recording.results import (
    Evaluation,
    PairResult,
    Progress,
    Seat,
    Task,
    as_float,
    by_name,
    count_text,
    duration_text,
    fraction_of_one,
    histories,
    interval_text,
    label,
    metric_text,
    pair_label,
    plain_ascii,
    printable,
    score_text,
    sparkline,
    standings,
    task_text,
)

LIVE_INTERVAL_S = 0.25
PLAIN_INTERVAL_S = 10.0

logger = logging.getLogger(__name__)

# ---- the live frame ----------------------------------------------------------------------------------


def render_progress(progress: Progress, width: int, height: int) -> RenderableType:
    """The whole frame of the live display, at most `width` x `height` characters (from 40 x 12 on)."""
    inner = width - 4
    num_player_rows = max(1, min(len(progress.players), height // 4))
    parts: list[RenderableType] = [_time_bar(progress), _counters_table(progress, inner)]
    parts += map(_task_bar, progress.tasks[:1])
    if progress.players:
        parts += ["", _players_table(progress.players, inner, num_player_rows)]
    named = by_name(progress.evaluations)
    first = next(iter(named.values()), [])  # it has the table, the others a line each
    sparks = _all_sparklines(named, inner) if height >= 16 else []
    num_lines_left = height - 13 - num_player_rows - len(sparks)  # of 12 lines for the rest, and the cursor's
    if first and num_lines_left > 0:
        parts += ["", score_table(first, inner, num_lines_left)]
    parts += ["", _sparks_table(sparks)] if sparks else []
    if progress.message:
        parts.append(Text(printable(progress.message), style="yellow", no_wrap=True, overflow="ellipsis"))
    title = Text(" · ").join(
        [Text("palestra", style="bold"), Text(printable(progress.name)), Text(printable(progress.device))]
    )
    folder = Text(printable(progress.run_folder), style="dim") if progress.run_folder else None
    return Panel(Group(*parts), title=title, title_align="left", subtitle=folder, subtitle_align="right", width=width)


def _time_bar(progress: Progress) -> Table:
    fraction = fraction_of_one(progress.fraction)
    left = f"{duration_text(progress.elapsed_s)} gone, {duration_text(progress.remaining_s)} left"
    return _bar("", fraction, f"{fraction:4.0%}  {left}")


def _task_bar(task: Task) -> Table:
    return _bar(task.name, fraction_of_one(task.done / max(task.total, 1)), task_text(task))


def _bar(name: str, fraction: float, text: str) -> Table:
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(no_wrap=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    bar.add_row(Text(printable(name)), ProgressBar(total=1.0, completed=fraction), text)
    return bar


def _counter_texts(progress: Progress) -> dict[str, str]:
    """Counter -> 12.4M (51.2k/s)"""
    rates = {key: f" ({count_text(rate)}/s)" for key, rate in progress.rates.items()}
    return {label(key): count_text(value) + rates.get(key, "") for key, value in progress.counters.items()}


def _counters_table(progress: Progress, width: int) -> Table:
    texts = list(_counter_texts(progress).items())[: max(1, width // 18)]
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for name, _ in texts:
        table.add_column(Text(name), no_wrap=True)
    table.add_row(*(Text(text) for _, text in texts))
    return table


def _players_table(players: Mapping[str, Mapping[str, float]], width: int, num_rows: int) -> Table:
    names = list(dict.fromkeys(name for metrics in players.values() for name in metrics))
    names = names[: max(1, (width - 12) // 12)]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("player", style="bold", no_wrap=True, max_width=max(8, width // 3))
    for name in names:
        table.add_column(Text(label(name)), justify="right", no_wrap=True)
    for player, metrics in list(players.items())[:num_rows]:
        cells = [Text(metric_text(metrics.get(name)), style=_alarm(metrics.get(name))) for name in names]
        table.add_row(Text(printable(player)), *cells)
    return table


def _alarm(value: object) -> str:
    return "" if value is None or math.isfinite(as_float(value)) else "bold red"


def _all_sparklines(named: Mapping[str, Sequence[Evaluation]], width: int) -> list[tuple[str, str, str, str]]:
    """Of the first evaluation at most two, of at most two others one each, with its name."""
    (_, first), *others = named.items() or [("", [])]
    lines = _sparklines(first, width)
    for name, evaluations in others[:2]:
        for pair, before, bars, now in _sparklines(evaluations, width)[:1]:
            lines.append((f"{name}: {pair}"[: width // 2], before, bars, now))
    return lines


def _sparklines(evaluations: Sequence[Evaluation], width: int) -> list[tuple[str, str, str, str]]:
    """Label, first score, bars, last score, for at most two learning seats: a seat's first pairing with a player that
    does not learn, or its first at all.
    """
    chosen: dict[Seat, PairResult] = {}
    for pair in sorted(standings(evaluations), key=lambda pair: len(pair.learned)):
        for seat in pair.seats:
            if seat.learns:
                chosen.setdefault(seat, pair)
    results, lines = histories(evaluations), []
    for pair in list({pair.seats: pair for pair in chosen.values()}.values())[:2]:
        scores = [as_float(earlier.score.value) for earlier in results[pair.seats]]
        bars = sparkline(scores, max(1, width // 2 - 16))
        lines.append((pair_label(pair)[: width // 2], score_text(scores[0]), bars, score_text(scores[-1])))
    return lines


def _sparks_table(sparks: Sequence[tuple[str, str, str, str]]) -> Table:
    table = Table.grid(padding=(0, 1))
    for style in ("", "dim", "cyan", "bold"):
        table.add_column(style=style, no_wrap=True)
    for texts in sparks:
        table.add_row(*(Text(text) for text in texts))
    return table


def score_table(evaluations: Sequence[Evaluation], width: int, num_rows: int) -> RenderableType:
    """The present scores, first role down, second across, learning players bold, with what `width` has room for:
    half the 95% interval and the change since the first evaluation. Games of one role, or of more than two, as a list.
    """
    pairs, results = standings(evaluations), histories(evaluations)
    if not pairs:
        return Text("no pairings evaluated", style="dim")
    console = Console(width=10_000)  # to measure with
    for details in (("interval", "change"), ("change",), ()):
        table, num_left_out = _score_grid(pairs, results, width, num_rows, details)
        if Measurement.get(console, console.options, table).maximum <= width:
            break
    title = f"{printable(pairs[0].measure)} at opt step {evaluations[-1].opt_steps:,}"
    if "change" in details and len(evaluations) > 1:
        title += " and change since the first evaluation"
    if num_left_out:
        title += f" ({num_left_out} more rows or columns)"
    return Group(Text(title, style="dim", no_wrap=True, overflow="ellipsis"), table)


def _score_grid(
    pairs: Sequence[PairResult],
    results: Mapping[tuple[Seat, ...], Sequence[PairResult]],
    width: int,
    num_rows: int,
    details: Sequence[str],
) -> tuple[Table, int]:
    """The table, and how many rows and columns it had no room for."""
    num_heads = 1 if all(len(pair.seats) == 2 for pair in pairs) else max(len(pair.seats) for pair in pairs)
    rows: dict[tuple[Seat, ...], dict[tuple[Seat, ...], PairResult]] = {}
    for pair in pairs:
        rows.setdefault(pair.seats[:num_heads], {})[pair.seats[num_heads:]] = pair
    heads = sorted(rows, key=_is_scripted)
    columns = sorted(dict.fromkeys(column for row in rows.values() for column in row), key=_is_scripted)
    num_columns = max(1, (width - 17) // 8)

    roles = [printable(seat.role) for seat in pairs[0].seats]
    table = Table(box=None, padding=(0, 2 if width >= 96 else 1, 0, 0), header_style="")
    corner = Text((" \\ " if num_heads == 1 else ", ").join(roles), style="dim")
    table.add_column(corner, no_wrap=True, max_width=max(8, width // 3))
    for column in columns[:num_columns]:
        table.add_column(
            _seats_text(column) if column else Text(printable(pairs[0].measure)), justify="right", no_wrap=True
        )
    for head in heads[:num_rows]:
        shown = [rows[head].get(column) for column in columns[:num_columns]]
        cells = [_cell(pair, results[pair.seats], details) if pair else Text("") for pair in shown]
        table.add_row(_seats_text(head), *cells)
    return table, max(0, len(heads) - num_rows) + max(0, len(columns) - num_columns)


def _is_scripted(seats: tuple[Seat, ...]) -> bool:
    return not any(seat.learns for seat in seats)


def _seats_text(seats: tuple[Seat, ...]) -> Text:
    return Text(", ").join(_seat_text(seat) for seat in seats)


def _seat_text(seat: Seat) -> Text:
    return Text(printable(seat.player), style="bold" if seat.learns else "")


def _cell(pair: PairResult, results: Sequence[PairResult], details: Sequence[str]) -> Text:
    cell = Text(score_text(pair.score.value))
    half = (as_float(pair.score.high) - as_float(pair.score.low)) / 2
    if "interval" in details and math.isfinite(half):
        cell.append(f" ±{score_text(half)}", style="dim")
    if "change" in details and pair.learned and len(results) > 1:
        change = as_float(pair.score.value) - as_float(results[0].score.value)
        cell.append(f" {score_text(change, '+')}", style=_change_style(pair, change))
    return cell


def _change_style(pair: PairResult, change: float) -> str:
    """Green where the learning seat gained; where both learn, one's gain is the other's loss."""
    if len(pair.learned) != 1 or not abs(change) > 0:
        return "dim"
    return "green" if (change > 0) == pair.seats[0].learns else "red"


# ---- the displays --------------------------------------------------------------------------------------


class Display(Protocol):
    """Shows a run's progress, in a `with` block."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, progress: Progress) -> None:
        """Take note of the present state; cheap, may be called after every opt step."""

    def log(self, line: str) -> None:
        """Show a line that stays."""

    def error(self, line: str) -> None:
        """Show a line that even a quiet display shows."""

    def close(self) -> None:
        """Show the last state and let go of the terminal; again is no error."""


def make_display(mode: Literal["auto", "plain", "quiet"], console: Console) -> Display:
    """`auto`: live on a terminal that can draw it, plain lines elsewhere. A quiet console shows nothing."""
    if mode == "quiet" or console.quiet:
        return QuietDisplay(console)
    can_draw = console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")
    return LiveDisplay(console) if mode == "auto" and can_draw else PlainDisplay(console)


class QuietDisplay:
    """Errors only."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def update(self, progress: Progress) -> None:
        pass

    def log(self, line: str) -> None:
        pass

    def error(self, line: str) -> None:
        self._console.out("error:", plain_ascii(line), highlight=False)

    def close(self) -> None:
        pass


class _TimedDisplay(QuietDisplay):
    """Shows a state when `interval_s` has passed since the one before or there is news, and the last one of all."""

    interval_s: float

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._latest: Progress | None = None
        self._shown: Progress | None = None
        self._shown_at_s = -math.inf
        self._failed = False

    def update(self, progress: Progress) -> None:
        self._latest = progress
        is_news = self._shown is None or self._news(progress) != self._news(self._shown)
        if is_news or monotonic() - self._shown_at_s >= self.interval_s:
            self._show_latest()

    def close(self) -> None:
        if self._latest is not self._shown:
            self._show_latest()

    def _show_latest(self) -> None:
        assert self._latest is not None
        try:
            self._show(self._latest)
        except Exception:  # a display is not worth a run
            if not self._failed:
                logger.warning("the display could not show a run's progress; training goes on", exc_info=True)
            self._failed = True
        self._shown, self._shown_at_s = self._latest, monotonic()

    def _show(self, progress: Progress) -> None:
        raise NotImplementedError

    def _news(self, progress: Progress) -> object:
        """What is shown at once when it changes."""
        raise NotImplementedError


class LiveDisplay(_TimedDisplay):
    """A frame on a terminal, redrawn in place; no thread of its own."""

    interval_s = LIVE_INTERVAL_S

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def log(self, line: str) -> None:
        self._console.print(Text("\n".join(printable(part) for part in line.splitlines())))

    def error(self, line: str) -> None:
        self.log(f"error: {line}")

    def close(self) -> None:
        super().close()
        self._live.stop()

    def _show(self, progress: Progress) -> None:
        width, height = self._console.size
        self._live.update(render_progress(progress, width, height), refresh=True)

    def _news(self, progress: Progress) -> object:
        return progress.message, len(progress.evaluations)


class PlainDisplay(_TimedDisplay):
    """A line of plain ASCII now and then, and one for each evaluation: for files, pipes and old terminals."""

    interval_s = PLAIN_INTERVAL_S

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._num_evaluations = 0

    def log(self, line: str) -> None:
        self._console.out("\n".join(plain_ascii(part) for part in line.splitlines()), highlight=False)

    def _show(self, progress: Progress) -> None:
        self.log(_progress_line(progress))
        num_shown, self._num_evaluations = self._num_evaluations, len(progress.evaluations)
        for evaluation in progress.evaluations[num_shown:]:
            if num_shown or evaluation.opt_steps == progress.evaluations[-1].opt_steps:  # not the past of a resumed run
                self.log(evaluation_line(evaluation))

    def _news(self, progress: Progress) -> object:
        return len(progress.evaluations)


def _progress_line(progress: Progress) -> str:
    times = f"{fraction_of_one(progress.fraction):4.0%} {duration_text(progress.elapsed_s)} gone"
    parts = [
        f"{times}, {duration_text(progress.remaining_s)} left",
        ", ".join(f"{name} {text}" for name, text in _counter_texts(progress).items()),
    ]
    for player, metrics in progress.players.items():
        parts.append(f"{player}: " + ", ".join(f"{label(name)} {metric_text(metrics[name])}" for name in metrics))
    parts += [progress.message] if progress.message else []
    return " | ".join(parts + [f"{task.name}: {task_text(task)}" for task in progress.tasks])


def evaluation_line(evaluation: Evaluation) -> str:
    """Its pairings in which somebody learns."""
    results = [_result_text(pair) for pair in evaluation.pairs if pair.learned]
    return f"evaluation {evaluation.name} at opt step {evaluation.opt_steps}: {', '.join(results)}"


def _result_text(pair: PairResult) -> str:
    return f"{pair_label(pair)}: {printable(pair.measure)} {interval_text(pair.score)}"
