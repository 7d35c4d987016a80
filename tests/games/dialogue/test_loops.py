"""The loops of dialogues give what the rules in plain torch give, to the bit."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.games.dialogue.game import DialogueGame
from palestra.games.dialogue.protocol import Protocol, RewardsConfig
from palestra.randomness import base_key, fold, world_keys
from tests.games.dialogue.test_game import PROTOCOLS, dialogue, random_actions

NUM_WORLDS = 24


class TwoJudges(Protocol):
    """Two verifiers, who decide by themselves; each speaks in a channel of its own until then."""

    roles = ("prover", "first", "second")
    verifiers = ("first", "second")
    channels = {"air": roles, "one": roles, "two": roles}  # noqa: RUF012
    sides = {"prover": 1}  # noqa: RUF012
    num_variants = 2

    def __init__(self, rewards: RewardsConfig) -> None:
        super().__init__(SimpleNamespace(rewards=rewards), min_rounds=1, max_rounds=5)

    def speaks(self, role: str, channel: str, round: int, variant: int) -> bool:
        return (role, channel) == ("prover", "air") or (role, channel, round % 2) == ("first", "one", variant)

    def is_active(self, verifier: str, round: int, variant: int) -> bool:
        return verifier == "second" or round % 2 == variant


def both(name: str, **rewards: Any) -> tuple[DialogueGame, DialogueGame]:
    """The game by loops and by torch."""
    config: Any = dialogue(PROTOCOLS.get(name, PROTOCOLS["nip"]), **rewards).config
    if name == "two judges":
        protocol = TwoJudges(config.protocol.rewards)
        config = SimpleNamespace(
            protocol=SimpleNamespace(build=lambda: protocol), scenario=config.scenario, observation=config.observation
        )
    by_loops, by_torch = (DialogueGame(config, torch.device("cpu"), kernel) for kernel in ("numba", "torch"))
    assert by_loops.loops is not None
    assert by_torch.loops is None
    return by_loops, by_torch


def same(one: Any, other: Any) -> bool:
    """Equal values, dtypes and signs of zeros in nested containers."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if one.dtype != other.dtype or not torch.equal(one, other):
        return False
    return not one.is_floating_point() or torch.equal(one.signbit(), other.signbit())


@pytest.mark.parametrize("name", [*PROTOCOLS, "two judges"])
@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), shared=st.booleans(), prover=st.sampled_from([-2.0, 0.0, 1.5]))
def test_loops_play_as_torch_does(name: str, seed: int, shared: bool, prover: float) -> None:
    by_loops, by_torch = both(name, go_on=-0.3, prover=prover, shared=shared)
    keys = world_keys(base_key(seed, "test"), NUM_WORLDS, by_loops.device)
    state = by_loops.reset(fold(keys, 0))
    assert same(state, by_torch.reset(fold(keys, 0)))
    for number in range(by_loops.protocol.max_rounds + 2):
        assert same(by_loops.deciding(state), by_torch.deciding(state))
        for role in by_loops.roles:
            assert same(by_loops.legal(state, role), by_torch.legal(state, role))
            assert same(by_loops.observe(state, role), by_torch.observe(state, role))
            assert same(by_loops.observe_for_critics(state, role), by_torch.observe_for_critics(state, role))
        actions = random_actions(by_loops, state, fold(keys, number + 1))
        before = {entry: value.clone() for entry, value in state.items()}
        expected = by_torch.transition(state, actions, keys)
        assert same(by_loops.transition(state, actions, keys), expected)
        assert same(state, before)
        state, *outcome = by_loops.transition_in_place(state, actions, keys)
        assert same((state, *outcome), expected)


def test_a_token_or_a_verdict_that_is_none_is_an_error() -> None:
    game, _ = both("nip")
    state = game.reset(world_keys(1, 3, game.device))
    goes_on = {"verifier": torch.tensor([[0, 2]] * 3), "prover": torch.tensor([0] * 3)}
    for _ in range(2):  # before two rounds nothing can be decided
        state = game.transition(state, goes_on, state["label"])[0]
    assert game.loops is not None
    with pytest.raises(IndexError):
        game.loops.one_hot(torch.tensor([[0, 9]]), 4)
    with pytest.raises(IndexError):
        game.transition(state, goes_on | {"verifier": torch.tensor([[0, 7]] * 3)}, state["label"])
