"""The order in which training reads the items of a data set: it follows from the run's seed and the epoch alone.

Letters: N items of the set; n items of an epoch.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from palestra.config import ByName, Config, ConfigError, PositiveInt, UserConfig
from palestra.randomness import base_key, fold, random_bits, random_permutation, world_keys


class Order(ABC):
    """Which items each epoch reads, in which order.

    A class of your own derives from it, and carries its keys as `Config`, a UserConfig.

    config: its keys. data: the data set. num_items: N, of which it may read. seed: the run's. Raises ConfigError, with
    paths relative to its config, for a data set that does not fit.
    """

    def __init__(self, config: Any, data: Any, num_items: int, seed: int) -> None:
        self.config, self.num_items = config, num_items
        self.keys = world_keys(base_key(seed, "data/order"), 1, torch.device("cpu"))

    @abstractmethod
    def indices(self, epoch: int) -> Tensor:
        """Return the items of an epoch, counted from 0: int64 (n,), on the CPU.

        It must depend on its arguments and on `keys` alone, because a resumed run asks again. `fold(self.keys, epoch)`
        (palestra.randomness) is a key of the epoch.
        """


class Shuffled(Order):
    """All items, in another random order in each epoch."""

    def indices(self, epoch: int) -> Tensor:
        return random_permutation(fold(self.keys, epoch), self.num_items)


class ShuffledConfig(Config):
    name: Literal["shuffled"]
    """every item once in an epoch, in an order that is drawn anew for each"""

    def build(self, data: Any, num_items: int, seed: int) -> Order:
        return Shuffled(self, data, num_items, seed)


class Sequential(Order):
    """All items, as the data set has them."""

    def indices(self, epoch: int) -> Tensor:
        return torch.arange(self.num_items)


class SequentialConfig(Config):
    name: Literal["sequential"]
    """every item once in an epoch, in the order of the data set"""

    def build(self, data: Any, num_items: int, seed: int) -> Order:
        return Sequential(self, data, num_items, seed)


class Weighted(Order):
    """Items drawn with replacement, in proportion to the data set's `weights`, N numbers."""

    def __init__(self, config: "WeightedConfig", data: Any, num_items: int, seed: int) -> None:
        super().__init__(config, data, num_items, seed)
        if (weights := getattr(data, "weights", None)) is None:
            message = f"'weighted' needs the attribute `weights` of the data set, which {type(data).__name__} lacks"
            raise ConfigError.at("name", message)
        found = torch.as_tensor(weights, dtype=torch.float64).flatten()[:num_items]
        if len(found) != num_items:
            message = f"expected {num_items} weights, one for each item of the data set, got {len(found)}"
            raise ConfigError.at("name", message)
        if not (is_sound := found.isfinite() & (found >= 0)).all():
            item = int((~is_sound).nonzero()[0])
            raise ConfigError.at("name", f"expected weights >= 0, got {float(found[item])} for item {item}")
        if not found.any():
            raise ConfigError.at("name", "expected a weight above 0, got none")
        self.sums = found.cumsum(0)

    def indices(self, epoch: int) -> Tensor:
        bits = random_bits(fold(self.keys, epoch), self.config.num_drawn or self.num_items)[0]
        shares = (bits.bitwise_right_shift(11) & (2**53 - 1)).to(torch.float64) / 2**53
        return torch.searchsorted(self.sums, shares * self.sums[-1], right=True).clamp_(max=self.num_items - 1)


class WeightedConfig(Config):
    name: Literal["weighted"]
    """items are drawn with replacement, in proportion to the `weights` of the data set"""
    num_drawn: PositiveInt | None
    """how many items an epoch draws; null: as many as the data set has"""

    def build(self, data: Any, num_items: int, seed: int) -> Order:
        return Weighted(self, data, num_items, seed)


AnyOrderConfig = Annotated[
    ShuffledConfig | SequentialConfig | WeightedConfig | UserConfig, ByName(user_class=Order, usual="shuffled")
]
