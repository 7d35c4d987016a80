"""Replica: the place of a training among those that learn the same networks in lockstep."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Self, TypeVar

from torch import Tensor

from palestra.config import ConfigError
from palestra.scaling.exchange import Exchange
from palestra.scaling.link import Link, Notice
from palestra.scaling.means import Part, Share, mean_of
from palestra.scaling.ranks import Ranks

T = TypeVar("T")


class Replica:
    """The place of a training among `num` replicas. Alone, it hands nothing to anybody.

    index: its number; replica 0 leads: it has the run's folder, display and evaluations. ranks: the processes that hold
    the replicas, as many each. num_here: replicas of this process. place: this one's among them; the first heads them.
    exchange, link: by which it reaches those of this process, and those of others. num_means: how many means it has
    taken part in. news: what all processes have said of themselves at the last exchange, in their order.
    """

    def __init__(self, index: int = 0, num: int = 1, ranks: Ranks | None = None) -> None:
        self.index, self.num, self.ranks = index, num, ranks or Ranks()
        self.num_here = num // self.ranks.num
        self.place = index % self.num_here
        self.exchange: Exchange | None = None
        self.link: Link | None = None
        self.notice: Callable[[], Notice] = lambda: Notice(False, 0.0)
        self.num_means = 0
        self.news: Sequence[Notice] = ()

    @classmethod
    def heading(cls, num: int) -> Self:
        """Return the first replica of this process among `num`. Raises ConfigError if they are not as many in each."""
        ranks = Ranks.here()
        if num % ranks.num:
            message = f"expected a multiple of the {ranks.num} processes that torchrun has started, got {num}"
            raise ConfigError.at("num_replicas", message)
        return cls(ranks.rank * (num // ranks.num), num, ranks)

    @property
    def leads(self) -> bool:
        return self.index == 0

    @property
    def heads(self) -> bool:
        return self.place == 0

    @property
    def is_alone(self) -> bool:
        return self.num == 1

    def each(self, what: str, value: T, to_first: bool = False) -> list[T]:
        """Hand in a value, and return those of all replicas, in their order. what: says what is exchanged.

        to_first: whether the first process alone needs those of the others. Raises LockstepError if another replica
        hands in something else now.
        """
        if self.num == 1:
            return [value]

        def join(values: list[T], notice: Notice) -> tuple[list[T], list[Notice]]:
            if self.link is None:
                return values, [notice]
            given, notices = self.link.gather(what, values, notice, to_first)
            return list(chain.from_iterable(given)), notices

        found: list[T] = self._exchanged(what, value, join)
        return found

    def of_leader(self, what: str, value: T) -> T:
        """Return the value of replica 0."""
        return self.each(what, value if self.leads else None)[0]  # type: ignore[return-value]

    def mean(
        self, gradient: Tensor, metrics: Mapping[str, Any], weight: Tensor | float | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the mean of a gradient over all replicas, and those of its metrics that are numbers.

        weight: of this replica in the mean, such as the number of rows that its gradient is the mean of, as a number or
        as tensor of addends; 0 for a replica without rows, whose gradient and metrics do not count. None: all count
        alike. To be called by all replicas equally often, in the same order.
        """
        self.num_means += 1
        if self.num == 1:
            return gradient, dict(metrics)
        share = Share(gradient, metrics, weight)

        def join(shares: list[Share], notice: Notice) -> tuple[tuple[Tensor, dict[str, Tensor]], list[Notice]]:
            notices = [notice]

            def over_processes(part: Part) -> Part:
                if self.link is not None:
                    part, notices[:] = self.link.sum(part, notice)
                return part

            return mean_of(shares, over_processes), notices

        mean, means = self._exchanged("a mean", share, join)
        return mean.clone(), means if share.is_absent else {**metrics, **means}  # optimizers clip in place

    def _exchanged(self, what: str, value: Any, join: Callable[[list[Any], Notice], tuple[Any, list[Notice]]]) -> Any:
        """Exchange values. join: makes of those of this process, and of its notice, what all get, and all notices."""
        if self.exchange is None:
            raise RuntimeError(f"expected fit() of a training with {self.num} replicas, got a call outside of it")

        def joined(given: list[tuple[Any, Notice]]) -> Any:
            own = Notice(any(notice.wants_to_end for _, notice in given), given[0][1].minutes)
            return join([each for each, _ in given], own)

        result, self.news = self.exchange.swap(self.place, what, (value, self.notice()), joined)
        return result
