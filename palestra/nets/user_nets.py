"""Networks of a user's own: the base of those with a memory, and the try-out of every network that is built.

Letters: T steps, B worlds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from inspect import isfunction
from typing import Any, cast

import torch
from torch import Tensor, nn

from palestra.config import ConfigError, UserConfig, failure, load_class, load_named, running_own
from palestra.games.game import cleared
from palestra.games.policy import Memory
from palestra.games.spaces import Space
from palestra.nets.inputs import zeros_of
from palestra.nets.weights import evaluation_view, flat_gradient, without_gradient
from palestra.randomness import seeded_global_state

TRIED_STEPS, TRIED_WORLDS = 3, 2


class RecurrentNet(nn.Module, ABC):
    """The base of networks with a memory. Each world has its own memory, which is zeros when an episode begins."""

    @abstractmethod
    def initial_memory(self, num_worlds: int, device: torch.device) -> Memory:
        """Return the memory at the start of an episode: zeros, tensors (B, ...) by name."""

    @abstractmethod
    def forward(self, observation: Mapping[str, Tensor], memory: Memory) -> tuple[Tensor, Memory]:
        """Return the outputs of one step, float32 (B, num_outputs), and the new memory. observation: (B, ...)."""

    @abstractmethod
    def unroll(self, observation: Mapping[str, Tensor], memory: Memory, episode_start: Tensor) -> Tensor:
        """Return the outputs of T steps one after another, float32 (T, B, num_outputs), as `forward` would give them.

        observation: (T, B, ...). memory: before the first step, (B, ...). episode_start: bool (T, B), the steps at
        which an episode begins: the memory is zeroed before them, at the first step, too. Gradients flow through all
        steps of an episode, and into `memory`.
        """


class UserNetConfig(UserConfig):
    """The base of the `Config` of a user's own network.

    The network's class is called as (config, spaces, num_outputs), and the network maps an observation to float32 (B,
    num_outputs).
    """

    @classmethod
    def model_of(cls, name: str, base: type) -> type[UserConfig]:
        """Return the config model of a name: BuiltNetConfig for a function or a network class without a `Config`."""
        named = load_named(name)
        is_class = isinstance(named, type) and issubclass(named, base) and not hasattr(named, "Config")
        return BuiltNetConfig if is_class or isfunction(named) else super().model_of(name, base)

    def build(self, spaces: dict[str, Space], num_outputs: int) -> nn.Module:
        """Build the network and try it once.

        Raises ConfigError if it fails, has outputs of a wrong shape or dtype, or parameters without a gradient.
        """
        net_class = load_class(self.name, nn.Module)
        return _tried(repr(self.name), "name", lambda: net_class(self, spaces, num_outputs), spaces, num_outputs)


class BuiltNetConfig(UserNetConfig):
    """The config of a network from a function or class that is called without arguments: {name: "mine:make_net"}."""

    def make(self) -> Any:
        """Call the function, and return what it gives."""
        return load_named(self.name)()

    def build(self, spaces: dict[str, Space], num_outputs: int) -> nn.Module:
        try:
            net = self.make()
        except Exception as error:
            raise ConfigError.at("name", f"{self.name!r} fails: {failure(error)}") from error
        return _tried(repr(self.name), "name", lambda: net, spaces, num_outputs)


class UserNets:
    """Networks that `set_model` got, in place of a network's config. Each call of `build` returns the next one."""

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        self.nets, self.num_built = list(nets), 0

    def build(self, spaces: dict[str, Space], num_outputs: int) -> nn.Module:
        """Return the next network, after trying it once.

        Raises ConfigError if there is none, if it fails, or if it has outputs of a wrong shape or dtype, or parameters
        without a gradient.
        """
        self.num_built += 1
        if self.num_built > len(self.nets):
            message = f"expected a list of at least {self.num_built} networks from set_model, got {len(self.nets)}"
            raise ConfigError.at("", message)
        net = self.nets[self.num_built - 1]
        return _tried(f"the {type(net).__name__} of set_model", "", lambda: net, spaces, num_outputs)


def _tried(who: str, path: str, make: Callable[[], Any], spaces: dict[str, Space], num_outputs: int) -> nn.Module:
    """Make a network and try it once. Raises ConfigError at a path. who: what its message calls the network."""
    with running_own(path, f"{who} fails on this observation"):
        try:
            net = make()
            if not isinstance(net, nn.Module):
                raise _Fault("a torch.nn.Module", type(net).__name__)
            _let_read(net, spaces)
            _try_net(net, spaces, num_outputs)
        except _Fault as fault:
            expected, got = fault.args
            raise ConfigError.at(path, f"expected {expected} from {who}, got {got}") from None
    return net


