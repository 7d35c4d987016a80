"""Ends a command that cannot do what it is asked: with a line on stderr, and an exit code."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from palestra.commands.shell import CLOSED_PIPE
from palestra.runtime.console import VisibleConsole
from palestra.runtime.limits import lack
from palestra.runtime.starting import importing

silent = VisibleConsole(quiet=True)
errors = VisibleConsole(stderr=True, soft_wrap=True)

UNREACHED = (errno.ESTALE, errno.ENOTCONN, errno.ESHUTDOWN, errno.ETIMEDOUT)  # of a disk behind a network
REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, *UNREACHED)


@contextmanager
def one_line_errors(quiet: bool = True) -> Iterator[None]:
    """Print each error as one line without a traceback: exit code 2 for a user's mistake, 1 for a failed run.

    quiet: do not show that palestra is importing; for commands that only print an answer.
    """
    with _telling_ranks(), importing(silent if quiet else errors):
        import palestra.training.training  # noqa: F401 (it imports much of what commands do)
        from palestra.config import Failed
        from palestra.storage.disk import staying_here
        from palestra.storage.stored_files import MissingCheckpointError
        from palestra.training.processes import ProcessLost

    with one_line_errors_of_reading(), staying_here():
        try:
            with _telling_ranks(typer.Exit, ProcessLost):
                yield
        except MissingCheckpointError as error:
            raise _told(error, 2) from None
        except Failed as error:
            raise _told(error, 1) from None


@contextmanager
def _telling_ranks(*known: type[Exception]) -> Iterator[None]:
    """Let the other processes of a run, who may wait for this one to begin, know why it fails. known: need no word."""
    try:
        yield
    except known:
        raise
    except Exception as error:
        from palestra.scaling.ranks import Ranks

        Ranks.here().tell_failure(error)
        raise


@contextmanager
def one_line_errors_of_reading() -> Iterator[None]:
    """Do as `one_line_errors`, for commands that only read configs and folders; torch is not imported."""
    from palestra.config import ConfigError, UntrustedError
    from palestra.config.own_classes import own_frames, raised
    from palestra.storage.disk import RunFolderError

    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the interpreter's last flush fails
        raise typer.Exit(CLOSED_PIPE) from None
    except (ConfigError, RunFolderError, UntrustedError) as error:
        raise _told(error, 2) from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno in REFUSALS:
            raise _told(error, 1, f"the disk refuses: {error}") from None
        if isinstance(error, typer.Exit) or not (lack(error) or own_frames(error)):
            raise
        raise _told(error, 1, lack(error) or raised(error)) from None


def load(stored: Any, checkpoint: str) -> None:
    """Load a checkpoint of a stored run, and say which damaged ones were skipped."""
    stored.load(checkpoint)
    for line in stored.warnings:
        errors.print(line)


def _told(error: Exception, code: int, text: str | None = None) -> typer.Exit:
    """Print an error; returns the exit. code: the exit code, but 1 where it is the machine that lacks something.

    text: what is printed; None: the error itself.
    """
    from palestra.storage.secrets import redacted

    lacking = lack(error)
    errors.print(redacted(lacking or text or str(error)))
    return typer.Exit(1 if lacking else code)
