"""Networks of a user's own class: what a network with a memory must have, and the trial of every one that is made.

Letters: T steps, B worlds.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import Tensor, nn

from palestra.config import ConfigError, ConfigErrorItem, UserConfig, failure, load_class
from palestra.games.policy import Memory
from palestra.games.spaces import Space
from palestra.nets.weights import evaluation_twin
from palestra.randomness import seeded_global_state

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
    def unroll(self, observation: Mapping[str, Tensor], memory: Memory, episode_start: Tensor) -> Tensor:
        """The outputs of T steps one after another, float32 (T, B, num_outputs), as `forward` would give them.

        Observation: (T, B, ...). memory: before the first step, (B, ...). episode_start: bool (T, B), where an
        episode begins: there the memory is zeroed before the step, at the first step too. Gradients flow through all
        steps of an episode, and into `memory`.
        """


class UserNetConfig(UserConfig):
    """Base of the `Config` of a user's own network, which is called as (config, spaces, num_outputs) and maps an
    observation to float32 (B, num_outputs)."""

    def build(self, spaces: dict[str, Space], num_outputs: int) -> nn.Module:
        """The network, tried once. Raises ConfigError where it fails, has other outputs than it should, or parameters
        that cannot learn."""
        made = load_class(self.name, nn.Module)
        with _blaming(repr(self.name), "name"):
            net: nn.Module = made(self, spaces, num_outputs)
            _require_fit(net, spaces, num_outputs)
        return net


class PythonNets:
    """Networks that a program has made, where else the config of one stands: handed out one by one."""

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        self.nets = list(nets)
        self.num_made = 0

    def build(self, spaces: dict[str, Space], num_outputs: int) -> nn.Module:
        """The next one, tried once. Raises ConfigError where there is none, it fails, has other outputs, or parameters
        that cannot learn."""
        self.num_made += 1
        if self.num_made > len(self.nets):
            message = f"{len(self.nets)} given by set_model; expected a list of more of them"
            raise ConfigError([ConfigErrorItem("", message)])
        net = self.nets[self.num_made - 1]
        with _blaming(f"the {type(net).__name__} given by set_model", ""):
            _require_fit(net, spaces, num_outputs)
        return net


@contextmanager
def _blaming(what: str, path: str) -> Iterator[None]:
    """Whatever a network raises inside is an error of the config, at a path."""
    try:
        yield
    except ConfigError:
        raise
    except _Unfit as error:
        raise ConfigError([ConfigErrorItem(path, f"{error.what} of {what} {error}")]) from None
    except Exception as error:
        raise ConfigError([ConfigErrorItem(path, f"{what} fails on this observation: {failure(error)}")]) from error


class _Unfit(Exception):
    """what: the part of a network that is at fault; the text says how."""

    def __init__(self, what: str, how: str) -> None:
        super().__init__(how)
        self.what = what


def _require_fit(net: nn.Module, spaces: dict[str, Space], num_outputs: int) -> None:
    """Try a network as it acts, also in one world alone, and as it learns. Nothing of it changes."""
    with torch.no_grad():
        for num_worlds in (TRIED_WORLDS, 1):
            _require_outputs(*_try(evaluation_twin(net), spaces, num_outputs, num_worlds), num_worlds)
    parameters = dict(net.named_parameters())
    if not parameters:
        raise _Unfit("the parameters", "are none; expected some that learn")
    frozen = [name for name, parameter in parameters.items() if not parameter.requires_grad]
    if frozen:
        raise _Unfit(_named(frozen), "asks for no gradient; expected a buffer instead, or the callback `freeze`")
    learning = deepcopy(net).train()
    with torch.enable_grad(), seeded_global_state(0):  # dropout
        outputs, _ = _try(learning, spaces, num_outputs, TRIED_WORLDS)
        weights = list(learning.parameters())
        found = torch.autograd.grad(outputs.sum(), weights, allow_unused=True) if outputs.requires_grad else ()
    unused = [
        name for name, gradient in zip(parameters, found or [None] * len(weights), strict=True) if gradient is None
    ]
    if unused:
        raise _Unfit(_named(unused), "gets no gradient from the outputs; expected every parameter to be used")


def _named(parameters: list[str]) -> str:
    """The first of some parameters, and how many more there are."""
    more = f" (and {len(parameters) - 1} more)" if len(parameters) > 1 else ""
    return f"parameter {parameters[0]!r}{more}"


def _require_outputs(outputs: Tensor, expected: tuple[int, ...], num_worlds: int) -> None:
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if shape != expected:
        raise _Unfit("the outputs", f"are {shape} for {num_worlds} worlds; expected {expected}")
    if outputs.dtype != torch.float32:
        raise _Unfit("the outputs", f"are {str(outputs.dtype).removeprefix('torch.')}; expected float32")


def _try(net: nn.Module, spaces: dict[str, Space], num_outputs: int, num_worlds: int) -> tuple[Tensor, tuple[int, ...]]:
    """The outputs for observations of zeros, and the shape that they should have."""
    T, B = TRIED_STEPS, num_worlds
    seen = {name: torch.zeros(T, B, *space.shape, dtype=space.dtype) for name, space in spaces.items()}
    first = {name: value[0] for name, value in seen.items()}
    if not isinstance(net, RecurrentNet):
        return net(first), (B, num_outputs)
    memory = net.initial_memory(B, torch.device("cpu"))
    outputs, memory = net(first, memory)
    if outputs.shape != (B, num_outputs):
        return outputs, (B, num_outputs)
    return net.unroll(seen, memory, torch.zeros(T, B, dtype=torch.bool)), (T, B, num_outputs)
