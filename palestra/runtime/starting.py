"""Importing, which takes most of a start: without searches for garbage, and told."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

IMPORTING = "importing PyTorch and numba; this takes some two seconds, the first time more"


@contextmanager
def uncollected() -> Iterator[None]:
    """No search for garbage: while torch is imported it would walk a dozen times over all that was imported before, and
    find none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def importing(console: "Console") -> Iterator[None]:
    """Around the heavy imports of a command: say that they take a while, and let no search for garbage walk over what
    they leave. Nothing of this where they are done. On a terminal the line goes again."""
    if "torch" in sys.modules:
        yield
        return
    from rich.control import Control
    from rich.segment import ControlType

    is_drawn = console.is_terminal and not console.is_dumb_terminal
    console.print(IMPORTING, end="" if is_drawn else "\n")
    try:
        with uncollected():
            yield
    finally:
        if is_drawn:
            console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
    gc.freeze()
