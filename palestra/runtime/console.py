"""Makes texts that others may have written safe for a terminal, such as the names and errors of a stored run.

No text moves the cursor, colours, hides or reorders what is shown, or sets the terminal's title.
"""

import errno
import os
import signal
import sys
import unicodedata
from collections.abc import Iterable
from typing import Any, NoReturn, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from palestra.runtime.signals import stop

CLOSED_PIPE = 128 + signal.SIGPIPE
"""the exit code if whoever reads the output has left, as `head` does"""


def visible(text: str, kept: str = "") -> str:
    r"""Replace what is no letter, sign or space by escapes such as \x1b.

    These are control characters, those that set the direction of writing, and bytes that are no UTF-8. kept: characters
    that stay.
    """
    if text.isprintable():
        return text
    return "".join(
        each
        if each.isprintable() or each in kept or unicodedata.category(each) == "Zs"
        else each.encode("unicode_escape").decode()
        for each in text
    )


class VisibleConsole(Console):
    """Prints texts as they are, `[markup]` and `:emoji:` included, and visibly; colours come from styles alone.

    Where nobody reads any more, as after `tee` has ended, or the disk of a file is full, a run stops as at a signal, so
    that it is saved.
    """

    def __init__(self, stderr: bool = False, quiet: bool = False, soft_wrap: bool = False) -> None:
        super().__init__(stderr=stderr, quiet=quiet, soft_wrap=soft_wrap, markup=False, emoji=False, highlight=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text, kept="\n\t"), style, control)

    def __exit__(self, *raised: Any) -> None:
        try:
            super().__exit__(*raised)
        except OSError as error:
            self.quiet, name = True, "stderr" if self.stderr else "stdout"
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())  # else the interpreter's last flush fails
            if stop(signal.SIGPIPE):
                if error.errno != errno.EPIPE:
                    print(f"{name}: {error.strerror}", file=sys.stderr)
            elif error.errno == errno.EPIPE:
                raise SystemExit(CLOSED_PIPE) from None
            else:
                raise OSError(error.errno, error.strerror, name) from None

    def on_broken_pipe(self) -> NoReturn:
        raise


class VisibleFile:
    """A file that writes texts visibly to a terminal."""

    def __init__(self, terminal: TextIO) -> None:
        self.terminal = terminal

    def write(self, text: str) -> int:
        return self.terminal.write(visible(text, kept="\n\t"))
