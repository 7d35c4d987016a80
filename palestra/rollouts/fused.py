"""FusedGame: plays a game with a policy in every seat, in one batch, and begins new games in place of those that end.

Letters: B worlds, R roles, A actions, T rounds.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache, partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palestra.games.game import GameEnds, Observation, State, TensorGame, expand_mask
from palestra.games.policy import Decision, Memory, Policy, require_policies
from palestra.games.world import Rules, diverged
from palestra.randomness import fold
from palestra.rollouts import fused_kernel
from palestra.rollouts.played import PlayedGame, RunningGames, remember
from palestra.rollouts.seated import Results, SeatedPolicy
from palestra.rollouts.transitions import Transitions, by_tensor
from palestra.runtime.device import moved

runs_on_cpu = attrgetter("is_cpu")  # nobody compiles what plays


@dataclass
class Seat:
    """A role's last decision in every world: tensors (B, ...)."""

    observation: Observation
    legal: Tensor
    action: Tensor
    extras: dict[str, Tensor]


@dataclass
class Worlds(RunningGames):
    """A batch of running games: the state of the rules, of the seats and of the counters.

    truncated_pending: worlds that were truncated and play on only until every collected seat has its next observation.
    awaiting, done, pending_reward: (B, R); whether a decision of the role waits for its next one, whether the role's
    game has terminated since, and the sum of its rewards since. seats: by role, for the roles that are collected.
    results: where several players share seats; else None.
    """

    state: State
    truncated_pending: Tensor
    awaiting: Tensor
    done: Tensor
    pending_reward: Tensor
    memory: dict[str, Memory] = field(default_factory=dict)
    seats: dict[str, Seat] = field(default_factory=dict)
    results: Results | None = None

    def state_dict(self) -> dict[str, Any]:
        state = vars(self) | {"seats": {role: dict(vars(seat)) for role, seat in self.seats.items()}}
        return state | {"results": None if self.results is None else dict(vars(self.results))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.results = None if state["results"] is None else Results(**moved(state["results"], self.keys.device))
        self.seats = {role: Seat(**moved(seat, self.keys.device)) for role, seat in state["seats"].items()}

    def forget_results(self) -> None:
        super().forget_results()
        if self.results is not None:
            self.results.sums.zero_()


class FusedGame(PlayedGame):
    """Plays a TensorGame with a policy in every seat."""

    def __init__(self, game: TensorGame, policies: dict[str, Policy]) -> None:
        super().__init__(game, policies)
        self.game, self.rules = game, cache(partial(Rules, game))  # by the number of worlds
        self.spaces = {role: {**game.spaces[role], **game.critic_spaces.get(role, {})} for role in game.roles}
        self.held: Tensor | None = None  # where players share seats: those of the one that learns, bool (B, R)

    def new_worlds(self, num_worlds: int, seed: int, stream: str, first: int = 0) -> Worlds:
        """Make new worlds, whose random numbers come from (seed, stream). first: the number of the first of them."""
        counters = self.counters(num_worlds, seed, stream, first)
        seats = torch.zeros(num_worlds, self.num_roles, device=self.device)
        return Worlds(
            **counters,
            returns=seats,
            state=self.game.reset(fold(counters["keys"], 0)),
            truncated_pending=torch.zeros(num_worlds, dtype=torch.bool, device=self.device),
            awaiting=seats.bool(),
            done=seats.bool(),
            pending_reward=seats.clone(),
        )

    @torch.no_grad()
    def collect(self, worlds: Worlds, roles: tuple[str, ...], num_rounds: int) -> dict[str, Transitions]:
        """Play `num_rounds` rounds, and return the experience of `roles`, by role.

        A role has M = T * B rows for each of its moves in a round: round by round, in a round move by move, in a move
        world by world.
        """
        require_policies(self.policies, self.game.roles)
        held = [getattr(self.policies[role], "held", None) for role in self.game.roles]
        self.held = None if worlds.results is None else torch.stack([each for each in held if each is not None], dim=1)
        parts: dict[str, list[Transitions]] = {role: [] for role in roles}
        self.forget_waiting(worlds, worlds.seats.keys() - set(roles))  # so that no world waits for their open decisions
        for _ in range(num_rounds):
            self._play_round(worlds, parts)
        look_back = self.rules(len(worlds.keys)).look_back
        return {role: look_back(role, Transitions.concatenate(of_role)) for role, of_role in parts.items()}

    # ---- one round -----------------------------------------------------------------------------------

    def _play_round(self, worlds: Worlds, collected: dict[str, list[Transitions]]) -> None:
        """Play one round. collected: the lists, by role, to which the roles' experience is appended."""
        game, ask = self.game, self.rules(worlds.keys.shape[0]).ask
        deciding = ask("deciding", worlds.state)
        _count_round(worlds.lengths, deciding)
        for index, move in enumerate(game.moves):
            move_keys = fold(worlds.keys, worlds.num_moves)
            worlds.num_moves += 1
            if index and collected:
                deciding = ask("deciding", worlds.state)
            if self.held is not None:
                deciding = deciding & self.held
            actions = {}
            for role in move:
                counted = deciding[:, game.roles.index(role)] if role in collected else None
                observation, legal, decision = self._decide(worlds, role, counted, move_keys)
                actions[role] = decision.action
                if role in collected:
                    collected[role].append(self._exchange(worlds, role, deciding, observation, legal, decision))
            step_keys = move_keys + (len(game.roles) + 1)
            worlds.state, rewards, terminated, truncated = ask("transition_in_place", worlds.state, actions, step_keys)
            if index not in game.quiet_moves:
                self._end_move(worlds, rewards, terminated, truncated, move_keys)

    def forget_waiting(self, worlds: Worlds, roles: Collection[str]) -> None:
        for role in worlds.seats.keys() & set(roles):
            index = self.game.roles.index(role)
            worlds.awaiting[:, index] = worlds.done[:, index] = False
            worlds.pending_reward[:, index] = 0.0
            del worlds.seats[role]

    def _decide(
        self, worlds: Worlds, role: str, counted: Tensor | None, move_keys: Tensor
    ) -> tuple[Observation, Tensor, Decision]:
        """Let a role decide, and return its observation, its legal actions, and the decision.

        counted: for a role that is collected, the worlds in which it decides, bool (B,), where its observations update
        the game's running statistics; None for any other role.
        """
        game, policy, ask = self.game, self.policies[role], self.rules(worlds.keys.shape[0]).ask
        observed = policy.observed if isinstance(policy, SeatedPolicy) else [policy.observes]
        observation: Observation = {}
        if counted is not None or "observation" in observed or "with_critics" in observed:
            observation = game.transformed(role, ask("observe", worlds.state, role), counted)
        views: dict[str, Any] = {"state": worlds.state, "observation": observation, "nothing": {}}
        if "with_critics" in observed:
            views["with_critics"] = {**observation, **ask("observe_for_critics", worlds.state, role)}
        if observed[0] == "with_critics":
            observation = views["with_critics"]
        view = views if isinstance(policy, SeatedPolicy) else views[policy.observes]
        legal = ask("legal", worlds.state, role)
        keys = move_keys + (game.roles.index(role) + 1)
        decision = policy.act(view, legal, keys, worlds.memory.get(role, {}))
        if (action := decision.action).is_floating_point() and action.is_cpu and not action.isfinite().all():
            raise diverged(role, action, observation)
        if decision.memory:  # the memory changes only in worlds where the role decides
            before = worlds.memory.get(role, {name: torch.zeros_like(value) for name, value in decision.memory.items()})
            decides = game.deciding(worlds.state)[:, game.roles.index(role)]
            worlds.memory[role] = {name: _choose(decides, new, before[name]) for name, new in decision.memory.items()}
        return observation, legal, decision

    def _exchange(
        self, worlds: Worlds, role: str, deciding: Tensor, observation: Observation, legal: Tensor, decision: Decision
    ) -> Transitions:
        """Close the role's last decisions, each at its next one or at the end of its game; return their transitions.

        The new decisions wait instead. In worlds where the role does not decide, the old one waits on.
        """
        exchange = _exchange_on_cpu if runs_on_cpu(legal) else _exchange
        ended, going_on, waiting = exchange(worlds, self.game.roles.index(role), deciding, legal)
        new = Seat(observation, legal, decision.action, decision.extras)
        seat = worlds.seats.get(role, new)  # at the first call no decision waits
        if not self.game.lockstep:
            new = Seat(**by_tensor(lambda late, early: _choose(waiting, early, late), vars(new), vars(seat)))
        worlds.seats[role] = new
        spaces = self.spaces[role]
        return Transitions(
            observation=seat.observation,
            action=seat.action,
            next_observation={key: _keep(going_on, value, spaces[key].empty) for key, value in observation.items()},
            extras=seat.extras,
            legal=seat.legal,
            always_legal=self.game.always_legal,
            **ended,
        )

    def _end_move(
        self, worlds: Worlds, rewards: Tensor, terminated: Tensor, truncated: Tensor, move_keys: Tensor
    ) -> None:
        """Count the games that end, and begin new ones in worlds where no seat waits for its next observation."""
        before = None if worlds.results is None else (worlds.lengths.clone(), worlds.returns + rewards)
        if on_cpu := runs_on_cpu(truncated):
            num_ended, num_refilled, ended, refilled = self._update_statistics_on_cpu(
                worlds, rewards, terminated, truncated
            )
        else:
            ended, refilled = self._update_statistics(worlds, rewards, terminated, truncated)
        if before is not None and not (on_cpu and num_ended == 0):
            self._add_results(worlds, ended, terminated.all(dim=1), *before)
        if on_cpu and num_refilled == 0:
            return
        worlds.state = self.game.refill(worlds.state, refilled, move_keys + (len(self.game.roles) + 2))
        for role, memory in worlds.memory.items():
            worlds.memory[role] = {name: _keep(~refilled, value, 0) for name, value in memory.items()}

    def _add_results(self, worlds: Worlds, ended: Tensor, is_over: Tensor, lengths: Tensor, returns: Tensor) -> None:
        """Add the games that have ended to the results of who sat there."""
        assert worlds.results is not None
        by_role = dict(zip(self.game.roles, returns.unbind(1), strict=True))
        outcomes = {name: worlds.state[name] for name in self.game.outcome_entries}
        wins = self.game.wins(GameEnds(is_over, lengths, by_role, outcomes, None))
        worlds.results.add(ended, returns, [wins[role] for role in self.game.roles if role in wins])

    def seat(self, worlds: Worlds, sitters: Tensor) -> None:
        """Let other past selves sit: int64 (B, R), as in Results. A game whose sitter changes is cut off, uncounted."""
        assert worlds.results is not None
        changed, worlds.results.sitters = sitters != worlds.results.sitters, sitters
        for role, memory in worlds.memory.items():
            left = ~changed[:, self.game.roles.index(role)]
            worlds.memory[role] = {name: _keep(left, value, 0) for name, value in memory.items()}
        worlds.truncated_pending |= changed.any(dim=1) & (worlds.lengths > 0)

    def _update_statistics(
        self, worlds: Worlds, rewards: Tensor, terminated: Tensor, truncated: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add the results of a move, count the games that end, and clear the statistics of the worlds to be refilled.

        Returns the worlds whose games have ended, and those to be refilled, bool (B,) both.
        """
        running = worlds.awaiting & ~worlds.done
        worlds.pending_reward += torch.where(running, rewards, 0.0)
        worlds.done |= running & terminated
        worlds.returns += rewards
        is_over, is_waited_for = terminated.all(dim=1), (worlds.awaiting & ~worlds.done).any(dim=1)
        ended = (is_over | truncated) & ~worlds.truncated_pending & (worlds.lengths > 0)
        worlds.truncated_pending |= truncated
        refilled = is_over | (worlds.truncated_pending & ~is_waited_for)

        columns = [torch.ones_like(ended), is_over, truncated, worlds.lengths, *worlds.returns.unbind(1)]
        columns += [worlds.state[name] for name in self.game.tallies]
        worlds.totals += ended.double() @ torch.stack([column.double() for column in columns], dim=1)
        worlds.recent, worlds.num_finished = remember(worlds.recent, worlds.num_finished, ended, worlds.returns)
        worlds.truncated_pending &= ~refilled
        worlds.lengths.masked_fill_(refilled, 0)
        worlds.returns.masked_fill_(refilled.unsqueeze(1), 0.0)
        return ended, refilled

    def _update_statistics_on_cpu(
        self, worlds: Worlds, rewards: Tensor, terminated: Tensor, truncated: Tensor
    ) -> tuple[int, int, Tensor, Tensor]:
        """Do `_update_statistics` in one loop over the worlds; also return how many there are of both."""
        statistics = [worlds.awaiting, worlds.done, worlds.pending_reward, worlds.truncated_pending, worlds.lengths]
        statistics += [worlds.returns, worlds.totals, worlds.recent, worlds.num_finished]
        ended, refilled = np.empty(len(truncated), dtype=np.bool_), np.empty(len(truncated), dtype=np.bool_)
        results = (rewards.numpy(), terminated.numpy(), truncated.numpy())
        num_ended, num_refilled = fused_kernel.update_statistics(
            ended, refilled, *results, *(each.numpy() for each in statistics)
        )
        if num_ended:
            totals = worlds.totals.numpy()
            for index, name in enumerate(self.game.tallies, start=len(totals) - len(self.game.tallies)):
                totals[index] += fused_kernel.sum_where(ended, worlds.state[name].numpy())
        return num_ended, num_refilled, torch.from_numpy(ended), torch.from_numpy(refilled)


def _count_round(lengths: Tensor, deciding: Tensor) -> None:
    if runs_on_cpu(lengths):
        fused_kernel.count_round(lengths.numpy(), deciding.numpy())
    else:
        lengths += deciding.any(dim=1)


# ---- seats ---------------------------------------------------------------------------------------------


def _exchange(worlds: Worlds, role: int, deciding: Tensor, legal: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Close a role's last decisions where it decides or its game is over; its new ones begin to wait.

    Returns the fields of Transitions that say how they ended; where the role's game goes on, bool (B,); and where the
    old decision waits on, bool (B,).
    """
    decides, is_awaiting, is_over = deciding[:, role], worlds.awaiting[:, role], worlds.done[:, role].clone()
    reward = worlds.pending_reward[:, role].clone()
    going_on, waiting = decides & ~is_over, is_awaiting & ~is_over & ~decides
    ended = {
        "reward": reward,
        "next_legal": legal & going_on.unsqueeze(1),
        "terminated": is_over,
        "truncated": worlds.truncated_pending & ~is_over,
        "valid": is_awaiting & (is_over | decides),
    }
    worlds.awaiting[:, role] = (decides & ~worlds.truncated_pending) | waiting
    worlds.done[:, role] = False
    worlds.pending_reward[:, role] = torch.where(waiting, reward, 0.0)
    return ended, going_on, waiting


def _exchange_on_cpu(
    worlds: Worlds, role: int, deciding: Tensor, legal: Tensor
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Do `_exchange` in one loop over the worlds."""
    B = len(legal)
    ended = {"reward": np.empty(B, dtype=np.float32), "next_legal": np.empty(legal.shape, dtype=np.bool_)}
    ended |= {name: np.empty(B, dtype=np.bool_) for name in ("terminated", "truncated", "valid")}
    going_on, waiting = np.empty(B, dtype=np.bool_), np.empty(B, dtype=np.bool_)
    statistics = [
        each.numpy() for each in (worlds.truncated_pending, worlds.awaiting, worlds.done, worlds.pending_reward)
    ]
    fused_kernel.exchange(role, deciding.numpy(), legal.numpy(), going_on, waiting, *statistics, *ended.values())
    tensors = {name: torch.from_numpy(array) for name, array in ended.items()}
    return tensors, torch.from_numpy(going_on), torch.from_numpy(waiting)


def _keep(mask: Tensor, value: Tensor, filling: int) -> Tensor:
    """Make a tensor of the rows of `value` where `mask`, bool (B,), is true, and of `filling` elsewhere."""
    if runs_on_cpu(value):
        values = value.numpy()
        rows = np.empty_like(values)
        flat = (len(rows), -1)
        fused_kernel.copy_where(mask.numpy(), values.reshape(flat), filling, rows.reshape(flat))
        return torch.from_numpy(rows)
    return value.masked_fill(~expand_mask(mask, value), filling)


def _choose(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Make a tensor of the rows of `yes` where `mask`, bool (B,), is true, and of those of `no` elsewhere."""
    if runs_on_cpu(yes):
        arrays = yes.numpy(), no.numpy()
        rows = np.empty(yes.shape, dtype=arrays[0].dtype)
        flat = (len(rows), -1) if rows.size else (0, 0)
        fused_kernel.choose_rows(mask.numpy(), *(each.reshape(flat) for each in arrays), rows.reshape(flat))
        return torch.from_numpy(rows)
    return torch.where(expand_mask(mask, yes), yes, no)
