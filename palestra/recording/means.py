"""Means of metrics between two records."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class Means:
    """Adds up metrics, each a number or a 0-d tensor on any device; only `values` waits for the device."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Tensor | float, int]] = {}
        self._taken: dict[str, float] = {}

    def add(self, metrics: Mapping[str, Tensor | float]) -> None:
        for name, value in metrics.items():
            total, num = self._sums.get(name, (0.0, 0))
            if isinstance(value, Tensor) and value.is_cpu:
                value = value.item()  # there is nothing to wait for, and numbers add up faster
            self._sums[name] = (total + value, num + 1)

    def values(self) -> dict[str, float]:
        return {name: float(total) / num for name, (total, num) in self._sums.items()}

    def total(self, name: str) -> float:
        """The sum of one metric so far, 0 if there is none; a nan or infinity that went in stays."""
        return float(self._sums.get(name, (0.0, 0))[0])

    def take(self) -> dict[str, float]:
        """The means since the last call."""
        self._taken, self._sums = self.values(), {}
        return self._taken

    def shown(self) -> dict[str, float]:
        """The means so far or, where nothing was added since they were taken, those."""
        return self.values() or self._taken

    def state_dict(self) -> dict[str, Any]:
        return dict(self._sums)

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        self._sums = {}
        self._sums = {
            name: (total.to(device) if isinstance(total, Tensor) else total, num)
            for name, (total, num) in state.items()
        }
