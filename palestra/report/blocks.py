"""What a report is made of: sections of blocks, plain data that page.html turns into HTML."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from palestra.recording.results import Score, score_text
from palestra.report.figures import Drawn


@dataclass(frozen=True)
class Cell:
    """Of a table. value: the number as it was recorded, beside the text that a reader sees. heat: 0..1, a colour."""

    text: str
    value: float | None = None
    detail: str = ""  # in small type after the text
    heat: float | None = None


@dataclass(frozen=True)
class Table:
    """The first cell of each row names it. is_heat: a map of colours."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    is_heat: bool = False
    kind: str = "table"

    def is_of_numbers(self, column: int) -> bool:
        return any(row[column].value is not None for row in self.rows)


@dataclass(frozen=True)
class Note:
    """A sentence or more. is_warning: it is not as it should be."""

    text: str
    is_warning: bool = False
    kind: str = "note"


@dataclass(frozen=True)
class Heading:
    text: str
    kind: str = "heading"


@dataclass(frozen=True)
class Captioned:
    """A figure, and its numbers as a table."""

    drawn: Drawn
    numbers: Table | None


@dataclass(frozen=True)
class FigureGrid:
    """is_wide: one above the other, as wide as may be."""

    figures: Sequence[Captioned]
    is_wide: bool = False
    kind: str = "figures"


@dataclass(frozen=True)
class Legend:
    """Which colour is whose: the numbers of the series, and names."""

    entries: Sequence[tuple[int, str]]
    kind: str = "legend"


@dataclass(frozen=True)
class Facts:
    entries: Sequence[tuple[str, str]]
    kind: str = "facts"


@dataclass(frozen=True)
class Code:
    """A text as it stands in a file, folded."""

    title: str
    text: str
    kind: str = "code"


@dataclass(frozen=True)
class Picture:
    """image: an element of the page that says what it shows."""

    image: Markup
    caption: str


@dataclass(frozen=True)
class Strip:
    """Pictures side by side, in an order."""

    title: str
    pictures: Sequence[Picture]
    kind: str = "strip"


Block = Table | Note | Heading | FigureGrid | Legend | Facts | Code | Strip


@dataclass
class Section:
    """name: what links point to."""

    name: str
    title: str
    blocks: list[Block] = field(default_factory=list)


def count(value: Any) -> Cell:
    """A whole number, in full."""
    return Cell(f"{value:,}", value) if isinstance(value, int) else Cell("-")


def number(value: float | None, detail: str = "") -> Cell:
    """A score or another number; "-" for NaN."""
    text = score_text(value)
    return Cell(text, None if text == "-" else value, detail)


def scored(score: Score) -> Cell:
    """A score with its interval, where there is one."""
    text = f"[{score_text(score.low)}, {score_text(score.high)}]"
    return number(score.value, "" if "-" in (score_text(score.low), score_text(score.high)) else text)
