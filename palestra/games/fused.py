"""FusedGame: a game together with the players in its seats, played in one batch, worlds refilled in place as they end.

Letters: B worlds, R roles, A actions, T rounds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from palestra.games.game import Observation, State, TensorGame
from palestra.randomness import base_key, fold, world_keys

Memory = dict[str, Tensor]
Sees = Literal["observation", "state", "nothing"]


class Decision(NamedTuple):
    """What `act` gives. action: (B, ...) as the role's action space says. extras: what an algorithm keeps of the
    decision (log-probabilities, ...)."""

    action: Tensor
    extras: dict[str, Tensor]
    memory: Memory


class Policy(Protocol):
    """How somebody in a seat acts. `sees` tells what `view` is: the role's observation, the exact state, or nothing
    ({})."""

    sees: Sees

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision: ...


@dataclass
class Transitions:
    """Experience of one seat: from one of its decisions to its next. M rows, of which only those with `valid` count.

    reward: float32 (M,), the sum of all rewards in between. next_observation: what the seat saw at its next decision;
    of no meaning where terminated, for then there is none. next_legal: bool (M, flags of the action space). truncated:
    the world was cut off in between; the next observation is the true one, and to be bootstrapped from.
    """

    observation: Observation
    action: Tensor
    reward: Tensor
    next_observation: Observation
    next_legal: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    extras: dict[str, Tensor]

    def rows(self) -> dict[str, Tensor]:
        """All but `valid` as one flat dict, the form in which a buffer stores them."""
        flat: dict[str, Tensor] = {}
        for name in ("observation", "next_observation", "extras"):
            flat |= {f"{name}.{key}": value for key, value in getattr(self, name).items()}
        names = ("action", "reward", "next_legal", "terminated", "truncated")
        return flat | {name: getattr(self, name) for name in names}

    @classmethod
    def from_rows(cls, rows: Mapping[str, Tensor]) -> "Transitions":
        """The inverse of `rows`; every row is valid."""

        def part(name: str) -> dict[str, Tensor]:
            return {key[len(name) + 1 :]: value for key, value in rows.items() if key.startswith(f"{name}.")}

        return cls(
            observation=part("observation"),
            action=rows["action"],
            reward=rows["reward"],
            next_observation=part("next_observation"),
            next_legal=rows["next_legal"],
            terminated=rows["terminated"],
            truncated=rows["truncated"],
            valid=torch.ones_like(rows["terminated"]),
            extras=part("extras"),
        )

    @staticmethod
    def concatenate(parts: "list[Transitions]") -> "Transitions":
        """Join rows; all parts have the same keys."""

        def join(name: str) -> Any:
            values = [getattr(part, name) for part in parts]
            if isinstance(values[0], dict):
                return {key: torch.cat([value[key] for value in values]) for key in values[0]}
            return torch.cat(values)

        return Transitions(**{name: join(name) for name in Transitions.__dataclass_fields__})


@dataclass
class Seat:
    """The last decision of one role in every world, waiting for that role's next one. All tensors (B, ...).

    open: a decision waits. over: the role's game has terminated since. reward: what it has earned since.
    """

    open: Tensor
    over: Tensor
    reward: Tensor
    observation: Observation
    action: Tensor
    extras: dict[str, Tensor]


@dataclass
class Worlds:
    """A batch of running games: the state of the rules, of the seats and of the counters. Belongs to one roll-out loop.

    cut: worlds that were truncated and only play on until every collected seat has seen its next observation.
    totals: float64, sums over finished games, in the order of `FusedGame.total_names`.
    """

    keys: Tensor
    num_turns: int
    state: State
    cut: Tensor
    lengths: Tensor
    returns: Tensor
    totals: Tensor
    memory: dict[str, Memory] = field(default_factory=dict)
    seats: dict[str, Seat] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        return {
            "keys": self.keys,
            "num_turns": self.num_turns,
            "state": self.state,
            "cut": self.cut,
            "lengths": self.lengths,
            "returns": self.returns,
            "totals": self.totals,
            "memory": self.memory,
            "seats": {role: dict(vars(seat)) for role, seat in self.seats.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.keys.device

        def moved(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: moved(item) for key, item in value.items()}
            return value.to(device) if isinstance(value, Tensor) else value

        for name in self.__dataclass_fields__:
            setattr(self, name, moved(state[name]))
        self.seats = {role: Seat(**moved(seat)) for role, seat in state["seats"].items()}


class FusedGame:
    """Plays a TensorGame with a policy in every seat. The policies may be exchanged between calls."""

    def __init__(self, game: TensorGame, policies: dict[str, Policy]) -> None:
        self.game = game
        self.policies = policies
        self.total_names = (
            "episodes",
            "terminated",
            "truncated",
            "length",
            *(f"return/{r}" for r in game.roles),
            *game.tallies,
        )

    def new_worlds(self, num_worlds: int, seed: int, stream: str) -> Worlds:
        """Fresh worlds whose randomness is that of (seed, stream)."""
        game = self.game
        keys = world_keys(base_key(seed, stream), num_worlds, game.device)
        zeros = torch.zeros(num_worlds, device=game.device)
        return Worlds(
            keys=keys,
            num_turns=1,
            state=game.reset(fold(keys, 0)),
            cut=zeros.bool(),
            lengths=zeros.int(),
            returns=torch.zeros(num_worlds, len(game.roles), device=game.device),
            totals=torch.zeros(len(self.total_names), dtype=torch.float64, device=game.device),
        )

    @torch.no_grad()
    def collect(self, worlds: Worlds, roles: tuple[str, ...], num_rounds: int) -> Transitions:
        """Play `num_rounds` rounds and give what the seats of `roles` have experienced: M = T * B rows per turn of a
        role."""
        parts: list[Transitions] = []
        for _ in range(num_rounds):
            self._play_round(worlds, roles, parts)
        return Transitions.concatenate(parts)

    @torch.no_grad()
    def play(self, worlds: Worlds, num_rounds: int) -> None:
        """Play without collecting anything."""
        for _ in range(num_rounds):
            self._play_round(worlds, (), [])

    def take_totals(self, worlds: Worlds) -> dict[str, float]:
        """The sums over the games that have finished since the last call, by `total_names`. Waits for the device."""
        values = dict(zip(self.total_names, worlds.totals.tolist(), strict=True))
        worlds.totals = torch.zeros_like(worlds.totals)
        return values

    # ---- one round -----------------------------------------------------------------------------------

    def _play_round(self, worlds: Worlds, collected: tuple[str, ...], parts: list[Transitions]) -> None:
        game = self.game
        for index, turn in enumerate(game.turns):
            turn_keys = fold(worlds.keys, worlds.num_turns)
            worlds.num_turns += 1
            if index == 0 or collected:
                deciding = game.deciding(worlds.state)
            if index == 0:
                worlds.lengths += deciding.any(dim=1)
            actions = {}
            for role in turn:
                observation, legal, decision = self._decide(worlds, role, role in collected, turn_keys)
                actions[role] = decision.action
                if role in collected:
                    decides = deciding[:, game.roles.index(role)]
                    seat = worlds.seats.get(role) or _empty_seat(observation, decision)
                    parts.append(self._close(worlds, seat, decides, observation, legal))
                    worlds.seats[role] = self._open(worlds, seat, decides, observation, decision)
            step_keys = turn_keys + len(game.roles) + 1
            worlds.state, rewards, terminated, truncated = game.transition(worlds.state, actions, step_keys)
            if index in game.quiet_turns:
                continue
            worlds.returns += rewards
            for role, seat in worlds.seats.items():
                column = game.roles.index(role)
                running = seat.open & ~seat.over
                seat.reward += torch.where(running, rewards[:, column], 0.0)
                seat.over = seat.over | (running & terminated[:, column])
            self._end_games(worlds, terminated.all(dim=1), truncated, turn_keys)

    def _decide(
        self, worlds: Worlds, role: str, observed: bool, turn_keys: Tensor
    ) -> tuple[Observation, Tensor, Decision]:
        game, policy = self.game, self.policies[role]
        observation = game.observe(worlds.state, role) if observed or policy.sees == "observation" else {}
        view = worlds.state if policy.sees == "state" else observation
        legal = game.legal(worlds.state, role)
        keys = turn_keys + game.roles.index(role) + 1
        decision = policy.act(view, legal, keys, worlds.memory.get(role, {}))
        if decision.memory:
            worlds.memory[role] = decision.memory
        return observation, legal, decision

    def _close(
        self, worlds: Worlds, seat: Seat, deciding: Tensor, observation: Observation, legal: Tensor
    ) -> Transitions:
        """The waiting decisions that end here: at the role's next decision, or at the end of its game."""
        going_on = deciding & ~seat.over
        return Transitions(
            observation=seat.observation,
            action=seat.action,
            reward=seat.reward,
            next_observation={key: _keep(going_on, value) for key, value in observation.items()},
            next_legal=legal & going_on.unsqueeze(1),
            terminated=seat.over,
            truncated=worlds.cut & ~seat.over,
            valid=seat.open & (seat.over | deciding),
            extras=seat.extras,
        )

    def _open(self, worlds: Worlds, seat: Seat, deciding: Tensor, observation: Observation, decision: Decision) -> Seat:
        """The decisions just made, waiting. Where the role does not decide now, what waited goes on waiting."""
        fresh = deciding & ~worlds.cut
        new = Seat(
            open=fresh,
            over=torch.zeros_like(fresh),
            reward=torch.zeros_like(fresh, dtype=torch.float32),
            observation=observation,
            action=decision.action,
            extras=decision.extras,
        )
        if self.game.lockstep:
            return new
        waiting = seat.open & ~seat.over & ~deciding
        new.open = fresh | waiting
        new.reward = torch.where(waiting, seat.reward, 0.0)
        new.observation = {key: _choose(waiting, seat.observation[key], value) for key, value in observation.items()}
        new.action = _choose(waiting, seat.action, decision.action)
        new.extras = {key: _choose(waiting, seat.extras[key], value) for key, value in decision.extras.items()}
        return new

    def _end_games(self, worlds: Worlds, terminated: Tensor, truncated: Tensor, turn_keys: Tensor) -> None:
        """Count the games that end, and put new ones in the place of those that nobody waits for."""
        stopping = terminated | truncated | worlds.cut
        if stopping.device.type == "cpu" and not stopping.any():
            return
        ended = (terminated | truncated) & ~worlds.cut & (worlds.lengths > 0)
        worlds.cut = worlds.cut | truncated
        waited_for = torch.zeros_like(ended)
        for seat in worlds.seats.values():
            waited_for |= seat.open & ~seat.over
        refilled = terminated | (worlds.cut & ~waited_for)
        self._count(worlds, _selected(ended), terminated, truncated)
        self._refill(worlds, _selected(refilled), turn_keys + len(self.game.roles) + 2)

    def _count(self, worlds: Worlds, ended: Tensor, terminated: Tensor, truncated: Tensor) -> None:
        columns = [torch.ones_like(terminated), terminated, truncated, worlds.lengths, *worlds.returns.unbind(1)]
        columns += [worlds.state[name] for name in self.game.tallies]
        if ended.dtype == torch.bool:
            worlds.totals += ended.double() @ torch.stack([column.double() for column in columns], dim=1)
        elif len(ended):
            rows = ended.numpy()  # on a few rows numpy starts faster than torch
            worlds.totals += torch.tensor([column.numpy()[rows].sum(dtype=float) for column in columns])

    def _refill(self, worlds: Worlds, where: Tensor, keys: Tensor) -> None:
        if where.dtype == torch.bool:
            fresh = self.game.reset(keys)
            worlds.state = {name: _choose(where, fresh[name], value) for name, value in worlds.state.items()}
            worlds.cut = worlds.cut & ~where
            worlds.lengths = worlds.lengths.masked_fill(where, 0)
            worlds.returns = worlds.returns.masked_fill(where.unsqueeze(1), 0.0)
            for role, memory in worlds.memory.items():
                worlds.memory[role] = {name: _keep(~where, value) for name, value in memory.items()}
        elif len(where):
            for name, value in self.game.reset(keys.index_select(0, where)).items():
                # numpy's: after torch's threads have copied, they spin on the cores that the kernel's threads want
                worlds.state[name].numpy()[where.numpy()] = value.numpy()
            memories = [value for memory in worlds.memory.values() for value in memory.values()]
            for value in (worlds.cut, worlds.lengths, worlds.returns, *memories):
                value.index_fill_(0, where, 0)


def _selected(mask: Tensor) -> Tensor:
    """A CPU pays for the chosen rows alone; a GPU would have to wait to learn which, and gets the mask itself."""
    return mask.nonzero().squeeze(1) if mask.device.type == "cpu" else mask


def _empty_seat(observation: Observation, decision: Decision) -> Seat:
    """A seat in which no decision waits yet."""
    never = torch.zeros(len(decision.action), dtype=torch.bool, device=decision.action.device)
    return Seat(never, never.clone(), never.float(), observation, decision.action, decision.extras)


def _expand(mask: Tensor, like: Tensor) -> Tensor:
    return mask.view(-1, *([1] * (like.dim() - 1)))


def _keep(mask: Tensor, value: Tensor) -> Tensor:
    return torch.where(_expand(mask, value), value, torch.zeros((), dtype=value.dtype, device=value.device))


def _choose(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(_expand(mask, yes), yes, no)
