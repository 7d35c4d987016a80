"""Algorithms on probe games, without a trainer around them."""

from collections.abc import Callable
from typing import Any

import torch
from probes import Kind, Probe
from torch import Tensor

from palestra.games.fused import Transitions
from palestra.games.solo import SoloGame
from palestra.games.spaces import ActionSpace, Space
from palestra.games.world import TensorWorld
from palestra.player import Algorithm, AlgorithmConfig, Metrics, Player

CPU = torch.device("cpu")
NUM_WORLDS = 8


def make_probe(kind: Kind, continuous: bool) -> Probe:
    return Probe(Probe.Config(name="probes:Probe", kind=kind, continuous=continuous, limit=4), CPU)


def seat(config: AlgorithmConfig, spaces: dict[str, Space], actions: ActionSpace, compiled: bool = False) -> Any:
    """The algorithm of a player of its own."""
    player = Player("player", ("agent",), spaces, actions, CPU, seed=1, compile=compiled)
    player.algorithm = config.build(player)
    return player.algorithm


class ProbeTurn:
    """Plays a probe for the algorithm, and writes down what it is asked for. `visit`: called at every safe point."""

    def __init__(self, algorithm: Algorithm, probe: Probe, visit: Callable[[], None] = lambda: None) -> None:
        self.player, self.visit = algorithm.player, visit
        self.game = SoloGame(probe, {}, lambda num, seed, keys: TensorWorld(probe, keys))
        self.worlds = self.game.new_worlds(NUM_WORLDS, 0, "play")
        self.calls: list[str] = []
        self.metrics: list[Metrics] = []
        self.collected: list[Transitions] = []

    def collect(self, num_rounds: int) -> Transitions:
        self.calls.append(f"collect {num_rounds}")
        self.game.policies = {"agent": self.player.policy(explore=True)}
        self.player.env_steps += NUM_WORLDS * num_rounds
        self.collected.append(self.game.collect(self.worlds, ("agent",), num_rounds))
        return self.collected[-1]

    def before_step(self) -> None:
        self.calls.append("before")

    def after_step(self, metrics: Metrics) -> None:
        self.calls.append("after")
        self.metrics.append(metrics)
        self.player.opt_steps += 1
        self.visit()

    def safe_point(self) -> None:
        self.calls.append("safe point")
        self.visit()


def learn(algorithm: Any, probe: Probe, opt_steps: int) -> Any:
    """The algorithm after so many opt steps on the probe."""
    turn = ProbeTurn(algorithm, probe)
    while algorithm.player.opt_steps < opt_steps:
        algorithm.learn(turn)
    return algorithm


def seen(sign: float, age: float) -> dict[str, Tensor]:
    """One observation of a probe."""
    return {"seen": torch.tensor([[sign, age]])}


@torch.no_grad()
def best_action(algorithm: Algorithm, sign: float, age: float) -> float:
    """What the player does there where nobody explores."""
    legal = torch.ones(1, algorithm.player.action_space.num_flags, dtype=torch.bool)
    decision = algorithm.player.policy(explore=False).act(seen(sign, age), legal, torch.zeros(1, dtype=torch.int64), {})
    return float(decision.action)
