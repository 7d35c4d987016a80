"""Pretrained torch modules as players that are held fixed.

Letters: B worlds.
"""

from collections.abc import Mapping
from typing import Annotated, Self

import torch
from pydantic import AfterValidator
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from palestra.config import Config, ConfigError, NonEmptyStr, admitted_function, cut, failure, load_function
from palestra.games.game import Game, IllegalMove
from palestra.games.policy import Decision, Memory, Observes
from palestra.games.spaces import Box, best_choice
from palestra.players.user_scripts import kind_of, try_policy
from palestra.randomness import seeded_global_state
from palestra.storage.stored_files import read_weights_file


def _check_function(name: str) -> str:
    admitted_function(name)  # raises ValueError
    return name


class TorchModuleConfig(Config):
    """A pretrained torch module, which is held fixed. It stands in place of a player's config."""

    torch_module: Annotated[str, AfterValidator(_check_function)]
    """a function of your own without arguments, package.module:function, that gives the module"""
    weights: NonEmptyStr | None
    """a safetensors file with the module's state_dict, which is copied into the run's folder; null: the weights with
    which the function gives it"""

    def user_names(self) -> list[str]:
        return [self.torch_module]


class ModulePolicy:
    """How a pretrained module plays a role of a game.

    The module gets a batch of the role's observations, (B, ...) as the game says, and keeps no memory: one tensor if an
    observation has one entry, else a dict of tensors by name. Its output is float (B, K). Of Discrete actions K is
    their number, the output ranks them (logits, Q-values), and the player takes the legal one that ranks highest; of
    MultiDiscrete ones each choice has its segment of the output, one after the other. Of a Box the output is the action
    itself; a number outside its bounds becomes the nearest bound.

    weights: the content of the safetensors file; None if the config names none. Raises ConfigError.
    """

    kind = "torch module"
    observes: Observes = "observation"

    def __init__(self, config: TorchModuleConfig, module: nn.Module, weights: bytes | None, game: Game, role: str):
        self.config, self.module, self.weights = config, module, weights
        self.role, self.space = role, game.action_spaces[role]
        try_policy(self, config.torch_module, game, role)

    @classmethod
    def build(cls, config: TorchModuleConfig, weights: bytes | None, source: str, game: Game, role: str) -> Self:
        """Make the module, load its weights, and try it once.

        source: where the weights come from, for errors. The global random state is not moved.
        """
        with seeded_global_state(0):
            try:
                module = load_function(config.torch_module)()
            except Exception as error:
                raise ConfigError.at("torch_module", f"{config.torch_module!r} fails: {failure(error)}") from error
        if not isinstance(module, nn.Module):
            raise ConfigError.at(
                "torch_module", f"expected a torch.nn.Module of {config.torch_module!r}, got {cut(repr(module))}"
            )
        if weights is not None:
            _load(module, weights, source)
        module = module.to(game.device).eval().requires_grad_(False)
        try:
            return cls(config, module, weights, game, role)
        except ConfigError as error:
            raise ConfigError.at("torch_module", error.errors[0].message) from error

    def for_seat(self, game: Game, role: str) -> Self:
        return type(self)(self.config, self.module, self.weights, game, role)

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        """Play by the module's outputs. Raises IllegalMove for outputs of another shape, and for nan."""
        with torch.no_grad():
            outputs = self.module(next(iter(view.values())) if len(view) == 1 else dict(view))
        space = self.space
        wanted = (len(keys), len(space.low) if isinstance(space, Box) else space.num_flags)
        if not isinstance(outputs, Tensor) or outputs.shape != wanted or not outputs.is_floating_point():
            expected = f"outputs, float of shape {wanted}, from {self.config.torch_module!r} as {self.role!r}"
            raise IllegalMove(f"expected {expected}, got {kind_of(outputs)}")
        if bool(outputs.isnan().any()):
            raise IllegalMove(f"expected numbers from {self.config.torch_module!r} as {self.role!r}, got nan")
        if isinstance(space, Box):
            numbers = outputs.to(torch.float32)
            actions = torch.clamp(numbers, numbers.new_tensor(space.low), numbers.new_tensor(space.high))
        else:
            choices = zip(space.split(outputs), space.split(legal), strict=True)
            actions = space.join([best_choice(values, flags) for values, flags in choices])
        return Decision(actions, {}, memory)


# ---- weights ---------------------------------------------------------------------------------------------


def read_weights(config: TorchModuleConfig) -> bytes | None:
    """Read the file that the config names; None if it names none. Raises ConfigError."""
    if config.weights is None:
        return None
    try:
        return read_weights_file(config.weights)
    except OSError as error:
        raise ConfigError.at(
            "weights", f"expected a safetensors file, got {config.weights} ({error.strerror})"
        ) from error


def _load(module: nn.Module, content: bytes, source: str) -> None:
    try:
        tensors = load(content)
    except (SafetensorError, KeyError, ValueError) as error:
        way = "safetensors.torch.save_file(module.state_dict(), FILE) writes one"
        raise ConfigError.at("weights", f"expected a safetensors file, got {source} ({error}); {way}") from error
    wanted = module.state_dict()
    for key, value in wanted.items():
        if key not in tensors:
            raise ConfigError.at("weights", f"expected the key {key!r} of the module in {source}, got none")
        if tensors[key].shape != value.shape:
            shapes = f"shape {tuple(value.shape)} for the key {key!r} in {source}, got {tuple(tensors[key].shape)}"
            raise ConfigError.at("weights", f"expected {shapes}")
    if extra := [key for key in tensors if key not in wanted]:
        raise ConfigError.at("weights", f"expected the keys of the module alone in {source}, got {extra[0]!r}, too")
    module.load_state_dict(dict(tensors))
