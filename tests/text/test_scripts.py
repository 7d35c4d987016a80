"""Scripted players that write: what they stand for, in every protocol, and one of one's own."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from palestra.config import ConfigError, trusting
from palestra.players.scripted import ScriptedPlayerConfig
from palestra.text.dialogue import Move, Question
from palestra.text.game import TextGame
from palestra.text.scripts import TextScript, make_text_script, own_text_script_model
from tests.games.dialogue.test_game import PROTOCOLS
from tests.text.games import QUESTION, keys, played, text_game

OWN = """
from palestra.text.scripts import TextScript

class Shy(TextScript):
    def answer(self, dialogue, role, key):
        return self.says(dialogue.turns()[role], f"{role} {dialogue.round}")

class Mute(TextScript):
    def answer(self, dialogue, role, key):
        return None

class Moody(TextScript):
    def answer(self, dialogue, role, key):
        self.moods = getattr(self, "moods", 0) + 1
        return str(self.moods)

class Lost(TextScript):
    def answer(self, dialogue, role, key):
        return {}["map"]

class Broken(TextScript):
    def __init__(self, config, game):
        raise RuntimeError("no such luck")

    def answer(self, dialogue, role, key):
        return ""
"""


def script(name: str, game: TextGame) -> TextScript:
    """The player of a name, which may sit in every role."""
    model = own_text_script_model({"scripted": name}) or ScriptedPlayerConfig
    return make_text_script(model(scripted=name), game, game.roles)


def all_by(game: TextGame, name: str, question: Question = QUESTION, key: int = 3) -> Any:
    return played(game, {role: script(name, game) for role in game.roles}, question, key)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_scripted_players_give_valid_answers_in_every_protocol(protocol: str) -> None:
    game = text_game(protocol)
    for number, question in enumerate(game.questions(keys(4), held_out=False)):
        for name, verdict in (("honest", question.label), ("accept", 1), ("reject", 0), ("random", None)):
            end = all_by(game, name, question, key=number)
            assert end.verdicts["verifier"] in ((0, 1) if verdict is None else (verdict,))


def test_random_answers_are_of_every_kind_and_follow_from_their_key() -> None:
    game = text_game("nip")
    player, begun = script("random", game), game.begin(QUESTION, 0)
    early = begun.after({"verifier": Move("Why?", None, {"main": "Why?"})})
    later = early.after({"prover": Move("x", None, {"main": "x"})})
    for dialogue, role, kinds in (
        (begun, "verifier", {"Why?"}),  # it cannot decide yet
        (early, "prover", {"letter 3", "nowhere"}),
        (later, "verifier", {"Why?", "accept", "reject"}),
        (game.a_long_dialogue(0)[4], "verifier", {"accept", "reject"}),
    ):
        answers = [player.answer(dialogue, role, key) for key in keys(300).tolist()]
        assert answers == [player.answer(dialogue, role, key) for key in keys(300).tolist()]
        counts = Counter(answers)
        assert counts.keys() == kinds
        assert min(counts.values()) > 300 / len(kinds) * 0.7


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shy.py").write_text(OWN)


@pytest.mark.usefixtures("own")
def test_a_scripted_player_of_ones_own_writes() -> None:
    game = text_game("nip")
    with trusting():
        end = all_by(game, "shy:Shy")
    said = [text for moves in end.rounds for move in moves.values() for text in move.messages.values()]
    assert said == [f"{'prover' if r % 2 else 'verifier'} {r}" for r in range(5)]
    assert end.verdicts == {"verifier": None}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("honset", "scripted: expected one of 'random', 'honest', 'accept', 'reject', or a class of your own as"),
        ("shy:Bold", "scripted: expected a class of module 'shy' ("),
        ("shy:Mute", "scripted: Mute.answer: expected a text for 'verifier' in round 0, got None"),
        ("shy:Moody", "scripted: Moody.answer: expected the same answer for the same key for 'verifier' in round 0, "),
        ("shy:Lost", "scripted: Lost.answer: raises KeyError: 'map' (shy.py, line 19) for 'verifier' in round 0"),
        ("shy:Broken", "scripted: 'shy:Broken' cannot be made: RuntimeError: no such luck (shy.py, line 23)"),
    ],
)
def test_a_scripted_player_that_cannot_be_made_is_one_line(name: str, line: str) -> None:
    with trusting(), pytest.raises(ConfigError) as caught:
        script(name, text_game("nip"))
    [found] = str(caught.value).splitlines()
    assert found.startswith(line), found
