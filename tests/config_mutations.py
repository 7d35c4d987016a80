"""Breaks a valid config in every place, and asserts that each break is told by its dotted path.

assert_every_mutation_is_told(load_yaml(Path("configs/dqn-polyhedra.yml")), RunConfig)
"""

import copy
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from palestra.config import Config, ConfigError, check

UNKNOWN_KEY = "zzz_unknown"
WRONG_EVERYWHERE = [[[]]]
Place = tuple[str, ...]


class Mutation(NamedTuple):
    """One break: what was done (`delete`, `add`, `replace`), the dotted path where, and the broken data."""

    deed: str
    path: str
    data: Any

    def is_told_by(self, path: str, message: str) -> bool:
        """Whether an error names the place, and what would be right there."""
        told_here = path == self.path
        if self.deed == "delete":  # where any one of several keys would do, the message names them all
            told_here = told_here or re.search(rf"(^|\s){re.escape(self.path)}\b", message) is not None
            told_here = told_here or (path == self.path.rpartition(".")[0] and "of length >= 1" in message)
        if self.deed in ("add", "replace"):  # what is wrong may be told below the place
            told_here = told_here or path.startswith(f"{self.path}.")
        return told_here and re.search("expected|known|did you mean", message) is not None


def mutations(data: dict[str, Any], tried: set[Place]) -> Iterator[Mutation]:
    """Every key deleted, a key added to every mapping, and every value replaced by ones of a wrong type.

    tried: places of other configs, whose keys are checked by the same classes and need no other proof. Those of this
    one are added.
    """
    places = dict(_nodes(data, ()))
    new = [path for path in places if _place(data, path) not in tried]
    tried |= {_place(data, path) for path in new}
    for path in new:
        value = places[path]
        if isinstance(value, dict):
            yield _mutation("add", data, (*path, UNKNOWN_KEY), WRONG_EVERYWHERE)
        if path and isinstance(path[-1], str):
            yield _mutation("delete", data, path)
        for wrong in _wrong_values(value) if path else ():
            yield _mutation("replace", data, path, wrong)


def assert_every_mutation_is_told(data: dict[str, Any], model: type[Config], tried: set[Place] | None = None) -> None:
    """Each mutation of valid data raises ConfigError, and only that, with an error that names place and remedy.

    tried: as of `mutations`.
    """
    check(data, model)
    untold = []
    for mutation in mutations(data, set() if tried is None else tried):
        error = _error_of(mutation.data, model)
        lines = str(error).splitlines()
        is_told = any(mutation.is_told_by(item.path, item.message) for item in error.errors)
        if not is_told or len(lines) != len(error.errors):
            untold.append((mutation.deed, mutation.path, lines))
    assert not untold


def _error_of(data: Any, model: type[Config]) -> ConfigError:
    try:
        check(data, model)
    except ConfigError as error:
        return error
    return ConfigError([])


def _nodes(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield from _nodes(below, (*path, key))


def _place(data: dict[str, Any], path: tuple[str | int, ...]) -> Place:
    """What says which class checks the value at a path: the keys, the names of the sections, and what stands there."""
    value: Any = data
    place = list[str]()
    for key in path:
        place += [str(value.get("name")) if isinstance(value, dict) else "", str(key)]
        value = value[key]
    return (*place, str(value.get("name")) if isinstance(value, dict) else "", type(value).__name__)


def _wrong_values(value: Any) -> list[Any]:
    """Values that cannot stand where `value` stands, also where null or one of two types may."""
    if isinstance(value, list):
        return ["no such thing", {UNKNOWN_KEY: True}]
    if isinstance(value, dict):
        return ["no such thing", WRONG_EVERYWHERE]
    if isinstance(value, str):
        return [True, WRONG_EVERYWHERE, {UNKNOWN_KEY: True}]
    return [*(() if value is None else ("no such thing",)), WRONG_EVERYWHERE, {UNKNOWN_KEY: True}]


def _mutation(deed: str, data: dict[str, Any], path: tuple[str | int, ...], *value: Any) -> Mutation:
    data = copy.deepcopy(data)
    *parents, last = path
    container: Any = data
    for key in parents:
        container = container[key]
    if deed == "delete":
        del container[last]
    else:
        container[last] = copy.deepcopy(value[0])
    return Mutation(deed, ".".join(map(str, path)), data)
