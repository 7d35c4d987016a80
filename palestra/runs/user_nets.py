"""Networks that a program has made, in place of those that a config names (`Trainer.set_model`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from palestra.config import Config, replaced
from palestra.nets import GivenNets, is_net_config
from palestra.players.player import Player
from palestra.runs.config import RunConfig
from palestra.runs.parts import build_algorithm


def give_nets(player: Player, run: RunConfig, nets: nn.Module | Mapping[str, nn.Module | Sequence[nn.Module]]) -> None:
    """Let a learning player begin with networks that a program has made, in place of those that its config names.

    nets: by where their configs stand below the algorithm, as net, body.policy, critic_net (a list for several
    critics); a lone one takes the first of these places. Raises ValueError, or ConfigError for what does not fit.
    """
    if not player.learning:
        raise ValueError(f"{player.name!r} does not learn: there is nothing to give networks to")
    entry: Any = run.players[player.name]
    if entry.warm_start is not None:
        raise ValueError(f"players.{player.name}.warm_start names other networks; expected null beside set_model")
    places, algorithm = _nets_in(entry.algorithm), entry.algorithm
    given = nets if isinstance(nets, Mapping) else {places[0]: nets}
    for place, value in given.items():
        if place not in places:
            raise ValueError(f"{place!r} is no network of {player.name!r}; expected some of: {', '.join(places)}")
        made = GivenNets([value] if isinstance(value, nn.Module) else value)
        algorithm = replaced(algorithm, place, made)
    player.algorithm = build_algorithm(algorithm, player)


def _nets_in(config: Config, path: str = "") -> list[str]:
    """Where the configs of networks stand in that of an algorithm."""
    found = []
    for name, value in config:
        if is_net_config(value):
            found.append(path + name)
        elif isinstance(value, Config):
            found += _nets_in(value, f"{path}{name}.")
    return found
