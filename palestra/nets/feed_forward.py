"""The networks without a memory. To register one that is made of other networks, add its config here."""

from typing import Annotated

from torch import nn

from palestra.config import ByName
from palestra.nets.multi_input import MultiInputConfig
from palestra.nets.own import RecurrentNet, UserNetConfig
from palestra.nets.plain import PlainConfig

FeedForwardConfig = PlainConfig | MultiInputConfig
NetConfig = Annotated[FeedForwardConfig | UserNetConfig, ByName(user_class=nn.Module, but_not=RecurrentNet)]
