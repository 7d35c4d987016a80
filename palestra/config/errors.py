"""What a user reads when a config is wrong: all errors at once, one line each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher


@dataclass(frozen=True)
class ConfigErrorItem:
    """One thing wrong with a config.

    `path` is the dotted path as an override would write it (`players.host.algorithm.gamma`, `evaluations.0.num_games`);
    the file's name where the file itself cannot be read; empty where the config as a whole is at fault.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(ValueError):
    """Everything that is wrong with a config; its text has one unwrapped line per error.

    A validator may raise it too, to name a place below its own model: its paths are then relative to that model.
    """

    def __init__(self, errors: Sequence[ConfigErrorItem]) -> None:
        super().__init__(errors)
        self.errors = list(errors)

    def __str__(self) -> str:
        return "\n".join(" ".join(str(error).splitlines()) for error in self.errors)


def likeness(word: str, other: str) -> float:
    """How alike two words are, 0..1; upper and lower case count as the same."""
    return SequenceMatcher(None, word.lower(), other.lower()).ratio()


def nearest(word: str, known: Iterable[str], at_least: float = 0.6) -> str | None:
    """The known word most like `word`, or None if none is at least that alike."""
    best = max(known, key=lambda other: likeness(word, other), default=None)
    return best if best is not None and likeness(word, best) >= at_least else None


def shown(value: object) -> str:
    """A value as an error message quotes it: as YAML would write it, long ones cut, containers by kind."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def listed(values: Iterable[object]) -> str:
    """Values in a row, for a message: `'dqn', 'ppo'`."""
    return ", ".join(shown(value) for value in values)
