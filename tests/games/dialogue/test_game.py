"""Dialogues: every protocol against a plain loop, and optimal players against the accuracy by enumeration.

Covers palestra.games.dialogue.protocols, palestra.games.dialogue.scenario, palestra.games.dialogue.witness,
palestra.players.scripted_dialogue.
"""

from typing import Any

import pytest
import torch
from conftest import PLAIN
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_dialogue import PlainDialogue

from palestra.config import ConfigError, check
from palestra.games import OneGame, make_game
from palestra.games.dialogue.game import DialogueGame
from palestra.games.dialogue.protocol import RewardsConfig, faults_of_names, faults_of_turns
from palestra.games.dialogue.protocols import Nip, NipConfig
from palestra.games.spaces import Discrete, MultiDiscrete
from palestra.games.tryout import try_game
from palestra.players import make_script
from palestra.randomness import base_key, fold, random_integers, world_keys

Data = dict[str, Any]
REWARDS: Data = {"right": 1.0, "wrong": -1.0, "out_of_time": -1.0, "go_on": 0.0, "prover": 1.0, "shared": False}
TWO_PROVERS: Data = {"order": "at_once", "first": "provers", "first_prover": None, "min_rounds": 2, "max_rounds": 4}
IN_SEQUENCE: Data = TWO_PROVERS | {"order": "in_sequence", "first_prover": "prover1", "min_rounds": 3, "max_rounds": 6}
PROTOCOLS: dict[str, Data] = {
    "nip": {"name": "nip", "stance": "accept", "first": "verifier", "min_rounds": 2, "max_rounds": 5},
    "nip, prover first": {"name": "nip", "stance": "accept", "first": "prover", "min_rounds": 4, "max_rounds": 4},
    "nip, side drawn": {"name": "nip", "stance": "drawn", "first": "prover", "min_rounds": 1, "max_rounds": 4},
    "adp": {"name": "adp", "stance": "accept"},
    "adp, side drawn": {"name": "adp", "stance": "drawn"},
    "debate": {"name": "debate", **TWO_PROVERS},
    "debate, verifier first": {"name": "debate", **TWO_PROVERS, "first": "verifier", "max_rounds": 5},
    "debate in sequence": {"name": "debate", **IN_SEQUENCE},
    "debate in sequence, verifier first": {"name": "debate", **IN_SEQUENCE, "first": "verifier", "min_rounds": 1},
    "mnip": {"name": "mnip", **TWO_PROVERS},
    "mnip in sequence": {"name": "mnip", **IN_SEQUENCE, "first_prover": "prover0"},
    "merlin_arthur": {"name": "merlin_arthur"},
    "solo_verifier": {"name": "solo_verifier"},
}


def dialogue(protocol: Data, num_bits: int = 4, num_seen: int = 1, **rewards: Any) -> DialogueGame:
    scenario = {"name": "witness", "num_bits": num_bits, "num_seen": num_seen}
    rules = {
        "name": "dialogue",
        "protocol": protocol | {"rewards": REWARDS | rewards},
        "scenario": scenario,
        "observation": PLAIN,
    }
    game = make_game(rules)
    assert isinstance(game, DialogueGame)
    return game


def random_actions(game: DialogueGame, state: dict[str, torch.Tensor], keys: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        role: make_script("random", game, role).act({}, game.legal(state, role), keys + index, {}).action
        for index, role in enumerate(game.roles)
    }


# ---- the rules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_keeps_the_promises_of_a_game(name: str) -> None:
    assert try_game(dialogue(PROTOCOLS[name]), 40) == []


