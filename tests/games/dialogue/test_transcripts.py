"""Dialogues in words, and the tables of what messages tell, against games that are known."""

from typing import Any

import torch

from palestra.games import make_game
from palestra.games.dialogue.game import DialogueGame
from palestra.games.trace import Choice, Trace

REWARDS: dict[str, Any] = {"right": 1.0, "wrong": -1.0, "out_of_time": -0.5, "go_on": 0.0, "prover": 1.0}
WITNESS = {"name": "witness", "num_bits": 3, "num_seen": 0}
PLAIN = {"normalize": None, "clip": None}


def dialogue(**protocol: Any) -> DialogueGame:
    rules = {"name": "dialogue", "observation": PLAIN, "scenario": WITNESS}
    game = make_game(rules | {"protocol": protocol | {"rewards": REWARDS | {"shared": False}}})
    assert isinstance(game, DialogueGame)
    return game


def played(game: DialogueGame, bits: list[int], moves: list[dict[str, list[int] | int]]) -> Trace:
    """One game with these bits and actions by role."""
    state = game.reset(torch.tensor([7]))
    state |= {"instance.bits": torch.tensor([bits]), "label": torch.tensor([int(any(bits))])}
    state["variant"] = torch.zeros_like(state["label"])
    choices, returns = [], dict.fromkeys(game.roles, 0.0)
    for move in moves:
        silent = {
            role: torch.cat([flags.nonzero()[:1, 0] for flags in game.legal(state, role)[0].split(sizes(game, role))])
            for role in game.roles
        }
        actions = {role: torch.tensor(move[role]).view(-1) if role in move else a for role, a in silent.items()}
        actions = {role: a.view(1, *game.action_spaces[role].shape) for role, a in actions.items()}
        one = {name: value[0] for name, value in state.items()}
        choices += [Choice(role, one, actions[role][0]) for role in move]
        state, rewards, *_ = game.step(state, actions, torch.tensor([0]))
        for role, reward in zip(game.roles, rewards[0].tolist(), strict=True):
            returns[role] += reward
    end = {name: value[0] for name, value in state.items()}
    return Trace(tuple(choices), end, len(moves), True, returns)


def sizes(game: DialogueGame, role: str) -> list[int]:
    space: Any = game.action_spaces[role]
    return list(space.nums) if hasattr(space, "nums") else [space.num]


def test_a_game_with_one_channel_in_words() -> None:
    game = dialogue(name="nip", stance="accept", first="prover", min_rounds=1, max_rounds=4)
    told = game.transcript(
        played(game, [0, 1, 0], [{"prover": 2}, {"verifier": [0, 2]}, {"prover": 1}, {"verifier": [1, 1]}])
    )
    assert (told.title, told.kind) == ("bits 010; label 1", "label 1")
    assert (told.roles, told.deciders) == (("prover", "verifier"), ("verifier",))
    assert [(each.round, each.role, each.channel, each.text, each.is_decision) for each in told.utterances] == [
        (0, "prover", "", "bit 2", False),
        (1, "verifier", "", "bit 0", False),
        (2, "prover", "", "bit 1", False),
        (3, "verifier", "", "bit 1", False),
        (3, "verifier", "", "accepts", True),
    ]
    assert told.end == "verifier accepts, which is right. Returns: prover +1, verifier +1."


def test_a_game_with_several_channels_names_them() -> None:
    game = dialogue(name="debate", order="at_once", first="provers", first_prover=None, min_rounds=1, max_rounds=2)
    told = game.transcript(played(game, [0, 0, 0], [{"prover0": 0, "prover1": 1}, {"verifier": [0, 2, 1]}]))
    assert [(each.role, each.channel, each.text) for each in told.utterances] == [
        ("prover0", "prover0", "bit 0"),
        ("prover1", "prover1", "bit 1"),
        ("verifier", "prover0", "bit 0"),
        ("verifier", "prover1", "bit 2"),
        ("verifier", "", "accepts"),
    ]
    assert told.end == "verifier accepts, which is wrong. Returns: prover0 +0, prover1 +1, verifier -1."


def test_who_never_decides_and_who_says_nothing_is_told() -> None:
    game = dialogue(name="adp", stance="accept")
    told = game.transcript(played(game, [1, 0, 0], [{"prover": 0}, {"verifier": [0, 2]}]))
    assert told.end == "verifier never decides. Returns: prover +0, verifier -0.5."
    alone = dialogue(name="solo_verifier")
    told = alone.transcript(played(alone, [1, 0, 0], [{"verifier": 0}]))
    assert [each.text for each in told.utterances] == ["rejects"]
    told = alone.transcript(played(alone, [1, 0, 0], [{"verifier": 2}]))
    assert [(each.text, each.is_decision) for each in told.utterances] == [("go on", False)]


def test_tables_are_shares_of_the_games_with_each_label() -> None:
    game = dialogue(name="adp", stance="accept")
    label = torch.tensor([0, 0, 1, 1, 1, 1])
    said = torch.tensor([2, 2, 2, 0, 0, 0])
    messages = torch.stack([said, torch.full_like(said, -1)], dim=1).unsqueeze(2)
    [table] = game.tables({"label": label, "messages": messages, "verdicts": label.unsqueeze(1)})
    assert table.title.startswith("round 0: 0.46 bits")
    assert (table.rows, table.columns) == (("bit 0", "bit 2"), ("label 0", "label 1"))
    assert table.shares == ((0.0, 0.75), (1.0, 0.25))


def test_rare_messages_count_together_and_what_is_unknown_is_none(monkeypatch: Any) -> None:
    monkeypatch.setattr("palestra.games.dialogue.game.MOST_TOKENS", 1)
    game = dialogue(name="adp", stance="accept")
    label, said = torch.ones(4, dtype=torch.int64), torch.tensor([1, 1, 0, 2])
    messages = torch.stack([said, said], dim=1).unsqueeze(2)
    tables = game.tables({"label": label, "messages": messages, "verdicts": label.unsqueeze(1)})
    assert [table.title for table in tables] == ["round 0: 0.00 bits", "round 1: 0.00 bits"]
    assert tables[0].rows == ("bit 1", "others")
    assert tables[0].shares == ((None, 0.5), (None, 0.5))
