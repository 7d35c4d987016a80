"""What a user sees while a run goes: a live frame on a terminal and in a notebook, plain lines elsewhere, only errors
when quiet.

A display is handed plain data (`Progress`) and knows nothing of the trainer. It never stops a run: odd values are drawn
as they are, and a frame that fails is left out and reported once.
"""

import os
from typing import Literal

from rich.console import Console

from palestra.recording.display.live import LiveDisplay
from palestra.recording.display.notebook import Cell
from palestra.recording.display.plain import PlainDisplay
from palestra.recording.display.quiet import Display, QuietDisplay


def make_display(mode: Literal["auto", "plain", "quiet"], console: Console) -> Display:
    """`auto`: live on a terminal that can draw it and in a notebook, plain lines elsewhere.

    A quiet console shows nothing but errors.
    """
    if mode == "quiet" or console.quiet:
        return QuietDisplay(console)
    if mode == "auto" and console.is_jupyter:
        return LiveDisplay(console, is_ascii=False, region=Cell())
    if mode == "plain" or not can_draw(console):
        return PlainDisplay(console)
    return LiveDisplay(console, needs_ascii(console))


def can_draw(console: Console) -> bool:
    """Whether it is a terminal on which lines can be drawn in place."""
    return console.is_terminal and not console.is_dumb_terminal and not console.legacy_windows


def needs_ascii(console: Console) -> bool:
    """Whether a terminal may lack the characters of lines and bars."""
    locale = os.environ.get("LC_ALL") or os.environ.get("LANG")
    return locale in ("C", "POSIX") or not console.encoding.startswith("utf")
