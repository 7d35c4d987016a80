"""Harvest: its best mean return by enumeration of all players, what roles and critics know, and its rewards."""

from itertools import product
from typing import Any

import pytest
import torch
from conftest import PLAIN
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from palestra.config import ConfigError
from palestra.games import make_game
from palestra.games.harvest import HarvestGame
from palestra.games.tryout import try_game
from palestra.randomness import world_keys


def harvest(num_farmers: int = 2, num_kinds: int = 2, num_rounds: int = 1, luck: float = 5.0) -> HarvestGame:
    numbers = {"num_farmers": num_farmers, "num_kinds": num_kinds, "num_rounds": num_rounds, "luck": luck}
    game = make_game({"name": "harvest", **numbers, "observation": PLAIN})
    assert isinstance(game, HarvestGame)
    return game


def state_of(game: HarvestGame, weather: list[Any], rounds: int = 0) -> dict[str, Tensor]:
    """weather: of each world, of each round, of each farmer."""
    zeros = torch.zeros(len(weather), dtype=torch.int64)
    return {"weather": torch.tensor(weather), "round": zeros + rounds, "right": zeros.clone()}


def test_it_keeps_the_promises_of_a_game() -> None:
    assert try_game(harvest(3, 4, 2), 40) == []
    assert try_game(harvest(2, 2, 1, 0.0), 10) == []


@settings(max_examples=30)
@given(st.integers(2, 4), st.integers(2, 4), st.integers(1, 3), st.integers(0, 99))
def test_rewards_are_those_of_a_plain_loop(num_farmers: int, num_kinds: int, num_rounds: int, seed: int) -> None:
    game = harvest(num_farmers, num_kinds, num_rounds, luck=3.0)
    state = game.reset(world_keys(seed, 6, game.device))
    weather, right = state["weather"].tolist(), [0] * 6
    generator = torch.Generator().manual_seed(seed)
    for t in range(num_rounds):
        assert game.deciding(state).all()
        actions = {role: torch.randint(num_kinds, (6,), generator=generator) for role in game.roles}
        for i, role in enumerate(game.roles):  # in half of the worlds all sow what is right
            actions[role] = torch.where(torch.arange(6) < 3, state["weather"][:, t, i], actions[role])
        state, rewards, terminated, truncated = game.step(state, actions, torch.arange(6))
        for world in range(6):
            sky = weather[world][t]
            is_right = all(int(actions[role][world]) == sky[i] for i, role in enumerate(game.roles))
            right[world] += is_right
            expected = is_right + 3.0 * (2.0 * (sum(sky) % num_kinds) / (num_kinds - 1) - 1.0)
            assert rewards[world].tolist() == pytest.approx([expected] * num_farmers, abs=1e-6)
        assert bool(terminated.all()) == bool(terminated.any()) == (t + 1 == num_rounds)
        assert not truncated.any()
    assert state["right"].tolist() == right
    assert not game.deciding(state).any()


@pytest.mark.parametrize(("num_farmers", "num_kinds"), [(2, 2), (3, 2), (2, 3)])
def test_the_best_mean_return_is_the_number_of_rounds(num_farmers: int, num_kinds: int) -> None:
    """Every joint policy, each farmer's a function of its own weather, over every weather of one round."""
    game = harvest(num_farmers, num_kinds)
    skies = list(product(range(num_kinds), repeat=num_farmers))
    state = state_of(game, [[sky] for sky in skies])
    functions = list(product(range(num_kinds), repeat=num_kinds))
    returns = {}
    for policies in product(functions, repeat=num_farmers):
        actions = {
            role: torch.tensor(policy)[state["weather"][:, 0, i]]
            for i, (role, policy) in enumerate(zip(game.roles, policies, strict=True))
        }
        _, rewards, _, _ = game.transition(state, actions, torch.arange(len(skies)))
        returns[policies] = float(rewards[:, 0].double().mean())
    best = max(returns, key=lambda policies: returns[policies])
    assert best == (tuple(range(num_kinds)),) * num_farmers
    assert returns[best] == pytest.approx(1.0, abs=1e-6)
    assert sum(returns.values()) / len(returns) == pytest.approx(num_kinds**-num_farmers, abs=1e-6)


@pytest.mark.parametrize("num_kinds", [2, 3, 4])
def test_no_farmer_knows_anything_of_what_luck_brings_and_critics_know_all(num_kinds: int) -> None:
    game = harvest(3, num_kinds)
    skies = list(product(range(num_kinds), repeat=3))
    state = state_of(game, [[sky] for sky in skies])
    wrong = {role: (state["weather"][:, 0, i] + 1) % num_kinds for i, role in enumerate(game.roles)}
    _, rewards, _, _ = game.transition(state, wrong, torch.arange(len(skies)))
    for role in game.roles:
        own = game.observe(state, role)["seen"]
        for seen in own.unique(dim=0):
            assert float(rewards[(own == seen).all(dim=1), 0].mean()) == pytest.approx(0.0, abs=1e-6)
        shown = game.observe_for_critics(state, role)["weather"]
        assert len(shown.unique(dim=0)) == len(skies)
    assert float(rewards[:, 0].abs().max()) == 5.0


def test_farmers_see_the_present_and_critics_what_is_to_come() -> None:
    game = harvest(2, 2, 3)
    state = state_of(game, [[[0, 1], [1, 1], [0, 0]]], rounds=1)
    assert game.observe(state, "farmer_0")["seen"].tolist() == [[0.0, 1.0, pytest.approx(2 / 3)]]
    weather = game.observe_for_critics(state, "farmer_0")["weather"][0].tolist()
    assert weather == [[[0, 1], [0, 1]], [[1, 0], [1, 0]], [[0, 0], [0, 0]]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_farmers": 1}, "game.num_farmers: expected an integer between 2 and 100, got 1"),
        ({"num_kinds": 1}, "game.num_kinds: expected an integer between 2 and 100, got 1"),
        ({"num_rounds": 0}, "game.num_rounds: expected an integer >= 1"),
        ({"luck": -1.0}, "game.luck: expected"),
    ],
)
def test_bad_numbers_are_told(change: dict[str, Any], message: str) -> None:
    numbers = {"name": "harvest", "num_farmers": 2, "num_kinds": 2, "num_rounds": 1, "luck": 1.0, "observation": PLAIN}
    with pytest.raises(ConfigError, match=message):
        make_game(numbers | change)
