"""Lines of a screen, made of rich's segments, because rich's own tables would take ten times as long to draw."""

from collections.abc import Sequence
from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from palestra.recording.results import printable

Line = list[Segment]
ASCII = str.maketrans("▁▂▃▄▅▆▇█━╸╭╮╰╯─│·±…", "_.,-~=^#=-++++-|-~.")

_style = lru_cache(Style.parse)


def piece(text: str, style: str = "") -> Segment:
    """Make a piece of a line. style: as rich writes them, for instance "bold red"."""
    return Segment(printable(text), _style(style) if style else None)


fitted = Segment.adjust_line_length  # cuts a line off, or fills it with spaces, to a width


def shortened(text: str, width: int) -> str:
    """Return at most `width` characters of a text, with … where some are left out."""
    return text if cell_len(text) <= width else text[: max(width - 1, 0)] + "…"


def row(cells: Sequence[Segment], widths: Sequence[int]) -> Line:
    """Set cells side by side. widths: of the cells; a negative one aligns its cell to the right."""
    line: Line = []
    for cell, width in zip(cells, widths, strict=True):
        shown = shortened(cell.text, abs(width))
        space = " " * (abs(width) - cell_len(shown))
        line += [Segment(space + shown if width < 0 else shown + space, cell.style), Segment(" ")]
    return line


def bar(share: float, width: int, style: str) -> Line:
    """Draw a bar of which a share, 0 to 1, is full."""
    halves = int(2 * share * width + 1e-9)
    full = "━" * (halves // 2) + "╸" * (halves % 2)
    return [piece(full, style), piece("─" * (width - len(full)), "bright_black")]


def joined(texts: Sequence[Line], width: int) -> Line:
    """Set texts side by side, as many as fit whole."""
    line: Line = []
    for text in texts:
        longer = [*line, *([Segment("   ")] if line else []), *text]
        if sum(segment.cell_length for segment in longer) > width:
            break
        line = longer
    return line


def spread(sections: Sequence[list[Line]], height: int) -> list[Line]:
    """Join sections one below the other, with a blank line between two as long as `height` leaves room."""
    num_blanks = max(0, height - sum(map(len, sections)))
    lines: list[Line] = []
    for section in filter(None, sections):
        if lines and num_blanks:
            num_blanks -= 1
            lines.append([])
        lines += section
    return lines


def bordered(lines: Sequence[Line], title: Line, subtitle: Line, width: int) -> list[Line]:
    """Draw a border around lines, `width` wide, with a title above and a subtitle below."""
    side = piece("│", "bright_black")
    inside = [[side, Segment(" "), *fitted(line, width - 4), Segment(" "), side] for line in lines]
    return [_edge("╭─ ", title, "─╮", width, False), *inside, _edge("╰─", subtitle, " ─╯", width, True)]


def _edge(left: str, words: Line, right: str, width: int, words_last: bool) -> Line:
    words = [segment for segment in words if segment.text]
    room = width - len(left) - len(right) - 1
    length = min(sum(segment.cell_length for segment in words), room)
    rule = piece("─" * (room - length), "bright_black")
    middle = (
        [rule, Segment(" "), *fitted(words, length)] if words_last else [*fitted(words, length), Segment(" "), rule]
    )
    return [piece(left, "bright_black"), *middle, piece(right, "bright_black")]


def in_ascii(line: Line) -> Line:
    """Replace the characters of a line that some terminals do not know."""
    return [Segment(text.translate(ASCII).encode("ascii", "replace").decode(), style) for text, style, _ in line]
