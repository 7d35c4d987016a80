"""What every display does, and the one that shows errors alone."""

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console

from palestra.recording.results import Progress, plain_ascii
from palestra.storage.secrets import redacted


class Display(Protocol):
    """Shows a run's progress, in a `with` block. has_summary: whether the run's summary is printed below it."""

    has_summary: bool

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, progress: Progress) -> None:
        """Take note of the present state; cheap."""

    def log(self, line: str) -> None:
        """Show a line that stays."""

    def warn(self, line: str) -> None:
        """Show a line that stays, and stays in sight."""

    def error(self, line: str) -> None:
        """The same; even a quiet display shows it."""

    def close(self) -> None:
        """Show the last state and let go of the terminal; again is no error."""


class QuietDisplay:
    """Errors only; on stderr where the console itself is quiet."""

    has_summary = False

    def __init__(self, console: Console) -> None:
        self._console = Console(stderr=True) if console.quiet else console

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def update(self, progress: Progress) -> None:
        pass

    def log(self, line: str) -> None:
        pass

    def warn(self, line: str) -> None:
        self.log(f"warning: {line}")

    def error(self, line: str) -> None:
        self._console.out("error:", plain_ascii(redacted(line)), highlight=False)

    def close(self) -> None:
        pass
