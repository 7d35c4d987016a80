"""Networks of a user's own class: what a network with a memory must have, and the trial of every one that is made.

Letters: T steps, B worlds.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

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
    with _told_of(repr(config.name), "name"):
        net: nn.Module = made(config, spaces, num_outputs)
        _require_outputs(net, spaces, num_outputs)
    return net


class GivenNets:
    """Networks that a program has made, where else the config of one stands: handed out one by one."""

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        self.nets = list(nets)
        self.num_made = 0

    def make(self, spaces: dict[str, Space], num_outputs: int) -> nn.Module:
        """The next one, tried once. Raises ConfigError where there is none, it fails, or it has other outputs."""
        self.num_made += 1
        if self.num_made > len(self.nets):
            message = f"{len(self.nets)} given by set_model; expected a list of more of them"
            raise ConfigError([ConfigErrorItem("", message)])
        net = self.nets[self.num_made - 1]
        with _told_of(f"the {type(net).__name__} given by set_model", ""):
            _require_outputs(net, spaces, num_outputs)
        return net


@contextmanager
def _told_of(what: str, path: str) -> Iterator[None]:
    """Whatever a network raises is an error of the config, at a path."""
    try:
        yield
    except ConfigError:
        raise
    except _WrongOutputs as error:
        raise ConfigError([ConfigErrorItem(path, f"the outputs of {what} are {error}")]) from None
    except Exception as error:
        raise ConfigError([ConfigErrorItem(path, f"{what} fails on this observation: {failure(error)}")]) from error


class _WrongOutputs(Exception):
    pass


def _require_outputs(net: nn.Module, spaces: dict[str, Space], num_outputs: int) -> None:
    """Try a network once."""
    with torch.no_grad():
        outputs, expected = _try(evaluation_twin(net), spaces, num_outputs)
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if shape != expected:
        raise _WrongOutputs(f"{shape} for {TRIED_WORLDS} worlds; expected {expected}")


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
