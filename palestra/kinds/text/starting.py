"""Puts a first file together, for players that talk in words and learn by one algorithm."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palestra.config import Config, ConfigError, apply_overrides, check
from palestra.config.places import Place
from palestra.config.usual import completed, remedies
from palestra.config.validation import completed_part
from palestra.config.variants import members_of, names_of
from palestra.games.dialogue.protocols import AnyProtocolConfig
from palestra.games.dialogue.tryout import make_protocol
from palestra.kinds.text.config import AnyTextGameConfig, TextConfig
from palestra.run.kinds import read_config
from palestra.run.shipped import shipped_of
from palestra.text.algorithms import AnyTextAlgorithm
from palestra.text.game import AnyTextScenarioConfig
from palestra.training.opening import make_trainer
from palestra.training.trainable import apart_from_this_machine

Data = dict[str, Any]


def text_algorithms() -> list[str]:
    """Return the names of the algorithms of players that talk in words, without the user's own."""
    return list(names_of(members_of(AnyTextAlgorithm)))


def named_text(name: str, words: Sequence[str], shipped: Mapping[str, Path]) -> TextConfig:
    """Return a config for players that talk in words. words: a protocol and a scenario, and overrides."""
    if not words or "=" in words[0]:
        expected = f"expected a protocol and a scenario after {name}, such as nip claims"
        raise ConfigError.at(name, f"{expected}, got none{shipped_of(name, shipped)}")
    protocols, scenarios = (list(names_of(members_of(each))) for each in (AnyProtocolConfig, AnyTextScenarioConfig))
    named = [word for word in words[:2] if "=" not in word]
    for place, (what, known) in enumerate((("a protocol", protocols), ("a scenario", scenarios))):
        if len(named) <= place or not (named[place] in known or ":" in named[place]):
            got = repr(named[place]) if len(named) > place else "none"
            expected = f"expected {what} ({', '.join(known)}, or package.module:Class), got {got}"
            raise ConfigError.at(" ".join([name, *named[: place + 1]]), f"{expected}{shipped_of(name, shipped)}")
    protocol, scenario = named
    config = starting_text(name, {"protocol": {"name": protocol}, "scenario": {"name": scenario}}, words[2:])
    make_trainer(apart_from_this_machine(config))
    return config


class _Game(Config):
    game: AnyTextGameConfig
    """the rules"""


def starting_text(algorithm: str, said: Data, overrides: Sequence[str]) -> TextConfig:
    """Return the config of a run in which a player learns by an algorithm in every role of dialogues in words.

    said: of the key `game`: a protocol and a scenario. overrides: those of the game count before it is made. Raises
    ConfigError.
    """
    game: Data = completed_part("game", {**said, "name": "text_dialogue"}, overrides, _Game)
    roles = {role: role for role in make_protocol(check({"game": game}, _Game).game.protocol).roles}
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


def _evaluations(roles: Data) -> Data:
    """Return the keys `evaluations` and `best`: all players together, each beside honest ones, and random ones."""
    alone = [{role: player if role == own else "honest" for role, player in roles.items()} for own in roles]
    pairings = [roles, *(alone if len(roles) > 1 else []), dict.fromkeys(roles, "random")]
    best = {"evaluation": "main", "pairing": 0, "measure": "accuracy", "goal": "max"}
    return {"evaluations": [{"pairings": pairings}], "best": best}