@pytest.mark.parametrize("name", PROTOCOLS)
@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), shared=st.booleans())
def test_random_dialogues_go_as_in_a_plain_loop(name: str, seed: int, shared: bool) -> None:
    game = dialogue(PROTOCOLS[name], go_on=-0.25, prover=2.0, shared=shared)
    protocol = PROTOCOLS[name] | {"rewards": REWARDS | {"go_on": -0.25, "prover": 2.0, "shared": shared}}
    keys = world_keys(base_key(seed, "test"), 24, game.device)
    state = game.reset(fold(keys, 0))
    coins = state["variant"].tolist()
    plain = [
        PlainDialogue(protocol, game.roles, label, coin)
        for label, coin in zip(state["label"].tolist(), coins, strict=True)
    ]
    for number in range(game.protocol.max_rounds + 2):
        deciding = game.deciding(state)
        for world, each in enumerate(plain):
            found = {role for role, decides in zip(game.roles, deciding[world].tolist(), strict=True) if decides}
            assert found == each.deciding()
            may = game.legal(state, "verifier")[world, -3:].tolist()
            assert may == [each.may_decide(), each.may_decide(), True]
        actions = random_actions(game, state, fold(keys, number + 1))
        choices = {role: action.view(len(keys), -1) for role, action in actions.items()}
        state, rewards, terminated, truncated = game.step(state, actions, fold(keys, 100 + number))
        assert not truncated.any()
        for world, each in enumerate(plain):
            tokens = {
                (role, channel): int(choices[role][world, place])
                for role in game.roles
                for place, channel in enumerate(game.channels[c] for c in game.spoken_channels[role])
            }
            expected = each.step(tokens, int(choices["verifier"][world, -1]))
            assert rewards[world].tolist() == pytest.approx(expected, abs=1e-6)
            assert terminated[world].tolist() == [each.over] * len(game.roles)
            assert int(state["verdicts"][world, 0]) == (-1 if each.verdict is None else each.verdict)
            messages = {
                (t, game.channels[c]): int(state["messages"][world, t, c])
                for t, c in state["messages"][world].ge(0).nonzero().tolist()
            }
            assert messages == each.messages


@pytest.mark.parametrize("name", PROTOCOLS)
def test_who_speaks_says_a_token_and_who_does_not_is_silent(name: str) -> None:
    game = dialogue(PROTOCOLS[name])
    keys = world_keys(base_key(0, "test"), 16, game.device)
    state = game.reset(keys)
    for number in range(game.protocol.max_rounds):
        for r, role in enumerate(game.roles):
            flags = game.legal(state, role)
            width = game.scenario.num_tokens + 1
            for place, channel in enumerate(game.spoken_channels[role]):
                says = flags[:, place * width : (place + 1) * width]
                speaks = game.rules.speaks[state["round"], state["variant"], r, channel]
                running = game.deciding(state).any(dim=1)
                assert torch.equal(says[:, :-1].all(dim=1), speaks & running)
                assert torch.equal(says[:, -1], ~(speaks & running))
        state, *_ = game.step(state, random_actions(game, state, fold(keys, number)), keys)


def test_a_role_sees_the_messages_of_its_channels_alone() -> None:
    game = dialogue(PROTOCOLS["mnip"])
    keys = world_keys(base_key(0, "test"), 64, game.device)
    state = game.reset(keys)
    changed = state | {"messages": state["messages"].clone()}
    changed["messages"][:, 0, 1] = random_integers(keys, 1, game.scenario.num_tokens).squeeze(1)
    before, after = ([game.observe(each, role) for role in game.roles] for each in (state, changed))
    for role, one, other in zip(game.roles, before, after, strict=True):
        is_same = all(torch.equal(one[name], other[name]) for name in one)
        assert is_same == (role == "prover0")


def test_the_coin_of_merlin_arthur_is_fair_and_unseen() -> None:
    game = dialogue(PROTOCOLS["merlin_arthur"])
    state = game.reset(world_keys(base_key(0, "test"), 10_000, game.device))
    assert abs(float(state["variant"].double().mean()) - 0.5) < 0.02
    flipped = state | {"variant": 1 - state["variant"]}
    for name, value in game.observe(state, "verifier").items():
        assert torch.equal(value, game.observe(flipped, "verifier")[name])


