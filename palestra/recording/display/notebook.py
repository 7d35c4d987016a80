"""An output of a notebook's cell that is drawn again and again in place."""

import io
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.segment import SegmentLines

from palestra.recording.display.lines import Line

WIDTH, HEIGHT = 100, 40  # of a screen, in characters: a cell has no size of its own
HTML = '<pre style="white-space: pre; overflow-x: auto; line-height: normal; font-family: monospace">{code}</pre>'


class Cell:
    """The place of the screen in a notebook. What is printed meanwhile goes into the text of the cell, as ever."""

    size = (WIDTH, HEIGHT)

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn = ""

    def hold(self) -> None:
        """Make the output.

        The thread that runs the cell must call it, because the output appears in that thread's cell.
        """
        from IPython.display import display

        self._handle, self._drawn = display({"text/plain": ""}, raw=True, display_id=True), ""

    def release(self) -> None:
        """Do nothing: what was drawn last stays."""

    def draw(self, lines: Sequence[Line], width: int) -> None:
        """Replace the drawn lines. Any thread may call it."""
        console = Console(file=io.StringIO(), width=width, record=True, force_jupyter=False, legacy_windows=False)
        console.print(SegmentLines(lines, new_lines=True), end="", soft_wrap=True)
        drawn = console.export_html(inline_styles=True, code_format=HTML, clear=False)
        if drawn != self._drawn:
            self._handle.update({"text/plain": console.export_text(), "text/html": drawn}, raw=True)
            self._drawn = drawn

    def print_above(self, text: str) -> None:
        """Print a text of whole lines."""
        print(text, end="", flush=True)
