"""Evaluation in environments: a fixed number of episodes, each from its own seed."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from palestra.evaluation.evaluator import STREAM, Games
from palestra.games.game import expand_mask
from palestra.games.policy import Memory, Policy
from palestra.games.spaces import Discrete
from palestra.games.world import WorldGame
from palestra.randomness import base_key, fold, world_keys


@torch.no_grad()
def play_episodes(
    game: WorldGame,
    policy: Policy,
    num_games: int,
    num_worlds: int,
    max_rounds: int,
    seed: int,
    watch: Callable[[int], None] = lambda num_over: None,
) -> Games:
    """Play exactly `num_games` episodes, at most `num_worlds` at a time; those longer than `max_rounds` steps are cut
    off. watch: called before every step with how many are over; may raise Interrupted.

    Every world plays a fixed number of episodes, because counting those that end first would over-represent short
    ones. Episode e of world w begins from the same seed in every evaluation with this `seed`, in environments that are
    made anew and closed at the end. Returns are sums of the environment's own rewards. If single worlds cannot be
    restarted, all episodes are played at once, one per world.
    """
    (role,) = game.roles
    action_space = game.action_spaces[role]
    num_worlds = min(num_worlds, num_games) if game.can_restart else num_games
    key, device = base_key(seed, STREAM), game.device
    quotas = num_games // num_worlds + (torch.arange(num_worlds, device=device) < num_games % num_worlds).long()
    results = _Results(num_worlds, int(quotas.max()), device)
    actions = torch.zeros(action_space.num_flags, dtype=torch.int64, device=device)
    keys, num_rounds, memory = world_keys(key, num_worlds, device), 1, dict[str, Tensor]()
    world = game.make_world(num_worlds, key, training=False)
    try:
        while num_left := int((quotas - results.played).sum()):
            watch(num_games - num_left)
            running = results.played < quotas
            round_keys = fold(keys, num_rounds)
            num_rounds += 1
            view = world.observation if policy.observes == "observation" else {}
            decision = policy.act(view, world.legal, round_keys, memory)
            outcome = world.step(decision.action, round_keys + 1)
            if isinstance(action_space, Discrete):
                actions.scatter_add_(0, decision.action, (running & outcome.valid).long())
            results.lengths += outcome.valid
            results.returns += outcome.raw_reward
            cut = (results.lengths >= max_rounds) & ~outcome.terminated & ~outcome.truncated
            ended = outcome.terminated | outcome.truncated | cut
            results.write(ended & running, outcome.terminated)
            if bool((leaving := cut & (results.played < quotas)).any()):
                world.restart(leaving)
            memory = _forget(decision.memory, ended | ~outcome.valid)
    finally:
        world.close()
    return results.games(quotas, role, actions if isinstance(action_space, Discrete) else None)


class _Results:
    """lengths, returns: (B,), of the running episodes. all_*: (B, most episodes of a world), of the episodes played."""

    def __init__(self, num_worlds: int, most: int, device: torch.device) -> None:
        self.played = torch.zeros(num_worlds, dtype=torch.int64, device=device)
        self.lengths, self.returns = torch.zeros_like(self.played), torch.zeros(num_worlds, device=device).double()
        self.all_lengths = torch.zeros(num_worlds, most, dtype=torch.int64, device=device)
        self.all_returns = torch.zeros(num_worlds, most, dtype=torch.float64, device=device)
        self.all_finished = torch.zeros(num_worlds, most, dtype=torch.bool, device=device)

    def write(self, ended: Tensor, terminated: Tensor) -> None:
        worlds = ended.nonzero().squeeze(1)
        if not len(worlds):
            return
        place = (worlds, self.played[worlds])
        self.all_lengths[place], self.all_returns[place] = self.lengths[worlds], self.returns[worlds]
        self.all_finished[place] = terminated[worlds]
        self.played[worlds] += 1
        self.lengths[worlds], self.returns[worlds] = 0, 0.0

    def games(self, quotas: Tensor, role: str, actions: Tensor | None) -> Games:
        wanted = torch.arange(self.all_lengths.shape[1], device=quotas.device) < quotas.unsqueeze(1)
        return Games(
            finished=self.all_finished[wanted],
            lengths=self.all_lengths[wanted],
            returns={role: self.all_returns[wanted].float()},
            started_over=0,
            tallies={},
            actions={} if actions is None else {role: actions},
        )


def _forget(memory: Mapping[str, Tensor], where: Tensor) -> Memory:
    return {name: value.masked_fill(expand_mask(where, value), 0) for name, value in memory.items()}
