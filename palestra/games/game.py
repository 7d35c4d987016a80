"""The rules of a game as pure functions on a batch of worlds.

A state is a dict of tensors whose first axis is the world. Letters: B worlds, R roles, A actions.

A round of a game consists of moves; in each move some roles may decide at the same time. A lone agent has one role and
one move. Rounds of messages among many roles have one move per speaker, or one move in which several speak at once. If
different roles decide in different worlds, one move lists all of them, and `deciding` says who decides where.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from palestra.games.normalization import ObservationTransform, RunningStatistics
from palestra.games.policy import Memory, Observes
from palestra.games.spaces import ActionSpace, Box, MultiDiscrete, Space
from palestra.games.trace import ShareTable, Storyboard, Trace, Transcript
from palestra.randomness import runs_on_cpu
from palestra.runtime.scores import DeclaredScore, declared_returns
from palestra.runtime.statistics import Estimate, Share


class GameEnds(NamedTuple):
    """How n games of a pairing ended, without those that were over at their start.

    finished: bool (n,), ended by the rules; the others were cut off. lengths: int64 (n,), rounds played. returns:
    float32 (n,) by role. outcomes: the `outcome_entries` of the game, as they were at the end, (n, ...).
    clusters: which games have equal starts (palestra.runtime.statistics), for intervals; None: no two have.
    """

    finished: Tensor
    lengths: Tensor
    returns: Mapping[str, Tensor]
    outcomes: Mapping[str, Tensor]
    clusters: Tensor | None


def wins_by_return(returns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tell which of two roles has won each game by the higher return; equal returns count half for each.

    Float64 (n,) by role; empty in games of more or fewer roles.
    """
    if len(returns) != 2:
        return {}
    (first, one), (second, other) = returns.items()
    wins = (one > other).double() + 0.5 * (one == other).double()
    return {first: wins, second: 1.0 - wins}


class OutsideEntry(NamedTuple):
    """One entry of an observation outside.

    shape: in one world. path: its keys in an environment's observation; () where it has no keys there.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    path: tuple[Any, ...]


@dataclass(frozen=True)
class Outside:
    """What a role observes and does outside. The functions are made of operations that torch.export traces.

    entries: of the observation. read: a batch of observations, by entry (B, *shape), as players get it. act: actions of
    players (B, ...) as they leave palestra. choose: the inverse of `act`. setting: what plays there, as plain data.
    """

    entries: Mapping[str, OutsideEntry]
    read: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    act: Callable[[Tensor], Tensor]
    choose: Callable[[Tensor], Tensor]
    setting: dict[str, Any]


def unchanged(actions: Tensor) -> Tensor:
    return actions


State = dict[str, Tensor]
Moved = tuple[State, Tensor, Tensor, Tensor]  # see TensorGame.transition
Observation = dict[str, Tensor]
Kernel = Literal["numba", "torch"]
MOST_NUMBERS = 1000  # of a tensor that is shown to people
Stepper = Callable[[Tensor, Tensor], tuple[Observation, Observation, Tensor, Tensor, Tensor]]


def expand_mask(mask: Tensor, like: Tensor) -> Tensor:
    """Reshape a mask of worlds, bool (B,), so that it broadcasts against a tensor of any shape (B, ...)."""
    return mask if like.dim() == 1 else mask.view(-1, *([1] * (like.dim() - 1)))


def choose_worlds(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Take `yes` in the worlds of a mask, bool (B,), and `no` in the others; both (B, ...)."""
    return torch.where(expand_mask(mask, yes), yes, no)


def cleared(memory: Mapping[str, Tensor], where: Tensor) -> Memory:
    """Set a player's memory, (B, ...) by name, to zeros in the worlds of a mask, bool (B,)."""
    return {name: value.masked_fill(expand_mask(where, value), 0) for name, value in memory.items()}


