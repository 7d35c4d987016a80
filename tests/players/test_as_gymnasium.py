"""A role of a tensor game as a Gymnasium environment: what Gymnasium asks of one, and what the game's rules say."""

import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from conftest import PLAIN
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3 import PPO
from torch import Tensor

import palestra
from palestra.config import ConfigError
from palestra.games.game import IllegalMove, State, TensorGame
from palestra.games.nim import NimConfig
from palestra.games.policy import Decision, Memory
from palestra.games.spaces import Discrete, MultiDiscrete, Space
from palestra.players.as_gymnasium import RoleEnv, RoleVectorEnv, as_gymnasium, as_gymnasium_vector
from palestra.randomness import random_integers

Data = dict[str, Any]
NIM: Data = {"name": "nim", "num_heaps": 2, "max_stones": 3, "observation": PLAIN}
CARTPOLE: Data = {
    "name": "cartpole",
    "max_rounds": 20,
    "initial_low": -0.05,
    "initial_high": 0.05,
    "sutton_barto_reward": False,
    "observation": PLAIN,
}
PENDULUM: Data = {
    "name": "pendulum",
    "max_rounds": 20,
    "g": 10.0,
    "initial_angle": 3.0,
    "initial_speed": 1.0,
    "observation": PLAIN,
}
POLYHEDRA: Data = {
    "name": "polyhedra",
    "variant": "basic",
    "dimension": 3,
    "max_num_points": 5,
    "max_value": 6,
    "initial_points": None,
    "reduction": "vertices",
    "rescale": True,
    "rescale_state": False,
    "max_rounds": 6,
    "reward": {"name": "win"},
    "observation": PLAIN,
}
SEATS: list[tuple[Data, str, dict[str, str]]] = [
    (NIM, "first", {"second": "random"}),
    (NIM, "second", {"first": "random"}),
    (POLYHEDRA, "host", {"agent": "random"}),
    (POLYHEDRA, "agent", {"host": "zeillinger"}),
    (CARTPOLE, "agent", {}),
    (PENDULUM, "agent", {}),
]
every_seat = pytest.mark.parametrize(
    ("game", "role", "others"), SEATS, ids=[f"{game['name']}-{role}" for game, role, _ in SEATS]
)


def legal_action(env: RoleEnv, info: Data) -> Any:
    mask = info.get("action_mask")
    return env.action_space.sample() if mask is None else env.action_space.sample(mask.astype(np.int8))


# ---- what Gymnasium asks -----------------------------------------------------------------------------------


@every_seat
def test_gymnasiums_own_check_finds_no_fault(game: Data, role: str, others: dict[str, str]) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        check_env(as_gymnasium(game, role, others, seed=0, illegal="replace"))  # raises, or warns
    advice = ("normalized", "infinity", "spec")  # a range of [-1, 1], bounds of any number, and a registered name
    assert [str(warning.message) for warning in found if not any(word in str(warning.message) for word in advice)] == []


@every_seat
def test_a_seed_says_what_comes(game: Data, role: str, others: dict[str, str]) -> None:
    def played(seed: int | None, env: RoleEnv) -> list[Any]:
        env.action_space.seed(0)
        seen, info = env.reset(seed=seed)
        lines: list[Any] = [(seen, info)]
        for _ in range(40):
            *step, info = env.step(legal_action(env, info))
            lines.append((*step, info))
            if step[2] or step[3]:
                lines.append(env.reset())
                info = lines[-1][1]
        return lines

    def text(lines: list[Any]) -> str:
        return repr(lines)

    one, other = (as_gymnasium(game, role, others, seed=seed, illegal="raise") for seed in (3, 4))
    assert text(played(7, one)) == text(played(7, other))
    assert text(played(8, one)) != text(played(7, other))
    fresh = as_gymnasium(game, role, others, seed=7, illegal="raise")
    assert text(played(None, fresh)) == text(played(7, one))


