"""Networks by name: a config, the spaces of an observation and a number of outputs make a torch module."""

from typing import Annotated

from torch import nn

from palestra.config import ByName, Config, UserConfig, load_class
from palestra.games.spaces import Space
from palestra.nets.deep_sets import DeepSets, DeepSetsConfig
from palestra.nets.mlp import MLP, MLPConfig
from palestra.nets.newton_sets import NewtonSets, NewtonSetsConfig
from palestra.randomness import seeded_global_state

NetConfig = Annotated[MLPConfig | DeepSetsConfig | NewtonSetsConfig | UserConfig, ByName(user_class=nn.Module)]

NETS: dict[str, type[nn.Module]] = {"mlp": MLP, "deep_sets": DeepSets, "newton_sets": NewtonSets}


def make_net(config: Config, spaces: dict[str, Space], num_outputs: int, key: int) -> nn.Module:
    """The network that a config names, its stock initialisers seeded with `key`; torch's global state is not moved.

    A user's own class is called as (config, spaces, num_outputs), maps an observation to (B, num_outputs), and
    carries `Config`.
    """
    name: str = config.name  # type: ignore[attr-defined]
    net_class = NETS.get(name) or load_class(name, nn.Module)
    with seeded_global_state(key):
        return net_class(config, spaces, num_outputs)
