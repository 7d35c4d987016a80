"""Dialogues in words go as those of tensors do: turns, verdicts and rewards of 10,000 random ones of each protocol."""

from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch

from palestra.config import UserConfig
from palestra.games.dialogue.game import DialogueGame
from palestra.games.dialogue.protocols import AnyProtocolConfig
from palestra.randomness import fold
from palestra.text.dialogue import SILENT, Move, Question, TextDialogue, Turn
from tests.games.dialogue.test_game import PROTOCOLS, dialogue, random_actions
from tests.games.dialogue.test_loops import both
from tests.text.games import QUESTION, keys, text_game

NUM = 10_000
GO_ON = 2
EVERY = PROTOCOLS | {"mnip, verifier first": PROTOCOLS["mnip"] | {"first": "verifier", "max_rounds": 5}}
PAYS: list[dict[str, Any]] = [
    {"go_on": -0.25, "prover": 2.0, "shared": False},
    {"go_on": 0.5, "right": 3.0, "out_of_time": -2.0, "shared": True},
]


def random_games(game: DialogueGame) -> list[dict[str, Any]]:
    """Play 10,000 random games of tensors, and return what differs among them, without the messages.

    Of each game: label, variant, and by round who decides, the decisions of verifiers, all rewards, and the verdicts.
    """
    worlds = keys(NUM)
    state = game.reset(fold(worlds, 0))
    shares = [state["label"].unsqueeze(1), state["variant"].unsqueeze(1)]
    V, R = len(game.protocol.verifiers), len(game.roles)
    for number in range(game.protocol.max_rounds):
        deciding = game.deciding(state)
        actions = random_actions(game, state, fold(worlds, number + 1))
        decisions = [actions[verifier].view(NUM, -1)[:, -1:] for verifier in game.protocol.verifiers]
        state, rewards, over, _ = game.step(state, actions, worlds)
        hundredths = (rewards * 100).round().long()
        shares += [deciding.long(), *decisions, hundredths, state["verdicts"], over[:, :1].long()]
    rows = torch.unique(torch.cat(shares, dim=1), dim=0).tolist()
    width = R + V + R + V + 1
    games = []
    for label, variant, *rest in rows:
        rounds = [rest[at : at + width] for at in range(0, len(rest), width)]
        cuts = [(0, R), (R, R + V), (R + V, 2 * R + V), (2 * R + V, 2 * R + 2 * V)]
        games.append(
            {
                "label": label,
                "variant": variant,
                "rounds": [[*(each[a:b] for a, b in cuts), bool(each[-1])] for each in rounds],
            }
        )
    return games


def test_every_shipped_protocol_takes_part_in_all_its_variants() -> None:
    shipped = [each for each in get_args(get_args(AnyProtocolConfig)[0]) if each is not UserConfig]
    names = {name for each in shipped for name in get_args(each.model_fields["name"].annotation)}
    assert {protocol["name"] for protocol in EVERY.values()} == names
    for each in shipped:
        for key, field in each.model_fields.items():
            if key in ("stance", "first", "order"):
                taken = {p[key] for p in EVERY.values() if p["name"] in get_args(each.model_fields["name"].annotation)}
                assert taken == set(get_args(field.annotation)), key


