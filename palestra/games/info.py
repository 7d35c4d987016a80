"""Reads the fields of the environments' `info` that somebody asked for, and leaves the rest alone.

Environments that step one by one, here or in processes of their own, give `GatheredInfos`: of every step the fields
asked for, read before the environment is called again, for it may write into what it gave. A reset is not a step, and
its info is not read.

An environment's own vector environment gives `infos` as those of gymnasium 1 do. `infos[name]` holds a value for every
world. If `infos["_" + name]` exists, it says which worlds have one. If worlds are reset in the same step, the fields of
a step that ends an episode lie below `infos["final_info"]`, and the others belong to the new episode.

Letters: B worlds.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple, Protocol

import numpy as np

Infos = Mapping[Any, Any]
NUMBERS = (int, float, bool)


class Fields(NamedTuple):
    """The fields asked for that one environment's `info` has at a step.

    values: by name, a number or an array of numbers; None of what is neither. names: of all fields, where one that was
    asked for has not come yet.
    """

    values: dict[str, Any]
    names: tuple[str, ...]


class FieldReader:
    """Reads the fields asked for from the info of one step after the other.

    A name leads to inner fields by slashes: episode/r.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.paths = {name: name.split("/") for name in names}
        self._missing, self._told = set(names), set[str]()

    def __call__(self, info: Infos) -> Fields:
        values = {}
        for name, (*outer, key) in self.paths.items():
            inner = _inner(info, outer)
            if key in inner and not isinstance(inner[key], Mapping):
                values[name] = _as_numbers(inner[key])
        new: set[str] = set()
        if self._missing:
            self._missing -= values.keys()
            new = set(_names(info)) - self._told
            self._told |= new
        return Fields(values, tuple(new))


class GatheredInfos(dict[str, Any]):
    """The infos of a step of environments that step one by one.

    They may have `final_obs`, an array of objects (B,): the last observations of episodes whose worlds begin anew in
    the same step. fields: those asked for, by world.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[int, Fields] = {}


class GathersInfo:
    """A vector environment of gymnasium that does not batch what its environments' `info` holds."""

    num_envs: int

    def _add_info(self, vector_infos: Any, env_info: Any, env_num: int) -> GatheredInfos:
        """Add the info of one environment; gymnasium calls this for each.

        env_info: Fields, what a worker that resets in the same step makes of these, or the info of a reset.
        """
        infos = vector_infos if isinstance(vector_infos, GatheredInfos) else GatheredInfos()
        fields = env_info
        if isinstance(env_info, dict):
            fields = env_info.get("final_info")
            if "final_obs" in env_info:
                last = infos.setdefault("final_obs", np.full(self.num_envs, None, dtype=object))
                last[env_num] = env_info["final_obs"]
        if isinstance(fields, Fields):
            infos.fields[env_num] = fields
        return infos


class Sums(Protocol):
    """What takes the fields of all steps, as palestra.recording.aggregates.Aggregates does."""

    def add(self, values: Mapping[str, Any]) -> None: ...
    def add_numbers(self, name: str, values: np.ndarray) -> None: ...
    def add_count(self, name: str, num: int) -> None: ...


