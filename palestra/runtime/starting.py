"""The imports of torch and numba, which take most of the time of a start: a message, and no garbage collection."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

IMPORTING = "importing PyTorch and numba; this takes some two seconds, the first time more"


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector inside the block.

    While torch is imported it would search all earlier imports a dozen times, and find nothing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def importing(console: "Console") -> Iterator[None]:
    """Print that the imports inside the block take a while, and exempt their objects from garbage collection.

    Does nothing if torch is imported already. On a terminal the line is removed afterwards.
    """
    if "torch" in sys.modules:
        yield
        return
    from rich.control import Control
    from rich.segment import ControlType

    is_drawn = console.is_terminal and not console.is_dumb_terminal
    console.print(IMPORTING, end="" if is_drawn else "\n")
    try:
        with without_garbage_collection():
            yield
    finally:
        if is_drawn:
            console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
    gc.freeze()