def test_a_prover_whose_side_is_drawn_sees_it_and_nobody_else_does() -> None:
    game = dialogue(PROTOCOLS["nip, side drawn"])
    state = game.reset(world_keys(base_key(0, "test"), 10_000, game.device))
    assert abs(float(state["variant"].double().mean()) - 0.5) < 0.02
    side = game.observe(state, "prover")["side"]
    assert torch.equal(side, torch.nn.functional.one_hot(state["variant"], 2).float())
    assert game.spaces["prover"]["side"].shape == (2,)
    assert "side" not in game.observe(state, "verifier").keys() | game.spaces["verifier"].keys()
    for name in ("nip", "adp", "debate", "merlin_arthur"):
        assert all("side" not in spaces for spaces in dialogue(PROTOCOLS[name]).spaces.values())


def test_people_read_for_which_side_a_prover_argues() -> None:
    game = dialogue(PROTOCOLS["nip, side drawn"])
    state = {name: value[0] for name, value in game.reset(world_keys(base_key(0, "test"), 1, game.device)).items()}
    word = ("reject", "accept")[int(state["variant"])]
    assert game.describe_seen(state, "prover").endswith(f"; round 0; prover argues for {word}")
    assert "argues" not in game.describe_seen(state, "verifier")
    assert game.describe_board(state).endswith(f"; round 0; prover argues for {word}")


def test_a_role_with_one_choice_has_a_discrete_action() -> None:
    """So that algorithms for discrete actions alone can play it."""
    tokens = 4
    for name, prover in (("nip", "prover"), ("debate", "prover1"), ("merlin_arthur", "prover0")):
        spaces = dialogue(PROTOCOLS[name], num_bits=tokens).action_spaces
        assert spaces[prover] == Discrete(tokens + 1)
        assert isinstance(spaces["verifier"], MultiDiscrete)
    assert dialogue(PROTOCOLS["solo_verifier"]).action_spaces == {"verifier": Discrete(3)}
    game = dialogue(PROTOCOLS["nip, prover first"], num_bits=tokens)
    assert game.describe_action("prover", torch.tensor(2)) == "main: bit 2"
    assert game.describe_action("prover", torch.tensor(tokens)) == "says nothing"


@pytest.mark.parametrize("name", PROTOCOLS)
def test_critics_of_every_role_are_shown_the_label_the_variant_all_messages_and_what_each_role_sees(name: str) -> None:
    game = dialogue(PROTOCOLS[name])
    keys = world_keys(base_key(0, "test"), 32, game.device)
    state = game.reset(keys)
    state, *_ = game.step(state, random_actions(game, state, keys), keys)
    for role in game.roles:
        assert not game.critic_spaces[role].keys() & game.spaces[role].keys()
        shown = game.observe_for_critics(state, role)
        assert {name: x.shape[1:] for name, x in shown.items()} == {
            name: space.shape for name, space in game.critic_spaces[role].items()
        }
        assert torch.equal(shown["critic/label"][:, 0].long(), state["label"])
        assert torch.equal(shown["critic/variant"].argmax(dim=1), state["variant"])
        for each in game.roles:
            assert torch.equal(shown[f"critic/{each}/bits"], game.observe(state, each)["bits"])
        if game.channels:
            said = shown["critic/messages"]
            assert torch.equal(said.sum(dim=3) > 0, state["messages"] >= 0)
            assert torch.equal(said.argmax(dim=3), state["messages"].clamp(min=0))


# ---- witness ---------------------------------------------------------------------------------------------


def test_labels_are_balanced_and_instances_uniform_among_those_with_a_one() -> None:
    game = dialogue(PROTOCOLS["adp"], num_bits=3)
    state = game.reset(world_keys(base_key(1, "test"), 40_000, game.device))
    number = (state["instance.bits"] * torch.tensor([1, 2, 4])).sum(dim=1)
    assert torch.equal(state["label"], (number > 0).long())
    shares = torch.bincount(number, minlength=8) / len(number)
    expected = torch.tensor([0.5, *[0.5 / 7] * 7])
    assert torch.allclose(shares, expected, atol=0.01)


