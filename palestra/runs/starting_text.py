"""Puts a first file together, for players that talk in words and learn by one algorithm, from the usual values."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from palestra.config import Config, ConfigError, apply_overrides, check
from palestra.config.places import Place
from palestra.config.usual import completed
from palestra.games.dialogue.tryout import make_protocol
from palestra.runs.kinds import read_config
from palestra.runs.starting import remedies
from palestra.runs.text import AnyTextGameConfig, TextConfig

Data = dict[str, Any]


class _Game(Config):
    game: AnyTextGameConfig
    """the rules"""


def starting_text(algorithm: str, said: Data, overrides: Sequence[str]) -> TextConfig:
    """Return the config of a run in which a player learns by an algorithm in every role of dialogues in words.

    said: of the key `game`: a protocol and a scenario. overrides: those of the game count before it is made. Raises
    ConfigError.
    """
    game = _rules(said, overrides)
    protocol = make_protocol(check({"game": game}, _Game).game.protocol)
    roles = {role: role for role in protocol.roles}
    players = {role: {"algorithm": {"name": algorithm}} for role in roles}
    data: Data = {"game": game, "roles": roles, "players": players, **_evaluations(roles)}
    # What is usual may depend on overrides. Late are those of keys that only the complete file has, and of keys by
    # their last words, which mean one of the complete file.
    late = []
    for override in overrides:
        early = override.partition("=")[0].strip().split(".")[0] in data
        try:
            data = apply_overrides(data, [override] if early else [], TextConfig)
        except ConfigError:
            early = False
        late += [] if early else [override]
    data = completed(data, Place(TextConfig), None)
    with remedies(data, TextConfig):
        config: TextConfig = read_config(data, late)
    return config


def _rules(said: Data, overrides: Sequence[str]) -> Data:
    """Return the key `game`, with the overrides that are about it, of which a usual value may depend on some."""
    own = [override for override in overrides if override.strip().startswith("game.")]
    data: Data = {"game": {**said, "name": "text_dialogue"}}
    for override in own:
        with suppress(ConfigError):  # of a key that only the complete file has
            data = apply_overrides(data, [override], _Game)
    data = apply_overrides(completed(data, Place(_Game), None), own, _Game)
    with remedies(data, _Game):
        check(data, _Game)
    rules: Data = data["game"]
    return rules


def _evaluations(roles: Data) -> Data:
    """Return the keys `evaluations` and `best`: all players together, each beside honest ones, and random ones."""
    alone = [{role: player if role == own else "honest" for role, player in roles.items()} for own in roles]
    pairings = [roles, *(alone if len(roles) > 1 else []), dict.fromkeys(roles, "random")]
    best = {"evaluation": "main", "pairing": 0, "measure": "accuracy", "goal": "max"}
    return {"evaluations": [{"pairings": pairings}], "best": best}
