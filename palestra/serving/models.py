"""The models of a server: the one with which it began, and those that jobs have made of it.

The first is always in memory, and a few of the others, which take turns in the same memory.
"""

from typing import Protocol

import torch
from torch import Tensor

from palestra.serving.source import Source, fill
from palestra.text.models.local import LocalModel

MOST_LOADED = 3  # beside the first one


class TunedWeights(Protocol):
    """What knows the models that jobs have made."""

    def weights(self, model: str) -> dict[str, Tensor]:
        """Read the weights of a tuned model. Raises CheckpointError."""


class Models:
    """Models by the names that requests give; only the engine's thread asks for them. first: that of the source."""

    def __init__(self, source: Source, device: torch.device, tuned: TunedWeights, first: LocalModel) -> None:
        self.source, self.device, self.tuned, self.first = source, device, tuned, first
        self._loaded: dict[str, LocalModel] = {}  # the one that was not asked for longest comes first

    def get(self, name: str) -> LocalModel:
        """Return a model, loaded. Raises CheckpointError for weights that are missing or damaged."""
        if name == self.source.facts.name:
            return self.first
        if name in self._loaded:
            model = self._loaded.pop(name)
        else:
            weights = self.tuned.weights(name)
            if len(self._loaded) < MOST_LOADED:
                model = self.source.build(self.device)
            else:
                model = self._loaded.pop(next(iter(self._loaded)))
            fill(model, weights)
        self._loaded[name] = model
        return model
