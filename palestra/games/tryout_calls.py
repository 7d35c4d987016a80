"""The calls of methods in the try-outs of games and of scenarios of dialogues.

Each call checks the promises that TensorGame (palestra.games.game) makes for all of its methods.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import count
from typing import Any

import torch
from torch import Tensor

from palestra.config import failure
from palestra.games.spaces import Space
from palestra.randomness import global_states


def tensors_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Give all tensors in nested tuples and dicts, each with the keys that lead to it."""
    if isinstance(value, Tensor):
        yield place, value
    elif isinstance(value, Mapping | tuple):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from tensors_in(item, (*place, key))


def memory_of(value: Any) -> set[int]:
    """Return the addresses of the memory of all tensors in a value."""
    return {tensor.untyped_storage().data_ptr() for _, tensor in tensors_in(value) if tensor.numel()}


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the same tree with `change` applied to every tensor."""
    if isinstance(value, Mapping):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map_tensors(item, change) for item in value)
    return change(value) if isinstance(value, Tensor) else value


def copied(value: Any) -> Any:
    return map_tensors(value, torch.clone)


def row_of(value: Any, world: int) -> Any:
    """Return the rows of one world, in tensors of their own."""
    return map_tensors(value, lambda tensor: tensor[world : world + 1].clone())


def are_same(one: Any, other: Any, tolerance: float = 0.0) -> bool:
    """Tell whether all tensors are the same, NaN included. tolerance: how far floats may differ, relatively."""
    left, right = dict(tensors_in(one)), dict(tensors_in(other))
    if left.keys() != right.keys():
        return False
    return all(is_same(value, right[place], tolerance) for place, value in left.items())


def is_same(one: Tensor, other: Tensor, tolerance: float) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    if one.is_meta:
        return True  # there are no numbers
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=one.is_floating_point())


LEAST_WORLDS = 5
ARGUMENTS = {  # by name; of methods that are not listed: state, role
    "reset": ("keys",),
    "transition": ("state", "actions", "keys"),
    "draw": ("keys", "held_out"),
    "view": ("instances", "role", "messages"),
}


class CannotGoOn(Exception):
    """The result of a method is so wrong that the try-out cannot go on."""


class CheckedCalls:
    """Calls the methods of one object and checks what they give.

    made: a game or a scenario, which has a `device`. faults: (method, message), one for each expectation that failed.
    """

    def __init__(self, made: Any) -> None:
        self.made = made
        self.faults: dict[tuple[str, str], tuple[str, str]] = {}
        # results of this move, and of the one before: method, result, a copy of it
        self.results, self.old_results = list[tuple[str, Any, Any]](), list[tuple[str, Any, Any]]()
        self.num_calls = 0

    def fault(self, method: str, expected: str, got: str) -> None:
        self.faults.setdefault((method, expected), (method, f"expected {expected}, got {got}"))

    # ---- calls ---------------------------------------------------------------------------------------------

    def attempt(self, method: str, *arguments: Any) -> Any:
        """Call once. An exception is a fault, after which the try-out cannot go on."""
        try:
            return getattr(self.made, method)(*arguments)
        except Exception as error:
            self.faults.setdefault((method, "raises"), (method, f"raises {failure(error)}"))
            raise CannotGoOn from error

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method, then a second time, then for one world alone; check the results and return the first."""
        before, random_before = copied(arguments), global_states()
        found = self.attempt(method, *arguments)
        for (place, value), (_, now) in zip(tensors_in(before), tensors_in(arguments), strict=True):
            if not is_same(value, now, 0.0):
                named = ARGUMENTS.get(method, ("state",))[place[0]] + "".join(f"[{key!r}]" for key in place[1:])
                self.fault(method, "its arguments to stay as they were", f"other numbers in {named}")
        drawn = global_states() != random_before
        again = self.attempt(method, *copied(before))
        if drawn:
            self.fault(method, "chance from its keys alone", "numbers from a global random generator")
        elif not are_same(found, again):
            self.fault(method, "the same results for the same arguments", "others at a second call")
        self.check_memory(method, found, again)
        self.call_alone(method, before, found)
        return found

    def check_memory(self, method: str, found: Any, again: Any) -> None:
        """Check that states and observations are new tensors, because palestra writes to them or stores them.

        Other results are stored to be checked again after the next move.
        """
        is_outcome = (
            method == "transition" and isinstance(found, tuple) and isinstance(again, tuple) and found and again
        )
        if is_outcome:
            (found, *rest), (again, *_) = found, again
            self.results.append((method, tuple(rest), copied(tuple(rest))))
        if method in ("deciding", "legal"):
            self.results.append((method, found, copied(found)))
        elif memory_of(found) & memory_of(again):
            self.fault(method, "new tensors at every call", "memory of an earlier call")

    def call_alone(self, method: str, arguments: tuple[Any, ...], found: Any) -> None:
        """Call with one world alone: the result must be the same as among the others, up to rounding."""
        num_worlds = len(next(value for _, value in tensors_in(arguments)))
        if any(value.shape[:1] != (num_worlds,) for _, value in tensors_in(found)):
            return  # that is a fault of its own
        world = self.num_calls % num_worlds
        self.num_calls += 1
        if not are_same(row_of(found, world), self.attempt(method, *row_of(arguments, world)), tolerance=1e-4):
            expected = "a world to come out alone as it does among others"
            self.fault(method, expected, f"something else for one of {num_worlds}")

    def check_results(self) -> None:
        """Check that the results of the move before have not changed."""
        for method, found, copy in self.old_results:
            if not are_same(found, copy):
                expected = "results that are no views of a state, and that later calls do not change"
                self.fault(method, expected, "other numbers after the next move")
        self.results, self.old_results = [], self.results

    # ---- what is expected of a result ----------------------------------------------------------------------

    def check_tensor(self, method: str, what: str, value: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
        """Check that a result is a tensor of that dtype and shape, on the game's device."""
        if isinstance(value, Tensor) and value.dtype == dtype and value.shape == shape and self.is_here(value):
            return True
        self.fault(method, f"{what}{_plain(dtype)} {shape} on {self.made.device}", described(value))
        return False

    def check_worlds(self, method: str, entries: Mapping[str, Any], num_worlds: int) -> bool:
        """Check that all entries are tensors of the worlds, (num_worlds, ...), on the game's device."""
        wrong = {
            name: value
            for name, value in entries.items()
            if not (isinstance(value, Tensor) and value.shape[:1] == (num_worlds,) and self.is_here(value))
        }
        for name, value in wrong.items():
            expected = f"entry {name!r} to be a tensor of {num_worlds} worlds, ({num_worlds}, ...)"
            self.fault(method, f"{expected}, on {self.made.device}", described(value))
        return not wrong

    def check_observation(
        self, method: str, role: str, found: Any, spaces: Mapping[str, Space], where: str, num_worlds: int, source: Any
    ) -> None:
        """Check what a role observes against its spaces, which the attribute `where` has.

        source: what was observed, whose memory an observation may not share.
        """
        if not isinstance(found, Mapping) or found.keys() != spaces.keys():
            got = f"those of {listed(map(repr, found))}" if isinstance(found, Mapping) else described(found)
            self.fault(method, f"for {role!r} the entries of its {where}: {listed(map(repr, spaces))}", got)
            return
        for name, space in spaces.items():
            what, value = f"entry {name!r} of {role!r} to be ", found[name]
            if not self.check_tensor(method, what, value, space.dtype, (num_worlds, *space.shape)):
                continue
            if not bool(torch.isfinite(value).all()):
                self.fault(method, f"{what}finite numbers", "nan or inf")
            if memory_of(value) & memory_of(source):
                self.fault(method, f"{what}a new tensor", "a view of the arguments")

    def require_everywhere(self, method: str, expected: str, holds: Tensor, got: str = "something else") -> None:
        """Note a fault unless something holds in every world. holds: bool (B, ...)."""
        if not bool(holds.all()):
            self.fault(method, expected, f"{got} in world {int((~holds).nonzero()[0, 0])}")

    def is_here(self, value: Tensor) -> bool:
        device = self.made.device
        return value.device.type == device.type and device.index in (None, value.device.index)


def is_tuple_of(value: Any, kind: type) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, kind) for item in value)


def is_mapping_to(value: Any, kind: type) -> bool:
    return isinstance(value, Mapping) and all(isinstance(item, kind) for item in value.values())


def listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def num_worlds_unlike(sizes: Collection[int]) -> int:
    """Return a number of worlds that is none of these sizes, so that axes cannot be confused."""
    return next(number for number in count(LEAST_WORLDS) if number not in sizes)


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{_plain(value.dtype)} {tuple(value.shape)} on {value.device}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "None" if value is None else f"{'an' if type(value).__name__[0] in 'aeiou' else 'a'} {type(value).__name__}"
