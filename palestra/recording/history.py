"""How the metrics of players went over a run, in few points, from its training records."""

import math
from collections.abc import Mapping
from typing import Any

MOST_POINTS = 128
COUNTS = ("env_steps", "opt_steps")


class Curve:
    """Points of equally many values each, their means; of twice as many once there are MOST_POINTS."""

    def __init__(self) -> None:
        self.points: list[float] = []
        self.last = math.nan
        self._num = 1  # values of a point
        self._values: list[float] = []  # of the point to come

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
    """The curves of every player's metrics, and of its episodes' figures, by the names of the records."""

    def __init__(self) -> None:
        self.curves: dict[str, dict[str, Curve]] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """record: one of training, where null stands for NaN."""
        for player, told in record.get("players", {}).items():
            curves = self.curves.setdefault(player, {})
            episodes = told.get("episodes", {})
            for name, value in (episodes | told).items():
                if name in COUNTS or isinstance(value, bool):
                    continue
                if isinstance(value, int | float) or value is None:
                    curves.setdefault(name, Curve()).add(math.nan if value is None else float(value))

    def last(self, player: str) -> dict[str, float]:
        return {name: curve.last for name, curve in self.curves.get(player, {}).items()}

    def points(self, player: str) -> dict[str, list[float]]:
        return {name: curve.points for name, curve in self.curves.get(player, {}).items()}
