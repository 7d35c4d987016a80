"""Games of an evaluation, recorded move by move."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from palestra.evaluation.evaluator import Batch
from palestra.games.game import State, TensorGame
from palestra.games.policy import Policy
from palestra.games.trace import Choice, Trace

NUM_TRACED = 9


@torch.no_grad()
def trace_games(game: TensorGame, policies: Mapping[str, Policy], max_rounds: int, seed: int) -> list[Trace]:
    """Record the first games of an evaluation, without those that are over at their start.

    Starts and random numbers are those of `play_games`.
    """
    decisions: list[tuple[str, State, Tensor, Tensor]] = []
    worlds = Batch(game, policies, NUM_TRACED, seed, lambda *decision: decisions.append(decision))
    for _ in range(max_rounds):
        if not bool(worlds.running.any()):
            break
        worlds.play_round()
    return [
        Trace(
            choices=tuple(
                Choice(role, {name: value[number] for name, value in state.items()}, actions[number])
                for role, state, decides, actions in decisions
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
