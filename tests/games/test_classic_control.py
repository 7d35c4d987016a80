"""Classic control: the physics are Gymnasium's, the two kernels give the same bits, ends are told apart.

Covers palestra.games.classic_control.acrobot, palestra.games.classic_control.arithmetic,
palestra.games.classic_control.bodies, palestra.games.classic_control.cartpole,
palestra.games.classic_control.mountain_car, palestra.games.classic_control.pendulum.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from torch import Tensor

import palestra
from palestra.config import ConfigError, check
from palestra.evaluation.evaluator import play_games
from palestra.games.classic_control import AcrobotConfig, CartPoleConfig, MountainCarConfig, PendulumConfig
from palestra.games.classic_control.arithmetic import sin_cos
from palestra.games.classic_control.bodies import ClassicControl
from palestra.games.game import State
from palestra.games.normalization import UNCHANGED
from palestra.games.spaces import Box
from palestra.games.world import Outcome, TensorWorld
from palestra.players import make_script
from palestra.randomness import base_key, fold, random_floats, random_integers, world_keys
from palestra.recording.recorders import without_clock
from palestra.storage.records_file import read_records

CPU = torch.device("cpu")
Config = CartPoleConfig | PendulumConfig | AcrobotConfig | MountainCarConfig

CARTPOLE = CartPoleConfig(
    name="cartpole",
    initial_low=-0.05,
    initial_high=0.05,
    max_rounds=500,
    sutton_barto_reward=False,
    observation=UNCHANGED,
)
PENDULUM = PendulumConfig(
    name="pendulum", max_rounds=200, g=10.0, initial_angle=math.pi, initial_speed=1.0, observation=UNCHANGED
)
ACROBOT = AcrobotConfig(name="acrobot", initial_low=-0.1, initial_high=0.1, max_rounds=500, observation=UNCHANGED)
MOUNTAIN_CAR = MountainCarConfig(
    name="mountain_car", initial_low=-0.6, initial_high=-0.4, max_rounds=200, goal_speed=0.0, observation=UNCHANGED
)
GYMNASIUM = {"cartpole": "CartPole-v1", "pendulum": "Pendulum-v1", "acrobot": "Acrobot-v1"}
GYMNASIUM |= {"mountain_car": "MountainCar-v0"}
CONFIGS = [CARTPOLE, PENDULUM, ACROBOT, MOUNTAIN_CAR]
VARIANTS: list[tuple[Config, dict[str, Any]]] = [
    *((config, {}) for config in CONFIGS),
    (CARTPOLE.model_copy(update={"sutton_barto_reward": True}), {"sutton_barto_reward": True}),
    (PENDULUM.model_copy(update={"g": 3.7}), {"g": 3.7}),
    (MOUNTAIN_CAR.model_copy(update={"goal_speed": 0.03}), {"goal_velocity": 0.03}),
]
# bounds within which states are drawn: beyond those of the rules where a game can end there
REACH = {
    "cartpole": (2.45, 3.0, 0.22, 3.0),
    "pendulum": (50.0, 8.0),
    "acrobot": (math.pi, math.pi, 4 * math.pi, 9 * math.pi),
    "mountain_car": (1.2, 0.07),
}
# where something happens: an end, a wall, the cut of the circle
EDGES = {
    "cartpole": [("x", -2.4), ("x", 2.4), ("theta", -math.radians(12)), ("theta", math.radians(12))],
    "pendulum": [("theta", math.pi), ("theta", -3 * math.pi), ("speed", -8.0), ("speed", 8.0)],
    "acrobot": [("angle_1", math.pi), ("angle_2", -math.pi), ("speed_1", 4 * math.pi), ("speed_2", -9 * math.pi)],
    "mountain_car": [("x", -1.2), ("x", 0.5), ("x", 0.6), ("speed", 0.07)],
}


def names_of(config: Any) -> str:
    return config.name if isinstance(config, Config) else ""


each_game = pytest.mark.parametrize("config", CONFIGS, ids=names_of)


def make(config: Config, kernel: str = "numba") -> ClassicControl:
    game = config.build(CPU, kernel)  # type: ignore[arg-type]
    assert isinstance(game, ClassicControl)
    return game


def keys_of(name: str, num: int) -> Tensor:
    return world_keys(base_key(0, name), num, CPU)


def some_actions(game: ClassicControl, keys: Tensor) -> Tensor:
    if isinstance(game.actions, Box):
        return random_floats(keys, 1) * 6.0 - 3.0  # some of it beyond the torque that there is
    return random_integers(keys, 1, game.actions.num).squeeze(1)


def running_states(game: ClassicControl, num: int) -> State:
    """Random states in which the agent decides, every tenth of them close to each of the edges."""
    reach, edges = torch.tensor(REACH[game.config.name], dtype=torch.float64), EDGES[game.config.name]
    draws = random_floats(keys_of("states", num), len(reach)).double() * 2.0 - 1.0
    state = dict(zip(game.variables, (draws * reach).T.contiguous(), strict=True))
    for index, (name, edge) in enumerate(edges):
        state[name][index::10] = edge + 0.001 * draws[index::10, game.variables.index(name)]
    state["rounds"] = torch.zeros(num, dtype=torch.int32)
    running = game.deciding(state)[:, 0]
    return {name: value[running] for name, value in state.items()}


# ---- Gymnasium's ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("config", "arguments"), VARIANTS, ids=names_of)
def test_every_step_is_gymnasiums(config: Config, arguments: dict[str, Any]) -> None:
    game, env = make(config), gymnasium.make(GYMNASIUM[config.name], **arguments).unwrapped
    state = running_states(game, 3000)
    num = len(state["rounds"])
    action = some_actions(game, keys_of("actions", num))
    after, reward, terminated, truncated = game.transition(state, {"agent": action}, torch.zeros(num).long())
    seen = game.observe(after, "agent")["observation"]
    ours = torch.stack([after[name] for name in game.variables], dim=1).numpy()
    starts = torch.stack([state[name] for name in game.variables], dim=1).numpy()
    for i in range(num):
        env.reset(seed=0)  # CartPole remembers that it has fallen
        env.state = starts[i].copy()
        move = action[i].double().numpy() if isinstance(game.actions, Box) else int(action[i])
        observed, earned, over, _, _ = env.step(move)
        difference = np.asarray(env.state, dtype=float) - ours[i]
        if config.name == "acrobot":  # an angle of pi is one of -pi
            difference[:2] -= 2 * math.pi * np.round(difference[:2] / (2 * math.pi))
        assert np.abs(difference).max() < (1e-10 if config.name == "acrobot" else 1e-12)  # it whirls, errors grow
        np.testing.assert_allclose(seen[i].numpy(), observed, rtol=2e-7, atol=1e-11)
        assert (terminated[i, 0].item(), truncated[i].item()) == (over, False)
        assert reward[i, 0].item() == pytest.approx(earned, rel=1e-7)
    if config.name != "pendulum":
        assert 10 < terminated.sum() < num - 10


@each_game
def test_whole_games_are_gymnasiums(config: Config) -> None:
    """As gymnasium.make has them, time limit and all."""
    game, env = make(config), gymnasium.make(GYMNASIUM[config.name])
    for index in range(3):
        world = TensorWorld(game, keys_of("starts", 3)[index : index + 1])
        env.reset(seed=0)
        env.unwrapped.state = np.array([world.state[name].item() for name in game.variables])
        ended = False
        for key in fold(keys_of("game", 1), torch.arange(1000)).unsqueeze(1):
            action = some_actions(game, key)
            move = action[0].double().numpy() if isinstance(game.actions, Box) else int(action)
            outcome = world.step(action, key)
            observed, earned, over, cut, _ = env.step(move)
            np.testing.assert_allclose(outcome.observation["observation"][0].numpy(), observed, atol=1e-6)
            assert (outcome.terminated.item(), outcome.truncated.item()) == (over, cut)
            assert outcome.reward.item() == pytest.approx(earned, rel=1e-5, abs=1e-5)
            ended = over or cut
            if ended:
                break
        assert ended


@each_game
def test_games_start_anywhere_within_their_bounds(config: Config) -> None:
    game = make(config)
    state = game.reset(keys_of("starts", 4000))
    low, width = torch.from_numpy(game.starts)
    for name, least, wide in zip(game.variables, low, width, strict=True):
        assert least <= state[name].min() <= least + 0.01 * wide
        assert least + 0.99 * wide <= state[name].max() <= least + wide
        assert (state[name].mean() - (least + wide / 2)).abs() <= 0.03 * wide
    assert not state["rounds"].any()
    assert not torch.equal(state[game.variables[0]][1:], state[game.variables[0]][:-1])


# ---- kernels and worlds ----------------------------------------------------------------------------------


def roll_out(world: TensorWorld, num_steps: int, stream: str = "play") -> list[Outcome]:
    game, keys = world.game, keys_of(stream, len(world.all_valid))
    assert isinstance(game, ClassicControl)
    return [world.step(some_actions(game, fold(keys, 2 * t)), fold(keys, 2 * t + 1)) for t in range(num_steps)]


def flat(outcomes: list[Outcome]) -> dict[str, Tensor]:
    parts = {name: torch.stack([getattr(o, name) for o in outcomes]) for name in ("reward", "terminated", "truncated")}
    return (
        parts
        | {name: torch.stack([getattr(o, name) for o in outcomes]) for name in ("legal", "valid")}
        | {"observation": torch.stack([o.observation["observation"] for o in outcomes])}
    )


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.dtype == other[name].dtype, name
        assert torch.equal(value, other[name]), name


@each_game
@pytest.mark.parametrize("max_rounds", [37, None])
def test_both_kernels_give_the_same_bits(config: Config, max_rounds: int | None) -> None:
    config = config.model_copy(update={"max_rounds": max_rounds})
    worlds = [TensorWorld(make(config, kernel), keys_of("starts", 61)) for kernel in ("numba", "torch")]
    fast, plain = (roll_out(world, 200) for world in worlds)
    assert (worlds[0].stepper is None, worlds[1].stepper is None) == (False, True)
    assert_equal(flat(fast), flat(plain))
    assert_equal(worlds[0].state_dict()["state"], worlds[1].state_dict()["state"])
    assert_equal(worlds[0].observation, worlds[1].observation)


@each_game
@pytest.mark.parametrize("kernel", ["numba", "torch"])
def test_a_game_that_is_cut_off_shows_its_true_end_and_then_begins_anew(config: Config, kernel: str) -> None:
    game = make(config.model_copy(update={"max_rounds": 3}), kernel)
    world = TensorWorld(game, keys_of("starts", 5))
    roll_out(world, 2)
    before, keys, action = world.state_dict()["state"], keys_of("more", 5), some_actions(game, keys_of("last", 5))
    outcome = world.step(action, keys)
    after = game.transition(before, {"agent": action}, keys)[0]
    assert outcome.truncated.all()
    assert not outcome.terminated.any()
    assert_equal(outcome.observation, game.observe(after, "agent"))
    assert_equal(world.state, game.reset(keys + 1))
    assert_equal(world.observation, game.observe(world.state, "agent"))


@pytest.mark.parametrize("kernel", ["numba", "torch"])
def test_a_start_that_is_over_ends_after_one_step_that_earns_nothing(kernel: str) -> None:
    game = make(CARTPOLE.model_copy(update={"initial_low": 3.0, "initial_high": 4.0}), kernel)
    world = TensorWorld(game, keys_of("starts", 5))
    before = world.observation
    assert not game.deciding(world.state).any()
    outcome = world.step(torch.ones(5).long(), keys_of("more", 5))
    assert (outcome.terminated.all(), outcome.reward.any()) == (True, False)
    assert_equal(outcome.observation, before)


@pytest.mark.parametrize("config", [CARTPOLE, ACROBOT, MOUNTAIN_CAR], ids=names_of)
def test_a_game_that_is_over_stays_as_it_is(config: Config) -> None:
    game = make(config)
    state = running_states(game, 3000)
    keys = torch.zeros(len(state["rounds"]), dtype=torch.int64)
    action = {"agent": some_actions(game, keys_of("actions", len(keys)))}
    after, _, terminated, _ = game.transition(state, action, keys)
    over = terminated[:, 0]
    again, reward, still, truncated = game.transition(after, action, keys)
    assert over.any()
    assert_equal({n: v[over] for n, v in again.items()}, {n: v[over] for n, v in after.items()})
    assert (reward[over].any(), still[over].all(), truncated[over].any()) == (False, True, False)


@each_game
def test_a_stored_world_goes_on_to_the_same_bits(config: Config) -> None:
    game = make(config.model_copy(update={"max_rounds": 11}))
    world = TensorWorld(game, keys_of("starts", 6))
    roll_out(world, 7)
    state = world.state_dict()
    on = flat(roll_out(world, 30, "on"))
    for _ in range(2):  # neither world writes to what was stored
        other = TensorWorld(game, keys_of("other", 6))
        other.load_state_dict(state)
        assert_equal(flat(roll_out(other, 30, "on")), on)


def test_a_world_does_not_depend_on_its_neighbours() -> None:
    keys, game = keys_of("starts", 40), make(CARTPOLE)
    all_of_them, some = TensorWorld(game, keys), TensorWorld(game, keys[:9])
    for t in range(100):
        action, chance = some_actions(game, fold(keys, 2 * t)), fold(keys, 2 * t + 1)
        whole, part = all_of_them.step(action, chance), some.step(action[:9], chance[:9])
        assert torch.equal(whole.observation["observation"][:9], part.observation["observation"])


# ---- arithmetic and config ---------------------------------------------------------------------------------


@njit
def _in_a_kernel(x: float) -> Any:
    return sin_cos(x)


@given(st.floats(-3e6, 3e6))
def test_sine_and_cosine_are_right_and_the_same_in_kernels(x: float) -> None:
    sin, cos = (value.item() for value in sin_cos(torch.tensor([x], dtype=torch.float64)))
    assert abs(sin - math.sin(x)) <= 4e-16
    assert abs(cos - math.cos(x)) <= 4e-16
    assert (sin, cos) == _in_a_kernel(x)


def changed(config: Config, **values: Any) -> Callable[[], Config]:
    return lambda: check(config.model_dump() | values, type(config))


def test_bounds_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"initial_low: expected a number <= initial_high, 0\.05, got 0\.3"):
        changed(CARTPOLE, initial_low=0.3)()
    with pytest.raises(ConfigError, match="initial_speed"):
        changed(PENDULUM, initial_speed=-1.0)()


# ---- learned -----------------------------------------------------------------------------------------------


def dqn_run(game: Config, **values: Any) -> dict[str, Any]:
    algorithm = {
        "name": "dqn",
        "gamma": 0.98,
        "double": True,
        "dueling": False,
        "value": {"name": "expected", "huber_delta": 1.0},
        "transitions": {"name": "one_step"},
        "rollout_length": 4,
        "updates_per_turn": 4,
        "warmup_env_steps": 1000,
        "batch_size": 128,
        "target": {"name": "polyak", "tau": 0.02, "interval": 1},
        "max_grad_norm": 10.0,
        "net": {"name": "mlp", "net_arch": [64, 64], "activation": "relu"},
        "optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
        "learning_rate": {"name": "linear", "initial": 2e-3, "final": 2e-4, "num_steps": 1000},
        "exploration": {
            "name": "epsilon_greedy",
            "epsilon": {"name": "linear", "initial": 1.0, "final": 0.1, "num_steps": 300},
        },
        "replay_buffer": {"name": "uniform", "capacity": 20000, "layout": "whole", "scratch_folder": None},
    }
    return {
        "seed": 0,
        "trainer": {"name": "in_turn"},
        "game": game.model_dump(),
        "num_worlds": 16,
        "num_replicas": 1,
        "actors": None,
        "roles": {"agent": "agent"},
        "players": {
            "agent": {"algorithm": algorithm, "warm_start": None, "updates": {"name": "constant"}, "meets": None}
        },
        "stop": {"after": 1000, "unit": "opt_steps"},
        "evaluations": [],
        "best": None,
        "evaluators": None,
        "callbacks": [],
        "execution": {
            "device": "cpu",
            "num_threads": 1,
            "num_processes": 1,
            "timeout_s": 600.0,
            "max_restarts": 0,
            "kernel": "numba",
            "step_within_s": None,
            "gradients": "by_hand",
            "compile": False,
            "actor_processes": 0,
        },
        "output": {
            "display": "quiet",
            "record": {"every": 10, "unit": "opt_steps"},
            "statistics": ["mean"],
            "layer_norms": False,
            "info": [],
            "recorders": [],
            "save": {"every": 20, "unit": "opt_steps"},
            "keep_last": 2,
            "keep_every": None,
            "replay_in_checkpoints": "all",
            "checkpoint_folder": None,
            "stop_within_s": 60.0,
            "mirror": None,
        },
    } | values


def test_dqn_learns_to_balance_the_pole(tmp_path: Path) -> None:
    config = dqn_run(CARTPOLE)
    config["output"] |= {"save": None}
    trainer = palestra.Trainer(config, run=tmp_path / "run")
    trainer.fit()
    learned = trainer.player_of("agent").policy(explore=False)
    returns = {}
    for name, policy in (("learned", learned), ("random", make_script("random", trainer.game))):
        games = play_games(trainer.game, {"agent": policy}, num_games=100, max_rounds=200, seed=1)
        returns[name] = games.returns["agent"].mean().item()
    assert returns["random"] < 30
    assert returns["learned"] > 60


class Interrupts(palestra.Callback):
    def after_step(self, trainer: palestra.Trainer, player: Any, metrics: Any) -> None:
        if trainer.opt_steps == 47:
            raise KeyboardInterrupt


def outcome_of(run: Path, trainer: palestra.Trainer) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    return [without_clock(record) for record in read_records(run / "records.jsonl")], trainer.agent_net.state_dict()


@pytest.mark.parametrize("config", [CARTPOLE, ACROBOT, MOUNTAIN_CAR], ids=names_of)
def test_a_run_repeats_and_resumes_to_the_bit_on_either_kernel(config: Config, tmp_path: Path) -> None:
    data = dqn_run(config.model_copy(update={"max_rounds": 30}), stop={"after": 80, "unit": "opt_steps"})
    plain = data | {"execution": data["execution"] | {"kernel": "torch"}}
    outcomes = []
    for name, run in (("whole", data), ("plain", plain)):
        trainer = palestra.Trainer(run, run=tmp_path / name)
        trainer.fit()
        outcomes.append(outcome_of(tmp_path / name, trainer))
    with pytest.raises(KeyboardInterrupt):
        palestra.Trainer(data, run=tmp_path / "resumed", callbacks=[Interrupts(None)]).fit()
    resumed = palestra.Trainer.load(tmp_path / "resumed", callbacks=[palestra.Callback(None)])
    resumed.fit()
    outcomes.append(outcome_of(tmp_path / "resumed", resumed))
    (records, weights), *others = outcomes
    assert records[-1]["opt_steps"] == 80
    for other_records, other_weights in others:
        assert other_records == records
        assert_equal(other_weights, weights)
