"""Scripted players of a user's own: who may sit where, what they may choose, and how mistakes are told."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from palestra.config import ConfigError, check
from palestra.games import make_game
from palestra.games.game import IllegalMove
from palestra.games.gymnasium import GymnasiumConfig, GymnasiumGame
from palestra.players import make_script, read_script, script_error
from palestra.players.as_gymnasium import as_gymnasium
from palestra.players.player import Player
from palestra.testing.algorithms import NIM, PENDULUM
from tests.games.gym_worlds import cart_pole

MODULE = """
import torch
from palestra.config import PositiveInt
from palestra.games.policy import Decision
from palestra.games.spaces import Box
from palestra.players.scripted import ScriptedPlayerConfig, ScriptedPolicy
from palestra.randomness import random_choice


class Any(ScriptedPolicy):
    def choose(self, view, legal, keys):
        return random_choice(keys, legal)


class Second(Any):
    roles = ("second",)


class ByRole(ScriptedPolicy):
    def choose(self, view, legal, keys):
        last = legal.shape[1] - 1 - legal.flip(1).to(torch.int8).argmax(dim=1)
        return last if self.role == "second" else legal.to(torch.int8).argmax(dim=1)


class Every(Any):
    class Config(ScriptedPlayerConfig):
        period: PositiveInt


class Strong(ScriptedPolicy):
    observes = "state"

    def choose(self, view, legal, keys):
        assert set(view) == {"heaps", "mover"}
        return legal.to(torch.int8).argmax(dim=1)


class Illegal(ScriptedPolicy):
    def choose(self, view, legal, keys):
        return (~legal).to(torch.int8).argmax(dim=1) + 100 * legal.all(dim=1)


class Floats(ScriptedPolicy):
    def choose(self, view, legal, keys):
        return legal.float().argmax(dim=1).float()


class Chance(ScriptedPolicy):
    sign = 1

    def choose(self, view, legal, keys):
        Chance.sign *= -1
        return (self.sign * torch.arange(legal.shape[1])).masked_fill(~legal, -99).argmax(dim=1)


class Failing(ScriptedPolicy):
    def choose(self, view, legal, keys):
        raise KeyError("heap")


class Nothing(ScriptedPolicy):
    pass


class Clairvoyant(Any):
    observes = "everything"


class WordForRoles(Any):
    roles = "first"


class NoConfig(Any):
    Config = dict


class Full(ScriptedPolicy):
    action_spaces = (Box,)
    observes = "observation"

    def choose(self, view, legal, keys):
        return view["observation"][:, :1].clamp(-1, 1) * self.space.high[0] * self.excess

    excess = 1.0


class Excessive(Full):
    def choose(self, view, legal, keys):
        return torch.full((len(keys), 1), 1e3)


class Alternating(ScriptedPolicy):
    def act(self, view, legal, keys, memory):
        num = memory.get("num", torch.zeros_like(keys))
        first, last = legal.to(torch.int8).argmax(1), legal.shape[1] - 1 - legal.flip(1).to(torch.int8).argmax(1)
        return Decision(torch.where(num % 2 == 0, first, last), {}, {"num": num + 1})