def test_a_step_after_the_end_is_refused() -> None:
    env = as_gymnasium(CARTPOLE, "agent", {}, seed=0, illegal="raise")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)


@every_seat
def test_a_vector_of_worlds_is_gymnasiums_vector_of_the_single_ones(game: Data, role: str, others: Data) -> None:
    together = as_gymnasium_vector(game, role, others, 5, "replace", 3, AutoresetMode.NEXT_STEP)
    apart = SyncVectorEnv([lambda: as_gymnasium(game, role, others, 0, "replace")] * 3)
    assert together.observation_space == apart.observation_space
    assert together.action_space == apart.action_space
    assert together.metadata["autoreset_mode"] == apart.metadata["autoreset_mode"]
    together.action_space.seed(0)
    results = [env.reset(seed=11) for env in (together, apart)]
    for _ in range(60):
        assert_same(*results)
        action = together.action_space.sample()
        results = [env.step(action) for env in (together, apart)]


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), [other[name] for name in one]
    if isinstance(one, list | tuple):
        for part, other_part in zip(one, other, strict=True):
            assert_same(part, other_part)
    else:
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_without_autoreset_a_mask_says_which_worlds_begin_anew() -> None:
    envs = as_gymnasium_vector(CARTPOLE, "agent", {}, 0, "raise", 4, AutoresetMode.DISABLED)
    before, _ = envs.reset()
    ended = np.zeros(4, dtype=bool)
    while not ended.any():
        before, _, terminated, truncated, _ = envs.step(np.zeros(4, dtype=np.int64))
        ended = terminated | truncated
    assert not ended.all()
    with pytest.raises(gymnasium.error.ResetNeeded, match=str(int(ended.argmax()))):
        envs.step(np.zeros(4, dtype=np.int64))
    after, _ = envs.reset(options={"reset_mask": ended})
    np.testing.assert_array_equal(after[~ended], before[~ended])
    assert (np.abs(after[ended]) <= 0.05).all()
    assert not envs.step(np.ones(4, dtype=np.int64))[2].any()
    with pytest.raises(ValueError, match="expected a numpy array of 4 bools"):
        envs.reset(options={"reset_mask": [True]})


# ---- what the rules say ------------------------------------------------------------------------------------


def heaps(seen: Any) -> list[int]:
    return list(seen.argmax(axis=-1))


