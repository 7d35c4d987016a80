"""The networks that do not consist of other networks. To register one, add its config here."""

from typing import Annotated

from torch import nn

from palestra.config import ByName
from palestra.games.spaces import Space
from palestra.nets.convolutional import ImpalaCNNConfig, NatureCNNConfig
from palestra.nets.deep_sets import DeepSetsConfig
from palestra.nets.mlp import MLPConfig
from palestra.nets.newton_sets import NewtonSetsConfig
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
