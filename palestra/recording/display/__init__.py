"""What a user sees while a run goes: a live frame on a terminal, plain lines elsewhere, only errors when quiet.

A display is handed plain data (`Progress`) and knows nothing of the trainer. It never stops a run: odd values are drawn
as they are, and a frame that fails is left out and reported once.
"""

import os
from typing import Literal

from rich.console import Console

from palestra.recording.display.live import LiveDisplay
from palestra.recording.display.plain import PlainDisplay
from palestra.recording.display.quiet import Display, QuietDisplay


def make_display(mode: Literal["auto", "plain", "quiet"], console: Console) -> Display:
    """`auto`: live on a terminal that can draw it, plain lines elsewhere. A quiet console shows nothing but errors."""
    if mode == "quiet" or console.quiet:
        return QuietDisplay(console)
    can_draw = console.is_terminal and not console.is_dumb_terminal and not console.legacy_windows
    if mode == "plain" or not can_draw:
        return PlainDisplay(console)
    locale = os.environ.get("LC_ALL") or os.environ.get("LANG")
    return LiveDisplay(console, is_ascii=locale in ("C", "POSIX") or not console.encoding.startswith("utf"))
