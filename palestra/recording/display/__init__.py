"""What a user sees while a run goes: a live screen, plain lines, or only errors.

The live screen is drawn on a terminal and in a notebook; elsewhere lines are printed. A display is handed plain data
(`Progress`) and knows nothing of the trainer. It never stops a run: odd values are drawn as they are, and a drawing
that fails is left out and reported once.
"""

import os
from typing import Literal

from rich.console import Console

from palestra.recording.display.display import Display as Display
from palestra.recording.display.display import PlainDisplay
from palestra.recording.display.live import LiveDisplay
from palestra.recording.display.regions import Cell


def make_display(mode: Literal["auto", "plain", "quiet"], console: Console) -> Display:
    """Make a display: with `auto` a live one on a terminal that can draw it and in a notebook, else one of plain lines.

    A quiet console shows nothing but errors.
    """
    if mode == "quiet" or console.quiet:
        return Display(console)
    if mode == "auto" and console.is_jupyter:
        return LiveDisplay(console, is_ascii=False, region=Cell())
    if mode == "plain" or not can_draw(console):
        return PlainDisplay(console)
    return LiveDisplay(console, needs_ascii(console))


def can_draw(console: Console) -> bool:
    """Return whether a console is a terminal on which lines can be drawn in place."""
    return console.is_terminal and not console.is_dumb_terminal and not console.legacy_windows


def needs_ascii(console: Console) -> bool:
    """Return whether a terminal may lack the characters of lines and bars."""
    locale = os.environ.get("LC_ALL") or os.environ.get("LANG")
    return locale in ("C", "POSIX") or not console.encoding.startswith("utf")
