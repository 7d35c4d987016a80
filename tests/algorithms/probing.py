"""Algorithms on probe games, without a trainer around them."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from probes import Kind, Probe
from torch import Tensor

from palestra.algorithms.algorithm import Algorithm, AlgorithmConfig
from palestra.algorithms.turn import Turn
from palestra.games.spaces import ActionSpace, Space
from palestra.games.world import TensorWorld
from palestra.players.player import Metrics, Player
from palestra.rollouts.solo import SoloGame
from palestra.rollouts.transitions import Transitions
from palestra.run.branching import tree_differences
from palestra.storage.stored_files import decode, encode

CPU = torch.device("cpu")
NUM_WORLDS = 8


def make_probe(kind: Kind, continuous: bool) -> Probe:
    return Probe(Probe.Config(name="probes:Probe", kind=kind, continuous=continuous, limit=4), CPU)


def seat(config: AlgorithmConfig, spaces: dict[str, Space], actions: ActionSpace, compiled: bool = False) -> Any:
    """The algorithm of a player of its own."""
    player = Player("player", ("agent",), spaces, actions, CPU, seed=1, compile=compiled, by_hand=True)
    player.algorithm = config.build(player)
    return player.algorithm


class ProbeTurn(Turn):
    """Plays a probe for the algorithm, and writes down what it is asked for. `visit`: called at every safe point."""

    def __init__(self, algorithm: Algorithm, probe: Probe, visit: Callable[[], None] = lambda: None) -> None:
        super().__init__(algorithm.player)
        self.visit = visit
        self.game = SoloGame(probe, {}, lambda num, key, first, keys: TensorWorld(probe, keys))
        self.player.worlds = self.worlds = self.game.new_worlds(NUM_WORLDS, 0, "play")
        self.calls: list[str] = []
        self.metrics: list[Metrics] = []
        self.collected: list[Transitions] = []

    def collect(self, num_rounds: int) -> Transitions:
        self.calls.append(f"collect {num_rounds}")
        self.game.policies = {"agent": self.player.policy(explore=True)}
        self.player.env_steps += NUM_WORLDS * num_rounds
        self.collected.append(self.game.collect(self.worlds, ("agent",), num_rounds)["agent"])
        return self.collected[-1]

    def before_step(self) -> None:
        self.calls.append("before")

    def after_step(self, metrics: Metrics, num_opt_steps: int = 1) -> None:
        self.calls.append("after")
        self.metrics.append(metrics)
        self.player.opt_steps += num_opt_steps

    def safe_point(self) -> None:
        self.calls.append("safe point")
        self.visit()


def learn(algorithm: Any, probe: Probe, opt_steps: int) -> Any:
    """The algorithm after so many opt steps on the probe."""
    turn = ProbeTurn(algorithm, probe)
    while algorithm.player.opt_steps < opt_steps:
        turn.run()
    return algorithm


class Left(Exception):
    """Raised at the safe point at which a turn is left."""


def assert_goes_on_in_a_fresh_object(make_turn: Callable[[Callable[[], None]], Any], leave_at: int) -> None:
    """Two turns, left at their n-th safe point, are gone on with as after a resume, by a fresh algorithm that has of
    the first what a checkpoint holds: to the same calls and the same bits as two turns in one go.

    make_turn: a turn of a fresh algorithm, whose safe points call what is given.
    """
    visits: list[None] = []

    def visit() -> None:
        visits.append(None)
        if len(visits) == leave_at:
            raise Left

    whole, left, again = make_turn(lambda: None), make_turn(visit), make_turn(lambda: None)
    num_over = 0
    with suppress(Left):
        while True:
            left.run()
            num_over += 1
    restore(again.player, left.player)
    for turn, num_turns in ((whole, 2), (again, 2 - num_over)):
        for _ in range(num_turns):
            turn.run()
    assert left.calls + again.calls == whole.calls
    assert list(tree_differences(whole.player.state_dict(), again.player.state_dict())) == []
    assert whole.player.worlds is not None
    assert again.player.worlds is not None
    assert list(tree_differences(whole.player.worlds.state_dict(), again.player.worlds.state_dict())) == []


def restore(player: Player, other: Player) -> None:
    """Give a player what a checkpoint keeps of another one, in the order in which a resume does."""
    assert player.worlds is not None
    assert other.worlds is not None
    tensors: dict[str, Tensor] = {}
    state = {"player": other.state_dict(), "worlds": other.worlds.state_dict()}
    document = json.loads(json.dumps(encode(state, "", tensors)))
    if other.replay_buffer is not None:
        assert player.replay_buffer is not None
        start = max(0, other.replay_buffer.num_added - other.replay_buffer.capacity)
        player.replay_buffer.load_rows(start, other.replay_buffer.packed_rows(start, other.replay_buffer.num_added))
    restored = decode(document, {name: tensor.clone() for name, tensor in tensors.items()})
    player.load_state_dict(restored["player"])
    player.worlds.load_state_dict(restored["worlds"])


def seen(sign: float, age: float) -> dict[str, Tensor]:
    """One observation of a probe."""
    return {"seen": torch.tensor([[sign, age]])}


@torch.no_grad()
def best_action(algorithm: Algorithm, sign: float, age: float) -> float:
    """What the player does there where nobody explores."""
    legal = torch.ones(1, algorithm.player.action_space.num_flags, dtype=torch.bool)
    decision = algorithm.player.policy(explore=False).act(seen(sign, age), legal, torch.zeros(1, dtype=torch.int64), {})
    return float(decision.action)
