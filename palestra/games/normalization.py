"""The observations of tensor games, normalised by running statistics and clipped, as `game.observation` says.

Every role has statistics of its own for each entry that is a number. Mean and variance of all observations so far are
updated batch by batch, in float64, by the formulas of Chan, Golub, LeVeque 1979 ("Updating formulae and a pairwise
algorithm for computing sample variances"); palestra.games.gymnasium.normalization does the same with numpy. A set keeps
its zero, because a number below 0 means that its row is absent: it is divided by its root mean square. Letters: B
worlds, M rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from palestra.config import Config, ConfigError, PositiveFloat
from palestra.games.spaces import Space


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
        """Keep track of what this replica adds to the common statistics, which are those so far."""
        self.common, self.added = self.fresh(), self.fresh()
        self.common.load_own_state(self.own_state())

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
            self.common.load_own_state(state.get("common", state))  # a branch may begin to share here
            self.added = self.fresh()
            if "added" in state:
                self.added.load_own_state(state["added"])


class ObservationNormalizationConfig(Config):
    eps: PositiveFloat
    """added to the variance"""


class ObservationConfig(Config):
    """What is done with the entries of observations that are numbers.

    Images, and the one-hot entries of Gymnasium's environments, stay as they are.
    """

    normalize: ObservationNormalizationConfig | None
    """subtract the running mean, divide by the running standard deviation; null: no"""
    clip: PositiveFloat | None
    """then clip to -clip..clip; null: no"""


UNCHANGED = ObservationConfig(normalize=None, clip=None)


class RunningMoments(RunningStatistics):
    """Number, mean and sum of squared deviations of the rows of an entry: of a set, its members.

    Before the first row: mean 0, variance 1. Deviations of a set's members are from 0, `mean` stays 0, and `variance`
    is the mean square. count: int64 (); mean, squares: float64 of a row's shape.
    """

    def __init__(self, shape: Sequence[int], centered: bool, device: torch.device) -> None:
        self.centered = centered
        self.count = torch.zeros((), dtype=torch.int64, device=device)
        self.mean = torch.zeros(tuple(shape), dtype=torch.float64, device=device)
        self.squares = torch.zeros_like(self.mean)

    @classmethod
    def of(cls, space: Space, device: torch.device) -> Self:
        """Make the statistics of an entry of observations."""
        return cls(space.shape[1:] if space.padded else space.shape, not space.padded, device)

    def fresh(self) -> Self:
        return type(self)(self.mean.shape, self.centered, self.mean.device)

    @property
    def variance(self) -> Tensor:
        """The mean squared deviation."""
        return torch.where(self.count > 0, self.squares / self.count.clamp(min=1), 1.0)

    def update(self, rows: Tensor, counted: Tensor) -> None:
        """Add the rows (M, *shape) where `counted`, bool (M,)."""
        left_out = ~counted.view(-1, *([1] * self.mean.dim()))
        rows, num = rows.to(torch.float64), counted.sum()
        mean = torch.zeros_like(self.mean)
        if self.centered:
            mean = rows.masked_fill(left_out, 0.0).sum(dim=0) / num.clamp(min=1)
        squares = (rows - mean).masked_fill(left_out, 0.0).square().sum(dim=0)
        self._join(num, mean, squares)
        if self.added is not None:
            self.added._join(num, mean, squares)

    def join(self, other: Self) -> None:
        self._join(other.count, other.mean, other.squares)

    def _join(self, num: Tensor, mean: Tensor, squares: Tensor) -> None:
        total = self.count + num
        share = num / total.clamp(min=1).to(torch.float64)
        delta = mean - self.mean
        self.mean = self.mean + delta * share
        self.squares = self.squares + squares + delta.square() * (self.count * share)
        self.count = total

    def standardized(self, rows: Tensor, eps: float) -> Tensor:
        """Return (rows - mean) / sqrt(variance + eps), in the dtype of the rows."""
        return ((rows.to(torch.float64) - self.mean) / (self.variance + eps).sqrt()).to(rows.dtype)

    def own_state(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        self.count, self.mean, self.squares = (
            state[name].to(self.mean.device, copy=True) for name in ("count", "mean", "squares")
        )


class ObservationTransform:
    """Transforms the observations of each role of a game, and holds the statistics by which it does.

    spaces: of the game, by role and entry. Raises ConfigError for a game whose observations have no numbers.
    """

    def __init__(self, config: ObservationConfig, spaces: Mapping[str, Mapping[str, Space]], device: torch.device):
        self.config = config
        self.numbers = {
            role: {name: space for name, space in entries.items() if space.dtype.is_floating_point}
            for role, entries in spaces.items()
        }
        if not any(self.numbers.values()):
            expected = "expected null for normalize and clip, because the observations have no numbers"
            raise ConfigError.at("game.observation", f"{expected}, got another value")
        self.moments = {
            role: {name: RunningMoments.of(space, device) for name, space in entries.items()}
            for role, entries in (self.numbers.items() if config.normalize is not None else ())
        }

    def __call__(self, role: str, observation: Mapping[str, Tensor], counted: Tensor | None) -> dict[str, Tensor]:
        """Transform an observation (B, ...) of a role into what a player gets.

        counted: bool (B,), the worlds in which it updates the statistics first; None: nowhere.
        """
        normalize, clip, new = self.config.normalize, self.config.clip, dict(observation)
        for name, space in self.numbers[role].items():
            if normalize is not None:
                moments = self.moments[role][name]
                if counted is not None:
                    rows, those = new[name], counted
                    if space.padded:  # of a set, only the members that are present count
                        present = (rows >= 0).flatten(2).all(dim=2)
                        rows, those = rows.flatten(0, 1), (present & counted.unsqueeze(1)).flatten()
                    moments.update(rows, those)
                new[name] = moments.standardized(new[name], normalize.eps)
            if clip is not None:
                new[name] = new[name].clamp(-clip, clip)
        return new

    def state_dict(self) -> dict[str, Any]:
        return {
            role: {name: each.state_dict() for name, each in entries.items()} for role, entries in self.moments.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` has returned. Raises ConfigError for statistics of other roles, entries or shapes."""
        own, theirs = _shapes(self.state_dict()), _shapes(state)
        if own != theirs:
            expected = f"expected statistics of {_listed(own)}, got some of {_listed(theirs)}"
            raise ConfigError.at("game.observation.normalize", expected)
        for role, entries in self.moments.items():
            for name, moments in entries.items():
                moments.load_state_dict(state[role][name])


def make_transform(
    config: ObservationConfig, spaces: Mapping[str, Mapping[str, Space]], device: torch.device
) -> ObservationTransform | None:
    """Make the transform of a game's observations; None if the config leaves them as they are."""
    if config.normalize is None and config.clip is None:
        return None
    return ObservationTransform(config, spaces, device)


def _shapes(state: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {
        f"{role}.{name}": tuple(moments["mean"].shape)
        for role, entries in state.items()
        for name, moments in entries.items()
    }


def _listed(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "nothing"
