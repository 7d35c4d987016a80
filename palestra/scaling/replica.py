"""Replica: the place of a training among those that learn the same networks in lockstep."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from palestra.scaling.exchange import Exchange
from palestra.scaling.means import Share, mean_of

T = TypeVar("T")


class Status(NamedTuple):
    """What a replica says of itself with everything that it hands in.

    signal: the number of the one that asks it to leave; None without one. end_reason: why it wants to end the run.
    minutes: of training, by its clock.
    """

    signal: int | None
    end_reason: str | None
    minutes: float


class Replica:
    """The place of a training among `num` replicas. Alone, it hands nothing to anybody.

    index: its number; replica 0 leads: it has the run's folder, display and evaluations. num_means: how many means it
    has taken part in. news: what all have said of themselves at the last exchange, in their order.
    """

    def __init__(self, index: int = 0, num: int = 1) -> None:
        self.index, self.num = index, num
        self.exchange: Exchange | None = None
        self.status: Callable[[], Status] = lambda: Status(None, None, 0.0)
        self.num_means = 0
        self.news: Sequence[Status] = ()

    @property
    def leads(self) -> bool:
        return self.index == 0

    @property
    def is_alone(self) -> bool:
        return self.num == 1

    def each(self, what: str, value: T) -> list[T]:
        """Hand in a value, and return those of all replicas, in their order. what: says what is exchanged.

        Raises LockstepError if another replica hands in something else now.
        """
        if self.num == 1:
            return [value]
        return [given for given, _ in self._exchanged(what, value, list)]

    def of_leader(self, what: str, value: T) -> T:
        """Return the value of replica 0."""
        return self.each(what, value)[0]

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
        mean, means = self._exchanged("a mean", share, lambda given: mean_of([each for each, _ in given]))
        return mean.clone(), means if share.is_absent else {**metrics, **means}  # optimizers clip in place

    def _exchanged(self, what: str, value: Any, join: Callable[[list[Any]], Any]) -> Any:
        if self.exchange is None:
            raise RuntimeError(f"expected fit() of a training with {self.num} replicas, got a call outside of it")

        def joined(given: list[Any]) -> Any:
            return [status for _, status in given], join(given)

        self.news, result = self.exchange.swap(self.index, what, (value, self.status()), joined)
        return result
