"""`multi_input`: a network for every entry of an observation, then layers on all of their outputs."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from palestra.config import Config, ConfigError, ConfigErrorItem, PositiveInt, below
from palestra.games.spaces import Space
from palestra.nets.activations import ACTIVATIONS, Activation
from palestra.nets.mlp import NetArch, make_layers
from palestra.nets.plain import PlainNetConfig


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
        _check_entries(config, spaces)
        self.names = list(spaces)
        self.entries = nn.ModuleList()
        for name, space in spaces.items():
            with below(f"entries.{name}"):
                self.entries.append(config.entries[name].build({name: space}, config.entry_width))
        body, width = make_layers(config.net_arch, config.activation, len(spaces) * config.entry_width)
        self.head = nn.Sequential(ACTIVATIONS[config.activation](), *body, nn.Linear(width, num_outputs))

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        outputs = [net({name: observation[name]}) for name, net in zip(self.names, self.entries, strict=True)]
        return self.head(torch.cat(outputs, dim=1))


def _check_entries(config: MultiInputConfig, spaces: dict[str, Space]) -> None:
    faults = dict.fromkeys(spaces.keys() - config.entries, "expected a network, but the key is missing")
    known = f"unknown key; the entries of this observation: {', '.join(spaces)}"
    faults |= dict.fromkeys(config.entries.keys() - spaces, known)
    ConfigError.require_none(ConfigErrorItem(f"entries.{name}", faults[name]) for name in sorted(faults))
