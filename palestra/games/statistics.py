"""Running statistics that the replicas of a run have in common.

In a roll-out each replica goes on from the common ones by its own rows; after it, what each has added is joined to
them, in the order of replicas.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self


class RunningStatistics(ABC):
    """The base of running statistics. Alone, they only grow.

    common, added: of several replicas, the statistics after the last roll-out, and those of this replica's rows since
    then; None for a lone one.
    """

    common: Self | None = None
    added: Self | None = None

    @abstractmethod
    def fresh(self) -> Any:
        """Return statistics of no rows, of the same kind."""

    @abstractmethod
    def join(self, other: Self) -> None:
        """Add all rows that others have counted."""

    @abstractmethod
    def own_state(self) -> dict[str, Any]:
        """Return the state of these statistics alone."""

    @abstractmethod
    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Load what `own_state` has returned."""

    def begin_sharing(self) -> None:
        """Keep track of what this replica adds to the common statistics."""
        self.common, self.added = self.fresh(), self.fresh()

    def join_all(self, added: Sequence[Mapping[str, Any]]) -> None:
        """Become the common statistics with what all have added. added: the state of each replica's `added`."""
        assert self.common is not None
        for state in added:
            other = self.fresh()
            other.load_own_state(state)
            self.common.join(other)
        self.load_own_state(self.common.own_state())
        self.added = self.fresh()

    def state_dict(self) -> dict[str, Any]:
        if self.common is None or self.added is None:
            return self.own_state()
        return self.own_state() | {"common": self.common.own_state(), "added": self.added.own_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.load_own_state(state)
        if self.common is not None and self.added is not None:
            self.common.load_own_state(state["common"])
            self.added.load_own_state(state["added"])
