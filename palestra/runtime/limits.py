"""Recognizes that a machine lacks memory, open files or a compiler, which libraries report by many exceptions.

Also that it takes no output.
"""

import errno
import os
import re
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

SHORT_OF_MEMORY = re.compile(
    "allocate|out of memory|overflowed with sizes|integer multiplication overflow|Overflow when unpacking"
    "|too (?:big|large) to convert|index-sized"
)
STDOUT = "standard output"
NO_MORE_FILES = (errno.EMFILE, errno.ENFILE)


def is_short_of_memory(error: BaseException) -> bool:
    """Return whether an error says that there is not enough memory, or that a size is too large for any memory."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    has_words = isinstance(error, RuntimeError | OverflowError | TypeError)
    return isinstance(error, MemoryError) or (has_words and SHORT_OF_MEMORY.search(str(error)) is not None)


def lack(error: BaseException) -> str | None:
    """Return a line for an error that is a lack of memory, or that a lack of open files or of a compiler caused.

    So it is where standard output could not be written (`GuardedOutput`). It is None for any other error.
    """
    if isinstance(error, OSError) and error.filename == STDOUT:
        return f"{STDOUT} cannot be written: {error.strerror}"
    each: BaseException | None = error
    while each is not None:
        if type(getattr(each, "inner_exception", each)).__name__ == "InvalidCxxCompiler":
            needs = "needs a C++ compiler, and this machine has none: g++, or the one named by CXX"
            return f"execution.compile=true {needs}"
        if isinstance(each, OSError | ImportError) and (
            getattr(each, "errno", None) in NO_MORE_FILES or "Too many open files" in str(each)
        ):
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            return f"this process may open {most} files at a time (ulimit -n), and needs more: {_first_line(each)}"
        each = each.__cause__ or each.__context__
    if is_short_of_memory(error):
        needs = "smaller counts need less, as num_worlds, rollout_length, batch_size, num_games"
        return f"there is not enough memory: {_first_line(error)}; {needs}"
    return None


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


@contextmanager
def memory_needed(path: str) -> Iterator[None]:
    """Turn a lack of memory inside the block into a ConfigError at a path."""
    try:
        yield
    except Exception as error:
        if not is_short_of_memory(error):
            raise
        from palestra.config import ConfigError

        message = f"expected a smaller number, because this does not fit in memory: {_first_line(error)}"
        raise ConfigError.at(path, message) from error


class GuardedOutput:
    """Stands in for a standard stream; what comes after a failure to write is dropped.

    refused: called when writing fails; None: this raises an OSError that names STDOUT.
    """

    def __init__(self, file: Any, refused: Callable[[OSError], None] | None = None) -> None:
        self._file, self._refused = file, refused

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "GuardedOutput":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    @property
    def buffer(self) -> "GuardedOutput":
        return GuardedOutput(self._file.buffer, self._refused)

    def write(self, text: str | bytes) -> int:
        if text != "":  # by which click tries what a stream takes, and drops the error
            self._call(self._file.write, text)
        return len(text)

    def writelines(self, lines: Iterable[str | bytes]) -> None:
        self._call(self._file.writelines, lines)

    def flush(self) -> None:
        self._call(self._file.flush)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            function(*arguments)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._file.fileno())  # else the interpreter's last flush fails
            if self._refused is None:
                raise OSError(error.errno, error.strerror, STDOUT) from error
            self._refused(error)
