"""What a run has taken over of weights that were learned elsewhere, in words and as a record."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from palestra.config import ConfigError
from palestra.storage.disk import RunFolderError
from palestra.storage.stored_files import NOT_OURS, CheckpointError

MOST_NAMED = 6  # weights or networks that a line names


class Beginning(Protocol):
    """What a run has begun with besides its config."""

    def line(self) -> str:
        """Say it in a line."""

    def record(self) -> dict[str, Any]:
        """Return the record of the run that says it."""


@dataclass(frozen=True)
class WarmStart:
    """What a run has taken over when it began.

    who: begins with it. source: where it comes from. taken, left: names of weights, of a player those of networks.
    """

    who: str
    source: str
    taken: list[str]
    left: list[str]

    def line(self) -> str:
        left = f"; not taken: {_listed(self.left)}" if self.left else ""
        return f"{self.who} begins with {self.source}; taken: {_listed(self.taken)}{left}"

    def record(self) -> dict[str, Any]:
        return {"kind": "warm_start", **asdict(self)}


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


@contextmanager
def errors_at(path: str, expected: str, got: str = "others") -> Iterator[None]:
    """A context that turns errors about a model or player of another run into a ConfigError at this path of the config.

    expected, got: what it should be, and what it is, for weights that do not fit.
    """
    try:
        yield
    except (RunFolderError, CheckpointError, ConfigError) as error:
        raise ConfigError.at(path, str(error)) from error
    except NOT_OURS as error:  # torch raises RuntimeError if shapes differ
        raise ConfigError.at(path, f"expected {expected}, got {got}: {error}") from error
