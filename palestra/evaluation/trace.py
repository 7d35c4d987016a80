"""Games of an evaluation, recorded move by move."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from palestra.evaluation.evaluator import Batch
from palestra.games.game import State, TensorGame
from palestra.games.policy import Decision, Memory, Policy
from palestra.games.trace import Choice, Trace

NUM_TRACED = 9


@torch.no_grad()
def trace_games(game: TensorGame, policies: Mapping[str, Policy], max_rounds: int, seed: int) -> list[Trace]:
    """Record the first games of an evaluation, without those that are over at their start.

    Starts and random numbers are those of `play_games`.
    """
    recorders = {role: _RecordingPolicy(policy) for role, policy in policies.items()}
    worlds = Batch(game, recorders, NUM_TRACED, seed)
    for role, policy in recorders.items():
        policy.role, policy.worlds = role, worlds
    for _ in range(max_rounds):
        if not bool(worlds.running.any()):
            break
        worlds.play_round()
    decisions = sorted(
        (moment for policy in recorders.values() for moment in policy.decisions), key=lambda moment: moment[0]
    )
    return [
        Trace(
            choices=tuple(
                Choice(role, {name: value[number] for name, value in state.items()}, actions[number])
                for _, role, state, decides, actions in decisions
                if bool(decides[number])
            ),
            end={name: value[number] for name, value in worlds.state.items()},
            length=length,
            is_finished=bool(worlds.finished[number]),
            returns=dict(zip(game.roles, worlds.returns[number].tolist(), strict=True)),
        )
        for number, length in enumerate(worlds.lengths.tolist())
        if length
    ]


def typical(traces: Sequence[Trace]) -> Trace | None:
    """Return the game of median length; None if there is none."""
    return sorted(traces, key=lambda trace: trace.length)[len(traces) // 2] if traces else None


class _RecordingPolicy:
    """A policy that records its decisions: the number of the move, the role, the states, who decides, the actions."""

    role: str
    worlds: Batch

    def __init__(self, policy: Policy) -> None:
        self.policy, self.observes = policy, policy.observes
        self.decisions: list[tuple[int, str, State, Tensor, Tensor]] = []

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        decision = self.policy.act(view, legal, keys, memory)
        worlds, game = self.worlds, self.worlds.game
        decides = game.deciding(worlds.state)[:, game.roles.index(self.role)] & worlds.running
        self.decisions.append((worlds.num_moves, self.role, worlds.state, decides, decision.action))
        return decision
