"""Curves of the players' metrics over a run, in few points, made from its training records."""

import math
from collections.abc import Collection, Mapping
from typing import Any

MOST_POINTS = 128


class Curve:
    """A curve of fewer than MOST_POINTS points, each the mean of equally many values.

    When there are MOST_POINTS, pairs of points are merged.
    """

    def __init__(self) -> None:
        self.points: list[float] = []
        self.last = math.nan
        self._num = 1  # values per point
        self._values: list[float] = []  # of the next point

    def add(self, value: float) -> None:
        self.last = value
        self._values.append(value)
        if len(self._values) < self._num:
            return
        self.points.append(sum(self._values) / self._num)
        self._values = []
        if len(self.points) == MOST_POINTS:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [(one + other) / 2 for one, other in pairs]
            self._num *= 2


class History:
    """The curves of every player's metrics and of its episodes, by the names that they have in records.

    counters: names that have no curve.
    """

    def __init__(self, counters: Collection[str]) -> None:
        self.counters = counters
        self.curves: dict[str, dict[str, Curve]] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the numbers of a training record, in which null stands for NaN."""
        for player, metrics in record.get("players", {}).items():
            curves = self.curves.setdefault(player, {})
            episodes = metrics.get("episodes", {})
            for name, value in (episodes | metrics).items():
                if name in self.counters or isinstance(value, bool):
                    continue
                if isinstance(value, int | float) or value is None:
                    curves.setdefault(name, Curve()).add(math.nan if value is None else float(value))

    def last(self, player: str) -> dict[str, float]:
        """Return the last value of each curve of a player."""
        return {name: curve.last for name, curve in self.curves.get(player, {}).items()}

    def points(self, player: str) -> dict[str, list[float]]:
        """Return the points of each curve of a player."""
        return {name: curve.points for name, curve in self.curves.get(player, {}).items()}