class InfoFields:
    """Adds some fields of every step to `sums`.

    Those of all steps become info/NAME, those of steps that end an episode final_info/NAME, too. A NAME leads to inner
    fields by slashes: episode/r. Values that are no numbers, or have another shape than the first one, are left out,
    and counted as info/NAME/left_out.

    `news` names the fields that are missing or of which something was left out.
    """

    def __init__(self, names: Sequence[str], num_worlds: int, sums: Sums) -> None:
        self.paths = {name: name.split("/") for name in names}
        self.num_worlds, self.sums = num_worlds, sums
        self._missing, self._reported = set(names), set[str]()
        self._left_out: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}  # of the first values
        self._found: set[str] = set()  # all fields that steps had while one was missing

    def step(self, infos: Infos, valid: np.ndarray | None, ended: np.ndarray | None, is_same_step: bool) -> None:
        """Add the fields of one step.

        valid: bool (B,), the worlds that were stepped and not only reset; None: all. ended: bool (B,), the worlds whose
        episode the step has ended; None: none. is_same_step: whether new episodes have begun in these.
        """
        if self._missing:
            gathered = infos.fields.values() if isinstance(infos, GatheredInfos) else ()
            self._found.update(_names(infos), *(each.names for each in gathered))
        last, where = infos, valid
        is_apart = ended is not None and is_same_step and not isinstance(infos, GatheredInfos)
        if ended is not None and is_apart:
            last, where = _mapping(infos.get("final_info")), ~ended
        for name, path in self.paths.items():
            column = _column(infos, name, path, self.num_worlds)
            self._add_field(f"info/{name}", name, column, where)
            if ended is not None:
                if is_apart:
                    column = _column(last, name, path, self.num_worlds)
                    self._add_field(f"info/{name}", name, column, ended)
                self._add_field(f"final_info/{name}", name, column, ended)

    def news(self) -> Iterator[str]:
        """Give a line, once, for each field that no step has had so far, or of which something was left out."""
        for name in self.paths:
            if name in self._reported or name not in self._missing | self._left_out.keys():
                continue
            self._reported.add(name)
            if name in self._left_out:
                yield (
                    f"output.info: expected numbers of one shape in {name!r}, got {self._left_out[name]} other values; "
                    f"such values are left out, and counted as info/{name}/left_out"
                )
            else:
                there = f"the fields are: {', '.join(sorted(self._found))}" if self._found else "no step had any field"
                yield f"output.info: no step had the field {name!r}; {there}"

    def told(self) -> dict[str, Any]:
        """Return what `news` goes by, and forget what was left out: of an actor, for `join`."""
        left_out, self._left_out = self._left_out, {}
        return {"missing": sorted(self._missing), "left_out": left_out, "found": sorted(self._found)}

    def join(self, told: Mapping[str, Any]) -> None:
        """Take note of what an actor's object has told."""
        self._missing &= {*told["missing"]}
        self._found |= {*told["found"]}
        for name, num in told["left_out"].items():
            self._left_out[name] = self._left_out.get(name, 0) + num

    def _add_field(self, full_name: str, name: str, column: "_Column | None", where: np.ndarray | None) -> None:
        if column is None or not len(values := column.where(where)):
            return
        self._missing.discard(name)
        array, num_left_out = self._array(name, values)
        if num_left_out and full_name.startswith("info/"):
            self._left_out[name] = self._left_out.get(name, 0) + num_left_out
            self.sums.add_count(f"info/{name}/left_out", num_left_out)
        if not len(array):
            return
        if array.ndim == 1:
            self.sums.add_numbers(full_name, array)
        else:
            self.sums.add({full_name: array})

    def _array(self, name: str, values: list[Any] | np.ndarray) -> tuple[np.ndarray, int]:
        """Return the values that are numbers of the field's shape, and how many others there are."""
        array = _as_numbers(values)
        if array is not None and self._shapes.setdefault(name, array.shape[1:]) == array.shape[1:]:
            return array, 0
        if fits := [value for value in values if value is not None]:
            shape = self._shapes.setdefault(name, np.shape(fits[0]))
            fits = [value for value in fits if np.shape(value) == shape]
        return np.array(fits), len(values) - len(fits)