def memory_after(decides: Tensor, memory: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> Memory:
    """Take a player's memory after a decision where it decides, bool (B,); elsewhere that before, zeros at first."""
    kept = {name: before.get(name, torch.zeros_like(value)) for name, value in memory.items()}
    return {name: choose_worlds(decides, value, kept[name]) for name, value in memory.items()}


class IllegalMove(ValueError):
    """The public `step` got an action that the rules forbid."""


class Game(ABC):
    """Base class of every game: its roles, and what each role observes and does.

    Must be set: `roles`, in the order of the axis R; `spaces` (observations) and `action_spaces` by role; `device`. May
    be set: `tallies`, the names of further counters that are summed over finished games; `always_legal`, where no
    action is ever illegal; `critic_spaces`, by role what the game shows critics alone, under other names than `spaces`;
    `notes`, lines that a training tells at its start. `settled`: the roles whose running statistics are those of
    recorded play, and which no world updates.
    """

    roles: tuple[str, ...]
    spaces: dict[str, dict[str, Space]]
    action_spaces: dict[str, ActionSpace]
    device: torch.device
    tallies: tuple[str, ...] = ()
    always_legal: bool = False
    critic_spaces: Mapping[str, dict[str, Space]] = {}
    notes: Sequence[str] = ()
    settled: frozenset[str] = frozenset()

    @property
    def declared_scores(self) -> tuple[DeclaredScore, ...]:
        """The scores of a pairing, in the order of tables; where only one can be shown, it is the first.

        Unless a game overrides them, they are the mean returns of the roles.
        """
        return declared_returns(self.roles, zero_sum=False, shown=True)

    @property
    def every_row_counts(self) -> bool:
        """Tell whether every row of a roll-out is a decision and what followed: in games of one role it is."""
        return len(self.roles) == 1

    def state_dict(self) -> dict[str, Any]:
        """Return what changes while the game is played (for instance running statistics), for checkpoints."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` has returned."""
        if state:
            raise ValueError(f"expected no state, because {type(self).__name__} has none, got {', '.join(state)}")

    def statistics(self) -> Sequence[RunningStatistics]:
        """Return the running statistics that its worlds update, always in the same order."""
        return ()

    def settle(self, role: str, observation: Observation) -> None:  # noqa: B027 (most games have no statistics)
        """Let a role's running statistics be those of these observations, (N, *space.shape), the game's own."""

    def transformed(self, role: str, observation: Observation) -> Observation:
        """Transform the game's own observations of a role, (B, *space.shape), into those that players get."""
        return observation

    @property
    def transforms_by_role(self) -> bool:
        """Tell whether `transformed` depends on the role."""
        return False

    def untransformed(self) -> "Game":
        """Return this game with observations and rewards as its rules give them, neither normalised nor clipped."""
        return self

    def outside(self, role: str) -> Outside:
        """Describe what a role observes and does in programs that act without palestra."""
        entries = {name: OutsideEntry(space.shape, space.dtype, ()) for name, space in self.spaces[role].items()}
        return Outside(entries, partial(self.transformed, role), unchanged, unchanged, {})

    def read_observation(self, role: str, observation: Any) -> tuple[Observation, bool]:
        """Convert observations of a role from outside, one or a batch, to the game's own: tensors (B, *space.shape).

        Also return whether it was a single one, which becomes a batch of one. observation: a mapping of arrays or
        tensors by entry; where there is one entry, its array alone will do. Raises ValueError for other entries or
        shapes.
        """
        spaces = self.spaces[role]
        entries = observation if isinstance(observation, Mapping) else dict.fromkeys([*spaces][:1], observation)
        if set(entries) != set(spaces):
            got = ", ".join(map(str, entries)) if isinstance(observation, Mapping) else "one array"
            raise ValueError(f"expected an observation of {role!r} with the entries {', '.join(spaces)}, got {got}")
        tensors = {
            name: torch.as_tensor(entries[name], dtype=space.dtype, device=self.device)
            for name, space in spaces.items()
        }
        is_single = all(value.shape == spaces[name].shape for name, value in tensors.items())
        tensors = {name: value.unsqueeze(0) for name, value in tensors.items()} if is_single else tensors
        nums = {len(value) for value in tensors.values() if value.dim()}
        for name, value in tensors.items():
            shape = spaces[name].shape
            if len(nums) != 1 or value.shape[1:] != shape or value.dim() != len(shape) + 1:
                raise ValueError(
                    f"expected {name!r} of {role!r} of shape {shape}, or a batch of them, got {tuple(value.shape)}"
                )
        return tensors, is_single

    def read_entry(self, role: str, name: str, values: np.ndarray) -> Tensor:
        """Convert an entry of a role's observations from outside, as `outside` describes it, to the game's own.

        values: (B, *shape outside). Returns a tensor (B, *space.shape). Raises ValueError for unknown choices.
        """
        return torch.as_tensor(values, dtype=self.spaces[role][name].dtype, device=self.device)

    def legal_by(self, role: str, observation: Observation) -> Tensor | None:
        """Find the legal actions at the game's own observations of a role; None if these do not tell.

        The actions are bool (B, flags of its action space).
        """
        if not self.always_legal:
            return None
        return self.every_action[role].expand(len(next(iter(observation.values()))), -1)

    @cached_property
    def every_action(self) -> dict[str, Tensor]:
        """By role, the mask by which all of its actions are legal: bool (1, flags of its action space)."""
        return {
            role: torch.ones((1, space.num_flags), dtype=torch.bool, device=self.device)
            for role, space in self.action_spaces.items()
        }

    def held_out(self) -> "Game":
        """Return the game that evaluations play, whose instances training never draws; this one if it has none."""
        return self

    def own_actions(self, actions: Tensor) -> np.ndarray:
        """Convert actions of players, (B, ...), to the form in which they leave palestra."""
        return actions.cpu().numpy()

    def describe_action(self, role: str, action: Tensor) -> str:
        """Describe an action of a role, in the shape of its action space, as people read it."""
        found = np.asarray(self.own_actions(action.unsqueeze(0))[0])
        return str((found.astype(np.float64).round(4) if found.dtype.kind == "f" else found).tolist())

    def describe_flags(self, role: str) -> list[str]:
        """Describe what each flag of a role's action space stands for, as people read it."""
        space = self.action_spaces[role]
        if isinstance(space, MultiDiscrete):
            return [f"choice {k + 1}: {action}" for k, num in enumerate(space.nums) for action in range(num)]
        return [self.describe_action(role, torch.tensor(flag)) for flag in range(space.num_flags)]

    def close(self) -> None:
        """Release processes and the like; called at the end of training. Playing on opens them again."""
        return None


class TensorGame(Game):
    """The rules as pure functions. Everything that changes is in the state, which they take and return.

    Must be set, in addition to the attributes of Game: `moves`, the roles that may decide in each move of a round;
    `lockstep`, whether a role that has decided in a world decides there at each of its moves until the game is over.
    `tallies` are state entries of shape (B,). May be set: `quiet_moves`, the numbers of the moves that give no reward
    and end no running game (never the last of a round); `outcome_entries`, the state entries that `scores` gets;
    `observation_transform`, what is done with observations before players get them (None: nothing); `fully_observable`,
    whether every role observes all of the state and every choice that was made, so that a person in a role may see
    them; `num_starts`, how many starts a game has, all equally likely, if its positions can be enumerated: every role
    observes everything, and no random number matters after the start. Must be implemented: `reset`, `deciding`,
    `observe`, `transition`, `legal` unless every action is, and with `critic_spaces` `observe_for_critics`; may be:
    `refill`, `transition_in_place`, `stepper`, `held_out`, `declared_scores` and `scores`, `start_of`,
    `numbered_starts`, `wins`, for reports `storyboard`, `transcript`, `tables`, and for people who ask and play
    `read_board`, `describe_board`, `describe_seen`, `read_action`, `describe_action`, `describe_flags`. With one role,
    that role decides in every world that is not over.
    """

    moves: tuple[tuple[str, ...], ...]
    lockstep: bool
    quiet_moves: tuple[int, ...] = ()
    outcome_entries: tuple[str, ...] = ()
    observation_transform: ObservationTransform | None = None
    fully_observable: bool = False
    num_starts: int | None = None

    @abstractmethod
    def reset(self, keys: Tensor) -> State:
        """Make new worlds, one per key (see palestra.randomness): keys int64 (B,).

        The tensors are new and may be written to.
        """

    def numbered_starts(self, numbers: Tensor) -> State:
        """Return the starts of these numbers, int64 (B,), below `num_starts`.

        Must be implemented if there is more than one.
        """
        return self.reset(numbers)

    def refill(self, state: State, where: Tensor, keys: Tensor) -> State:
        """Begin new worlds in the places `where` of a state: bool (B,); keys int64 (B,).

        May write to the tensors of `state`.
        """
        if not runs_on_cpu(where):
            fresh = self.reset(keys)
            return {name: choose_worlds(where, fresh[name], value) for name, value in state.items()}
        rows = where.nonzero().squeeze(1)  # a CPU computes only these; a GPU would have to wait for their number
        for name, value in self.reset(keys[rows]).items():
            # by numpy: torch's threads would spin after the copy, on the cores that the kernels' threads need
            state[name].numpy()[rows.numpy()] = value.numpy()
        return state

    @abstractmethod
    def deciding(self, state: State) -> Tensor:
        """Tell which roles decide now: bool (B, R). No role decides in a world that is over."""

    @abstractmethod
    def observe(self, state: State, role: str) -> Observation:
        """Return the observation of a role: new tensors of shape (B, *space.shape), never views of the state."""

    def observe_for_critics(self, state: State, role: str) -> Observation:
        """Return what critics of a role may observe beside its observation: new tensors, as `critic_spaces` say.

        No policy gets it.
        """
        return {}

    def legal(self, state: State, role: str) -> Tensor:
        """Return the legal actions of a role: bool (B, flags of its action space).

        Wherever the role decides, every choice has a legal action. Must be implemented unless the game is
        `always_legal`.
        """
        if not self.always_legal:
            raise NotImplementedError(f"expected {type(self).__name__}.legal, because always_legal is False")
        return self.every_action[role].expand(len(next(iter(state.values()))), -1)

    @abstractmethod
    def transition(self, state: State, actions: dict[str, Tensor], keys: Tensor) -> Moved:
        """Play one move without checks.

        actions: by role, (B, ...) as its action space says; those of roles that do not decide are ignored.

        Returns the new state, rewards (B, R) float32, terminated (B, R) bool (over for that role, no bootstrap) and
        truncated (B,) bool (cut off; never together with terminated). A world that is already over does not change; its
        reward is 0, and it has terminated.
        """

    def transition_in_place(self, state: State, actions: dict[str, Tensor], keys: Tensor) -> Moved:
        """Play a move as `transition` does; may write to the tensors of `state`, which the caller no longer needs."""
        return self.transition(state, actions, keys)

    def stepper(self, state: State) -> Stepper | None:
        """Return a faster function that plays a game of one role from a state; None if there is none.

        Only for games without tallies in which every action is legal. The function takes actions and keys, plays one
        move as `transition` does, and resets the worlds that have ended as `reset` does with keys + 1. It returns the
        observations before and after these resets, rewards (B,), terminated (B,) and truncated (B,), all of them new
        tensors, and writes into the tensors of `state`, which are contiguous.
        """
        return None

    # ---- what players get --------------------------------------------------------------------------------

    def transformed(self, role: str, observation: Observation, counted: Tensor | None = None) -> Observation:
        """Transform what `observe` gives into what players get.

        counted: bool (B,), the worlds whose observations update the running statistics first; None: no world's.
        """
        transform = self.observation_transform
        if role in self.settled:
            counted = None
        return observation if transform is None else transform(role, observation, counted)

    def settle(self, role: str, observation: Observation) -> None:
        if self.observation_transform is not None:
            here = {name: value.to(self.device) for name, value in observation.items()}
            every = torch.ones(len(next(iter(here.values()))), dtype=torch.bool, device=self.device)
            self.observation_transform(role, here, every)

    def view(self, state: State, role: str, observes: Observes) -> Observation:
        """Return what a policy that sits in a role gets: the state, the role's observation, or nothing."""
        if observes == "state":
            return state
        return self.transformed(role, self.observe(state, role)) if observes == "observation" else {}

    @property
    def transforms_by_role(self) -> bool:
        return self.observation_transform is not None and bool(self.observation_transform.moments)

    def untransformed(self) -> "TensorGame":
        if self.observation_transform is None:
            return self
        game = copy(self)
        game.observation_transform = None
        return game

    def statistics(self) -> Sequence[RunningStatistics]:
        moments = {} if self.observation_transform is None else self.observation_transform.moments
        return [each for entries in moments.values() for each in entries.values()]

    def state_dict(self) -> dict[str, Any]:
        return {} if self.observation_transform is None else {"observation": self.observation_transform.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.observation_transform is None:
            super().load_state_dict(state)
        else:
            self.observation_transform.load_state_dict(state["observation"])

    # ---- scores, and people ------------------------------------------------------------------------------

    def start_of(self, state: State) -> State:
        """Return what tells the starts of games apart: entries of a state that `reset` has made.

        Games with equal ones may depend on each other, and count as one in intervals. If all games have the same start
        because the game has no other, they are independent.
        """
        return state

    def scores(self, ends: GameEnds) -> Mapping[str, float | Share | Estimate | None]:
        """Compute the declared scores of a pairing's games, by name, without the returns; None where one is unknown.

        A Share or an Estimate is recorded with its 95% interval.
        """
        return {}

    def wins(self, ends: GameEnds) -> Mapping[str, Tensor]:
        """Count the contests that each of two roles has won in each game, (n,), of which ratings of players are made.

        Unless a game says otherwise a game is a contest, won by the higher return; equal returns count half for each.
        """
        return wins_by_return(ends.returns)

    def storyboard(self, trace: Trace) -> Storyboard | None:
        """Return a game as pictures for a report; None if the report is to show its moves as a table."""
        return None

    def transcript(self, trace: Trace) -> Transcript | None:
        """Return a game in words for a report, which shows some for every pairing; None if it has no words."""
        return None

    def tables(self, outcomes: State) -> Sequence[ShareTable]:
        """Summarise the ends of many games in tables for a report. outcomes: as in GameEnds."""
        return ()

    def read_board(self, board: Any) -> State:
        """Return the state of one world that begins with a board that somebody has typed.

        board: what JSON makes of the text, or the text itself if it is no JSON. Raises ValueError, with an example, for
        what is no board.
        """
        raise ValueError(f"expected a game whose boards can be typed, got {type(self).__name__}, which has none")

    def describe_board(self, state: State) -> str:
        """Describe a state as people read it, in one line or more; state: of one world, without the axis of worlds.

        Where the game is not `fully_observable`, a person in a role sees it only once the game is over.
        """
        return "\n".join(f"{name}: {value_text(value)}" for name, value in state.items())

    def describe_seen(self, state: State, role: str) -> str:
        """Describe what a role observes as people read it, in one line or more; state: as for `describe_board`."""
        if self.fully_observable:
            return self.describe_board(state)
        seen = self.observe({name: value.unsqueeze(0) for name, value in state.items()}, role)
        return "\n".join(f"{name}: {value_text(value[0])}" for name, value in seen.items())

    def read_action(self, role: str, text: str) -> Tensor:
        """Read an action that somebody has typed for a role: the inverse of `describe_action`.

        The action has the shape of the role's action space. Raises ValueError for what is no action; whether it is
        legal is checked elsewhere.
        """
        space = self.action_spaces[role]
        try:
            action = torch.tensor(json.loads(text))
        except (ValueError, TypeError, RuntimeError, OverflowError):
            action = torch.empty(0)
        is_float = action.is_floating_point() and space.dtype.is_floating_point and bool(action.isfinite().all())
        if action.shape != space.shape or not (is_float or action.dtype == torch.int64):
            example = self.describe_action(role, torch.zeros(space.shape, dtype=space.dtype))
            raise ValueError(f"expected an action such as {example}, got {text!r}")
        return action.to(space.dtype).to(self.device)

    def step(self, state: State, actions: dict[str, Tensor], keys: Tensor) -> Moved:
        """Play one move as `transition` does, with checks.

        Raises IllegalMove for an action that is missing, out of range or illegal.
        """
        deciding = self.deciding(state)
        for index, role in enumerate(self.roles):
            wanted = deciding[:, index]
            if role not in actions:
                if wanted.any():
                    raise IllegalMove(
                        f"expected actions of {role!r}, which decides in {int(wanted.sum())} worlds, got none"
                    )
                continue
            action, space = actions[role], self.action_spaces[role]
            if not isinstance(space, Box):  # ignored actions may be any number
                actions = actions | {role: action.masked_fill(~expand_mask(wanted, action), 0)}
            illegal = wanted & ~is_legal(action, space, self.legal(state, role))
            if illegal.any():
                world = int(illegal.nonzero()[0, 0])
                there = (
                    f"between {space.low} and {space.high}"
                    if isinstance(space, Box)
                    else self._legal_actions(state, role, world)
                )
                got = action[world].tolist()
                raise IllegalMove(f"expected a legal action of {role!r} in world {world} ({there}), got {got}")
        return self.transition(state, actions, keys)

    def _legal_actions(self, state: State, role: str, world: int) -> list[Any]:
        """List the legal actions in one world: numbers, or a list of numbers for every choice."""
        space, legal = self.action_spaces[role], self.legal(state, role)[world]
        if isinstance(space, MultiDiscrete):
            return [flags.nonzero().flatten().tolist() for flags in legal.split(list(space.nums))]
        return legal.nonzero().flatten().tolist()


def value_text(value: Tensor) -> str:
    """Write a tensor as people read it: its numbers, with 4 decimals; if there are many, only its dtype and shape."""
    if value.numel() > MOST_NUMBERS:
        return f"{str(value.dtype).removeprefix('torch.')} numbers of shape {tuple(value.shape)}"
    return str(value.double().cpu().numpy().round(4).tolist() if value.is_floating_point() else value.tolist())


def is_legal(action: Tensor, space: ActionSpace, legal: Tensor) -> Tensor:
    """Tell which actions (B, ...) are legal: bool (B,). legal: bool (B, flags of the action space)."""
    if isinstance(space, Box):
        low, high = action.new_tensor(space.low), action.new_tensor(space.high)
        return ((action >= low) & (action <= high)).all(dim=1)
    choices = action.view(len(action), len(space.nums)).unbind(1)
    sound = torch.ones(len(action), dtype=torch.bool, device=action.device)
    for choice, num, flags in zip(choices, space.nums, space.split(legal), strict=True):
        inside = (choice >= 0) & (choice < num)
        sound &= inside & flags.gather(1, choice.clamp(0, num - 1).unsqueeze(1)).squeeze(1)
    return sound
