"""The networks without a memory. To register one that consists of other networks, add its config here."""

from typing import Annotated

from torch import nn

from palestra.config import ByName
from palestra.nets.multi_input import MultiInputConfig
from palestra.nets.plain import PlainConfig
from palestra.nets.user_nets import RecurrentNet, UserNetConfig

FeedForwardConfig = PlainConfig | MultiInputConfig
NetConfig = Annotated[FeedForwardConfig | UserNetConfig, ByName(user_class=nn.Module, but_not=RecurrentNet)]
