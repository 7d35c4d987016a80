"""What `palestra config ppo nip witness` means: the game `dialogue` with that protocol and that scenario."""

import json
from collections.abc import Sequence
from typing import Any

from palestra.commands.suggest_tensor_game import with_overrides_of_game
from palestra.config import Config, ConfigError, below, check
from palestra.config.variants import members_of, names_of, usual_keys
from palestra.games.dialogue.game import AnyScenarioConfig
from palestra.games.dialogue.protocol import Protocol
from palestra.games.dialogue.protocols import AnyProtocolConfig
from palestra.games.dialogue.rows import RowsConfig
from palestra.games.dialogue.scenario import Scenario
from palestra.games.dialogue.trial import make_protocol


def game_and_overrides(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The game that words after an algorithm name, None if there is none, and the overrides. A protocol and a scenario,
    each a name or package.module:Class, are the game `dialogue`, with overrides that say so. Raises ConfigError for a
    protocol without a known scenario."""
    if not words or "=" in words[0]:
        return None, list(words)
    protocols, scenarios = names_of(members_of(AnyProtocolConfig)), names_of(members_of(AnyScenarioConfig))
    has_two = len(words) > 1 and "=" not in words[1]
    first, second = words[0], words[1] if has_two else ""
    if first not in protocols and not (":" in first and has_two):
        return first, list(words[1:])
    if second not in scenarios and ":" not in second:
        got = f"got {second!r}" if second else "got none"
        message = f"expected a scenario after the protocol ({', '.join(scenarios)}, or package.module:Class), {got}"
        raise ConfigError.at(first, message)
    rules: dict[str, Any] = {
        "protocol": {"name": first} | _usual(first, protocols, Protocol),
        "scenario": {"name": second} | _usual(second, scenarios, Scenario),
    }
    if second == "rows":  # its other keys depend on the file
        changed = with_overrides_of_game(rules, words[2:])
        talk = _protocol(changed["protocol"])
        with below("game.scenario"):
            rules["scenario"] = RowsConfig.suggest(changed["scenario"], talk)
    return "dialogue", [*(f"game.{key}={json.dumps(value)}" for key, value in rules.items()), *words[2:]]


class _OneProtocol(Config):
    protocol: AnyProtocolConfig
    """who speaks when"""


def _protocol(data: dict[str, Any]) -> Protocol:
    with below("game"):
        config = check({"protocol": data}, _OneProtocol).protocol
        with below("protocol"):
            return make_protocol(config)


def _usual(name: str, known: dict[str, Any], base: Any) -> dict[str, Any]:
    return usual_keys(name, base) if ":" in name else dict(known[name].usual)
