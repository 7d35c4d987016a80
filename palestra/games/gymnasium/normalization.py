"""Running statistics: mean and variance of all observations and returns so far, batch by batch, in float64.

What is counted comes in the environment's own precision; results are float32.

Batches are joined by the formulas of Chan, Golub, LeVeque 1979 ("Updating formulae and a pairwise algorithm for
computing sample variances"). The use follows VecNormalize of Stable-Baselines3 (Raffin et al. 2021): observations lose
their mean and are divided by their standard deviation; rewards are divided by the standard deviation of the discounted
return so far, which begins anew with every episode, and keep their mean.
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch

from palestra.games.normalization import RunningStatistics


class Moments(RunningStatistics):
    """Number, mean and sum of squared deviations of rows of one shape. Before the first row: mean 0, variance 1.

    dtype: of the rows. Integers of 64 bits may be too large for float64: `mean` is then that of their distances from
    `origin`, the first row.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any = np.float64) -> None:
        self.count = 0
        self.mean = np.zeros(shape)
        self.squares = np.zeros(shape)
        self.dtype = np.dtype(dtype)
        self.origin = np.zeros(shape, dtype) if self.dtype.kind in "iu" else None

    def fresh(self) -> Self:
        return type(self)(self.mean.shape, self.dtype)

    @property
    def variance(self) -> np.ndarray:
        """The mean squared deviation."""
        return self.squares / self.count if self.count else np.ones_like(self.squares)

    def update(self, rows: np.ndarray) -> None:
        """Add rows of shape (n, *shape)."""
        if not len(rows):
            return
        if self.origin is not None and self.count == 0:
            self.origin = rows[0].copy()
        if self.added is not None:
            self.added.update(rows)
        rows = self._distances(rows).astype(np.float64)
        mean = rows.mean(axis=0)
        self._join(len(rows), mean, np.square(rows - mean).sum(axis=0))

    def join(self, other: Self) -> None:
        if other.count == 0:
            return
        mean = other.mean
        if self.origin is not None and other.origin is not None:
            if self.count == 0:
                self.origin = other.origin.copy()
            mean = mean + self._distances(other.origin)
        self._join(other.count, mean, other.squares)

    def _join(self, num: int, mean: np.ndarray, squares: np.ndarray) -> None:
        delta, total = mean - self.mean, self.count + num
        self.mean = self.mean + delta * (num / total)
        self.squares = self.squares + squares + np.square(delta) * (self.count * num / total)
        self.count = total

    def _distances(self, rows: np.ndarray) -> np.ndarray:
        """Subtract the origin from rows, exactly: what wraps around is the true difference in 64 bits with a sign."""
        return rows if self.origin is None else (rows - self.origin).view(np.int64)

    def center(self) -> np.ndarray:
        """Return the mean of the rows themselves, float64."""
        return self.mean if self.origin is None else self.origin + self.mean

    def standardized(self, rows: np.ndarray, eps: float) -> np.ndarray:
        """Return (rows - mean) / sqrt(variance + eps), float32."""
        return ((self._distances(rows) - self.mean) / np.sqrt(self.variance + eps)).astype(np.float32)

    def scaled(self, rows: np.ndarray, eps: float) -> np.ndarray:
        """Return rows / sqrt(variance + eps), float32."""
        return (rows / np.sqrt(self.variance + eps)).astype(np.float32)

    def own_state(self) -> dict[str, Any]:
        state = {"count": self.count, "mean": torch.tensor(self.mean), "squares": torch.tensor(self.squares)}
        return state if self.origin is None else state | {"origin": torch.tensor(self.origin)}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]
        self.mean, self.squares = (state[name].cpu().numpy().copy() for name in ("mean", "squares"))
        self.origin = None if self.origin is None else state["origin"].cpu().numpy().copy()
