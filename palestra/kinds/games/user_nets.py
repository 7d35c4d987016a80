"""Networks that a user hands over, in place of those that a config names (`Trainer.set_model`)."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, cast

from torch import nn

from palestra.config import Config, ConfigError, import_path, reading_own, replaced
from palestra.config.errors import nearest_hint
from palestra.kinds.games.config import RunConfig
from palestra.kinds.games.parts import Parts, build_algorithm
from palestra.nets import UserNets, is_net_config
from palestra.players.past import PastPlayerConfig
from palestra.players.player import Player
from palestra.run.kinds import read_config
from palestra.training.opening import Models, Nets, are_made, is_made


def seats_of(run: RunConfig) -> dict[str, str]:
    """The players by what names each: its role; outside of `roles` the name of a player that learns."""
    return {name: name for name in run.learners() if name not in run.roles.values()} | run.roles


def name_in_seat(roles: Mapping[str, str], role: str) -> str:
    """The name of the player in a seat. Raises ValueError for an unknown role."""
    if role not in roles:
        hint = nearest_hint(role, roles) if isinstance(role, str) else ""
        raise ValueError(f"expected one of the roles {', '.join(roles)}, got {role!r}{hint}")
    return roles[role]


def name_and_nets(run: RunConfig, role: str | Nets, nets: Nets | None) -> tuple[str, Nets]:
    """The name of the player and the networks that the arguments of `set_model` mean. Raises ValueError.

    The role may be left out where one player learns.
    """
    if isinstance(role, str) and nets is not None:
        return name_in_seat(seats_of(run), role), nets
    if isinstance(role, str):
        raise ValueError(f"set_model: expected networks beside the role {role!r}, got none")
    if nets is not None:
        raise ValueError(f"set_model: expected the name of a role before the networks, got {type(role).__name__}")
    if len(learners := run.learners()) > 1:
        seats = ", ".join(seat for seat, name in seats_of(run).items() if name in learners)
        raise ValueError(f"set_model: expected one of the roles {seats} before the networks (several players learn)")
    return learners[0], role


def take_nets(player: Player, run: RunConfig, nets: Nets) -> RunConfig:
    """Let a learning player take networks in place of those that the config of its run names.

    Gives the config, which then names the functions and classes among them. Raises as `use_builders` and `use_nets`,
    and ConfigError if evaluators or actors cannot build the networks.
    """
    for key in ("evaluators", "actors") if are_made(nets) else ():
        if getattr(run, key) is not None:
            message = "expected null, because other processes cannot build networks of set_model, got a mapping"
            raise ConfigError.at(key, message)
    for name, each in run.players.items():
        if isinstance(each, PastPlayerConfig) and each.past_of == player.name and are_made(nets):
            expected = "expected a player whose networks the config names, because those of set_model are not built"
            raise ConfigError.at(f"players.{name}.past_of", f"{expected} once more, got {player.name!r}")
    config = use_builders(player, run, nets)
    use_nets(player, config, nets)
    return config


def use_builders(player: Player, run: RunConfig, nets: Nets) -> RunConfig:
    """The config of a run that names the functions and classes among `nets`, in place of its networks so far.

    Their modules become trusted. Raises ValueError as `use_nets` does, and for a builder that cannot be imported;
    ConfigError.
    """
    data: Any = run.model_dump()
    for place, value in _by_place(player, run, nets).items():
        if not is_made(value):
            try:
                path = import_path(value)
            except ValueError as error:
                raise ValueError(f"set_model: {error}; call it, and hand over the network that it gives") from None
            *above, last = place.split(".")
            part = data["players"][player.name]["algorithm"]
            for key in above:
                part = part[key]
            part[last] = {"name": path}
    with reading_own():
        return cast(RunConfig, read_config(data))


def use_nets(player: Player, run: RunConfig, nets: Nets) -> None:
    """Rebuild the algorithm of a learning player with networks that were made in Python.

    They take the place of those that its config names. `run` must name builders already (`use_builders`). nets: by the
    place of their configs below the algorithm, such as net, body.policy, critic_net (a list for several critics); a
    single network takes the first of these places. Raises ValueError for a player that does not learn or
    has a warm start, and for an unknown place; ConfigError for networks that do not fit. After an error the player
    is as it was.
    """
    algorithm: Any = run.players[player.name].algorithm  # type: ignore[union-attr]
    for place, value in _by_place(player, run, nets).items():
        if is_made(value):
            made: Any = UserNets([value] if isinstance(value, nn.Module) else value)
            algorithm = replaced(algorithm, place, made)
    before = dict(vars(player))
    try:
        player.algorithm = build_algorithm(algorithm, player)
    except BaseException:
        vars(player).update(before)
        raise


def by_role(run: RunConfig, models: Models | None) -> dict[str, Nets]:
    """The networks that are handed over for a stored run, by the first role of each player.

    As in `set_model`, those of the one player that learns may come without its role. Raises ValueError
    for an unknown role, and without one where several players learn.
    """
    if models is None:
        return {}
    given: Any = models
    names, players, seats = run.learners(), cast(Mapping[str, Any], run.players), seats_of(run)
    places = _nets_in(players[names[0]].algorithm) if len(names) == 1 else []
    if isinstance(given, Mapping) and (any(key in seats for key in given) or not {*given} <= {*places}):
        return {first_role(run, name_in_seat(seats, role)): nets for role, nets in given.items()}
    if len(names) > 1:
        each = ", ".join(f"{first_role(run, name)!r}: ..." for name in names)
        raise ValueError(f"models: expected {{{each}}} (several players learn), got {type(models).__name__}")
    return {first_role(run, names[0]): given}


def first_role(run: RunConfig, name: str) -> str:
    """The first role of a player, or outside of `roles` its name: by it a run knows whose networks were handed over."""
    return next((role for role, sitter in run.roles.items() if sitter == name), name)


def use_models(parts: Parts, models: Mapping[str, Nets]) -> None:
    """Hand the players of a stored run copies of their networks.

    models: as `by_role` gives them. Raises as `use_nets`.
    """
    for role, nets in models.items():
        use_nets(parts.players[seats_of(parts.config)[role]], parts.config, deepcopy(nets))


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
            expected = f"expected some of the networks {', '.join(places)} of {player.name!r}"
            raise ValueError(f"set_model: {expected}, got {place!r}")
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
