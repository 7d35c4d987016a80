"""Makes texts that others may have written safe for a terminal, such as the names and errors of a stored run.

No text moves the cursor, colours, hides or reorders what is shown, or sets the terminal's title.
"""

import unicodedata
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment


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
    """Prints texts as they are, `[markup]` and `:emoji:` included, and visibly; colours come from styles alone."""

    def __init__(self, stderr: bool = False, quiet: bool = False, soft_wrap: bool = False) -> None:
        super().__init__(stderr=stderr, quiet=quiet, soft_wrap=soft_wrap, markup=False, emoji=False, highlight=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text, kept="\n\t"), style, control)


class VisibleFile:
    """A file that writes texts visibly to a terminal."""

    def __init__(self, terminal: TextIO) -> None:
        self.terminal = terminal

    def write(self, text: str) -> int:
        return self.terminal.write(visible(text, kept="\n\t"))
