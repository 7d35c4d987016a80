"""Networks of a user's own class: what a network with a memory must have, and the trial of every one that is made.

Letters: T steps, B worlds.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from palestra.config import ConfigError, ConfigErrorItem, UserConfig, failure, load_class
from palestra.games.fused import Memory
from palestra.games.spaces import Space
from palestra.nets.weights import evaluation_twin

TRIED_STEPS, TRIED_WORLDS = 3, 2


class RecurrentNet(nn.Module, ABC):
    """A network with a memory for each world, which is all zeros when an episode begins."""

    @abstractmethod
    def initial_memory(self, num_worlds: int, device: torch.device) -> Memory:
        """The memory at an episode's start, all zeros: by name, tensors (B, ...)."""

    @abstractmethod
    def forward(self, observation: Mapping[str, Tensor], memory: Memory) -> tuple[Tensor, Memory]:
        """One step: the outputs, float32 (B, num_outputs), and the new memory. Observation: (B, ...)."""

    @abstractmethod
    def unroll(self, observation: Mapping[str, Tensor], memory: Memory, fresh: Tensor) -> Tensor:
        """The outputs of T steps one after another, float32 (T, B, num_outputs), as `forward` would give them.

        Observation: (T, B, ...). memory: before the first step, (B, ...). fresh: bool (T, B), where an episode begins:
        there the memory is zeroed before the step, at the first step too. Gradients flow through all steps of an
        episode, and into `memory`.
        """


def make_own_net(config: UserConfig, spaces: dict[str, Space], num_outputs: int) -> nn.Module:
    """A network of the class that a config names, tried once. Raises ConfigError where it fails, or has other outputs
    than it should."""
    made = load_class(config.name, nn.Module)
    try:
        net: nn.Module = made(config, spaces, num_outputs)
        with torch.no_grad():
            outputs, expected = _try(evaluation_twin(net), spaces, num_outputs)
    except ConfigError:
        raise
    except Exception as error:
        message = f"{config.name!r} fails on this observation: {failure(error)}"
        raise ConfigError([ConfigErrorItem("name", message)]) from error
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if shape != expected:
        message = f"the outputs of {config.name!r} are {shape} for {TRIED_WORLDS} worlds; expected {expected}"
        raise ConfigError([ConfigErrorItem("name", message)])
    return net


def _try(net: nn.Module, spaces: dict[str, Space], num_outputs: int) -> tuple[Tensor, tuple[int, ...]]:
    """The outputs for observations of zeros, and the shape that they should have."""
    T, B = TRIED_STEPS, TRIED_WORLDS
    seen = {name: torch.zeros(T, B, *space.shape, dtype=space.dtype) for name, space in spaces.items()}
    first = {name: value[0] for name, value in seen.items()}
    if not isinstance(net, RecurrentNet):
        return net(first), (B, num_outputs)
    memory = net.initial_memory(B, torch.device("cpu"))
    outputs, memory = net(first, memory)
    if outputs.shape != (B, num_outputs):
        return outputs, (B, num_outputs)
    return net.unroll(seen, memory, torch.zeros(T, B, dtype=torch.bool)), (T, B, num_outputs)
