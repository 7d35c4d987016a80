"""palestra's side of the benchmarks: every work is a sound config with the work's hyperparameters, and is done."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from benchmarks.learning_settings import DQN, PPO, SETTINGS, Setting
from benchmarks.measuring import ROOT
from benchmarks.peers import learn_ours
from benchmarks.peers.environments import evaluation_returns
from benchmarks.peers.ours import config_of, sample_replay
from benchmarks.peers.rows import COMPARISONS, PALESTRA, script_of
from benchmarks.peers.translation import num_opt_steps
from palestra.run.kinds import read_config
from palestra.schedules import PiecewiseSchedule

WORKS = [
    (f"{c.row} {c.title}, {name}", c.work | extra)
    for c in COMPARISONS
    for name, (_, extra) in c.contenders.items()
    if name.startswith(PALESTRA)
]
TRAININGS = [(title, work) for title, work in WORKS if work["kind"] == "train"]
MEMORIES = [(title, work) for title, work in WORKS if work["kind"] == "replay"]
RESULTS = sorted((ROOT / "benchmarks" / "results" / "learning").glob("*-sb3.json"))
NEEDS = {"LunarLander": "Box2D", "HalfCheetah": "mujoco", "Hopper": "mujoco", "ALE/Pong": "ale_py"}


def asked(setting: Setting) -> dict[str, Any]:
    name = setting.environment.partition("-")[0]
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    return {"setting": setting.to_json(), "seed": 3, "num_threads": 1}


def name_of(setting: Setting) -> str:
    return f"{setting.environment}-{setting.algorithm}"


# ---- configs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", [work for _, work in TRAININGS], ids=[title for title, _ in TRAININGS])
def test_every_row_is_a_sound_config(work: dict[str, Any]) -> None:
    if work["environment"] == "HalfCheetah-v5":
        pytest.importorskip("mujoco")
    config = read_config(config_of(work | {"seed": 3, "num_threads": 2}))
    assert (config.seed, config.execution.num_threads, config.evaluations) == (3, 2, [])
    assert config.game.name == ("cartpole" if work["batched"] else "gymnasium")


@pytest.mark.parametrize("setting", SETTINGS, ids=name_of)
def test_every_setting_is_a_sound_config_that_ends(setting: Setting) -> None:
    config = read_config(config_of(asked(setting)))
    assert config.game.id == setting.environment
    assert config.stop.unit == "opt_steps"
    assert config.stop.after == num_opt_steps(setting.hyperparameters, setting.env_steps)


def test_without_hyperparameters_the_shipped_ones_stand() -> None:
    (work,) = (work for title, work in TRAININGS if "shipped settings" in title)
    shipped = read_config(ROOT / "configs" / "ppo-cartpole.yml")
    config = read_config(config_of(work | {"seed": 0, "num_threads": 1}))
    assert (config.players, config.num_worlds) == (shipped.players, shipped.num_worlds)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_training_has_as_many_opt_steps_as_that_of_stable_baselines3(path: Path) -> None:
    result = json.loads(path.read_text())
    setting = Setting.from_json(result["setting"])
    assert num_opt_steps(setting.hyperparameters, setting.env_steps) == result["opt_steps"]


DQN_SETTINGS = [setting for setting in SETTINGS if isinstance(setting.hyperparameters, DQN)]


@pytest.mark.parametrize("setting", DQN_SETTINGS, ids=name_of)
def test_exploration_falls_turn_by_turn_as_that_of_stable_baselines3_does(setting: Setting) -> None:
    h = setting.hyperparameters
    assert isinstance(h, DQN)
    epsilon = read_config(config_of(asked(setting))).players["agent"].algorithm.exploration.epsilon
    assert isinstance(epsilon, PiecewiseSchedule)
    opt_steps = 0
    for turn, begin in enumerate(range(0, setting.env_steps, h.env_steps_per_turn)):
        end = begin + h.env_steps_per_turn
        if begin > h.warmup_env_steps and turn % 17 == 0:  # in the warm-up it plays at random
            shares = [min(n / (h.exploration_fraction * setting.env_steps), 1.0) for n in range(begin, end)]
            theirs = fmean(1.0 - (1.0 - h.exploration_final) * share for share in shares)
            assert epsilon(opt_steps) == pytest.approx(theirs, abs=3e-3)
        if end > h.warmup_env_steps:
            opt_steps += h.opt_steps_per_turn
    assert epsilon(opt_steps) == h.exploration_final


# ---- works ---------------------------------------------------------------------------------------------


def test_the_first_row_is_done() -> None:
    """In an interpreter of its own, as the benchmark does it."""
    work = WORKS[0][1] | {"seed": 0, "timed_seconds": 0.1, "num_threads": 1, "warmup_env_steps": 1}
    answer = script_of(PALESTRA).run(work, 1, 120.0)
    assert answer["env_steps"] >= 1024
    assert answer["env_steps"] % 1024 == 0
    assert answer["opt_steps"] == answer["env_steps"] // 1024 * 16
    assert 0 < answer["startup_seconds"] < 120


@pytest.mark.parametrize("work", [work for _, work in MEMORIES], ids=[title for title, _ in MEMORIES])
def test_batches_are_drawn(work: dict[str, Any]) -> None:
    answer = sample_replay(work | {"capacity": 1000, "timed_seconds": 0.0})
    assert answer["seconds"] >= 0.0


def test_a_training_of_the_table_is_evaluated_as_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(learn_ours, "evaluation_returns", lambda name, play: evaluation_returns(name, play)[:7])
    (setting,) = (s for s in SETTINGS if s.environment == "CartPole-v1" and isinstance(s.hyperparameters, PPO))
    answer = learn_ours.learn({"setting": replace(setting, env_steps=1000).to_json(), "seed": 0})
    assert (answer["env_steps"], answer["opt_steps"]) == (1024, 80)
    assert len(answer["returns"]) == 7
    assert all(8 <= value <= 500 for value in answer["returns"])
    assert answer["curve"][0][0] == 256
