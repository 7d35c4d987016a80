"""`mlp`: layers one after another, written as a list."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator
from torch import Tensor, nn

from palestra.config import Config, ConfigError, ConfigErrorItem, PositiveInt, check
from palestra.games.spaces import Space
from palestra.nets.activations import ACTIVATIONS, Activation
from palestra.nets.inputs import flat_size, flatten_observation

WORD = re.compile("b|l|r0*[1-9][0-9]*")


class Repeat(Config):
    """The entry of a net_arch that stands for several copies of other layers."""

    repeat: PositiveInt
    """how often the layers stand one after another"""
    net_arch: "NetArch"
    """the layers"""


def _check_layers(value: Any) -> Any:
    """Raise ConfigError, with the path of each fault, unless a value is a net_arch."""
    errors: list[ConfigErrorItem] = []
    for index, item in enumerate(value if isinstance(value, list) else []):
        is_width = isinstance(item, int) and not isinstance(item, bool) and item >= 1
        is_word = isinstance(item, str) and WORD.fullmatch(item)
        if isinstance(item, dict):
            try:
                check(item, Repeat)
            except ConfigError as error:
                errors += [ConfigErrorItem(f"{index}.{e.path}", e.message) for e in error.errors]
        elif not (is_width or is_word):
            expected = (
                "a width >= 1, 'b' (batch norm), 'l' (layer norm), 'rK' (residual block of width K) or "
                "{repeat: ..., net_arch: [...]}"
            )
            errors.append(ConfigErrorItem(str(index), f"expected {expected}, got {item!r}"))
    ConfigError.require_none(errors)
    return value


NetArch = Annotated[list[Any], BeforeValidator(_check_layers)]
Repeat.model_rebuild()


class MLPConfig(Config):
    usual: ClassVar = {"net_arch": [128, 128], "activation": "relu"}

    name: Literal["mlp"]
    """layers one after another"""
    net_arch: NetArch
    """a width: linear and activation; b, l: batch or layer norm before the last activation; rK: residual block of
    width K; {repeat, net_arch}"""
    activation: Activation
    """activation after every hidden layer: relu, tanh, silu, elu or gelu"""

    def build(self, spaces: dict[str, Space], num_outputs: int) -> "MLP":
        return MLP(self, spaces, num_outputs)


class MLP(nn.Module):
    """A network of layers one after another.

    Input: the observation, flattened, absent rows zeroed and flagged. Output: float32 (B, num_outputs).
    """

    def __init__(self, config: MLPConfig, spaces: dict[str, Space], num_outputs: int) -> None:
        super().__init__()
        self.spaces = spaces
        self.layers = make_layers(config.net_arch, config.activation, flat_size(spaces), num_outputs)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        return self.layers(flatten_observation(observation, self.spaces))


class ResidualBlock(nn.Module):
    """x + two linear layers with batch norm (He et al. 2016); the shortcut is linear where the width changes."""

    def __init__(self, in_width: int, width: int, activation: Activation) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(in_width, width),
            nn.BatchNorm1d(width),
            ACTIVATIONS[activation](),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
        )
        self.shortcut = nn.Identity() if in_width == width else nn.Linear(in_width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) + self.shortcut(x)


def make_layers(net_arch: list[Any], activation: Activation, in_width: int, num_outputs: int) -> nn.Sequential:
    """Make the layers of a net_arch, and a linear one after them, which gives the outputs."""
    layers: list[nn.Module] = []
    width, act = in_width, ACTIVATIONS[activation]
    for item in expand(net_arch):
        if isinstance(item, int):
            layers += [nn.Linear(width, item), act()]
            width = item
        elif item in ("b", "l"):
            at = len(layers) - 1 if layers and isinstance(layers[-1], act) else len(layers)
            layers.insert(at, nn.BatchNorm1d(width) if item == "b" else nn.LayerNorm(width))
        else:
            layers += [ResidualBlock(width, int(item[1:]), activation), act()]
            width = int(item[1:])
    return nn.Sequential(*layers, nn.Linear(width, num_outputs))


def expand(net_arch: list[Any]) -> list[int | str]:
    """Return the list with every {repeat, net_arch} written out."""
    layers: list[int | str] = []
    for item in net_arch:
        layers += expand(item["net_arch"]) * item["repeat"] if isinstance(item, dict) else [item]
    return layers