elsewhere = 1
"""


@pytest.fixture(autouse=True)
def module(in_tmp_path: Path) -> Iterator[None]:
    (in_tmp_path / "script_mine.py").write_text(MODULE)
    yield
    sys.modules.pop("script_mine", None)


def own(name: str) -> str:
    return f"script_mine:{name}"


def made(name: str, game: dict[str, Any] = NIM, role: str | None = None) -> Any:
    return make_script(own(name), make_game(game), role)


def test_one_plays_in_any_role_as_a_policy() -> None:
    legal = torch.tensor([[0, 1, 1, 0, 0, 1], [1, 0, 0, 0, 0, 0]]).bool()
    policy = made("Any", NIM, "second")
    assert policy.observes == "nothing"
    for key in range(20):
        action = policy.act({}, legal, torch.tensor([key, key]), {}).action
        assert legal.gather(1, action.unsqueeze(1)).all()


def test_one_knows_in_which_role_it_sits() -> None:
    legal, key, game = torch.ones(1, 6, dtype=torch.bool), torch.tensor([0]), make_game(NIM)
    policy = make_script(own("ByRole"), game, "second")
    assert policy.act({}, legal, key, {}).action.tolist() == [5]
    assert policy.for_seat(game, "first").act({}, legal, key, {}).action.tolist() == [0]


def test_one_in_two_roles_of_a_run_is_made_for_each() -> None:
    game, legal, key = make_game(NIM), torch.ones(1, 6, dtype=torch.bool), torch.tensor([0])
    script = make_script(own("ByRole"), game, "first")
    roles, space = ("first", "second"), game.action_spaces["first"]
    player = Player("s", roles, game.spaces["first"], space, game.device, 0, False, True, script=script, game=game)
    for role, action in (("first", 0), ("second", 5)):
        assert player.policy(False, role).act({}, legal, key, {}).action.tolist() == [action]
        heaps = game.observe(game.reset(key), role)
        assert player.predict(heaps, legal=legal, role=role)[0].tolist() == [action]
    with pytest.raises(ValueError, match=r"expected the role of 's' \(first, second\), which depends on it, got none"):
        player.predict(heaps, legal=legal)


def test_one_may_keep_a_memory() -> None:
    policy, legal, memory, chosen = made("Alternating"), torch.ones(1, 6, dtype=torch.bool), dict[str, Any](), []
    for _ in range(3):
        decision = policy.act({}, legal, torch.tensor([0]), memory)
        memory = decision.memory
        chosen.append(int(decision.action))
    assert chosen == [0, 5, 0]


def test_one_that_sits_in_another_seat_is_checked_again() -> None:
    config, game = read_script(own("Second")), make_game(NIM)
    assert make_script(config, game, "second").for_seat(game, "second").kind == "scripted"
    with pytest.raises(ConfigError, match="expected the role second for the player 'script_mine:Second', got 'first'"):
        make_script(config, game, "second").for_seat(game, "first")


def test_one_plays_a_role_of_a_gymnasium_environment_made_of_a_game() -> None:
    env = as_gymnasium(NIM, "first", {"second": own("Strong")}, seed=0, illegal="replace")
    env.reset(seed=1)
    for _ in range(20):
        _, _, terminated, truncated, _ = env.step(0)
        if terminated or truncated:
            env.reset()


@pytest.mark.parametrize(
    ("name", "role", "message"),
    [
        ("Second", "first", "expected the role second for the player 'script_mine:Second', got 'first'"),
        ("Every", "first", "expected a player of `players` that is 'script_mine:Every' with its keys (period), got"),
        ("Nobody", "first", "expected a class of module 'script_mine' ("),
        ("elsewhere", "first", "got 'elsewhere'"),
        ("ScriptedPlayerConfig", "first", "expected a subclass of palestra.players.scripted.ScriptedPolicy"),
        ("NoConfig", "first", "expected an attribute Config of 'script_mine:NoConfig', a subclass of palestra.players"),
    ],
)
def test_a_name_that_cannot_stand_there_is_told(name: str, role: str, message: str) -> None:
    fault = script_error(own(name), make_game(NIM).config, role)  # type: ignore[attr-defined]
    assert fault is not None
    assert message in fault
    with pytest.raises(ConfigError):
        made(name, NIM, role)


@pytest.mark.parametrize(
    ("name", "game", "message"),
    [
        (
            "Illegal",
            NIM,
            r"expected a legal action \(flags \[.*\] in world 0\) of 'first' from 'script_mine:Illegal', ",
        ),
        ("Floats", NIM, r"expected actions, int64 of shape \(5,\) of 'first' from .*, got float32 of shape \(5,\)"),
        ("Chance", NIM, "expected the same choices of 'script_mine:Chance' for the same view"),
        ("Failing", NIM, r"'script_mine:Failing' fails at the first decision of 'first': KeyError: 'heap' \(script_m"),
        ("Nothing", NIM, "expected a method `choose` of 'script_mine:Nothing', got none"),
        ("Clairvoyant", NIM, "expected one of 'observation', 'state', 'nothing' as `observes` of .*, got 'everything'"),
        ("WordForRoles", NIM, "expected a tuple of names as `roles` of 'script_mine:WordForRoles', got 'first'"),
        ("Any", PENDULUM, "expected Discrete actions for 'script_mine:Any', got Box"),
        ("Excessive", PENDULUM, r"expected a legal action \(between .*\) of 'agent' from .*, got \[1000.0\]"),
    ],
)
def test_one_that_cannot_play_is_told_when_it_is_made(name: str, game: dict[str, Any], message: str) -> None:
    role = make_game(game).roles[0]
    with pytest.raises(ConfigError, match=message):
        made(name, game, role)


def test_the_state_of_an_environment_cannot_be_observed() -> None:
    game = GymnasiumGame(check(cart_pole(), GymnasiumConfig), torch.device("cpu"))
    with pytest.raises(ConfigError, match="expected a tensor game for 'script_mine:Strong', which observes its state"):
        make_script(own("Strong"), game)
    assert make_script(own("Any"), game).observes == "nothing"


def test_an_illegal_choice_in_a_game_is_told_with_the_world() -> None:
    policy = made("Any")
    policy.policy.choose = lambda view, legal, keys: torch.tensor([0, 2])
    legal = torch.tensor([[1, 1, 0, 0, 0, 0]] * 2).bool()
    with pytest.raises(IllegalMove, match=r"flags \[0, 1\] in world 1\) of 'first' from 'script_mine:Any', got 2"):
        policy.act({}, legal, torch.zeros(2, dtype=torch.int64), {})
    legal[1] = False  # where the role does not decide, any choice will do
    assert policy.act({}, legal, torch.zeros(2, dtype=torch.int64), {}).action.tolist() == [0, 2]


def test_a_name_alone_is_a_config_without_keys() -> None:
    assert read_script(own("Any")).model_dump() == {"scripted": own("Any")}
    with pytest.raises(ValueError, match="with its keys"):
        read_script(own("Every"))
