"""Fields of the environments' `info`, as vector environments of gymnasium 1 give them.

`infos[name]` holds a value for every world, and `infos["_" + name]`, where it is there, tells which worlds have one.
Where episodes begin anew in the step in which others end, that step's own fields lie below `infos["final_info"]`, and
those outside belong to the new episode. Fields of resets are left out: no step was made there.

Letters: B worlds.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from palestra.recording.aggregates import Aggregates

Infos = Mapping[str, Any]


class InfoFields:
    """Finds some fields after every step: as info/NAME those of all steps, as final_info/NAME those of steps that have
    ended an episode. A NAME leads to inner fields by slashes: episode/r.

    What was asked for and cannot be had is told by `news`.
    """

    def __init__(self, names: Sequence[str], num_worlds: int, gathered: Aggregates) -> None:
        self.paths = {name: name.split("/") for name in names}
        self.num_worlds, self.gathered = num_worlds, gathered
        self._missing, self._unfit, self._reported = set(names), set[str](), set[str]()
        self._seen: set[str] = set()  # all fields that have come while one was missing

    def step(self, infos: Infos, valid: np.ndarray | None, ended: np.ndarray | None, is_same_step: bool) -> None:
        """valid, ended: bool (B,), the worlds in which a step was made, and those in which it has ended an episode;
        None: all, none. is_same_step: whether new episodes have begun in the latter."""
        if self._missing:
            self._seen.update(_names(infos))
        last, where = infos, valid
        if ended is not None and is_same_step:
            last, where = _mapping(infos.get("final_info")), ~ended
        for name in self.paths:
            self._take(f"info/{name}", name, infos, where)
            if ended is not None:
                if is_same_step:
                    self._take(f"info/{name}", name, last, ended)
                self._take(f"final_info/{name}", name, last, ended)

    def news(self) -> Iterator[str]:
        """What the user should know of the names that have not come so far, or not as numbers; each once."""
        for name in self.paths:
            if name in self._reported or name not in self._missing | self._unfit:
                continue
            self._reported.add(name)
            if name in self._unfit:
                yield f"output.info: expected numbers in {name!r}, got another type; it is not recorded"
            else:
                there = f"the fields are: {', '.join(sorted(self._seen))}" if self._seen else "no step had any field"
                yield f"output.info: no step had the field {name!r}; {there}"

    def _take(self, full_name: str, name: str, infos: Infos, where: np.ndarray | None) -> None:
        *outer, key = self.paths[name]
        for inner in outer:
            infos = _mapping(infos.get(inner))
        if key not in infos or isinstance(infos[key], Mapping):
            return
        values, has = np.asarray(infos[key]), infos.get(f"_{key}", True)
        if where is not None:
            has = has & where
        if values.shape[:1] != (self.num_worlds,):  # one for all worlds
            values = values[None][: int(np.any(has))]
        elif has is not True:
            values = values[has]
        if len(values):
            self._missing.discard(name)
            self._gather(full_name, name, values)

    def _gather(self, full_name: str, name: str, values: np.ndarray) -> None:
        if values.dtype == object:
            with suppress(ValueError):  # lists that differ in length
                values = np.array(values.tolist())
        if values.dtype.kind not in "biuf":
            self._unfit.add(name)
        elif values.ndim == 1:
            self.gathered.add_numbers(full_name, values)
        else:
            self.gathered.add({full_name: values})


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
