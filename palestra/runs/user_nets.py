"""Networks that a user hands over, in place of those that a config names (`Trainer.set_model`)."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from torch import nn

from palestra.config import Config, import_path, replaced, trusting
from palestra.nets import UserNets, is_net_config
from palestra.players.player import Player
from palestra.runs.config import RunConfig, read_config
from palestra.runs.parts import Parts, build_algorithm

Builder = Callable[[], nn.Module]  # a class is one
Nets = nn.Module | Builder | Mapping[str, nn.Module | Builder | Sequence[nn.Module]]


def use_builders(player: Player, run: RunConfig, nets: Nets) -> RunConfig:
    """The config of a run that names the functions and classes among `nets`, in place of the networks that it names so
    far. The user trusts their modules by that. Raises ValueError as `use_nets`, and for a builder that cannot be
    imported; ConfigError."""
    data: Any = run.model_dump()
    for place, value in _by_place(player, run, nets).items():
        if not _is_made(value):
            try:
                path = import_path(value)
            except ValueError as error:
                raise ValueError(f"set_model: {error}; call it, and hand over the network that it gives") from None
            *above, last = place.split(".")
            part = data["players"][player.name]["algorithm"]
            for key in above:
                part = part[key]
            part[last] = {"name": path}
    with trusting():
        named: RunConfig = read_config(data)
    return named


def use_nets(player: Player, run: RunConfig, nets: Nets) -> None:
    """Rebuild the algorithm of a learning player with networks that were made in Python, in place of those that its
    config names; for builders, `run` must name them already (`use_builders`).

    nets: by the place of their configs below the algorithm, as net, body.policy, critic_net (a list for several
    critics); a single network takes the first of these places. Raises ValueError for a player that does not learn or
    has a warm start, and for an unknown place; ConfigError for networks that do not fit.
    """
    algorithm: Any = run.players[player.name].algorithm  # type: ignore[union-attr]
    for place, value in _by_place(player, run, nets).items():
        if _is_made(value):
            made: Any = UserNets([value] if isinstance(value, nn.Module) else value)
            algorithm = replaced(algorithm, place, made)
    player.algorithm = build_algorithm(algorithm, player)


def are_made(nets: Nets) -> bool:
    """Whether there are networks among `nets`, and not only builders, which a config can name."""
    return any(map(_is_made, nets.values())) if isinstance(nets, Mapping) else _is_made(nets)


def use_models(parts: Parts, models: Mapping[str, Nets]) -> None:
    """Hand the players of a stored run copies of their networks. models: by role. Raises as `use_nets`, ValueError
    for an unknown role."""
    for role, nets in models.items():
        if role not in parts.config.roles:
            raise ValueError(f"models: expected some of the roles {', '.join(parts.config.roles)}, got {role!r}")
        player = parts.players[parts.config.roles[role]]
        use_nets(player, parts.config, deepcopy(nets))


def calls_of(models: Mapping[str, Nets]) -> list[str]:
    """The calls of `set_model` that hand these networks over, as run.json has them."""
    return [f"set_model({role!r}, ...)" for role, nets in models.items() if are_made(nets)]


def _is_made(value: Any) -> bool:
    return isinstance(value, nn.Module | Sequence)


def _by_place(player: Player, run: RunConfig, nets: Nets) -> Mapping[str, Any]:
    if not player.learning:
        raise ValueError(f"set_model: expected a role whose player learns, got one of {player.name!r}")
    entry: Any = run.players[player.name]
    if entry.warm_start is not None:
        raise ValueError(f"players.{player.name}.warm_start: expected null beside set_model, got a player of a run")
    places = _nets_in(entry.algorithm)
    by_place = nets if isinstance(nets, Mapping) else {places[0]: nets}
    for place in by_place:
        if place not in places:
            raise ValueError(
                f"set_model: expected some of the networks {', '.join(places)} of {player.name!r}, got {place!r}"
            )
    return by_place


def _nets_in(config: Config, path: str = "") -> list[str]:
    """The dotted paths of the configs of networks in the config of an algorithm."""
    found = []
    for name, value in config:
        if is_net_config(value):
            found.append(path + name)
        elif isinstance(value, Config):
            found += _nets_in(value, f"{path}{name}.")
    return found
