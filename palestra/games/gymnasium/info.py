"""Fields of the environments' `info`, as vector environments of gymnasium 1 give them.

`infos[name]` holds a value for every world. If `infos["_" + name]` exists, it says which worlds have one. If worlds are
reset in the same step, the fields of a step that ends an episode lie below `infos["final_info"]`, and the others belong
to the new episode. Fields of resets are left out, because a reset is not a step.

Letters: B worlds.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from palestra.recording.aggregates import Aggregates

Infos = Mapping[str, Any]


class InfoFields:
    """Adds some fields of every step to `aggregates`: those of all steps as info/NAME, those of steps that end an
    episode as final_info/NAME. A NAME leads to inner fields by slashes: episode/r.

    `news` names the fields that are missing or cannot be recorded.
    """

    def __init__(self, names: Sequence[str], num_worlds: int, aggregates: Aggregates) -> None:
        self.paths = {name: name.split("/") for name in names}
        self.num_worlds, self.aggregates = num_worlds, aggregates
        self._missing, self._not_numbers, self._reported = set(names), set[str](), set[str]()
        self._found: set[str] = set()  # all fields that steps had while one was missing

    def step(self, infos: Infos, valid: np.ndarray | None, ended: np.ndarray | None, is_same_step: bool) -> None:
        """Add the fields of one step. valid: bool (B,), the worlds that were stepped and not only reset; None: all.
        ended: bool (B,), the worlds whose episode the step has ended; None: none. is_same_step: whether new episodes
        have begun in these."""
        if self._missing:
            self._found.update(_names(infos))
        last, where = infos, valid
        if ended is not None and is_same_step:
            last, where = _mapping(infos.get("final_info")), ~ended
        for name in self.paths:
            self._add_field(f"info/{name}", name, infos, where)
            if ended is not None:
                if is_same_step:
                    self._add_field(f"info/{name}", name, last, ended)
                self._add_field(f"final_info/{name}", name, last, ended)

    def news(self) -> Iterator[str]:
        """A line for each field that no step has had so far, or that is not a number; each line once."""
        for name in self.paths:
            if name in self._reported or name not in self._missing | self._not_numbers:
                continue
            self._reported.add(name)
            if name in self._not_numbers:
                yield f"output.info: expected numbers in {name!r}, got another type; it is not recorded"
            else:
                there = f"the fields are: {', '.join(sorted(self._found))}" if self._found else "no step had any field"
                yield f"output.info: no step had the field {name!r}; {there}"

    def _add_field(self, full_name: str, name: str, infos: Infos, where: np.ndarray | None) -> None:
        found = _find(infos, self.paths[name])
        if found is None:
            return
        values, has = found
        if where is not None:
            has = has & where
        if values.shape[:1] != (self.num_worlds,):  # one for all worlds
            values = values[None][: int(np.any(has))]
        elif has is not True:
            values = values[has]
        if len(values):
            self._missing.discard(name)
            self._add_values(full_name, name, values)

    def _add_values(self, full_name: str, name: str, values: np.ndarray) -> None:
        values = _typed(values)
        if values.dtype.kind not in "biuf":
            self._not_numbers.add(name)
        elif values.ndim == 1:
            self.aggregates.add_numbers(full_name, values)
        else:
            self.aggregates.add({full_name: values})


class StepInfo:
    """Some fields of the last step, one number for each world, as the games of an evaluation need them. A field of
    arrays or of anything else has no number.

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
            numbers, has = self._numbers(infos, path)
            if ended is not None and is_same_step:
                last, has_last = self._numbers(_mapping(infos.get("final_info")), path)
                numbers, has = np.where(ended, last, numbers), np.where(ended, has_last, has)
            if valid is not None:
                has = has & valid
            if has.any():
                self.values[name] = (numbers, has)

    def _numbers(self, infos: Infos, path: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of a field, (B,), and which worlds have one, bool (B,)."""
        numbers, none = np.zeros(self.num_worlds), np.zeros(self.num_worlds, dtype=bool)
        found = _find(infos, path)
        if found is None:
            return numbers, none
        values, has = np.asarray(found[0]), np.broadcast_to(found[1], self.num_worlds)
        if values.ndim == 0:  # one for all worlds
            values = np.broadcast_to(values, self.num_worlds)
        values = _typed(values[has]) if len(values) == self.num_worlds else values
        if values.shape != (int(has.sum()),) or values.dtype.kind not in "biuf":
            return numbers, none
        numbers[has] = values
        return numbers, np.array(has)


def _find(infos: Infos, path: Sequence[str]) -> tuple[np.ndarray, Any] | None:
    """The values of a field, and which worlds have one: bool (B,), or True; None if there is no such field."""
    *outer, key = path
    for inner in outer:
        infos = _mapping(infos.get(inner))
    if key not in infos or isinstance(infos[key], Mapping):
        return None
    return np.asarray(infos[key]), infos.get(f"_{key}", True)


def _typed(values: np.ndarray) -> np.ndarray:
    """Values with the type of what is in them, if that is one."""
    if values.dtype == object:
        with suppress(ValueError):  # lists that differ in length
            return np.array(values.tolist())
    return values


def _mapping(value: Any) -> Infos:
    return value if isinstance(value, Mapping) else {}


def _names(infos: Infos, before: str = "") -> Iterator[str]:
    for key, value in infos.items():
        if key == "final_info":
            yield from _names(_mapping(value))
        elif isinstance(value, Mapping):
            yield from _names(value, f"{before}{key}/")
        elif key != "final_obs" and not (key.startswith("_") and key[1:] in infos):
            yield f"{before}{key}"
