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


@dataclass(frozen=True)
class Positions:
    """Every position of a game in which the roles decide one at a time, and the first gains what the second loses.

    state: of each position, (N, ...). mover: the number of the role that decides there, int64 (N,), or OVER. legal:
    bool (N, A). child: the number of the position after each action, int64 (N, A). reward: of the first role, float64
    (N, A). starts: int64 (S,), without those that are over. waves: the positions that are not over, each wave with
    those of which all children are over or in earlier ones. keys, numbers: of all states, sorted by their bytes.
    """

    state: State
    mover: Tensor
    legal: Tensor
    child: Tensor
    reward: Tensor
    starts: Tensor
    waves: list[Tensor]
    keys: np.ndarray
    numbers: np.ndarray

    def values(self, policies: Mapping[int, Tensor]) -> Tensor:
        """Compute what the first role gains on average from each position on: float64 (N,).

        policies: by the number of a role, the probabilities of its actions at every position, (N, A). A role without
        one plays the best response; if neither has one, both play optimally.
        """
        values = torch.zeros(len(self.mover), dtype=torch.float64, device=self.mover.device)
        for wave in self.waves:
            mover, outcomes = self.mover[wave], self.reward[wave] + values[self.child[wave]]
            sign = 1.0 - 2.0 * mover  # the second role wants it low
            wanted = (outcomes * sign.unsqueeze(1)).masked_fill(~self.legal[wave], -torch.inf)
            values[wave] = wanted.amax(dim=1) * sign
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

    def find(self, state: State) -> Tensor:
        """Return the numbers of states, int64 (B,); -1 for one that no game reaches."""
        return torch.from_numpy(_found(_keys(state), self.keys, self.numbers)).to(self.mover.device)


def _keys(state: State) -> np.ndarray:
    """Return the bytes of each state as one value: (B,)."""
    rows = [state[name].unsqueeze(1).flatten(1).cpu().contiguous().view(torch.uint8) for name in sorted(state)]
    joined = torch.cat(rows, dim=1).numpy()
    return joined.view(f"V{joined.shape[1]}")[:, 0]


def _found(keys: np.ndarray, known: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    at = known.searchsorted(keys).clip(max=len(known) - 1)
    return np.where(known[at] == keys, numbers[at], -1)


@lru_cache(maxsize=2)  # a player in both seats, and an evaluation of it, ask for the same
def positions_of(game: Game, max_positions: int) -> Positions:
    """Enumerate the positions of a game, layer by layer from its starts.

    Raises ConfigError for a game without `num_starts`, with more than `max_positions`, in which roles do not decide one
    at a time, rewards do not sum to 0, random numbers matter, or positions recur.
    """
    reached = starts_of(game, max_positions)
    assert isinstance(game, TensorGame)
    most = max(space.num_flags for space in game.action_spaces.values())
    over, known = ~game.deciding(reached).any(dim=1), _keys(reached)[:0]
    layers, links = [], []
    while True:
        links.append(_keys(reached))
        keys, rows = np.unique(links[-1], return_index=True)
        is_new = ~np.isin(keys, known, assume_unique=True)
        known, new = np.concatenate([known, keys[is_new]]), torch.from_numpy(rows[is_new]).to(game.device)
        if not len(new):
            break
        if len(known) > max_positions:
            raise refusal(f"at most max_positions = {max_positions:,} positions", f"{len(known):,} or more")
        state, over = {name: value[new] for name, value in reached.items()}, over[new]
        deciding = game.deciding(state) & ~over.unsqueeze(1)
        if bool((deciding.sum(dim=1) != ~over).any()):
            raise refusal("a game in which exactly one role decides at a time", "positions with none or several")
        mover, legal = torch.where(over, OVER, deciding[:, 1].long()), deciding.new_zeros(len(new), most)
        for number, role in enumerate(game.roles):
            legal[:, : game.action_spaces[role].num_flags] |= game.legal(state, role) & (mover == number).unsqueeze(1)
        place, action = legal.nonzero(as_tuple=True)
        actions = {role: action.clamp(max=space.num_flags - 1) for role, space in game.action_spaces.items()}
        reached, rewards, terminated, truncated = played(game, {k: v[place] for k, v in state.items()}, actions)
        over = terminated.all(dim=1) | truncated
        layers.append((state, mover, legal, rewards[:, 0].double()))
    states, movers, masks, gains = zip(*layers, strict=True)
    state = {name: torch.cat([each[name] for each in states]) for name in reached}
    mover, legal, order = torch.cat(movers), torch.cat(masks), known.argsort()
    numbers = _found(np.concatenate(links), known[order], order)
    starts, children = torch.from_numpy(numbers).to(game.device).tensor_split([len(links[0])])
    child, reward = torch.zeros_like(legal, dtype=torch.int64), torch.zeros_like(legal, dtype=torch.float64)
    child[legal], reward[legal] = children, torch.cat(gains)
    starts = starts[mover[starts] != OVER]
    return Positions(state, mover, legal, child, reward, starts, _waves(mover, legal, child), known[order], order)


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


def starts_of(game: Game, most: int) -> State:
    """Return the starts of a game that can be enumerated. Raises ConfigError for another one, or for more starts."""
    if not isinstance(game, TensorGame) or not isinstance(game.num_starts, int) or game.num_starts < 1:
        raise refusal("a game whose positions can be enumerated (TensorGame.num_starts)", type(game).__name__)
    if not game.fully_observable:
        raise refusal("a game in which roles observe everything (fully_observable)", type(game).__name__)
    if len(game.roles) != 2 or not all(isinstance(space, Discrete) for space in game.action_spaces.values()):
        raise refusal("a game of two roles with Discrete actions", f"{game.action_spaces}")
    if game.num_starts > most:
        raise refusal(f"at most max_positions = {most:,} positions", f"{game.num_starts:,} starts")
    return game.numbered_starts(torch.arange(game.num_starts, device=game.device))


def played(game: TensorGame, state: State, actions: dict[str, Tensor]) -> Moved:
    """Play one move. Raises ConfigError if random numbers matter, or rewards do not sum to 0."""
    keys = 2 * torch.arange(len(actions[game.roles[0]]), device=game.device)  # many, because chance may be rare
    moved, again = (game.transition(dict(state), actions, keys + number) for number in range(2))
    if not all(map(torch.equal, [*moved[0].values(), *moved[1:]], [*again[0].values(), *again[1:]])):
        raise refusal("moves that depend on no random number", "others")
    if len(uneven := moved[1][moved[1].sum(dim=1) != 0]):
        raise refusal("a zero-sum game, whose rewards sum to 0", f"the rewards {uneven[0].tolist()}")
    return moved


def refusal(expected: str, got: str) -> ConfigError:
    return ConfigError.at("", f"expected {expected}, got {got}")
