"""One game of an evaluation, recorded move by move."""

from collections.abc import Mapping

import torch
from torch import Tensor

from palestra.evaluation.evaluator import Batch
from palestra.games.game import State, TensorGame
from palestra.games.policy import Decision, Memory, Policy
from palestra.games.trace import Choice, Trace

NUM_CANDIDATES = 9


@torch.no_grad()
def trace_game(game: TensorGame, policies: Mapping[str, Policy], max_rounds: int, seed: int) -> Trace | None:
    """The game of median length among the first games of an evaluation, so that it is a typical one; None if all are
    over at their start. Starts and random numbers are those of `play_games`."""
    recorders = {role: _RecordingPolicy(policy) for role, policy in policies.items()}
    worlds = Batch(game, recorders, NUM_CANDIDATES, seed)
    for role, policy in recorders.items():
        policy.role, policy.worlds = role, worlds
    for _ in range(max_rounds):
        if not bool(worlds.running.any()):
            break
        worlds.play_round()
    ranked = sorted((length, number) for number, length in enumerate(worlds.lengths.tolist()) if length)
    if not ranked:
        return None
    length, chosen = ranked[len(ranked) // 2]
    decisions = sorted(
        (moment for policy in recorders.values() for moment in policy.decisions), key=lambda moment: moment[0]
    )
    return Trace(
        choices=tuple(
            Choice(role, {name: value[chosen] for name, value in state.items()}, actions[chosen])
            for _, role, state, decides, actions in decisions
            if bool(decides[chosen])
        ),
        end={name: value[chosen] for name, value in worlds.state.items()},
        length=length,
        is_finished=bool(worlds.finished[chosen]),
    )


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