def test_the_others_play_until_the_role_decides_again() -> None:
    env = as_gymnasium(NIM, "first", {"second": "choose_first"}, seed=0, illegal="raise")
    for _ in range(30):
        seen, info = env.reset()
        assert info["action_mask"].tolist() == [heap >= k for heap in heaps(seen) for k in (1, 2, 3)]
        while True:
            left = heaps(seen)
            action = int(np.flatnonzero(info["action_mask"])[-1])
            left[action // 3] -= action % 3 + 1
            answered = left.copy()
            if any(left):  # one stone of the first heap that has any
                answered[next(i for i, heap in enumerate(left) if heap)] -= 1
            seen, reward, terminated, truncated, info = env.step(action)
            assert heaps(seen) == answered
            assert reward == (0.0 if any(answered) else -1.0 if any(left) else 1.0)
            assert (terminated, truncated) == (not any(answered), False)
            if terminated:
                break


def test_games_that_end_before_the_first_decision_are_left_out() -> None:
    env = as_gymnasium({**NIM, "num_heaps": 1}, "second", {"first": "choose_first"}, seed=0, illegal="raise")
    assert {heaps(env.reset()[0])[0] for _ in range(50)} == {1, 2}  # of 2 and 3 stones; 0 and 1 are over too early
    never = as_gymnasium({**NIM, "num_heaps": 1}, "second", {"first": "choose_last"}, seed=0, illegal="raise")
    with pytest.raises(RuntimeError, match="expected a game in which 'second' decides"):
        never.reset()


def test_illegal_actions_are_refused_or_replaced() -> None:
    strict, lenient = (as_gymnasium(NIM, "first", {"second": "random"}, 0, illegal) for illegal in ("raise", "replace"))
    seen, info = strict.reset(seed=1)
    illegal = int(np.flatnonzero(~info["action_mask"])[0])
    with pytest.raises(IllegalMove, match=f"legal action of 'first' in world 0, got {illegal}"):
        strict.step(illegal)
    lenient.reset(seed=1)
    assert sum(heaps(lenient.step(illegal)[0])) < sum(heaps(seen))


def test_a_torque_beyond_the_bounds_is_refused_or_brought_back() -> None:
    strict, lenient = (as_gymnasium(PENDULUM, "agent", {}, 0, illegal) for illegal in ("raise", "replace"))
    for env in (strict, lenient):
        env.reset(seed=1)
    with pytest.raises(IllegalMove):
        strict.step(np.array([5.0], dtype=np.float32))
    beyond = lenient.step(np.array([5.0], dtype=np.float32))
    np.testing.assert_array_equal(beyond[0], strict.step(np.array([2.0], dtype=np.float32))[0])


def test_being_cut_off_is_truncation_and_shows_the_next_decision() -> None:
    env = as_gymnasium({**POLYHEDRA, "max_rounds": 2}, "agent", {"host": "all_coordinates"}, 0, "raise")
    ends = []
    for _ in range(40):
        _, info = env.reset()
        steps, ended = 0, False
        while not ended:
            seen, reward, terminated, truncated, info = env.step(int(np.flatnonzero(info["action_mask"])[0]))
            steps, ended = steps + 1, terminated or truncated
        ends.append((terminated, truncated))
        if truncated:
            assert (steps, reward) == (2, 0.0)
            assert seen["coords"].tolist() == [1.0, 1.0, 1.0]  # the host has chosen again
        assert (terminated, truncated) != (True, True)
    assert set(ends) == {(True, False), (False, True)}


class Echo(TensorGame):
    """Two speakers at once; `a` earns 1 where it says what b's clock shows: b counts its own decisions in memory."""

    roles = ("a", "b")
    moves = (("a", "b"),)
    quiet_moves = ()
    tallies = ()
    lockstep = True
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.action_spaces = {"a": MultiDiscrete((2, 5)), "b": Discrete(5)}
        self.spaces = {role: {"age": Space((1,), torch.float32, padded=False)} for role in self.roles}

    def reset(self, keys: Tensor) -> State:
        return {"age": torch.zeros_like(keys), "limit": random_integers(keys, 1, 4).squeeze(1) + 1}

    def deciding(self, state: State) -> Tensor:
        return (state["age"] < state["limit"]).unsqueeze(1).expand(-1, 2)

    def observe(self, state: State, role: str) -> dict[str, Tensor]:
        return {"age": state["age"].unsqueeze(1).float()}

    def legal(self, state: State, role: str) -> Tensor:
        return torch.ones(len(state["age"]), self.action_spaces[role].num_flags, dtype=torch.bool)

    def transition(
        self, state: State, actions: dict[str, Tensor], keys: Tensor
    ) -> tuple[State, Tensor, Tensor, Tensor]:
        running = state["age"] < state["limit"]
        age = state["age"] + running
        hit = (actions["a"][:, 1] == actions["b"]) & running
        over = (age >= state["limit"]).unsqueeze(1).expand(-1, 2)
        return {**state, "age": age}, torch.stack([hit, ~hit], 1).float(), over, torch.zeros_like(running)


class Clock:
    """Says how many decisions of the running game came before."""

    observes = "nothing"

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        count = memory.get("count", torch.zeros_like(keys))
        return Decision(count, {}, {"count": count + 1})


def test_simultaneous_moves_meet_and_the_others_memory_is_that_of_one_game() -> None:
    envs = as_gymnasium_vector(Echo(), "a", {"b": Clock()}, 0, "raise", 5, AutoresetMode.NEXT_STEP)
    seen, _ = envs.reset()
    ended, num_ended = np.zeros(5, dtype=bool), 0
    for _ in range(30):
        clock = seen[:, 0].astype(np.int64)
        seen, reward, terminated, _, _ = envs.step(np.stack([np.zeros_like(clock), clock], axis=1))
        np.testing.assert_array_equal(reward, ~ended)  # where a new game began, nothing was earned
        ended = terminated
        num_ended += int(ended.sum())
    assert num_ended > 20


# ---- who sits where ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "others", "message"),
    [
        (
            "third",
            {"second": "random"},
            "expected each role of the game once .*, got role 'third' and others: second",
        ),
        ("first", {}, "expected each role of the game once .*, got role 'first' and others: nobody"),
        ("first", {"first": "random", "second": "random"}, "expected each role of the game once"),
        (
            "first",
            {"second": "zeillinger"},
            r"others\['second'\]: expected the game 'polyhedra' for the player 'zeillinger'",
        ),
        (
            "first",
            {"second": "nobody"},
            r"others\['second'\]: expected a scripted player \(random, .*\) or a class of your own as .*, got 'nobody'",
        ),
    ],
)
def test_faulty_seats_are_told(role: str, others: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_gymnasium(NIM, role, others, seed=0, illegal="raise")


def test_faulty_games_are_told() -> None:
    with pytest.raises(ConfigError, match=r"game\.max_stones: expected an integer >= 1, got -1"):
        as_gymnasium({**NIM, "max_stones": -1}, "first", {"second": "random"}, seed=0, illegal="raise")


def test_games_configs_and_mappings_name_the_same_game() -> None:
    model = NimConfig(**NIM)
    games = [NIM, model, model.build(torch.device("cpu"), "torch")]
    starts = [as_gymnasium(game, "first", {"second": "random"}, 3, "raise").reset()[0] for game in games]
    assert all(np.array_equal(start, starts[0]) for start in starts)


def test_a_trained_player_may_hold_a_seat(tmp_path: Any, make_config: Any) -> None:
    trainer = palestra.Trainer(make_config(), run=tmp_path / "run")
    trainer.fit()
    player = palestra.load_player(tmp_path / "run", "host")
    env = as_gymnasium(make_config()["game"], "agent", {"host": player}, seed=0, illegal="raise")
    seen, info = env.reset()
    worlds = env.worlds
    state = worlds.game.observe(worlds.state, "host")
    chosen = player.policy(explore=False).act(state, torch.ones(1, 4, dtype=torch.bool), torch.zeros(1).long(), {})
    assert int(worlds.state["subset"]) == worlds.game.masks[chosen.action]  # type: ignore[attr-defined]
    assert info["action_mask"].tolist() == seen["coords"].astype(bool).tolist()


# ---- learned -----------------------------------------------------------------------------------------------


def mean_return(envs: RoleVectorEnv, choose: Any, num_steps: int) -> float:
    """Earned per game, over the games that ended."""
    seen, _ = envs.reset(seed=1000)
    earned, ended = 0.0, 0
    for _ in range(num_steps):
        seen, reward, terminated, truncated, _ = envs.step(choose(seen))
        earned, ended = earned + float(reward.sum()), ended + int((terminated | truncated).sum())
    return earned / ended


def test_stable_baselines_learns_nim_from_a_seat() -> None:
    env = as_gymnasium(NIM, "first", {"second": "random"}, seed=0, illegal="replace")
    model = PPO("MlpPolicy", env, n_steps=128, batch_size=64, learning_rate=3e-3, gamma=0.9, seed=0, device="cpu")
    judge = as_gymnasium_vector(NIM, "first", {"second": "random"}, 1, "replace", 64, AutoresetMode.NEXT_STEP)
    judge.action_space.seed(0)
    at_random = mean_return(judge, lambda seen: judge.action_space.sample(), 40)
    model.learn(1536)
    learned = mean_return(judge, lambda seen: model.predict(seen, deterministic=True)[0], 40)
    assert at_random < 0.4
    assert learned > at_random + 0.25
