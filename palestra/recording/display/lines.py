"""Lines of a frame, of rich's segments: its tables would take ten times as long."""

from collections.abc import Sequence
from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from palestra.recording.results import printable

Line = list[Segment]
ASCII = str.maketrans("▁▂▃▄▅▆▇█━╸╭╮╰╯─│·±…", "_.,-~=^#=-++++-|-~.")

_style = lru_cache(Style.parse)


def part(text: str, style: str = "") -> Segment:
    """A piece of a line; style: as rich writes them, as "bold red"."""
    return Segment(printable(text), _style(style) if style else None)


def fitted(line: Line, width: int) -> Line:
    """Cut off, or filled with spaces, to a width."""
    return Segment.adjust_line_length(line, width)


def shortened(text: str, width: int) -> str:
    """At most `width` characters of a text, with … where some are left out."""
    return text if cell_len(text) <= width else text[: max(width - 1, 0)] + "…"


def row(cells: Sequence[Segment], widths: Sequence[int], gap: int = 1) -> Line:
    """Cells side by side. widths: of those; a negative one: set right."""
    line: Line = []
    for cell, width in zip(cells, widths, strict=True):
        shown = shortened(cell.text, abs(width))
        space = " " * (abs(width) - cell_len(shown))
        filled = space + shown if width < 0 else shown + space
        line += [Segment(filled, cell.style), Segment(" " * gap)]
    return line


def bar(share: float, width: int, style: str) -> Line:
    """share: 0..1 of the width is full."""
    halves = int(2 * share * width + 1e-9)
    full = "━" * (halves // 2) + "╸" * (halves % 2)
    return [part(full, style), part("─" * (width - len(full)), "bright_black")]


def joined(texts: Sequence[Line], width: int) -> Line:
    """As many as fit whole, side by side."""
    line: Line = []
    for text in texts:
        longer = [*line, *([Segment("   ")] if line else []), *text]
        if sum(segment.cell_length for segment in longer) > width:
            break
        line = longer
    return line


def framed(lines: Sequence[Line], title: Line, subtitle: Line, width: int) -> list[Line]:
    """In a box of that width."""
    side = part("│", "bright_black")
    inside = [[side, Segment(" "), *fitted(line, width - 4), Segment(" "), side] for line in lines]
    return [_edge("╭─ ", title, "─╮", width, False), *inside, _edge("╰─", subtitle, " ─╯", width, True)]


def _edge(left: str, words: Line, right: str, width: int, words_last: bool) -> Line:
    words = [segment for segment in words if segment.text]
    room = width - len(left) - len(right) - 1
    length = min(sum(segment.cell_length for segment in words), room)
    rule = part("─" * (room - length), "bright_black")
    middle = (
        [rule, Segment(" "), *fitted(words, length)] if words_last else [*fitted(words, length), Segment(" "), rule]
    )
    return [part(left, "bright_black"), *middle, part(right, "bright_black")]


def in_ascii(line: Line) -> Line:
    """With characters that every terminal knows."""
    return [Segment(text.translate(ASCII).encode("ascii", "replace").decode(), style) for text, style, _ in line]