class _Fault(Exception):
    """A fault of a network. args: what was expected, and what it gave."""


def _let_read(net: nn.Module, spaces: dict[str, Space]) -> None:
    """If a network cannot read an observation's dict of one entry, let it get the entry alone.

    Raises RuntimeError if the network can read neither.
    """
    if len(spaces) > 1 or isinstance(net, RecurrentNet):
        return
    observation, view = zeros_of(spaces, TRIED_WORLDS), evaluation_view(net)
    (name,) = spaces
    with torch.no_grad():
        try:
            view(observation)
        except Exception as error:
            try:
                view(observation[name])
            except Exception as of_entry:
                raise RuntimeError(f"{failure(error)}; and on its entry {name!r} alone: {failure(of_entry)}") from error
            net.register_forward_pre_hook(entry_alone)


def entry_alone(net: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace an observation by its only entry: a hook before the forward pass of a network."""
    (observation,) = arguments
    return arguments if isinstance(observation, Tensor) else (next(iter(observation.values())),)


def _try_net(net: nn.Module, spaces: dict[str, Space], num_outputs: int) -> None:
    """Try a network in acting, also in one world alone, and in learning, without changing it. Raises _Fault."""
    with torch.no_grad():
        for num_worlds in (TRIED_WORLDS, 1):
            _check_outputs(*_outputs(evaluation_view(net), spaces, num_outputs, num_worlds), num_worlds)
    if not (parameters := dict(net.named_parameters())):
        raise _Fault("at least one parameter", "none")
    if frozen := [name for name, parameter in parameters.items() if not parameter.requires_grad]:
        raise _Fault(
            "parameters that require a gradient", f"{_listed(frozen)} without; use a buffer, or the callback `freeze`"
        )
    learning = deepcopy(net).train()
    with torch.enable_grad(), seeded_global_state(0):  # dropout
        outputs, _ = _outputs(learning, spaces, num_outputs, TRIED_WORLDS)
        if unused := without_gradient(outputs.sum(), dict(learning.named_parameters())):
            raise _Fault("a gradient for every parameter", f"none for {_listed(unused)}")
        if isinstance(net, RecurrentNet):
            _check_memory(cast(RecurrentNet, evaluation_view(net)), spaces)


def _check_memory(net: RecurrentNet, spaces: dict[str, Space]) -> None:
    """Compare `unroll` with single steps, between which an episode begins in one of the worlds. Raises _Fault."""
    episode_start = torch.zeros(TRIED_STEPS, TRIED_WORLDS, dtype=torch.bool)
    episode_start[1, 0] = True
    first, memory = zeros_of(spaces, TRIED_WORLDS), net.initial_memory(TRIED_WORLDS, torch.device("cpu"))
    with torch.no_grad():
        _, begun = net(first, memory)
    memory, steps = begun, []
    for begins in episode_start:
        outputs, memory = net(first, cleared(memory, begins))
        steps.append(outputs)
    ways = torch.stack(steps), net.unroll(zeros_of(spaces, *episode_start.shape), begun, episode_start)
    gradients = [flat_gradient(way.square().sum(), list(net.parameters())) for way in ways]
    for what, (stepped, unrolled) in {"numbers": ways, "gradients": gradients}.items():
        if not torch.allclose(stepped, unrolled, rtol=1e-3, atol=1e-4):
            raise _Fault(f"an `unroll` that gives the {what} of single steps", "other ones")


def _listed(parameters: list[str]) -> str:
    """Name the first of some parameters, and say how many more there are."""
    more = f" (and {len(parameters) - 1} more)" if len(parameters) > 1 else ""
    return f"parameter {parameters[0]!r}{more}"


def _check_outputs(outputs: Tensor, expected: tuple[int, ...], num_worlds: int) -> None:
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if shape != expected:
        raise _Fault(f"outputs of shape {expected} for {num_worlds} worlds", str(shape))
    if outputs.dtype != torch.float32:
        raise _Fault("float32 outputs", str(outputs.dtype).removeprefix("torch."))


def _outputs(
    net: nn.Module, spaces: dict[str, Space], num_outputs: int, num_worlds: int
) -> tuple[Tensor, tuple[int, ...]]:
    """Return a network's outputs for observations of zeros, and the shape that they should have."""
    T, B = TRIED_STEPS, num_worlds
    first = zeros_of(spaces, B)
    if not isinstance(net, RecurrentNet):
        return net(first), (B, num_outputs)
    memory = net.initial_memory(B, torch.device("cpu"))
    outputs, memory = net(first, memory)
    if outputs.shape != (B, num_outputs):
        return outputs, (B, num_outputs)
    return net.unroll(zeros_of(spaces, T, B), memory, torch.zeros(T, B, dtype=torch.bool)), (T, B, num_outputs)
