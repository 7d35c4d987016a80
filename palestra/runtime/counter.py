"""Counters that only the code that counts may change."""

from typing import Any, overload


class Counter:
    """An attribute that raises AttributeError when it is assigned, and names the call that counts it: `by`.

    Its owner counts by `count`. If the owner's attribute `is_counted` is false, the counter may be assigned.
    """

    def __init__(self, by: str) -> None:
        self.by = by

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, owner: None, kind: type) -> "Counter": ...

    @overload
    def __get__(self, owner: object, kind: type) -> int: ...

    def __get__(self, owner: object | None, kind: type) -> Any:
        return self if owner is None else vars(owner)[self.name]

    def __set__(self, owner: Any, value: int) -> None:
        if owner.is_counted:
            raise AttributeError(f"{self.name}: expected no assignment, because {self.by} counts it; call that instead")
        vars(owner)[self.name] = value


def count(owner: object, **numbers: int) -> None:
    """Add to counters of an object, whether or not they are `Counter`s."""
    counters = vars(owner)
    for name, number in numbers.items():
        counters[name] += number


def set_counts(owner: object, **numbers: int) -> None:
    """Set counters of an object, as when its state is restored."""
    vars(owner).update(numbers)
