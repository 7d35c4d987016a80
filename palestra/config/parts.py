"""Errors of a part of a config that appear only when the part is built, and the path where they lie."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from palestra.config.base import Config
from palestra.config.errors import ConfigError, ConfigErrorItem, MissingExtra

C = TypeVar("C", bound=Config)


class PartError(ConfigError):
    """What is wrong with one part of a config; its paths are relative to the part."""

    def __init__(self, part: object, errors: Sequence[ConfigErrorItem]) -> None:
        super().__init__(errors)
        self.part = part

    def within(self, whole: Config, path: str) -> ConfigError:
        """The same errors with full paths: `path` is the path of `whole`, the config that contains the part."""
        place = next((keys for keys, value in walk(whole, ()) if value is self.part), ())
        return ConfigError(_moved(self.errors, (path, *place)))


@contextmanager
def below(path: str) -> Iterator[None]:
    """Puts `path` before the paths of a ConfigError that is raised inside."""
    try:
        yield
    except ConfigError as error:
        kind = MissingExtra if isinstance(error, MissingExtra) else ConfigError
        raise kind(_moved(error.errors, (path,))) from error


def _moved(errors: Sequence[ConfigErrorItem], keys: tuple[str, ...]) -> list[ConfigErrorItem]:
    return [ConfigErrorItem(".".join(filter(None, (*keys, error.path))), error.message) for error in errors]


def walk(value: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All that a config is made of, each with the keys that lead there."""
    yield keys, value
    items: Any = ()
    if isinstance(value, Config | dict):
        items = dict(value).items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for key, inner in items:
        yield from walk(inner, (*keys, str(key)))


def replaced(config: C, path: str, value: Any) -> C:
    """A copy of a config with another value at a dotted path. The value is not checked."""
    copied: C = _replaced(config, path, value)
    return copied


def _replaced(container: Any, path: str, value: Any) -> Any:
    name, _, rest = path.partition(".")
    if isinstance(container, dict):
        return container | {name: _replaced(container[name], rest, value) if rest else value}
    return container.model_copy(update={name: _replaced(getattr(container, name), rest, value) if rest else value})