def test_a_verifier_sees_the_first_bits_and_those_that_were_pointed_at() -> None:
    game = dialogue(PROTOCOLS["adp"], num_bits=4, num_seen=1)
    state = game.reset(world_keys(base_key(1, "test"), 100, game.device))
    bits = state["instance.bits"]
    state["messages"][:, 0, 0] = 2
    seen = game.observe(state, "verifier")["bits"]
    for place in (0, 2):
        assert torch.equal(seen[:, place, 1], bits[:, place].float())
        assert torch.equal(seen[:, place, 0], 1.0 - bits[:, place])
    assert not seen[:, [1, 3]].any()
    assert torch.equal(game.observe(state, "prover")["bits"], bits.float())


def exact_accuracy(game: DialogueGame, num_bits: int) -> float:
    """That of the optimal players, over every instance and variant with its probability."""
    num, variants = 2**num_bits, game.protocol.num_variants
    numbers = torch.arange(num).repeat_interleave(variants)
    keys = torch.arange(num * variants)
    state = game.reset(keys)
    state["instance.bits"] = (numbers.unsqueeze(1) >> torch.arange(num_bits)) & 1
    state["label"] = (numbers > 0).long()
    state["variant"] = torch.arange(variants).repeat(num)
    players = {role: make_script("witness_optimal", game, role) for role in game.roles}
    for _ in range(game.protocol.max_rounds):
        actions = {role: p.act(state, game.legal(state, role), keys, {}).action for role, p in players.items()}
        state, *_ = game.step(state, actions, keys)
    weights = torch.full((len(numbers),), 0.5 / (num - 1), dtype=torch.float64)
    weights[numbers == 0] = 0.5
    assert not state["undecided"].any()
    return float((weights * state["right"]).sum()) / variants


@pytest.mark.parametrize(("num_bits", "num_seen"), [(1, 0), (3, 1), (6, 2), (8, 3), (5, 5)])
def test_alone_a_verifier_is_right_as_often_as_by_enumeration(num_bits: int, num_seen: int) -> None:
    n, k = num_bits, num_seen
    expected = 1 / 2 + (2**n - 2 ** (n - k)) / (2 * (2**n - 1))
    assert exact_accuracy(dialogue(PROTOCOLS["solo_verifier"], n, k), n) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("n", [1, 2, 4, 7])
def test_merlin_and_arthur_are_right_as_often_as_by_enumeration(n: int) -> None:
    expected = 3 / 4 + 1 / (4 * (2**n - 1))
    assert exact_accuracy(dialogue(PROTOCOLS["merlin_arthur"], n, 0), n) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if "drawn" in name])
def test_beside_a_prover_whose_side_is_drawn_a_verifier_is_right_as_often_as_by_enumeration(name: str) -> None:
    """Always, if the prover argues for accepting; else as if the verifier were alone."""
    n, k = 5, 2
    alone = 1 / 2 + (2**n - 2 ** (n - k)) / (2 * (2**n - 1))
    assert exact_accuracy(dialogue(PROTOCOLS[name], n, k), n) == pytest.approx((1 + alone) / 2, abs=1e-12)


WILLING = [name for name in PROTOCOLS if name not in ("merlin_arthur", "solo_verifier") and "drawn" not in name]


@pytest.mark.parametrize("name", WILLING)
def test_with_a_prover_who_wants_it_a_verifier_is_always_right(name: str) -> None:
    assert exact_accuracy(dialogue(PROTOCOLS[name], 5, 1), 5) == pytest.approx(1.0, abs=1e-12)


# ---- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "path", "message"),
    [
        (
            {"name": "nip", "stance": "accept", "first": "prover", "min_rounds": 1, "max_rounds": 1},
            "protocol",
            "expected a round in which 'verifier' can decide (from round 0 on, wherever `is_active` is true: where it "
            "speaks, unless overridden), got none in 1 rounds",
        ),
        (
            {"name": "nip", "stance": "accept", "first": "prover", "min_rounds": 5, "max_rounds": 4},
            "protocol",
            "expected 1 <= min_rounds <= max_rounds, got min_rounds 5 and max_rounds 4",
        ),
        (
            {"name": "mnip", **TWO_PROVERS, "first_prover": "prover0"},
            "protocol.first_prover",
            "expected null, because both speak at once, got 'prover0'",
        ),
    ],
)
def test_a_protocol_that_cannot_be_played_is_one_error(protocol: Data, path: str, message: str) -> None:
    scenario = {"name": "witness", "num_bits": 3, "num_seen": 0}
    rules = {
        "name": "dialogue",
        "protocol": protocol | {"rewards": REWARDS},
        "scenario": scenario,
        "observation": PLAIN,
    }
    with pytest.raises(ConfigError) as caught:
        check({"game": rules}, OneGame)
    assert [(item.path, item.message) for item in caught.value.errors] == [(f"game.{path}", message)]