class StepInfo:
    """Some fields of the last step, one number for each world, as the games of an evaluation need them.

    A field of arrays or of anything else has no number.

    values: by name, the numbers, float64 (B,), and which worlds have one, bool (B,); of a field that no world has,
    nothing. A world whose step has ended its episode has the field of that step.
    """

    def __init__(self, names: Sequence[str], num_worlds: int) -> None:
        self.paths = {name: name.split("/") for name in names}
        self.num_worlds = num_worlds
        self.values: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def step(self, infos: Infos, valid: np.ndarray | None, ended: np.ndarray | None, is_same_step: bool) -> None:
        """Keep the fields of one step; the arguments are those of `InfoFields.step`."""
        self.values = {}
        for name, path in self.paths.items():
            numbers, has = self._numbers(_column(infos, name, path, self.num_worlds))
            if ended is not None and is_same_step and not isinstance(infos, GatheredInfos):
                last, has_last = self._numbers(_column(_mapping(infos.get("final_info")), name, path, self.num_worlds))
                numbers, has = np.where(ended, last, numbers), np.where(ended, has_last, has)
            if valid is not None:
                has = has & valid
            if has.any():
                self.values[name] = (numbers, has)

    def _numbers(self, column: "_Column | None") -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of a field, (B,), and which worlds have one, bool (B,)."""
        numbers, has = np.zeros(self.num_worlds), np.zeros(self.num_worlds, dtype=bool)
        if column is None:
            return numbers, has
        worlds, values = column.worlds, column.values
        if worlds is None:
            worlds, values = np.arange(self.num_worlds), list(values) * self.num_worlds
        if isinstance(values, list):
            fits = [value is not None and np.ndim(value) == 0 for value in values]
            worlds, values = worlds[fits], np.array([*compress(values, fits)])
        if values.ndim == 1:
            numbers[worlds], has[worlds] = values, True
        return numbers, has


class _Column(NamedTuple):
    """A field at one step.

    values: of the worlds that have one, in their order: an array of numbers (n, ...), or a list whose items are
    numbers, arrays of numbers, or None for what is neither. worlds: int (n,), which these are; a value for all worlds
    together has worlds of None.
    """

    values: list[Any] | np.ndarray
    worlds: np.ndarray | None

    def where(self, worlds: np.ndarray | None) -> list[Any] | np.ndarray:
        """Return the values of some worlds, bool (B,); None: of all."""
        if worlds is None:
            return self.values
        if self.worlds is None:
            return self.values if worlds.any() else []
        wanted = worlds[self.worlds]
        return [*compress(self.values, wanted)] if isinstance(self.values, list) else self.values[wanted]


def _column(infos: Infos, name: str, path: Sequence[str], num_worlds: int) -> _Column | None:
    """Find a field at one step; None if there is no such field."""
    if isinstance(infos, GatheredInfos):
        having = {world: fields.values[name] for world, fields in infos.fields.items() if name in fields.values}
        return _Column(list(having.values()), np.array([*having], dtype=np.int64))
    *outer, key = path
    inner = _inner(infos, outer)
    if key not in inner or isinstance(inner[key], Mapping):
        return None
    values = inner[key]
    num_values = len(values) if isinstance(values, list | tuple) else np.shape(values)[:1]
    if num_values not in (num_worlds, (num_worlds,)):
        return _Column([_as_numbers(values)], None)
    worlds = np.flatnonzero(np.broadcast_to(inner.get(f"_{key}", True), num_worlds))
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf" and values.size:
        return _Column(values[worlds], worlds)
    return _Column([_as_numbers(values[world]) for world in worlds], worlds)


def _as_numbers(value: Any) -> Any:
    """Return a number, or a new array of numbers; None for what is neither."""
    if type(value) in NUMBERS:
        return value
    try:
        array = np.array(value)
    except Exception:  # lists that differ in length, objects that refuse to be arrays
        return None
    return array if array.dtype.kind in "biuf" and array.size else None


def _inner(infos: Infos, path: Sequence[str]) -> Infos:
    for key in path:
        infos = _mapping(infos.get(key))
    return infos


def _mapping(value: Any) -> Infos:
    return value if isinstance(value, Mapping) else {}


def _names(infos: Infos, before: str = "") -> Iterator[str]:
    for key, value in infos.items():
        if key == "final_info":
            yield from _names(_mapping(value))
        elif isinstance(value, Mapping):
            yield from _names(value, f"{before}{key}/")
        elif key != "final_obs" and not (str(key).startswith("_") and str(key)[1:] in infos):
            yield f"{before}{key}"
