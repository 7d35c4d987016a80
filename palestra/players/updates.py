"""The configs that say in which epochs a player learns."""

import math
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from palestra.config import ByName, Config, ConfigError, NonNegativeInt, PositiveInt

MOST_EPOCHS = 100_000  # that `idle_epoch` looks at


class UpdatesConfig(Config):
    """Base of the configs that say when a player learns.

    In other epochs it is frozen: it plays, explores as it does in training, and has no turn.
    """

    name: str

    def window(self) -> tuple[int, int]:
        """Return the first epoch of each cycle in which the player learns, and the one after the last."""
        return 0, 1

    @property
    def cycle(self) -> int:
        """The number of epochs after which it begins anew."""
        return 1

    def learns(self, epoch: int) -> bool:
        """Tell whether the player learns in this epoch of the run, counted from 0."""
        first, last = self.window()
        return first <= epoch % self.cycle < last

    def in_words(self) -> str:
        """Say in which epochs the player learns."""
        first, last = self.window()
        if last - first == self.cycle:
            return "in every epoch"
        epochs = f"epoch {first}" if last - first == 1 else f"epochs {first} to {last - 1}"
        return f"in {epochs} of every {self.cycle}"


class ConstantUpdatesConfig(UpdatesConfig):
    name: Literal["constant"]
    """in every epoch"""


class ContiguousPeriodicUpdatesConfig(UpdatesConfig):
    name: Literal["contiguous_periodic"]
    """in the epochs e with first <= e mod period < last"""
    period: PositiveInt
    """epochs until it begins anew"""
    first: NonNegativeInt
    """the first epoch of each period in which the player learns, counted from 0"""
    last: PositiveInt
    """the first one after it in which the player is frozen; period: it learns until the period ends"""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.first < self.last <= self.period:
            return self
        bound = f"at most the period ({self.period})" if self.first < self.last else f"more than first ({self.first})"
        raise ConfigError.at("last", f"expected {bound}, got {self.last}")

    @property
    def cycle(self) -> int:
        return self.period

    def window(self) -> tuple[int, int]:
        return self.first, self.last


class AlternatingPeriodicUpdatesConfig(UpdatesConfig):
    name: Literal["alternating_periodic"]
    """in the epochs e with floor(e / period) mod 2 = phase: `period` epochs on, as many off"""
    period: PositiveInt
    """how many epochs it learns, and how many it is frozen"""
    phase: Annotated[int, Field(ge=0, le=1)]
    """0: it learns first; 1: it is frozen first"""

    @property
    def cycle(self) -> int:
        return 2 * self.period

    def window(self) -> tuple[int, int]:
        return self.phase * self.period, (self.phase + 1) * self.period


AnyUpdatesConfig = Annotated[
    ConstantUpdatesConfig | ContiguousPeriodicUpdatesConfig | AlternatingPeriodicUpdatesConfig, ByName()
]


def idle_epoch(updates: Mapping[str, UpdatesConfig], num_epochs: float) -> int | None:
    """Find the first epoch in which none of the players learns, among the first `num_epochs`; None if there is none.

    At most MOST_EPOCHS are looked at.
    """
    cycle = math.lcm(*(each.cycle for each in updates.values()))
    epochs = range(int(min(cycle, num_epochs, MOST_EPOCHS)))
    return next((epoch for epoch in epochs if not any(each.learns(epoch) for each in updates.values())), None)
