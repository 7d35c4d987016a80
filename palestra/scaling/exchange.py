"""Exchange: replicas of one process take turns, each from one exchange to the next.

One replica computes at a time, in a thread of its own, so that nothing but an exchange says who comes when: what they
compute does not depend on the operating system.
"""

import threading
from collections.abc import Callable
from typing import Any

from palestra.randomness import restored_torch_states
from palestra.scaling.means import LockstepError, told_apart


class ReplicaFailed(Exception):
    """Another replica has failed, so this one cannot go on. The exchange knows which, and by what error."""


class Exchange:
    """What `num` replicas in threads of this process hand to each other.

    failure: the error of the first replica that has failed; None if none has.
    """

    def __init__(self, num: int) -> None:
        self.num = num
        self.failure: BaseException | None = None
        self._given: list[tuple[str, Any]] = [("", None)] * num
        self._result: Any = None
        self._num_left = 0
        self._may_go = [threading.Semaphore(0) for _ in range(num)]

    def begin(self, place: int) -> None:
        """Wait for one's first turn; replica 0 has it at once."""
        if place:
            self._wait(place)

    def swap(self, place: int, what: str, value: Any, join: Callable[[list[Any]], Any]) -> Any:
        """Hand in a value; once all replicas have, return what `join` makes of their values, in their order.

        place: the replica's number. what: says what is exchanged. Raises LockstepError if others exchange something
        else, ReplicaFailed if another replica has failed.
        """
        if self._num_left:
            raise LockstepError(f"expected all replicas to end at one place, got {what} by replica {place}")
        self._given[place] = what, value
        if place + 1 == self.num:
            kinds, values = zip(*self._given, strict=True)
            if len(set(kinds)) > 1:
                raise told_apart(kinds, "replica")
            self._result = join([*values])
        self._may_go[(place + 1) % self.num].release()
        self._wait(place)
        return self._result

    def leave(self, place: int) -> None:
        """Let the next replica go on without this one, which has come to its end; they end in their order."""
        if place != self._num_left:  # replica 0 waits for a value that will never come
            self.fail(LockstepError(f"expected all replicas to end at one place, got replica {place} alone"))
            return
        self._num_left += 1
        if place + 1 < self.num:
            self._may_go[place + 1].release()

    def fail(self, error: BaseException) -> None:
        """End all others, because this replica has failed."""
        if self.failure is None:
            self.failure = error
        for each in self._may_go:
            each.release()

    def _wait(self, place: int) -> None:
        with restored_torch_states():  # others draw from the global generators, too
            self._may_go[place].acquire()
        if self.failure is not None:
            raise ReplicaFailed from self.failure
