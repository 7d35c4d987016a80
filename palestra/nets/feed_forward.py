"""The networks without a memory. To register one that consists of other networks, add its config here."""

from typing import Annotated, Any

from torch import nn

from palestra.config import ByName, InBranch
from palestra.games.spaces import RoleSpaces
from palestra.nets.multi_input import MultiInputConfig
from palestra.nets.plain import PlainConfig, usual_plain_net
from palestra.nets.user_nets import RecurrentNet, UserNetConfig

FeedForwardConfig = PlainConfig | MultiInputConfig


def usual_net(spaces: RoleSpaces) -> Any:
    """Return what a first file says of the network for a role's observation."""
    entries = {name: usual_plain_net(space) for name, space in spaces.observation.items()}
    nets = set(entries.values())
    if "deep_sets" in nets or nets == {"mlp"} or len(entries) == 1:  # points see all other entries
        return "deep_sets" if "deep_sets" in nets else nets.pop()
    return {"name": "multi_input", "entries": entries}


NetConfig = Annotated[
    FeedForwardConfig | UserNetConfig,
    ByName(user_class=nn.Module, but_not=RecurrentNet, usual=usual_net),
    InBranch.FIXED,
]
