"""An output of a notebook's cell, drawn again and again in place."""

import io
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.segment import SegmentLines

from palestra.recording.display.lines import Line

WIDTH, HEIGHT = 100, 40  # of a frame, in characters: a cell has no size of its own
HTML = '<pre style="white-space: pre; overflow-x: auto; line-height: normal; font-family: monospace">{code}</pre>'


class Cell:
    """The frame's place in a notebook. What is printed meanwhile goes into the text of the cell, as ever."""

    size = (WIDTH, HEIGHT)

    def __init__(self) -> None:
        self._handle: Any = None
        self._frame = ""

    def hold(self) -> None:
        """From the thread that runs the cell, because the output appears in that."""
        from IPython.display import display

        self._handle, self._frame = display({"text/plain": ""}, raw=True, display_id=True), ""

    def release(self) -> None:
        """What was drawn last stays."""

    def draw(self, lines: Sequence[Line], width: int) -> None:
        """The frame from now on. Of any thread."""
        console = Console(file=io.StringIO(), width=width, record=True, force_jupyter=False, legacy_windows=False)
        console.print(SegmentLines(lines, new_lines=True), end="", soft_wrap=True)
        frame = console.export_html(inline_styles=True, code_format=HTML, clear=False)
        if frame != self._frame:
            self._handle.update({"text/plain": console.export_text(), "text/html": frame}, raw=True)
            self._frame = frame

    def print_above(self, text: str) -> None:
        """text: whole lines."""
        print(text, end="", flush=True)