@pytest.mark.parametrize("pays", PAYS)
@pytest.mark.parametrize("name", [*EVERY, "two judges"])
def test_random_dialogues_go_as_those_of_tensors_do(name: str, pays: dict[str, Any]) -> None:
    """Games that differ in their messages alone are compared once."""
    game = both(name, **pays)[0] if name == "two judges" else dialogue(EVERY[name], **pays)
    protocol = game.protocol
    for found in random_games(game):
        words = TextDialogue(protocol, Question(0, {}, found["label"]), found["variant"])
        for deciding, decisions, hundredths, verdicts, over in found["rounds"]:
            turns = words.turns()
            assert list(turns) == [role for role, decides in zip(game.roles, deciding, strict=True) if decides]
            if words.is_over:
                assert not any(hundredths)
                continue
            decided = dict(zip(protocol.verifiers, decisions, strict=True))
            moves = {}
            for role, turn in turns.items():
                decision = decided[role] if turn.may_decide and decided[role] != GO_ON else None
                moves[role] = Move("...", decision, {} if decision is not None else dict.fromkeys(turn.channels, "x"))
            words = words.after(moves)
            assert words.is_over == over
            assert [-1 if v is None else v for v in words.verdicts.values()] == verdicts
            assert list(words.rewards[-1].values()) == pytest.approx([each / 100 for each in hundredths], abs=1e-6)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_who_speaks_where_and_may_decide_is_as_in_the_tables_of_tensors(name: str) -> None:
    game = dialogue(PROTOCOLS[name])
    for variant in range(game.protocol.num_variants):
        words = TextDialogue(game.protocol, QUESTION, variant)
        while not words.is_over:
            speaks = game.rules.speaks[words.round, variant]
            expected = {
                role: Turn(
                    tuple(game.channels[c] for c in speaks[r].nonzero()[:, 0].tolist()),
                    role == "verifier" and bool(game.rules.decides[words.round, variant, 0]),
                )
                for r, role in enumerate(game.roles)
            }
            turns = {role: turn for role, turn in expected.items() if turn != Turn((), False)}
            assert words.turns() == turns
            words = words.after({role: Move("x", None, dict.fromkeys(t.channels, "x")) for role, t in turns.items()})


def test_a_role_hears_others_in_the_channels_that_it_sees() -> None:
    words = text_game("mnip").begin(QUESTION, 0)
    words = words.after({role: Move(role, None, {role: f"from {role}"}) for role in ("prover0", "prover1")})
    words = words.after({"verifier": Move("?", None, {"prover0": "to 0", "prover1": "to 1"})})
    roles = words.protocol.roles
    heard = {role: [(told["name"], told["text"]) for r in (0, 1) for told in words.heard(role, r)] for role in roles}
    assert heard == {
        "prover0": [("verifier", "to 0")],
        "prover1": [("verifier", "to 1")],
        "verifier": [("prover0", "from prover0"), ("prover1", "from prover1")],
    }


def test_a_dialogue_forks_and_never_changes() -> None:
    begun = text_game("adp").begin(QUESTION, 0)
    said = begun.after({"prover": Move("hm", None, {"main": "hm"})})
    ends = [said.after({"verifier": Move(word, verdict, {})}) for verdict, word in enumerate(("reject", "accept"))]
    assert (begun.round, said.round, said.is_over) == (0, 1, False)
    assert [end.returns for end in ends] == [{"prover": 0.0, "verifier": -1.0}, {"prover": 1.0, "verifier": 1.0}]
    silent = said.after({"verifier": SILENT})
    assert (silent.verdicts, silent.returns["verifier"]) == ({"verifier": None}, -1.0)


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        ({}, "expected moves of verifier, got those of none"),
        ({"verifier": SILENT, "prover": SILENT}, "expected moves of verifier, got those of verifier, prover"),
        ({"verifier": Move("x", None, {"side": "x"})}, r"expected 'verifier' to speak in \('main',\), got {'side'}"),
        ({"verifier": Move("accept", 1, {})}, "expected no decision of 'verifier' in round 0, got 1"),
    ],
)
def test_a_move_that_the_turns_do_not_allow_is_refused(moves: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        text_game("nip").begin(QUESTION, 0).after(moves)


def test_nobody_moves_after_the_end() -> None:
    protocol: Any = SimpleNamespace(is_over=lambda *_: True, verifiers=("verifier",), roles=())
    with pytest.raises(ValueError, match="expected moves of none, because the dialogue is over, got those of none"):
        TextDialogue(protocol, QUESTION, 0).after({})
