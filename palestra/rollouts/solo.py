"""SoloGame: plays a game of one role. Every step of a world is one decision and one transition.

Letters: B worlds, T rounds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from palestra.games.game import Game, cleared
from palestra.games.policy import Memory, Policy, require_policies
from palestra.games.world import Outcome, TensorWorld, World, diverged
from palestra.randomness import base_key, fold
from palestra.rollouts.played import NUM_RECENT, PlayedGame, RunningGames, remember
from palestra.rollouts.transitions import Transitions
from palestra.runtime.compiling import njit


@dataclass
class SoloWorlds(RunningGames):
    """A batch of running games: the world, and the counters around it."""

    world: World
    memory: Memory = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        return vars(self) | {"world": self.world.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state | {"world": self.world})
        self.world.load_state_dict(state["world"])


class SoloGame(PlayedGame):
    """Plays a game of one role with a policy in its seat, as FusedGame plays games of several roles.

    make_world: makes new worlds from how many there are, a key, the number of the first of them, and keys int64 (B,), a
    different one for each world.
    """

    def __init__(
        self, game: Game, policies: dict[str, Policy], make_world: Callable[[int, int, int, Tensor], World]
    ) -> None:
        super().__init__(game, policies)
        (self.role,) = game.roles
        self.game, self.make_world = game, make_world

    def new_worlds(self, num_worlds: int, seed: int, stream: str, first: int = 0) -> SoloWorlds:
        """Make new worlds, whose random numbers come from (seed, stream). first: the number of the first of them."""
        counters = self.counters(num_worlds, seed, stream, first)
        world = self.make_world(num_worlds, base_key(seed, stream), first, fold(counters["keys"], 0))
        return SoloWorlds(**counters, returns=torch.zeros(num_worlds, device=self.device), world=world)

    @torch.no_grad()
    def collect(self, worlds: SoloWorlds, roles: tuple[str, ...], num_rounds: int) -> dict[str, Transitions]:
        """Play `num_rounds` steps in every world, and return the role's experience: T * B rows, round by round."""
        require_policies(self.policies, (self.role,))
        world, policy = worlds.world, self.policies[self.role]
        if isinstance(world, TensorWorld):
            world.show_critics(policy.observes == "with_critics")
        counters = torch.arange(worlds.num_moves, worlds.num_moves + num_rounds, device=worlds.keys.device)
        worlds.num_moves += num_rounds
        keys = fold(worlds.keys, counters.unsqueeze(1))
        observations, legal, decisions, outcomes = [], [], [], []
        for act_keys, step_keys in zip((keys + 1).unbind(), (keys + 2).unbind(), strict=True):
            observations.append(world.observation)
            legal.append(world.legal)
            view = cast(TensorWorld, world).state if policy.observes == "state" else world.observation
            decision = policy.act(view, world.legal, act_keys, worlds.memory)
            if (action := decision.action).is_floating_point() and action.is_cpu and not action.isfinite().all():
                raise diverged(self.role, action, world.observation)
            outcome = world.step(action, step_keys)
            worlds.memory = decision.memory
            if decision.memory:  # zeros where the next decision is the first of a game
                begins = ~outcome.valid | outcome.terminated | outcome.truncated
                worlds.memory = cleared(decision.memory, begins)
            decisions.append(decision)
            outcomes.append(outcome)
        rows = Transitions(
            observation=_join_entries(observations),
            action=_join([decision.action for decision in decisions]),
            reward=_join([outcome.reward for outcome in outcomes]),
            next_observation=_join_entries([outcome.observation for outcome in outcomes]),
            next_legal=_join([outcome.legal for outcome in outcomes]),
            terminated=_join([outcome.terminated for outcome in outcomes]),
            truncated=_join([outcome.truncated for outcome in outcomes]),
            valid=_join([outcome.valid for outcome in outcomes]),
            extras=_join_entries([decision.extras for decision in decisions]),
            legal=_join(legal),
            always_legal=self.game.always_legal,
        )
        if isinstance(world, TensorWorld):
            world.rules.look_back(self.role, rows)
        self._count(worlds, rows, outcomes)
        return {self.role: rows}

    def is_exact(self, worlds: SoloWorlds) -> bool:
        return worlds.world.exact

    def _count(self, worlds: SoloWorlds, rows: Transitions, outcomes: list[Outcome]) -> None:
        """Update lengths and returns of the running games, and the sums over those that have ended."""
        is_plain = all(outcome.raw_reward is outcome.reward for outcome in outcomes)
        rewards = rows.reward if is_plain else _join([outcome.raw_reward for outcome in outcomes])
        steps = (rewards, rows.terminated, rows.truncated, rows.valid)
        counters = (worlds.lengths, worlds.returns, worlds.recent, worlds.num_finished)
        counted: Iterable[Tensor]
        if rewards.is_cpu:
            arrays = [tuple(column.numpy() for column in columns) for columns in (steps, counters)]
            counted = map(torch.from_numpy, _count_rows(*arrays))
        else:
            counted = _count_steps(steps, counters)
        worlds.lengths, worlds.returns, totals, worlds.recent, worlds.num_finished = counted
        worlds.totals[: len(totals)] += totals
        if self.game.tallies:
            ended = rows.terminated | rows.truncated
            tallies = [_join(list(values)) for values in zip(*(outcome.tallies for outcome in outcomes), strict=True)]
            worlds.totals[len(totals) :] += torch.stack([(tally * ended).double().sum() for tally in tallies])


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _join_entries(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: _join([part[name] for part in parts]) for name in parts[0]}


