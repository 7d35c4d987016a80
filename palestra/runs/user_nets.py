"""Networks that were made in Python, in place of those that a config names (`Trainer.set_model`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from palestra.config import Config, replaced
from palestra.nets import UserNets, is_net_config
from palestra.players.player import Player
from palestra.runs.config import RunConfig
from palestra.runs.parts import build_algorithm


def use_nets(player: Player, run: RunConfig, nets: nn.Module | Mapping[str, nn.Module | Sequence[nn.Module]]) -> None:
    """Rebuild the algorithm of a learning player with networks that were made in Python, in place of those that its
    config names.

    nets: by the place of their configs below the algorithm, as net, body.policy, critic_net (a list for several
    critics); a single network takes the first of these places. Raises ValueError for a player that does not learn or
    has a warm start, and for an unknown place; ConfigError for networks that do not fit.
    """
    if not player.learning:
        raise ValueError(f"set_model: expected a role whose player learns, got one of {player.name!r}")
    entry: Any = run.players[player.name]
    if entry.warm_start is not None:
        raise ValueError(f"players.{player.name}.warm_start: expected null beside set_model, got a player of a run")
    places, algorithm = _nets_in(entry.algorithm), entry.algorithm
    by_place = nets if isinstance(nets, Mapping) else {places[0]: nets}
    for place, value in by_place.items():
        if place not in places:
            raise ValueError(
                f"set_model: expected some of the networks {', '.join(places)} of {player.name!r}, got {place!r}"
            )
        made = UserNets([value] if isinstance(value, nn.Module) else value)
        algorithm = replaced(algorithm, place, made)
    player.algorithm = build_algorithm(algorithm, player)


def _nets_in(config: Config, path: str = "") -> list[str]:
    """The dotted paths of the configs of networks in the config of an algorithm."""
    found = []
    for name, value in config:
        if is_net_config(value):
            found.append(path + name)
        elif isinstance(value, Config):
            found += _nets_in(value, f"{path}{name}.")
    return found
