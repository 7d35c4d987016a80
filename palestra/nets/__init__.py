"""Networks by name: a config, the spaces of an observation and a number of outputs make a torch module."""

from typing import Annotated, get_args

from torch import nn

from palestra.config import ByName, Config, ConfigError, PartError, UserConfig, load_class
from palestra.config.variants import members_of
from palestra.games.spaces import Space
from palestra.nets.feed_forward import FeedForwardConfig, NetConfig, make_feed_forward
from palestra.nets.own import GivenNets, RecurrentNet
from palestra.nets.recurrent import Recurrent, RecurrentConfig
from palestra.randomness import seeded_global_state

AnyNetConfig = Annotated[FeedForwardConfig | RecurrentConfig | UserConfig, ByName(user_class=nn.Module)]
"""With a memory or without; an algorithm that has no use for a memory asks for NetConfig instead."""

__all__ = ["AnyNetConfig", "GivenNets", "NetConfig", "is_net_config", "is_recurrent_config", "make_net"]


def make_net(config: Config | GivenNets, spaces: dict[str, Space], num_outputs: int, key: int) -> nn.Module:
    """The network that a config names, its stock initialisers seeded with `key`; torch's global state is not moved.

    Heads that share a body are outputs of one network: ask for as many as all heads have together. A user's own class
    is called as (config, spaces, num_outputs), maps an observation to (B, num_outputs), and carries `Config`. Raises
    PartError (a ConfigError) for a network that cannot see these spaces.
    """
    try:
        if isinstance(config, GivenNets):
            return config.make(spaces, num_outputs)
        with seeded_global_state(key):
            if isinstance(config, RecurrentConfig):
                return Recurrent(config, spaces, num_outputs)
            return make_feed_forward(config, spaces, num_outputs)
    except ConfigError as error:
        raise PartError(config, error.errors) from error


def is_recurrent_config(value: object) -> bool:
    """Whether that stands for a network with a memory, by name, of a user's own class, or given by a program."""
    if isinstance(value, GivenNets):
        return any(isinstance(net, RecurrentNet) for net in value.nets)
    if isinstance(value, UserConfig):
        return issubclass(load_class(value.name, object), RecurrentNet)
    return isinstance(value, RecurrentConfig)


def is_net_config(value: object) -> bool:
    """Whether that is the config of a network, by name or of a user's own class."""
    if isinstance(value, UserConfig):
        return issubclass(load_class(value.name, object), nn.Module)
    return isinstance(value, members_of(get_args(AnyNetConfig)[0]))
