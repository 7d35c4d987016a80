"""The blocks of a report: plain data in sections, which page.html turns into HTML."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from palestra.games.trace import Transcript
from palestra.recording.results import interval_text, score_text
from palestra.report.groups import Group
from palestra.report.reading import RunData
from palestra.runtime.scores import Estimate


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    value: the number as it was recorded, beside the rounded text that a reader sees. detail: in small type after the
    text. heat: 0..1, shown as a colour.
    """

    text: str
    value: float | None = None
    detail: str = ""
    heat: float | None = None


@dataclass(frozen=True)
class Table:
    """A table; the first cell of each row is its name. is_heat: whether cells are coloured by their `heat`."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    is_heat: bool = False

    def is_of_numbers(self, column: int) -> bool:
        return any(row[column].value is not None for row in self.rows)


@dataclass(frozen=True)
class Drawn:
    """A figure of the page.

    description: its content in words, for readers who do not see it. width: at which its texts have their size, in
    pixels. numbers: its numbers as a table.
    """

    title: str
    description: str
    svg: Markup
    width: float
    numbers: Table | None


@dataclass(frozen=True)
class Note:
    """A paragraph of text. is_warning: whether it says that something is wrong."""

    text: str
    is_warning: bool = False


@dataclass(frozen=True)
class Heading:
    """A heading inside a section."""

    text: str


@dataclass(frozen=True)
class FigureGrid:
    """Figures side by side.

    is_wide: one below the other instead. is_full: one below the other, in the whole width of the section.
    """

    figures: Sequence[Drawn]
    is_wide: bool = False
    is_full: bool = False


@dataclass(frozen=True)
class Legend:
    """The names of colours: pairs of a series' number and its name."""

    entries: Sequence[tuple[int, str]]


@dataclass(frozen=True)
class Facts:
    """Pairs of a name and a text."""

    entries: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Code:
    """The text of a file, folded until a reader opens it."""

    title: str
    text: str


@dataclass(frozen=True)
class Picture:
    """A picture. image: an element of the page, with a description of what it shows."""

    image: Markup
    caption: str


@dataclass(frozen=True)
class Strip:
    """Pictures side by side, in their order."""

    title: str
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Talks:
    """Games in words, side by side. The colours of roles are those of their series."""

    title: str
    games: Sequence[Transcript]


@dataclass(frozen=True)
class Tables:
    """Small tables side by side, each with its caption."""

    title: str
    tables: Sequence[Table]


Block = Table | Note | Heading | FigureGrid | Legend | Facts | Code | Strip | Talks | Tables


@dataclass
class Section:
    """A section of the page. name: the target of links to it."""

    name: str
    title: str
    blocks: list[Block] = field(default_factory=list)


def section_of_first_runs(
    name: str, title: str, groups: Sequence[Group], blocks_of: Callable[[RunData], list[Block]], fault: str
) -> list[Section]:
    """Make a section of what the first run of each group has; none if no run has anything.

    fault: what the page says where something is raised, as by a damaged file or a missing extra.
    """
    section = Section(name, title)
    for group in groups:
        run = group.runs[0]
        try:
            blocks = blocks_of(run)
        except Exception as error:
            blocks = [Note(f"{fault}: {error}")]
        several = len(groups) > 1 or len(group.runs) > 1
        section.blocks += [Heading(run.name), *blocks] if blocks and several else blocks
    return [section] if section.blocks else []


def count(value: Any) -> Cell:
    """Make the cell of a whole number, in full."""
    return Cell(f"{value:,}", value) if isinstance(value, int) else Cell("-")


def number(value: float | None, detail: str = "") -> Cell:
    """Make the cell of a score or another number; "-" for NaN."""
    text = score_text(value)
    return Cell(text, None if text == "-" else value, detail)


def scored(score: Estimate) -> Cell:
    """Make the cell of a score, with its interval if it has one."""
    return number(score.value, interval_text(score))
