"""The networks that are made of no other networks."""

from typing import Annotated

from torch import nn

from palestra.config import ByName, Config, UserConfig
from palestra.games.spaces import Space
from palestra.nets.convolutional import ImpalaCNN, ImpalaCNNConfig, NatureCNN, NatureCNNConfig
from palestra.nets.deep_sets import DeepSets, DeepSetsConfig
from palestra.nets.mlp import MLP, MLPConfig
from palestra.nets.newton_sets import NewtonSets, NewtonSetsConfig
from palestra.nets.own import RecurrentNet, make_own_net

PlainConfig = MLPConfig | DeepSetsConfig | NewtonSetsConfig | NatureCNNConfig | ImpalaCNNConfig
PlainNetConfig = Annotated[PlainConfig | UserConfig, ByName(user_class=nn.Module, but_not=RecurrentNet)]

PLAIN_NETS: dict[str, type[nn.Module]] = {
    "mlp": MLP,
    "deep_sets": DeepSets,
    "newton_sets": NewtonSets,
    "nature_cnn": NatureCNN,
    "impala_cnn": ImpalaCNN,
}


def make_plain_net(config: Config, spaces: dict[str, Space], num_outputs: int) -> nn.Module:
    """One of these networks, or one of a user's own class."""
    if isinstance(config, UserConfig):
        return make_own_net(config, spaces, num_outputs)
    net_class = PLAIN_NETS[config.name]  # type: ignore[attr-defined]
    return net_class(config, spaces, num_outputs)
