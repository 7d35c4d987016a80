"""Evaluation: a fixed number of games, each from the same start for every pairing and in every evaluation."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from palestra.games.game import GameEnds, State, TensorGame, choose_worlds, memory_after
from palestra.games.policy import Memory, Policy
from palestra.games.spaces import Discrete
from palestra.games.world import Rules
from palestra.randomness import base_key, fold, world_keys
from palestra.runtime.scores import DeclaredScore, return_of
from palestra.runtime.statistics import Estimate, Share, describe, estimate_mean, num_clusters

STREAM = "evaluation"

FoundScore = float | Share | Estimate | None
Watch = Callable[[int, int], None]
"""Called before every round with how many games are over, and how many rounds the longest game in play has had; may
raise Interrupted."""


Record = Callable[[str, State, Tensor, Tensor], None]


def nobody_watches(num_over: int, num_rounds: int) -> None:
    """Do nothing: a Watch for games that nobody waits for."""


@dataclass(frozen=True)
class Games:
    """The results of the games of an evaluation. Tensors (n,), without games that were over at their start.

    finished: bool, ended by the rules; the others reached the round limit, or the game itself truncated them. lengths:
    int64, rounds played. returns: float32, by role. started_over: how many games were over at their start. tallies:
    sums of the game's own counters (overflow, ...). actions: how often each action was taken, int64 (A,) by role, for
    Discrete spaces. info: fields of the environments' info, float64, by name, of the games that have it: as info/NAME
    the mean over the game's steps, as final_info/NAME that of its last step. declared: the scores that the game
    declares. scores: those that it finds itself, by name, without returns. wins: by role, of contests (rounds, or the
    game itself) in each game, in games of two roles. clusters: of palestra.runtime.statistics: the games that are
    `about` the same, "starts" or "questions".
    """

    finished: Tensor
    lengths: Tensor
    returns: dict[str, Tensor]
    started_over: int
    tallies: dict[str, int]
    actions: dict[str, Tensor]
    info: dict[str, Tensor]
    declared: Sequence[DeclaredScore]
    scores: Mapping[str, FoundScore]
    wins: Mapping[str, Tensor]
    clusters: Tensor | None = None
    about: str = "starts"

    def summary(self) -> dict[str, Any]:
        """Summarise the results as a record.

        It holds the declared scores with 95% intervals, the counts behind them, and the distributions of returns and
        lengths; in games of two roles also the share of contests that each role has won. Raises TypeError if the game
        does not give the scores that it declares.
        """
        finished, won = int(self.finished.sum()), {role: float(wins.sum()) for role, wins in self.wins.items()}
        contests = sum(won.values())
        same = self.clusters
        returns = {return_of(role): estimate_mean(values, same) for role, values in self.returns.items()}
        found: dict[str, FoundScore] = {**returns, **self.scores}
        names = [score.name for score in self.declared]
        if not set(self.scores) <= set(names) <= set(found):
            raise TypeError(f"expected the declared scores {', '.join(names)} from the game, got {', '.join(found)}")
        estimates = {name: _estimate(found[name]) for name in names}
        return {
            "scores": {name: estimate.value for name, estimate in estimates.items()},
            "intervals": {name: [each.low, each.high] for name, each in estimates.items() if not math.isnan(each.low)},
            "games": len(self.lengths),
            "finished": finished,
            "truncated": len(self.lengths) - finished,
            "steps": int(self.lengths.sum()),
            "started_over": self.started_over,
            **({} if same is None else {"distinct": {self.about: num_clusters(same)}}),
            **self.tallies,
            "actions": {role: counts.tolist() for role, counts in self.actions.items()},
            "won": {role: wins / contests for role, wins in won.items()} if contests else {},
            "contests": contests,
            "statistics": {
                "episode_return": {role: describe(values, same) for role, values in self.returns.items()},
                "episode_length": describe(self.lengths, same),
                **{name: describe(values) for name, values in self.info.items()},
            },
        }


def _estimate(score: FoundScore) -> Estimate:
    """Return a score with its interval; nan where it has none, or is not known."""
    if isinstance(score, Share):
        return score.estimate()
    return score if isinstance(score, Estimate) else Estimate.of(score)


@torch.no_grad()
def play_games(
    game: TensorGame,
    policies: Mapping[str, Policy],
    num_games: int,
    max_rounds: int,
    seed: int,
    watch: Watch = nobody_watches,
) -> Games:
    """Play `num_games` games to their end, or to `max_rounds` rounds.

    Game i of one seed starts from the same state for every pairing, and its players draw the same random numbers. Games
    that have ended are dropped from the batch as it empties; results do not depend on that.
    """
    worlds = _played_out(game, policies, num_games, max_rounds, seed, watch)
    played = worlds.lengths > 0
    returns = {role: worlds.returns[played, i] for i, role in enumerate(game.roles)}
    clusters = worlds.equal_starts(played)
    ends = GameEnds(worlds.finished[played], worlds.lengths[played], returns, worlds.outcomes_of(played), clusters)
    return Games(
        finished=ends.finished,
        lengths=ends.lengths,
        returns=returns,
        started_over=int((~played).sum()),
        tallies={name: int(value[played].sum()) for name, value in worlds.tallies.items()},
        actions=worlds.actions,
        info={},
        declared=game.declared_scores,
        scores=game.scores(ends),
        wins=game.wins(ends),
        clusters=clusters,
    )


@torch.no_grad()
def play_outcomes(
    game: TensorGame, policies: Mapping[str, Policy], num_games: int, max_rounds: int, seed: int
) -> State:
    """Play the games of `play_games`, and return the `outcome_entries` at their end."""
    worlds = _played_out(game, policies, num_games, max_rounds, seed, nobody_watches)
    return worlds.outcomes_of(worlds.lengths > 0)


def _played_out(
    game: TensorGame, policies: Mapping[str, Policy], num_games: int, max_rounds: int, seed: int, watch: Watch
) -> "Batch":
    worlds = Batch(game, policies, num_games, seed)
    for num_rounds in range(max_rounds):
        if (num_running := worlds.num_running()) == 0:
            break
        watch(num_games - num_running, num_rounds)
        worlds.play_round()
    worlds.retire(torch.ones_like(worlds.running))
    return worlds


class Batch:
    """The games still in play, and the results of all games.

    index: int64, the numbers of the games still in play. record: called with every decision: the role, the state before
    it, the worlds in which the role decides, bool (games still in play,), and the actions.
    """

    def __init__(
        self, game: TensorGame, policies: Mapping[str, Policy], num_games: int, seed: int, record: Record | None = None
    ) -> None:
        self.game, self.policies, self.record = game, policies, record
        device = game.device
        self.keys = world_keys(base_key(seed, STREAM), num_games, device)
        self.state: State = game.reset(fold(self.keys, 0))
        starts = game.start_of(self.state)
        self.has_instances, self.starts = starts is not self.state, _fingerprints(starts, num_games)
        self.memory: dict[str, Memory] = {}
        self.index = torch.arange(num_games, device=device)
        self.running = game.deciding(self.state).any(dim=1)
        self.num_moves = 1
        self.finished = torch.zeros(num_games, dtype=torch.bool, device=device)
        self.lengths = torch.zeros(num_games, dtype=torch.int64, device=device)
        self.returns = torch.zeros(num_games, len(game.roles), device=device)
        self.tallies = {name: torch.zeros(num_games, dtype=torch.int64, device=device) for name in game.tallies}
        self.outcomes = {name: torch.zeros_like(self.state[name]) for name in game.outcome_entries}
        self.actions = {
            role: torch.zeros(space.num, dtype=torch.int64, device=device)
            for role, space in game.action_spaces.items()
            if isinstance(space, Discrete)
        }

    def outcomes_of(self, played: Tensor) -> State:
        """Return the outcomes of the games `played`, bool (n,)."""
        return {name: value[played] for name, value in self.outcomes.items()}

    def equal_starts(self, played: Tensor) -> Tensor | None:
        """Return which of the games `played` have equal starts; None: no two, or all because the game has one start."""
        starts = self.starts[played.cpu()].unique(return_inverse=True)[1]
        num = num_clusters(starts)
        has_one_start = num == 1 and not self.has_instances
        return None if has_one_start or 1 < num == len(starts) else starts.to(played.device)

    def num_running(self) -> int:
        """Count the games still in play; drops the others from the batch once they are the larger half."""
        if (running := int(self.running.sum())) < len(self.running) // 2:
            self.retire(~self.running)
        return running

    def play_round(self) -> None:
        game, rules = self.game, Rules(self.game, len(self.running))
        self.lengths[self.index] += self.running
        for move in game.moves:
            move_keys = fold(self.keys, self.num_moves)
            self.num_moves += 1
            deciding = rules.ask("deciding", self.state) & self.running.unsqueeze(1)
            actions = {}
            for role in move:
                policy = self.policies[role]
                view, legal = self.state if policy.observes == "state" else {}, rules.ask("legal", self.state, role)
                if policy.observes == "observation":
                    view = game.transformed(role, rules.ask("observe", self.state, role))
                keys = move_keys + game.roles.index(role) + 1
                decision = policy.act(view, legal, keys, self.memory.get(role, {}))
                actions[role] = decision.action
                decides = deciding[:, game.roles.index(role)]
                if self.record is not None:
                    self.record(role, self.state, decides, decision.action)
                if role in self.actions:
                    self.actions[role].scatter_add_(0, decision.action, decides.long())
                self.memory[role] = memory_after(decides, decision.memory, self.memory.get(role, {}))
            step_keys = move_keys + len(game.roles) + 1
            state, rewards, terminated, truncated = rules.ask("transition", self.state, actions, step_keys)
            # The state of a truncated game stays as it was when it was cut off, so that its counters stay too.
            self.state = {name: choose_worlds(self.running, value, self.state[name]) for name, value in state.items()}
            self.returns[self.index] += rewards * self.running.unsqueeze(1)
            over = terminated.all(dim=1)
            self.finished[self.index] |= over & self.running
            self.running = self.running & ~over & ~truncated

    def retire(self, leaving: Tensor) -> None:
        """Store the counters of the games `leaving`, bool (games still in play,), and drop these from the batch."""
        for name, values in self.tallies.items():
            values[self.index[leaving]] = self.state[name][leaving].long()
        for name, values in self.outcomes.items():
            values[self.index[leaving]] = self.state[name][leaving]
        staying = ~leaving
        self.index, self.keys, self.running = self.index[staying], self.keys[staying], self.running[staying]
        self.state = {name: value[staying] for name, value in self.state.items()}
        self.memory = {role: {k: v[staying] for k, v in memory.items()} for role, memory in self.memory.items()}


def _fingerprints(entries: State, num: int) -> Tensor:
    """Return an int64 number per world, (B,): the same where all entries are, else almost surely another."""
    found = torch.zeros(num, dtype=torch.int64)
    for place, value in enumerate(entries.values()):
        bits = value.reshape(num, -1).cpu().double().view(torch.int64)
        found += ((bits ^ (bits >> 29)) * (2 * fold(torch.arange(bits.shape[1]), place) + 1)).sum(dim=1)
    return found
