"""Networks by name: a config builds a torch module for the spaces of an observation and a number of outputs."""

from typing import Annotated

from torch import nn

from palestra.config import ByName, ConfigError, InBranch, PartError, load_class
from palestra.config.variants import members_of
from palestra.games.spaces import Space
from palestra.nets.feed_forward import FeedForwardConfig, NetConfig, usual_net
from palestra.nets.recurrent import RecurrentConfig
from palestra.nets.user_nets import BuiltNetConfig, RecurrentNet, UserNetConfig, UserNets
from palestra.randomness import seeded_global_state

AnyNetConfig = Annotated[
    FeedForwardConfig | RecurrentConfig | UserNetConfig, ByName(user_class=nn.Module, usual=usual_net), InBranch.FIXED
]
"""A network with or without a memory; an algorithm that does not support a memory uses NetConfig in its config."""


def make_net(
    config: FeedForwardConfig | RecurrentConfig | UserNetConfig | UserNets,
    spaces: dict[str, Space],
    num_outputs: int,
    key: int,
) -> nn.Module:
    """Build the network of a config.

    key: the seed of torch's initialisers; torch's global random state is restored. num_outputs: the sum over the heads
    that share the network. Raises PartError (a ConfigError) for a network that does not support these spaces.
    """
    try:
        with seeded_global_state(key):
            return config.build(spaces, num_outputs)
    except ConfigError as error:
        raise PartError(config, error.errors) from error


def is_recurrent_config(value: object) -> bool:
    """Return whether a value stands for a network with a memory: by name, of a user's class, or given by a program."""
    if isinstance(value, UserNets):
        return any(isinstance(net, RecurrentNet) for net in value.nets)
    if isinstance(value, BuiltNetConfig):
        with seeded_global_state(0):
            return isinstance(value.make(), RecurrentNet)
    if isinstance(value, UserNetConfig):
        return issubclass(load_class(value.name, nn.Module), RecurrentNet)
    return isinstance(value, RecurrentConfig)


def is_net_config(value: object) -> bool:
    """Return whether a value is the config of a network, by name or of a user's own class."""
    return isinstance(value, members_of(AnyNetConfig))
