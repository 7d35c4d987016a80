"""The error that names everything that is wrong with a config, one line each, and the words of its messages."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Self

from palestra.config.base import Config, walk

GLUED = re.compile(r"[A-Za-z_]\w*:[^\s/].*")
"""A key and its value without a space between them; or package.module:Class"""
DECIMAL_COMMA = re.compile(r"[-+]?[0-9]+,[0-9]+")


@dataclass(frozen=True)
class ConfigErrorItem:
    """One thing wrong with a config.

    `path` is the dotted path as an override would write it (`players.host.algorithm.gamma`, `evaluations.0.num_games`);
    the file's name if the file itself cannot be read; empty if the error concerns the config as a whole.
    """

    path: str
    message: str

    @property
    def is_about_a_key(self) -> bool:
        """Whether a key is missing, or is unknown."""
        return self.message.startswith("unknown key") or self.message.endswith("missing")

    @property
    def is_about_code(self) -> bool:
        """Whether code of the user's own is missing, or fails when it is imported."""
        return self.message.startswith(("importing ", "expected a class of module", "expected a function of module"))

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class Failed(Exception):
    """Something has failed that is no mistake in a config; the message says it in a line."""


class ConfigError(ValueError):
    """Everything that is wrong with a config; its text has one unwrapped line per error.

    A validator may raise it too, to name a key below its own model; its paths are then relative to that model.
    """

    def __init__(self, errors: Sequence[ConfigErrorItem]) -> None:
        super().__init__(errors)
        self.errors = list(errors)

    @classmethod
    def at(cls, path: str, message: str) -> Self:
        """Make the error with one fault, at a dotted path."""
        return cls([ConfigErrorItem(path, message)])

    @staticmethod
    def require_none(errors: Iterable[ConfigErrorItem]) -> None:
        """Raise a ConfigError with these faults, each once, if there are any."""
        if faults := list(dict.fromkeys(errors)):
            raise ConfigError(faults)

    def __str__(self) -> str:
        return "\n".join(" ".join(str(error).splitlines()) for error in self.errors)


class MissingExtra(ConfigError):
    """A part of a config needs a package that is not installed: nothing else is known of the part."""


class PartError(ConfigError):
    """The faults of one part of a config that appear only when the part is built.

    Its paths are relative to the part.
    """

    def __init__(self, part: object, errors: Sequence[ConfigErrorItem]) -> None:
        super().__init__(errors)
        self.part = part

    def within(self, whole: Config, path: str) -> ConfigError:
        """Give the errors their full paths. whole: the config that contains the part. path: the path of `whole`."""
        place = next((keys for keys, value in walk(whole) if value is self.part), ())
        return ConfigError(moved(self.errors, (path, *place)))


@contextmanager
def below(path: str) -> Iterator[None]:
    """Put `path` before the paths of a ConfigError that is raised inside this context."""
    try:
        yield
    except ConfigError as error:
        kind = MissingExtra if isinstance(error, MissingExtra) else ConfigError
        raise kind(moved(error.errors, (path,))) from error


def moved(errors: Sequence[ConfigErrorItem], keys: tuple[str, ...]) -> list[ConfigErrorItem]:
    """The errors with `keys` before their paths."""
    return [ConfigErrorItem(".".join(filter(None, (*keys, error.path))), error.message) for error in errors]


# ---- the words of messages ---------------------------------------------------------------------------


def likeness(word: str, other: str) -> float:
    """The likeness of two words, 0..1, without regard to case."""
    return SequenceMatcher(None, word.lower(), other.lower()).ratio()


def initials(key: str) -> str | None:
    """The initials of a key of several words, such as `lr` for `learning_rate`; None for a key of one word."""
    words = key.split("_")
    return "".join(word[:1] for word in words) if len(words) > 1 else None


def nearest(word: str, known: Iterable[str], at_least: float = 0.6) -> str | None:
    """The known word most similar to `word`, or None if the likeness of none reaches `at_least`.

    Words of up to three letters must begin alike: a2c is no misspelt sac.
    """
    if len(word) <= 3:
        known = [other for other in known if other[:1].lower() == word[:1].lower()]
    best = max(known, key=lambda other: likeness(word, other), default=None)
    return best if best is not None and likeness(word, best) >= at_least else None


def nearest_hint(word: str, known: Iterable[str]) -> str:
    """A hint at the known word that is probably meant; empty if none is like it."""
    near = nearest(word, known)
    return f"; did you mean {near!r}?" if near else ""


def shown(value: object) -> str:
    """A value as error messages quote it: as YAML would write it, long ones cut, containers by their type alone."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return cut(repr(value))


def cut(text: str, most: int = 80) -> str:
    """Return a text as error messages quote it: one that is longer ends in "..."."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def mapping_hint(value: object) -> str:
    """A hint for a text in place of a mapping: what it lacks if it looks like a key and its value; else empty."""
    return "; a key needs a space after its colon" if isinstance(value, str) and GLUED.fullmatch(value) else ""


def comma_hint(value: object) -> str:
    """A hint for a text in place of a number: how to write it if it has a decimal comma; else empty."""
    is_number = isinstance(value, str) and DECIMAL_COMMA.fullmatch(value)
    return f"; write {str(value).replace(',', '.')}, with a decimal point" if is_number else ""


def typed(value: object) -> str:
    """A value as messages quote it when its type is wrong: `the string 'x'`, `the integer 3`, `a list`, `null`."""
    name = {bool: "boolean", int: "integer", float: "float", str: "string"}.get(type(value))
    return shown(value) if name is None else f"the {name} {shown(value)}"


def enumerated(words: Sequence[str]) -> str:
    """Join words as a sentence does: `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def listed(values: Iterable[object]) -> str:
    """Join values by commas, as a message quotes them: `'dqn', 'ppo'`."""
    return ", ".join(shown(value) for value in values)
