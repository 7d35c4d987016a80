"""Sample games: the players of a checkpoint play again, on the CPU, and the boards or frames of a game are shown."""

import base64
import io
from collections.abc import Iterator, Sequence
from typing import Any

import PIL.Image
from markupsafe import Markup, escape

from palestra.evaluation.evaluations import Evaluations
from palestra.evaluation.stored import StoredRun
from palestra.evaluation.trace import Choice, Trace
from palestra.evaluation.video import Frame
from palestra.games.gym import GymnasiumGame
from palestra.games.polyhedra import PolyhedraGame
from palestra.recording.results import score_text
from palestra.report.blocks import Block, Cell, Heading, Note, Picture, Section, Strip, Table
from palestra.report.boards import board_points, chosen_axes, paint_board
from palestra.report.figures import Figures
from palestra.report.groups import Group
from palestra.report.reading import RunData

MOST_PICTURES = 8
MOST_MOVES = 12
FRAME_WIDTH = 256  # pixels
BOARD_SIZE = (2.5, 2.3)  # inches
MOST_NUMBERS = 32  # of an entry of a state that is told


def samples_section(groups: Sequence[Group], figures: Figures) -> Section:
    """Of the first run of each group a game of the evaluation that tells the best, or of the first there is."""
    section = Section("samples", "Sample games")
    for group in groups:
        run = group.runs[0]
        section.blocks += [Heading(run.name)] if len(groups) > 1 or len(group.runs) > 1 else []
        try:
            section.blocks += _samples(run, figures)
        except Exception as error:  # a user's game, a damaged checkpoint, a missing extra: whatever hinders playing
            section.blocks.append(Note(f"No game can be shown: {error}"))
    return section


def _samples(run: RunData, figures: Figures) -> list[Block]:
    if not any(stored.fault is None for stored in run.checkpoints):
        return [Note("There is no checkpoint to play from.")]
    stored = StoredRun.open(run.path, on_cpu=True)
    if not (wanted := _wanted(stored.config, stored.evaluations)):
        return [Note("The config names no evaluation of a learning player.")]
    which = "best" if any("best" in each.marks for each in run.checkpoints) else "latest"
    stored.load(which)
    name, pairing = wanted
    game = stored.evaluations.games[name]
    players = " vs ".join(pairing.values())
    title = f"{players} in evaluation {name}, from the {which} checkpoint, at opt step {stored.counters['opt_steps']:,}"
    if isinstance(game, GymnasiumGame):
        return [_frame_strip(title, list(stored.evaluations.frames(name)))]
    trace = stored.evaluations.trace(name, pairing)
    if trace is None:
        return [Note("The games of the evaluation are over at their start.")]
    if isinstance(game, PolyhedraGame):
        return [_board_strip(f"{title}. {_end_text(trace)}", trace, figures)]
    return [_moves_table(f"{title}. {_end_text(trace)}", trace)]


def _wanted(config: Any, evaluations: Evaluations) -> tuple[str, dict[str, str]] | None:
    """The evaluation, by name, and the pairing by which checkpoints are best, or the first in which somebody learns."""
    if config.best is not None:
        return config.best.evaluation, evaluations.configs[config.best.evaluation].pairings[config.best.pairing]
    learned = ((name, pairing) for name in evaluations.configs for pairing in evaluations.pairings(name, False))
    return next(learned, None)


def _end_text(trace: Trace) -> str:
    end = "to its end" if trace.is_finished else "until it was cut off"
    return f"A game of middle length: {trace.length} rounds, {end}."


def evenly(count: int, most: int) -> list[int]:
    """At most so many of the places 0 ... count - 1, with both ends."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


# ---- boards of the polyhedra game ----------------------------------------------------------------------


def _board_strip(title: str, trace: Trace, figures: Figures) -> Strip:
    """A board for each round shown, with what host and agent choose there, and the last board."""
    rounds = list(zip(trace.choices[0::2], trace.choices[1::2], strict=False))  # of each round the host's, the agent's
    shown = evenly(len(rounds), MOST_PICTURES - 1)
    pictures = [_board(number + 1, *rounds[number], figures) for number in shown]
    return Strip(f"{title} {_choice_text()}", [*pictures, _last_board(trace, figures)])


def _choice_text() -> str:
    return "Under each board what the host names and the agent then picks; coloured axes are the host's."


def _board(number: int, host: Choice, agent: Choice, figures: Figures) -> Picture:
    points = board_points(host.state)
    named, picked = chosen_axes(agent.state), int(agent.action)
    caption = (
        f"Round {number}: {len(points)} points. Host names {', '.join(f'x{axis + 1}' for axis in named)}; "
        f"agent picks x{picked + 1}."
    )
    told = f"{caption} The points: {_points_text(points)}."
    drawn = figures.draw(
        f"Board of round {number}", told, lambda figure: paint_board(figure, points, named, picked), BOARD_SIZE
    )
    return Picture(drawn.svg, caption)


def _last_board(trace: Trace, figures: Figures) -> Picture:
    points = board_points(trace.end)
    end = "The host has won." if trace.is_finished else "The game was cut off: the agent held out."
    caption = f"After round {trace.length}: {len(points)} point{'s' if len(points) != 1 else ''}. {end}"
    told = f"{caption} The points: {_points_text(points)}."
    drawn = figures.draw("The last board", told, lambda figure: paint_board(figure, points, [], None), BOARD_SIZE)
    return Picture(drawn.svg, caption)


def _points_text(points: Sequence[Sequence[float]]) -> str:
    return ", ".join(f"({', '.join(f'{x:g}' for x in point)})" for point in points)


# ---- moves of other games ------------------------------------------------------------------------------


def _moves_table(title: str, trace: Trace) -> Table:
    """What every role chose, and the small entries of the state before it."""
    names = [name for name, value in trace.end.items() if value.numel() <= MOST_NUMBERS]
    shown = evenly(len(trace.choices), MOST_MOVES)
    rows = [
        [
            Cell(str(number + 1)),
            Cell(choice.role),
            Cell(_numbers_text(choice.action)),
            *(Cell(_numbers_text(choice.state[name])) for name in names),
        ]
        for number, choice in ((number, trace.choices[number]) for number in shown)
    ]
    rows.append([Cell("end"), Cell("-"), Cell("-"), *(Cell(_numbers_text(trace.end[name])) for name in names)])
    return Table(title, ["move", "role", "action", *names], rows)


def _numbers_text(tensor: Any) -> str:
    values = tensor.flatten().tolist()
    return " ".join(str(value) if isinstance(value, int | bool) else f"{value:.4g}" for value in values)


# ---- frames of an environment --------------------------------------------------------------------------


def _frame_strip(title: str, frames: Sequence[Frame]) -> Strip:
    total = score_text(frames[-1].total)
    caption = f"{title}. One episode of {len(frames) - 1:,} steps with a return of {total}."
    return Strip(caption, list(_frame_pictures(frames)))


def _frame_pictures(frames: Sequence[Frame]) -> Iterator[Picture]:
    for number in evenly(len(frames), MOST_PICTURES):
        frame = frames[number]
        image = PIL.Image.fromarray(frame.pixels)
        if image.width > FRAME_WIDTH:
            image = image.resize((FRAME_WIDTH, round(image.height * FRAME_WIDTH / image.width)))
        file = io.BytesIO()
        image.save(file, "PNG", optimize=True)
        source = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        caption = f"Step {number:,}, return so far {score_text(frame.total)}"
        size = f'width="{image.width}" height="{image.height}"'
        yield Picture(Markup(f'<img src="{source}" alt="{escape(caption)}" {size}>'), caption)