def test_more_seen_bits_than_there_are_is_one_error() -> None:
    with pytest.raises(ConfigError) as caught:
        dialogue(PROTOCOLS["adp"], num_bits=3, num_seen=4)
    [item] = caught.value.errors
    assert item.path == "game.scenario.num_seen"
    assert item.message == "expected at most num_bits (3), got 4"


# ---- of one's own ----------------------------------------------------------------------------------------


class Odd(Nip):
    """`nip` with something changed, by the key `how`."""

    def __init__(self, how: str) -> None:
        self.how = how
        rules = {
            "name": "nip",
            "stance": "accept",
            "first": "prover",
            "min_rounds": 2,
            "max_rounds": 4,
            "rewards": REWARDS,
        }
        super().__init__(NipConfig(**rules))
        if how == "blind":
            self.channels = {"main": ("prover",)}
        if how == "no side":
            self.sides = {}
        if how == "other side":
            self.sides = {"prover": 3}
        if how == "three sides":
            self.sides = {"prover": (0, 1, 1)}
        if how == "stranger":
            self.verifiers = ("verifier", "judge")
        if how == "nobody":
            self.verifiers, self.sides = (), {"prover": 1, "verifier": 1}
        if how == "slash":
            self.channels = {"left/1": self.roles}
        if how == "late":
            self.min_rounds = 5

    def speaks(self, role: str, channel: str, round: int, variant: int) -> bool:
        return self.how == "at once" or super().speaks(role, channel, round, variant)

    def is_active(self, verifier: str, round: int, variant: int) -> bool:
        return self.how != "never" and super().is_active(verifier, round, variant)


@pytest.mark.parametrize(
    ("how", "faults"),
    [
        ("as it is", []),
        ("blind", ["expected 'verifier', which speaks in the channel 'main', to see it, got only prover"]),
        ("at once", ["expected one role to speak in 'main' in round 0, got prover and verifier"]),
        (
            "never",
            [
                "expected a round in which 'verifier' can decide (from round 1 on, wherever `is_active` is "
                "true: where it speaks, unless overridden), got none in 4 rounds"
            ],
        ),
        ("no side", ["sides: expected 0 (reject) or 1 (accept) of the prover 'prover', got none"]),
        ("other side", ["sides: expected 0 (reject) or 1 (accept) of the prover 'prover', got 3"]),
        (
            "three sides",
            ["sides: expected 0 (reject) or 1 (accept), or a tuple of 1, of the prover 'prover', got (0, 1, 1)"],
        ),
        ("stranger", ["verifiers: expected one of the roles prover, verifier, got 'judge'"]),
        ("nobody", ["verifiers: expected at least one, because somebody must decide, got none"]),
        ("slash", ["channels: expected names without '/', got 'left/1'"]),
        ("late", ["expected 1 <= min_rounds <= max_rounds, got min_rounds 5 and max_rounds 4"]),
    ],
)
def test_what_is_wrong_with_a_protocol_is_told(how: str, faults: list[str]) -> None:
    assert (faults_of_names(Odd(how)) or list(faults_of_turns(Odd(how)))) == faults


def test_with_shared_rewards_provers_are_paid_as_the_first_verifier_is_each_time_that_it_goes_on() -> None:
    protocol = Odd("as it is")
    protocol.roles, protocol.verifiers = ("prover", "first", "second"), ("first", "second")
    assert [protocol.paid_for(verifier) for verifier in protocol.verifiers] == [("first",), ("second",)]
    protocol.rewards = RewardsConfig(**REWARDS | {"shared": True})
    assert [protocol.paid_for(verifier) for verifier in protocol.verifiers] == [("prover", "first"), ("second",)]
