"""All positions of a small game of two roles, and its solution by backward induction.

Letters: N positions, S starts, A actions (the most of both roles), B states.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from palestra.config import ConfigError
from palestra.games.game import Game, Moved, State, TensorGame
from palestra.games.spaces import Discrete

OVER = -1


class StateNumbers:
    """Numbers different states from 0 on, in the order in which they are added. It tells them apart by their bytes."""

    def __init__(self) -> None:
        self.keys, self.numbers = np.empty(0), np.empty(0, dtype=np.int64)  # sorted by key

    def add(self, state: State) -> tuple[Tensor, Tensor]:
        """Number the states that are new. Returns the numbers of all, (B,), and the row of each new one, int64."""
        keys, rows, inverse = np.unique(_keys(state), return_index=True, return_inverse=True)
        if not len(self.keys):
            self.keys = keys[:0]
        new = np.flatnonzero(self._find(keys) < 0)
        new = new[rows[new].argsort()]
        numbers = np.arange(len(self.keys), len(self.keys) + len(new))
        order = (joined := np.concatenate([self.keys, keys[new]])).argsort(kind="stable")
        self.keys, self.numbers = joined[order], np.concatenate([self.numbers, numbers])[order]
        return torch.from_numpy(self._find(keys)[inverse.ravel()]), torch.from_numpy(rows[new])

    def find(self, state: State) -> Tensor:
        """Return the numbers of states, int64 (B,); -1 for one that was never added."""
        return torch.from_numpy(self._find(_keys(state)))

    def _find(self, keys: np.ndarray) -> np.ndarray:
        if not len(self.keys):
            return np.full(len(keys), -1)
        at = self.keys.searchsorted(keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[at] == keys, self.numbers[at], -1)


def _keys(state: State) -> np.ndarray:
    """Return the bytes of each state as one value: (B,)."""
    rows = [state[name].unsqueeze(1).flatten(1).cpu().contiguous().view(torch.uint8) for name in sorted(state)]
    joined = torch.cat(rows, dim=1).numpy()
    return joined.view(f"V{joined.shape[1]}")[:, 0]


@dataclass(frozen=True)
class Positions:
    """Every position of a game in which the roles decide alternately, and the first gains what the second loses.

    states: their numbers, which count the N positions. mover: the number of the role that decides there, int64 (N,), or
    OVER. legal: bool (N, A). child: the number of the position after each action, int64 (N, A). reward: of the first
    role, float64 (N, A). starts: their numbers, int64 (S,), without those that are over. waves: the numbers of the
    positions that are not over, each wave with those of which all children are over or in earlier ones.
    """

    states: StateNumbers
    state: State
    mover: Tensor
    legal: Tensor
    child: Tensor
    reward: Tensor
    starts: Tensor
    waves: list[Tensor]

    def values(self, policies: Mapping[int, Tensor]) -> Tensor:
        """Compute what the first role gains on average from each position on: float64 (N,).

        policies: by the number of a role, the probabilities of its actions at every position, (N, A). A role without
        one plays the best response; if neither has one, both play optimally.
        """
        values = torch.zeros(len(self.mover), dtype=torch.float64, device=self.mover.device)
        for wave in self.waves:
            outcomes, illegal, mover = self.reward[wave] + values[self.child[wave]], ~self.legal[wave], self.mover[wave]
            most, least = outcomes.masked_fill(illegal, -torch.inf), outcomes.masked_fill(illegal, torch.inf)
            values[wave] = torch.where(mover == 0, most.amax(dim=1), least.amin(dim=1))
            for role, policy in policies.items():
                values[wave] = torch.where(mover == role, (policy[wave] * outcomes).sum(dim=1), values[wave])
        return values

    def best(self) -> Tensor:
        """Find the optimal actions at every position: bool (N, A)."""
        values = self.values({})
        return self.legal & (self.reward + values[self.child] == values.unsqueeze(1))

    def mean(self, values: Tensor) -> float:
        """Return the mean over the starts of what each position is worth, float64 (N,)."""
        return float(values[self.starts].mean())


@lru_cache(maxsize=2)  # a player in both seats, and an evaluation of it, ask for the same
def positions_of(game: Game, max_positions: int) -> Positions:
    """Enumerate the positions of a game, layer by layer from its starts.

    Raises ConfigError for a game without `num_starts`, with more than `max_positions`, or in which roles do not decide
    one at a time, rewards do not sum to 0, random numbers matter, or positions recur.
    """
    starts = starts_of(game, max_positions)
    assert isinstance(game, TensorGame)
    states = StateNumbers()
    start_numbers, rows = states.add(starts)
    state = {name: value[rows.to(game.device)] for name, value in starts.items()}
    over = ~game.deciding(state).any(dim=1)
    layers = []
    while len(over):
        mover, legal = _decisions(game, state, over)
        place, action = legal.nonzero(as_tuple=True)
        actions = {role: action.clamp(max=_num_actions(game, role) - 1) for role in game.roles}
        after, rewards, terminated, truncated = played(game, {k: v[place] for k, v in state.items()}, actions)
        numbers, rows = (found.to(game.device) for found in states.add(after))
        if (num := len(states.keys)) > max_positions:
            raise refusal(f"at most max_positions = {max_positions:,} positions", f"{num:,} or more")
        child, reward = torch.zeros_like(legal, dtype=torch.int64), torch.zeros_like(legal, dtype=torch.float64)
        child[place, action], reward[place, action] = numbers, rewards[:, 0].double()
        layers.append((state, mover, legal, child, reward))
        state, over = {k: v[rows] for k, v in after.items()}, (terminated.all(dim=1) | truncated)[rows]
    parts, *columns = zip(*layers, strict=True)
    mover, legal, child, reward = map(torch.cat, columns)
    state = {name: torch.cat([part[name] for part in parts]) for name in starts}
    begun = start_numbers.to(game.device)
    begun = begun[mover[begun] != OVER]
    return Positions(states, state, mover, legal, child, reward, begun, _waves(mover, legal, child))


def starts_of(game: Game, most: int) -> State:
    """Return the starts of a game that can be enumerated. Raises ConfigError for another one, or more starts."""
    if not isinstance(game, TensorGame) or game.num_starts is None or not game.fully_observable:
        raise refusal("a game whose positions can be enumerated (TensorGame.num_starts)", type(game).__name__)
    if len(game.roles) != 2 or not all(isinstance(space, Discrete) for space in game.action_spaces.values()):
        raise refusal("a game of two roles with Discrete actions", f"{', '.join(game.roles)}: {game.action_spaces}")
    if game.num_starts > most:
        raise refusal(f"at most max_positions = {most:,} positions", f"{game.num_starts:,} starts")
    numbers = torch.arange(game.num_starts, device=game.device)
    return game.numbered_starts(numbers)


def played(game: TensorGame, state: State, actions: dict[str, Tensor]) -> Moved:
    """Play one move. Raises ConfigError if random numbers matter, or rewards do not sum to 0."""
    keys = torch.zeros_like(actions[game.roles[0]])
    moved, again = (game.transition(dict(state), actions, keys + number) for number in range(2))
    tensors, others = ([*found[0].values(), *found[1:]] for found in (moved, again))
    if not all(map(torch.equal, tensors, others)):
        raise refusal("moves that depend on no random number", "others")
    if len(uneven := moved[1][moved[1].sum(dim=1) != 0]):
        raise refusal("a zero-sum game, whose rewards sum to 0", f"the rewards {uneven[0].tolist()}")
    return moved


def refusal(expected: str, got: str) -> ConfigError:
    return ConfigError.at("", f"expected {expected}, got {got}")


def _num_actions(game: TensorGame, role: str) -> int:
    return game.action_spaces[role].num_flags


def _decisions(game: TensorGame, state: State, over: Tensor) -> tuple[Tensor, Tensor]:
    """Return who decides, int64 (B,), and the legal actions, bool (B, A); OVER and none where the game is over."""
    deciding = game.deciding(state) & ~over.unsqueeze(1)
    if bool((deciding.sum(dim=1) != ~over).any()):
        raise refusal("a game in which exactly one role decides at a time", "positions with none or several")
    flags = [game.legal(state, role) for role in game.roles]
    most = max(each.shape[1] for each in flags)
    first, second = (torch.nn.functional.pad(each, (0, most - each.shape[1])) for each in flags)
    mover = torch.where(over, OVER, deciding.to(torch.int8).argmax(dim=1))
    return mover, torch.where(deciding[:, :1], first, second) & ~over.unsqueeze(1)


def _waves(mover: Tensor, legal: Tensor, child: Tensor) -> list[Tensor]:
    waves, solved, left = [], mover == OVER, (mover != OVER).nonzero().squeeze(1)
    while len(left):
        is_ready = (solved[child[left]] | ~legal[left]).all(dim=1)
        if not bool(is_ready.any()):
            raise refusal("a game in which no position recurs", f"{len(left):,} positions that lead to each other")
        waves.append(left[is_ready])
        solved[waves[-1]] = True
        left = left[~is_ready]
    return waves