def _count_steps(steps: tuple[Tensor, ...], counters: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return lengths and returns (B,) after T steps, the totals of these, recent and num_finished.

    steps: the columns reward, terminated, truncated and valid, (T * B,). counters: lengths, returns, recent and
    num_finished before. Totals, float64 (5,), are those of `SoloGame.total_names` without tallies.
    """
    (rewards, terminated, truncated, valid), (lengths, returns, recent, num_finished) = steps, counters
    ended = terminated | truncated
    totals = torch.stack([column.double().sum() for column in (ended, terminated, truncated, ended, ended)])
    rewards, ended, valid = (column.view(-1, len(lengths)) for column in (rewards, ended, valid))
    totals[3:] = 0.0
    so_far = []
    for step in range(len(ended)):
        lengths, returns = lengths + valid[step], returns + rewards[step]
        so_far.append(returns)
        totals[3] += (lengths * ended[step]).double().sum()
        totals[4] += (returns * ended[step]).double().sum()
        lengths, returns = lengths.masked_fill(ended[step], 0), returns.masked_fill(ended[step], 0.0)
    return lengths, returns, totals, *remember(recent, num_finished, ended.flatten(), torch.cat(so_far).unsqueeze(1))


@njit()
def _count_rows(steps: tuple[np.ndarray, ...], counters: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Do `_count_steps` on a CPU."""
    rewards, terminated, truncated, valid = steps
    lengths, returns, recent, num_finished = counters
    lengths, returns, totals = lengths.copy(), returns.copy(), np.zeros(5)
    recent, num_finished = recent.copy(), num_finished.copy()
    for start in range(0, len(rewards), len(lengths)):
        for world in range(len(lengths)):
            row = start + world
            lengths[world] += valid[row]
            returns[world] += rewards[row]
            if terminated[row] or truncated[row]:
                totals[0] += 1.0
                totals[1] += terminated[row]
                totals[2] += truncated[row]
                totals[3] += lengths[world]
                totals[4] += returns[world]
                recent[num_finished[()] % NUM_RECENT, 0] = returns[world]
                num_finished[()] += 1
                lengths[world], returns[world] = 0, 0.0
    return lengths, returns, totals, recent, num_finished
