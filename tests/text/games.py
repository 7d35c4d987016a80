"""Games in words for tests: a protocol by its name in tests.games.dialogue.test_game, and a scenario."""

from typing import Any

import torch

from palestra.config import Config, check
from palestra.config.places import place_of
from palestra.config.usual import completed
from palestra.randomness import base_key, world_keys
from palestra.text.dialogue import Move, Question, TextDialogue
from palestra.text.game import TextDialogueConfig, TextGame
from palestra.text.scripts import TextScript
from tests.games.dialogue.test_game import PROTOCOLS, REWARDS

QUESTION = Question(0, {"letter": "k", "string": "qwkr"}, 1)


class OneTextGame(Config):
    game: TextDialogueConfig
    """the rules"""


def keys(num: int, stream: str = "test") -> torch.Tensor:
    return world_keys(base_key(0, stream), num, torch.device("cpu"))


def text_config(protocol: str = "nip", **said: Any) -> TextDialogueConfig:
    """The config of a game with its usual keys, but those that are said."""
    return first_config(protocol=PROTOCOLS[protocol] | {"rewards": REWARDS | said.pop("rewards", {})}, **said)


def first_config(**said: Any) -> TextDialogueConfig:
    """The config of a game that a first file has if these keys are said."""
    data = completed({"name": "text_dialogue", **said}, place_of(TextDialogueConfig), None)
    return check({"game": data}, OneTextGame).game


def text_game(protocol: str = "nip", **said: Any) -> TextGame:
    return text_config(protocol, **said).build()


def played(game: TextGame, players: dict[str, TextScript], question: Question, key: int) -> TextDialogue:
    """One dialogue of scripted players, who are asked once for each answer."""
    dialogue = game.begin(question, key)
    while not dialogue.is_over:
        moves = {}
        for place, (role, turn) in enumerate(dialogue.turns().items()):
            number = int(keys(1, f"{key}/{dialogue.round}/{place}")[0])
            moves[role] = game.read(turn, players[role].answer(dialogue, role, number))
            assert isinstance(moves[role], Move), moves[role]
        dialogue = dialogue.after(moves)
    return dialogue
