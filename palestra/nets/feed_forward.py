"""The networks without a memory. To register one, add its config here."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from palestra.config import ByName, Config, ConfigError, ConfigErrorItem, InBranch, PositiveInt, below
from palestra.games.spaces import RoleSpaces, Space
from palestra.nets.activations import ACTIVATIONS, Activation
from palestra.nets.convolutional import ImpalaCNNConfig, NatureCNNConfig
from palestra.nets.deep_sets import DeepSetsConfig, NewtonSetsConfig
from palestra.nets.mlp import MLPConfig, NetArch, make_layers
from palestra.nets.user_nets import RecurrentNet, UserNetConfig

PlainConfig = MLPConfig | DeepSetsConfig | NewtonSetsConfig | NatureCNNConfig | ImpalaCNNConfig
PlainNetConfig = Annotated[PlainConfig | UserNetConfig, ByName(user_class=nn.Module, but_not=RecurrentNet)]


LEAST_SIDE_OF_NATURE_CNN = 36


def usual_plain_net(space: Space) -> str:
    """Return the network that a first file names for an observation of one entry."""
    if space.padded:
        return "deep_sets"
    if not space.is_image:
        return "mlp"
    return "nature_cnn" if min(space.shape[1:]) >= LEAST_SIDE_OF_NATURE_CNN else "impala_cnn"


class MultiInputConfig(Config):
    usual: ClassVar = {"entry_width": 64, "net_arch": [64], "activation": "relu"}

    name: Literal["multi_input"]
    """a network for every entry of the observation, then layers on all of their outputs"""
    entries: dict[str, PlainNetConfig]
    """the network of every entry, by the entry's name"""
    entry_width: PositiveInt
    """outputs of each of these networks"""
    net_arch: NetArch
    """the layers after them, as in mlp"""
    activation: Activation
    """activation after the entries' networks and after every hidden layer: relu, tanh, silu, elu or gelu"""

    def build(self, spaces: dict[str, Space], num_outputs: int) -> "MultiInput":
        return MultiInput(self, spaces, num_outputs)


class MultiInput(nn.Module):
    """Networks of the entries side by side, and layers on all of their outputs. Output: float32 (B, num_outputs).

    Raises ConfigError if the config names other entries than the observation has, or a network that does not support
    its entry.
    """

    def __init__(self, config: MultiInputConfig, spaces: dict[str, Space], num_outputs: int) -> None:
        super().__init__()
        faults = dict.fromkeys(spaces.keys() - config.entries, "expected a network, but the key is missing")
        known = f"unknown key; the entries of this observation: {', '.join(spaces)}"
        faults |= dict.fromkeys(config.entries.keys() - spaces, known)
        ConfigError.require_none(ConfigErrorItem(f"entries.{name}", faults[name]) for name in sorted(faults))
        self.names = list(spaces)
        self.entries = nn.ModuleList()
        for name, space in spaces.items():
            with below(f"entries.{name}"):
                self.entries.append(config.entries[name].build({name: space}, config.entry_width))
        width, activation = len(spaces) * config.entry_width, config.activation
        layers = make_layers(config.net_arch, activation, width, num_outputs)
        self.head = nn.Sequential(ACTIVATIONS[activation](), *layers)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        outputs = [net({name: observation[name]}) for name, net in zip(self.names, self.entries, strict=True)]
        return self.head(torch.cat(outputs, dim=1))


FeedForwardConfig = PlainConfig | MultiInputConfig


def usual_net(spaces: RoleSpaces) -> Any:
    """Return what a first file says of the network for a role's observation."""
    entries = {name: usual_plain_net(space) for name, space in spaces.observation.items()}
    nets = set(entries.values())
    if "deep_sets" in nets or nets == {"mlp"} or len(entries) == 1:  # points see all other entries
        return "deep_sets" if "deep_sets" in nets else nets.pop()
    return {"name": "multi_input", "entries": entries}


NetConfig = Annotated[
    FeedForwardConfig | UserNetConfig,
    ByName(user_class=nn.Module, but_not=RecurrentNet, usual=usual_net),
    InBranch.FIXED,
]
