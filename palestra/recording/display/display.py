"""What every display does."""

from typing import Self

from rich.console import Console

from palestra.recording.results import Progress, plain_ascii
from palestra.storage.secrets import redacted


class Closing:
    """An object for a `with` block, at whose end `close` is called."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Show the last state and let go of the terminal; a second call does nothing."""


class Display(Closing):
    """Shows a run's progress, in a `with` block: this one errors alone, on stderr where the console is quiet.

    has_summary: whether the run's summary is printed below it.
    """

    has_summary = False

    def __init__(self, console: Console) -> None:
        self._console = Console(stderr=True) if console.quiet else console

    def update(self, progress: Progress) -> None:
        """Take note of the present state; cheap."""

    def log(self, line: str) -> None:
        """Show a line that stays."""

    def warn(self, line: str) -> None:
        """Show a line that stays, and stays in sight."""
        self.log(f"warning: {line}")

    def error(self, line: str) -> None:
        """Show a line that stays, and stays in sight; even a quiet display shows it."""
        self._console.out("error:", plain_ascii(redacted(line)), highlight=False)
