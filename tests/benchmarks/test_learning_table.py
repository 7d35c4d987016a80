import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from benchmarks import learning
from benchmarks.learning import Training, finished, read_seeds, score, table, write
from benchmarks.learning_settings import FIRST_EVALUATION_SEED, SETTINGS, Setting
from benchmarks.peers.environments import ReturnsKept, evaluation_returns
from benchmarks.peers.processes import Failed

CARTPOLE = SETTINGS[0]


def finish(training: Training, folder: Path, returns: list[float]) -> None:
    curve = [[steps, returns[0]] for steps in (100, 200)]
    told = {"returns": returns, "curve": curve, "cpu_seconds": 90.0}
    result = {"setting": training.setting.to_json(), "seed": training.seed, **told}
    (folder / f"{training.name}.json").write_text(json.dumps(result))


class Library:
    """Stands in for a library's script."""

    def __init__(self) -> None:
        self.works: list[dict[str, Any]] = []

    def run(self, work: dict[str, Any], num_threads: int, timeout_s: float | None) -> dict[str, Any]:
        self.works.append(work)
        if work["seed"] == 13:
            raise Failed("out of luck")
        env_steps = work["setting"]["env_steps"] - (work["seed"] == 14)
        return {"returns": [float(work["seed"])], "env_steps": env_steps}


# ---- settings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.environment}-{setting.algorithm}")
def test_a_setting_comes_back_from_json_as_it_was(setting: Setting) -> None:
    assert Setting.from_json(json.loads(json.dumps(setting.to_json()))) == setting


def test_every_environment_and_algorithm_has_one_setting() -> None:
    assert len({(setting.environment, setting.algorithm) for setting in SETTINGS}) == len(SETTINGS)


# ---- results -------------------------------------------------------------------------------------------


def test_a_finished_training_lies_in_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setitem(learning.LIBRARIES, "sb3", library)
    training = Training(CARTPOLE, 3, "sb3")
    assert training.finished(tmp_path) is None
    training.run(tmp_path)
    assert library.works == [{"setting": CARTPOLE.to_json(), "seed": 3}]
    assert [path.name for path in tmp_path.iterdir()] == ["cartpole-v1-ppo-3-sb3.json"]
    assert {seed: score(result) for seed, result in finished(CARTPOLE, "sb3", tmp_path).items()} == {3: 3.0}


@pytest.mark.parametrize(("seed", "why"), [(13, "out of luck"), (14, "stopped after 99999 of 100000 env steps")])
def test_a_training_that_failed_or_was_stopped_leaves_nothing_behind(
    seed: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(learning.LIBRARIES, "sb3", Library())
    with pytest.raises(Failed, match=why):
        Training(CARTPOLE, seed, "sb3").run(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_result_of_other_settings_is_not_taken(tmp_path: Path) -> None:
    finish(Training(CARTPOLE, 0, "sb3"), tmp_path, [1.0])
    assert list(finished(CARTPOLE, "sb3", tmp_path)) == [0]
    assert finished(replace(CARTPOLE, env_steps=7), "sb3", tmp_path) == {}


def test_every_training_has_a_file_name_of_its_own() -> None:
    trainings = [Training(s, seed, library) for s in SETTINGS for seed in (0, 1) for library in learning.LIBRARIES]
    assert len({training.name for training in trainings}) == len(trainings)
    assert not any("/" in training.name for training in trainings)


def test_the_table_tells_both_scores_who_is_better_and_what_is_missing(tmp_path: Path) -> None:
    for seed in (0, 11):
        finish(Training(CARTPOLE, seed, "palestra"), tmp_path, [490.0, 510.0])
        finish(Training(CARTPOLE, seed, "sb3"), tmp_path, [200.0, 400.0])
    finish(Training(SETTINGS[1], 0, "sb3"), tmp_path, [7.0])
    lines = table(list(SETTINGS[:2]), [0, 1], tmp_path).splitlines()
    both, one, whole = lines[2:5]
    assert both == "| CartPole-v1 | ppo | 100,000 | 2 / 2 | 500 [500, 500] | 300 [300, 300] | 1 [1, 1] | 1.5 / 1.5 |"
    assert one == "| CartPole-v1 | dqn | 50,000 | 0 / 1 | - | 7 [7, 7] | - | - / 1.5 |"
    assert whole == "| rows with both: 1 | | | | | | 1 [1, 1] | |"
    assert "- CartPole-v1 dqn: palestra, seeds 0, 1" in lines
    assert "- CartPole-v1 dqn: stable-baselines3, seeds 1" in lines
    assert "- CartPole-v1 ppo: palestra, seeds 1" in lines


def test_table_and_curves_of_all_that_is_finished_are_written(tmp_path: Path) -> None:
    write(tmp_path)
    assert not (tmp_path / "learning.png").exists()
    finish(Training(CARTPOLE, 4, "sb3"), tmp_path, [100.0, 200.0])
    finish(Training(SETTINGS[-1], 0, "palestra"), tmp_path, [-21.0])
    write(tmp_path)
    assert "| 0 / 1 | - | 150 [150, 150] |" in (tmp_path / "learning.md").read_text()
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")


def test_seeds_are_a_number_or_a_range() -> None:
    assert (read_seeds("3"), read_seeds("0..2")) == ([3], [0, 1, 2])


# ---- evaluation ----------------------------------------------------------------------------------------


def test_the_evaluation_plays_each_episode_with_its_own_seed_to_its_end() -> None:
    returns = evaluation_returns("CartPole-v1", lambda observations: (observations[:, 2] > 0).astype(np.int64))
    env = gymnasium.make("CartPole-v1")
    for episode in (0, 57, 99):
        observation, _ = env.reset(seed=FIRST_EVALUATION_SEED + episode)
        total, ended = 0.0, False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(int(observation[2] > 0))
            total += float(reward)
            ended = terminated or truncated
        assert returns[episode] == total
    assert len(returns) == 100


def test_returns_of_finished_episodes_are_kept() -> None:
    returns: list[float] = []
    env = ReturnsKept(gymnasium.make("CartPole-v1", max_episode_steps=5), returns)  # type: ignore[arg-type]
    for _ in range(2):
        env.reset(seed=0)
        for _ in range(5):
            env.step(env.action_space.sample())
    assert returns == [5.0, 5.0]
