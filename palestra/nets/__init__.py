"""Networks by name: a config, the spaces of an observation and a number of outputs make a torch module."""

from typing import Annotated

from torch import nn

from palestra.config import ByName, ConfigError, PartError, load_class
from palestra.config.variants import members_of
from palestra.games.spaces import Space
from palestra.nets.feed_forward import FeedForwardConfig, NetConfig
from palestra.nets.own import PythonNets, RecurrentNet, UserNetConfig
from palestra.nets.recurrent import RecurrentConfig
from palestra.randomness import seeded_global_state

AnyNetConfig = Annotated[FeedForwardConfig | RecurrentConfig | UserNetConfig, ByName(user_class=nn.Module)]
"""With a memory or without; an algorithm that has no use for a memory asks for NetConfig instead."""

__all__ = [
    "AnyNetConfig",
    "NetConfig",
    "PythonNets",
    "RecurrentNet",
    "UserNetConfig",
    "is_net_config",
    "is_recurrent_config",
    "make_net",
]


def make_net(
    config: FeedForwardConfig | RecurrentConfig | UserNetConfig | PythonNets,
    spaces: dict[str, Space],
    num_outputs: int,
    key: int,
) -> nn.Module:
    """The network that a config builds, its stock initialisers seeded with `key`; torch's global state is not moved.

    Heads that share a body are outputs of one network: ask for as many as all heads have together. Raises PartError (a
    ConfigError) for a network that cannot see these spaces.
    """
    try:
        with seeded_global_state(key):
            return config.build(spaces, num_outputs)
    except ConfigError as error:
        raise PartError(config, error.errors) from error


def is_recurrent_config(value: object) -> bool:
    """Whether that stands for a network with a memory, by name, of a user's own class, or given by a program."""
    if isinstance(value, PythonNets):
        return any(isinstance(net, RecurrentNet) for net in value.nets)
    if isinstance(value, UserNetConfig):
        return issubclass(load_class(value.name, nn.Module), RecurrentNet)
    return isinstance(value, RecurrentConfig)


def is_net_config(value: object) -> bool:
    """Whether that is the config of a network, by name or of a user's own class."""
    return isinstance(value, members_of(AnyNetConfig))
