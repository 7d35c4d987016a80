"""Players, who sit in the roles of a game: learning, held fixed, or scripted.

To register a scripted player, add it to SCRIPTED.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

from pydantic import ConfigDict

from palestra.config import Config, ConfigError, UserConfig, admits, load_class
from palestra.config.variants import names_of
from palestra.games.config import GameConfig
from palestra.games.game import Game
from palestra.players.scripted import (
    ChooseFirstPolicy,
    ChooseLastPolicy,
    OptimalPolicy,
    RandomPolicy,
    Script,
    ScriptedPlayerConfig,
    ScriptedPolicy,
    role_fault,
)
from palestra.players.scripted_dialogue import WitnessOptimal
from palestra.players.scripted_games import ConnectFourTactical, NimOptimal
from palestra.players.scripted_polyhedra import AllCoordinatesHost, GreedyAgent, LookAheadHost, ZeillingerHost
from palestra.players.user_scripts import CheckedScript

SCRIPTED: dict[str, type[ScriptedPolicy]] = {
    "random": RandomPolicy,
    "choose_first": ChooseFirstPolicy,
    "choose_last": ChooseLastPolicy,
    "optimal": OptimalPolicy,
    "all_coordinates": AllCoordinatesHost,
    "zeillinger": ZeillingerHost,
    "look_ahead": LookAheadHost,
    "greedy": GreedyAgent,
    "nim_optimal": NimOptimal,
    "connect_four_tactical": ConnectFourTactical,
    "witness_optimal": WitnessOptimal,
}


class UnreadScript(ScriptedPlayerConfig):
    """A scripted player of a user's own whose module was not imported: the mapping as the file has it."""

    model_config = ConfigDict(extra="allow")


class FromRunConfig(Config):
    """A player of another run, which is held fixed. It stands in place of a player's config."""

    from_run: str
    """folder of the run that trained the player; palestra:polyhedra is a run that palestra ships"""
    player: str
    """the player's name in that run"""
    checkpoint: str
    """latest, best, the number of a checkpoint, or its opt step, as "@2100" with the quotation marks"""


class WarmStartConfig(FromRunConfig):
    """The player of another run with whose networks one that learns begins."""

    take: Literal["all", "body"]
    """all: all weights of its networks; body: all but those of their outputs (the last linear layer of each network,
    and what a head of its own has, as log_std), so that it may have had other actions"""


# ---- scripted players by name ----------------------------------------------------------------------------


def own_script_model(data: dict[str, Any], base: type = ScriptedPolicy) -> type[ScriptedPlayerConfig] | None:
    """Return the model of a mapping whose `scripted` names a player with keys, or a class of the user's own.

    It is the `Config` of its class. base: what a class of the user's own must be. None for other mappings. Raises
    ConfigError if there is no such class.
    """
    if not isinstance(name := data.get("scripted"), str) or ":" not in name:
        ours = SCRIPTED.get(str(name)) if base is ScriptedPolicy else None
        return ours.Config if ours is not None and _keys_of(ours.Config) else None
    if not admits(name):
        return UnreadScript
    try:
        model = getattr(load_class(name, base), "Config", None)
        if not (isinstance(model, type) and issubclass(model, ScriptedPlayerConfig)):
            kind = "a subclass of palestra.players.scripted.ScriptedPlayerConfig"
            raise ValueError(f"expected an attribute Config of {name!r}, {kind}, got {model!r}")
    except ValueError as error:
        raise ConfigError.at("scripted", str(error)) from error
    return model


def scripts_in(players: Mapping[str, Config]) -> dict[str, ScriptedPlayerConfig | None]:
    """Return the config of each player of a file that is scripted, None for the others."""
    return {name: each if isinstance(each, ScriptedPlayerConfig) else None for name, each in players.items()}


def read_script(name: str) -> ScriptedPlayerConfig:
    """Return the config of the scripted player that a name alone means, one of ours or `package.module:Class`.

    Raises ValueError if there is none, or if it has keys of its own.
    """
    if name.startswith("palestra:") or "/" in name:
        way = f"players: {{NAME: {{from_run: {name}, player: PLAYER, checkpoint: latest}}}}"
        tournament = "palestra config tournament-polyhedra prints one, palestra evaluate FILE plays it"
        raise ValueError(
            f"expected a player of this file or a scripted one, got {name!r}, which is a run's; in a tournament "
            f"players of several runs meet, and its file has {way} ({tournament})"
        )
    if ":" not in name and name not in SCRIPTED:
        ours = f"a scripted player ({', '.join(SCRIPTED)})"
        raise ValueError(f"expected {ours} or a class of your own as 'package.module:Class', got {name!r}")
    try:
        model = own_script_model({"scripted": name}) or ScriptedPlayerConfig
    except ConfigError as error:
        raise ValueError(error.errors[0].message) from error
    if keys := _keys_of(model):
        expected = f"expected a player of `players` that is {name!r} with its keys ({', '.join(keys)})"
        raise ValueError(f"{expected}, got the {'class' if ':' in name else 'name'} alone")
    return model(scripted=name)


def _keys_of(model: type[ScriptedPlayerConfig]) -> list[str]:
    return [key for key in model.model_fields if key != "scripted"]


def script_error(script: str | ScriptedPlayerConfig, game: GameConfig | None, role: str) -> str | None:
    """Say why a scripted player cannot sit in a role of a game, or return None.

    script: its config, or a name alone. game: its config, if it has one.
    """
    try:
        config = read_script(script) if isinstance(script, str) else script
        name = config.scripted
        if config.user_names():
            if not admits(name):
                return None
            policy = load_class(name, ScriptedPolicy)
        else:
            if name not in SCRIPTED:
                read_script(name)  # raises
            policy = SCRIPTED[name]
    except ValueError as error:
        return str(error)
    if (own := policy.game_config) is not None and not isinstance(game, own):
        wanted = own.__qualname__ if issubclass(own, UserConfig) else next(iter(names_of((own,))))
        return f"expected the game {wanted!r} for the player {name!r}, got another one"
    return role_fault(policy, name, role)


def make_script(script: str | ScriptedPlayerConfig, game: Game, role: str | None = None) -> Script:
    """Make a scripted player for a role of a game; None: for the first one in which it may sit.

    script: its config, or a name alone. Raises ConfigError for one that cannot sit there.
    """
    try:
        config = read_script(script) if isinstance(script, str) else script
        policy = load_class(config.scripted, ScriptedPolicy) if config.user_names() else SCRIPTED[config.scripted]
    except ValueError as error:
        raise ConfigError.at("", str(error)) from error
    seat = role or (policy.roles or game.roles)[0]
    return CheckedScript.build(policy, config, game, seat) if config.user_names() else policy(config, game, seat)


def scripts_for(game: Game, config: GameConfig | None, role: str) -> dict[str, Script]:
    """Make the players of SCRIPTED that can sit in a role of a game, by name. config: the game's, if it has one."""
    found: dict[str, Script] = {}
    for name in SCRIPTED:
        if script_error(name, config, role) is None:
            with suppress(ConfigError):  # it plays other actions, or not every game of its kind
                found[name] = make_script(name, game, role)
    return found
