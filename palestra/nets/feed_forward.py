"""The networks without a memory."""

from typing import Annotated

from torch import nn

from palestra.config import ByName, Config, UserConfig
from palestra.games.spaces import Space
from palestra.nets.multi_input import MultiInput, MultiInputConfig
from palestra.nets.own import RecurrentNet
from palestra.nets.plain import PlainConfig, make_plain_net

FeedForwardConfig = PlainConfig | MultiInputConfig
NetConfig = Annotated[FeedForwardConfig | UserConfig, ByName(user_class=nn.Module, but_not=RecurrentNet)]


def make_feed_forward(config: Config, spaces: dict[str, Space], num_outputs: int) -> nn.Module:
    """One of these networks, or one of a user's own class."""
    if isinstance(config, MultiInputConfig):
        return MultiInput(config, spaces, num_outputs)
    return make_plain_net(config, spaces, num_outputs)
