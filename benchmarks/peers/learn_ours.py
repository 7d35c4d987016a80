"""One training by palestra for the learning table: `python -m benchmarks.peers.learn_ours WORK`.

WORK: {"setting": a Setting as JSON, "seed": ...}. The answer has the keys of learn_sb3's.
"""

import time
from statistics import fmean
from typing import Any

import numpy as np
import torch

import palestra
from benchmarks.learning_settings import Setting
from benchmarks.peers.environments import evaluation_returns
from benchmarks.peers.ours import config_of
from benchmarks.peers.script import Work, answer, versions_of
from palestra.games.gymnasium import GymnasiumGame

NUM_CURVE_POINTS = 50


class Curve(palestra.Callback):
    """Keeps (env steps, mean return of the last 100 episodes of training) at regular intervals, at ends of turns."""

    def __init__(self, interval: int) -> None:
        super().__init__(None)
        self.interval, self.due = interval, interval
        self.points: list[tuple[int, float]] = []

    def after_epoch(self, trainer: Any) -> None:
        if trainer.env_steps >= self.due and (returns := trainer.recent_returns("agent")):
            self.points.append((trainer.env_steps, fmean(returns)))
            self.due = (trainer.env_steps // self.interval + 1) * self.interval


def evaluate(trainer: palestra.Trainer, environment: str) -> list[float]:
    """The returns of the table's own episodes: who plays sees what it saw in training, and does not explore."""
    game, player = trainer.game, trainer.player_of("agent")
    assert isinstance(game, GymnasiumGame)
    trainer.set_training(False)
    policy = player.policy(explore=False)

    def play(observations: np.ndarray) -> np.ndarray:
        legal = torch.ones(len(observations), player.action_space.num_flags, dtype=torch.bool)
        with torch.no_grad():
            view = game.transformed("agent", game.read_observation("agent", observations)[0])
            decision = policy.act(view, legal, torch.arange(len(observations)), {})
        actions: np.ndarray = game.to_gym_actions(decision.action.numpy())
        return actions

    return evaluation_returns(environment, play)


def learn(work: Work) -> dict[str, Any]:
    setting = Setting.from_json(work["setting"])
    num_threads = torch.get_num_threads()
    started, cpu_started = time.perf_counter(), time.process_time()
    curve = Curve(setting.env_steps // NUM_CURVE_POINTS)
    trainer = palestra.Trainer(config_of(work | {"num_threads": num_threads}), callbacks=[curve])
    trainer.fit()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    extra = {"HalfCheetah-v5": ["mujoco"], "Hopper-v5": ["mujoco"], "ALE/Pong-v5": ["ale-py"]}
    return {
        "env_steps": trainer.env_steps,
        "opt_steps": trainer.opt_steps,
        "returns": evaluate(trainer, setting.environment),
        "curve": curve.points,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "num_threads": num_threads,
        "versions": versions_of("palestra", "gymnasium", "torch", "numpy", *extra.get(setting.environment, [])),
    }


if __name__ == "__main__":
    answer(learn)
