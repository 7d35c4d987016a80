"""Scripted players of dialogues in words: they follow a rule, and need no model."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import AfterValidator

from palestra.config import ConfigError, below, failure, load_named, running_own
from palestra.config.errors import cut, listed
from palestra.games.dialogue.protocol import ACCEPT, REJECT
from palestra.players import own_script_model
from palestra.players.scripted import ScriptedPlayerConfig
from palestra.randomness import base_key, random_integers, restored_global_states
from palestra.text.dialogue import TextDialogue, Turn
from palestra.text.game import TextGame

ASKS = "Why?"  # what a verifier says that must speak


class TextScript(ABC):
    """Base of scripted players that write, and of those of your own. It is made with its config and a game.

    Must be implemented: `answer`. May be set: `Config`, with the player's own keys, a subclass of ScriptedPlayerConfig.
    One player may sit in several roles.
    """

    Config: ClassVar[type[ScriptedPlayerConfig]] = ScriptedPlayerConfig

    def __init__(self, config: Any, game: TextGame) -> None:
        self.config, self.game = config, game

    @abstractmethod
    def answer(self, dialogue: TextDialogue, role: str, key: int) -> str:
        """Return what a role writes at its turn. key: int64, from which all randomness comes (palestra.randomness)."""

    def says(self, turn: Turn, text: str) -> str:
        """Write an answer that says a text in every channel of a turn."""
        return self.game.grammar.write(dict.fromkeys(turn.channels, text))

    def stands_for(self, dialogue: TextDialogue, role: str, verdict: int) -> str:
        """Write what stands for a verdict: a verifier decides so as soon as it may, a prover argues for it."""
        if (turn := dialogue.turns()[role]).may_decide:
            return self.game.grammar.words[verdict]
        is_verifier = role in self.game.protocol.verifiers
        return self.says(turn, ASKS if is_verifier else self.game.scenario.argue(dialogue.question, verdict))


class Honest(TextScript):
    """Stands for the label."""

    def answer(self, dialogue: TextDialogue, role: str, key: int) -> str:
        return self.stands_for(dialogue, role, dialogue.question.label)


class Accept(TextScript):
    """Stands for accepting, whatever the label."""

    def answer(self, dialogue: TextDialogue, role: str, key: int) -> str:
        return self.stands_for(dialogue, role, ACCEPT)


class Reject(TextScript):
    """Stands for rejecting, whatever the label."""

    def answer(self, dialogue: TextDialogue, role: str, key: int) -> str:
        return self.stands_for(dialogue, role, REJECT)


class Random(TextScript):
    """Gives valid answers at random.

    A prover argues for either verdict. A verifier accepts, rejects or goes on; it decides at its last chance.
    """

    def answer(self, dialogue: TextDialogue, role: str, key: int) -> str:
        turn = dialogue.turns()[role]
        goes_on = turn.channels and not dialogue.is_last_chance(role) and turn.may_decide
        choice = int(random_integers(torch.tensor([key]), 1, 3 if goes_on else 2)[0, 0])
        return self.says(turn, ASKS) if choice > ACCEPT else self.stands_for(dialogue, role, choice)


TRIED_KEY = base_key(0, "text script try-out")
SCRIPTS: dict[str, Any] = {"random": Random, "honest": Honest, "accept": Accept, "reject": Reject}


def own_text_script_model(data: dict[str, Any]) -> type[ScriptedPlayerConfig] | None:
    """Return the model of a mapping whose `scripted` names a class of the user's own; None for other mappings."""
    return own_script_model(data, TextScript)


def _check_name(name: str) -> str:
    if ":" in name:
        if (model := own_text_script_model({"scripted": name})) is not None and len(model.model_fields) > 1:
            message = "expected a class without keys of its own, because only its name can be said here"
            raise ConfigError.at("", f"{message}, got {name!r}")
    elif name not in SCRIPTS:
        known = f"one of {listed(SCRIPTS)}, or a class of your own as 'package.module:Class'"
        raise ConfigError.at("", f"expected {known}, got {name!r}")
    return name


ScriptName = Annotated[str, AfterValidator(_check_name)]
"""the name of a scripted player, one of SCRIPTS or package.module:Class"""


def own_names(name: str | None) -> list[str]:
    """Return the name of a scripted player if it is that of a class of the user's own, as `Config.user_names` does."""
    return [name] if name is not None and ":" in name else []


def make_text_script(config: ScriptedPlayerConfig, game: TextGame, roles: Sequence[str]) -> TextScript:
    """Make a scripted player for some roles; one of the user's own is tried in each of their turns of a dialogue.

    Raises ConfigError, with paths relative to the config.
    """
    name = config.scripted
    if ":" not in name:
        with below("scripted"):
            return SCRIPTS[_check_name(name)](config, game)
    with running_own("scripted", f"{name!r} cannot be made"):
        script: TextScript = load_named(name)(config, game)
        with restored_global_states():
            fault = _fault_of_answers(script, game, roles)
    if fault is not None:
        raise ConfigError.at("scripted", f"{name.partition(':')[2]}.answer: {fault}")
    return script


def named_script(name: str, game: TextGame, roles: Sequence[str]) -> TextScript:
    """Make the scripted player that a name alone means. Raises ConfigError, at `scripted`."""
    return make_text_script(ScriptedPlayerConfig(scripted=name), game, roles)


def _fault_of_answers(script: TextScript, game: TextGame, roles: Sequence[str]) -> str | None:
    """Say what is wrong with the answers of a player in a dialogue of each variant, or return None."""
    for dialogue in game.long_dialogues():
        for role in dialogue.turns().keys() & set(roles):
            where = f"for {role!r} in round {dialogue.round}"
            try:
                first, second = (script.answer(dialogue, role, TRIED_KEY) for _ in range(2))
            except Exception as error:
                return f"raises {failure(error)} {where}"
            if not isinstance(first, str):
                return f"expected a text {where}, got {cut(repr(first))}"
            if first != second:
                answers = f"{cut(repr(first))} and {cut(repr(second))}"
                return f"expected the same answer for the same key {where}, got {answers}"
    return None
