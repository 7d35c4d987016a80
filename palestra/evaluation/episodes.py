"""Evaluation in environments: a fixed number of episodes, each from its own seed."""

from collections.abc import Sequence
from contextlib import closing

import numpy as np
import torch
from torch import Tensor

from palestra.evaluation.evaluator import STREAM, Games, Watch, nobody_watches
from palestra.games.game import cleared
from palestra.games.info import StepInfo
from palestra.games.policy import Policy
from palestra.games.spaces import Discrete
from palestra.games.world import WorldGame, diverged
from palestra.randomness import base_key, fold, world_keys


@torch.no_grad()
def play_episodes(
    game: WorldGame,
    policy: Policy,
    num_games: int,
    num_worlds: int,
    max_rounds: int,
    seed: int,
    watch: Watch = nobody_watches,
    info: Sequence[str] = (),
) -> Games:
    """Play exactly `num_games` episodes, at most `num_worlds` at a time, each cut off after `max_rounds` steps.

    Every world plays a fixed number of episodes, because counting those that end first would over-represent short
    ones. Episode e of world w begins from the same seed in every evaluation with this `seed`, in environments that are
    made anew and closed at the end. Returns are sums of the environment's own rewards. If single worlds cannot be
    restarted, all episodes are played at once, one per world. info: fields of the
    environments' info that are recorded.
    """
    (role,) = game.roles
    action_space = game.action_spaces[role]
    num_worlds = min(num_worlds, num_games) if game.can_restart else num_games
    key, device = base_key(seed, STREAM), game.device
    quotas = num_games // num_worlds + (torch.arange(num_worlds, device=device) < num_games % num_worlds).long()
    results = _Results(num_worlds, int(quotas.max()), device)
    step_info, fields = StepInfo(info, num_worlds), _InfoResults(info, num_worlds)
    actions = torch.zeros(action_space.num_flags, dtype=torch.int64, device=device)
    keys, num_rounds, memory = world_keys(key, num_worlds, device), 1, dict[str, Tensor]()
    with closing(game.make_world(num_worlds, key, training=False)) as world:
        if info:
            world.read_info(step_info)
        while True:
            running = results.played < quotas
            longest = (results.lengths * running).max()
            num_left, longest_so_far = torch.stack([(quotas - results.played).sum(), longest]).tolist()
            if not num_left:
                break
            watch(num_games - num_left, longest_so_far)
            round_keys = fold(keys, num_rounds)
            num_rounds += 1
            view = world.observation if policy.observes == "observation" else {}
            decision = policy.act(view, world.legal, round_keys, memory)
            if not bool(decision.action.isfinite().all()):
                raise diverged(role, decision.action, view)
            outcome = world.step(decision.action, round_keys + 1)
            if isinstance(action_space, Discrete):
                actions.scatter_add_(0, decision.action, (running & outcome.valid).long())
            results.lengths += outcome.valid
            results.returns += outcome.raw_reward
            cut = (results.lengths >= max_rounds) & ~outcome.terminated & ~outcome.truncated
            ended = outcome.terminated | outcome.truncated | cut
            if info:
                fields.add(step_info, ended & running, results.played)
            results.write(ended & running, outcome.terminated)
            if bool((leaving := cut & (results.played < quotas)).any()):
                world.restart(leaving)
            memory = cleared(decision.memory, ended | ~outcome.valid)
    return results.games(quotas, game, actions if isinstance(action_space, Discrete) else None, fields.by_name())


class _Results:
    """The results of episodes.

    lengths, returns: (B,), of the running episodes. all_*: (B, most episodes of a world), of the episodes played.
    """

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

    def games(self, quotas: Tensor, game: WorldGame, actions: Tensor | None, info: dict[str, Tensor]) -> Games:
        (role,) = game.roles
        wanted = torch.arange(self.all_lengths.shape[1], device=quotas.device) < quotas.unsqueeze(1)
        return Games(
            finished=self.all_finished[wanted],
            lengths=self.all_lengths[wanted],
            returns={role: self.all_returns[wanted].float()},
            started_over=0,
            tallies={},
            actions={} if actions is None else {role: actions},
            info=info,
            declared=game.declared_scores,
            scores={},
            wins={},
        )


class _InfoResults:
    """Fields of the environments' info.

    sums, counts: float64 (B,) by name, over the steps of the running episodes. found: by name, world, episode and value
    of the episodes played that have the field.
    """

    def __init__(self, names: Sequence[str], num_worlds: int) -> None:
        self.sums = {name: np.zeros(num_worlds) for name in names}
        self.counts = {name: np.zeros(num_worlds) for name in names}
        self.found: dict[str, list[tuple[int, int, float]]] = {
            f"{kind}/{name}": [] for kind in ("info", "final_info") for name in names
        }

    def add(self, step: StepInfo, ended: Tensor, played: Tensor) -> None:
        """Add a step.

        ended: bool (B,), where it is the last one of an episode. played: int64 (B,), the number of the episode.
        """
        for name, (numbers, has) in step.values.items():
            self.sums[name] += np.where(has, numbers, 0.0)
            self.counts[name] += has
        for world in ended.nonzero().squeeze(1).tolist():
            for name, counts in self.counts.items():
                episode = int(played[world])
                if counts[world]:
                    self.found[f"info/{name}"].append((world, episode, float(self.sums[name][world] / counts[world])))
                if name in step.values and step.values[name][1][world]:
                    self.found[f"final_info/{name}"].append((world, episode, float(step.values[name][0][world])))
                self.sums[name][world] = counts[world] = 0.0

    def by_name(self) -> dict[str, Tensor]:
        """Return the values in the order of worlds and episodes, float64."""
        values = {name: [value for *_, value in sorted(found)] for name, found in self.found.items()}
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
