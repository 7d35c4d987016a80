"""World: the stateful face of a game of one role, on which a roll-out plays; and the World of a TensorGame.

Letters: B worlds.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from palestra.games.game import Observation, State, TensorGame


class Outcome(NamedTuple):
    """What a step gave, all (B, ...). observation: the true one after the step, also where the game has ended.

    reward: float32, what is learned from; raw_reward: float32, what returns are made of, the same unless the world
    transforms rewards. terminated (over; no bootstrap) and truncated (cut off; bootstrap from `observation`): bool,
    never both. valid: bool, False where the step only began a new game and nothing was decided. tallies: the
    counters that the game names so, as they stood after the step.
    """

    observation: Observation
    legal: Tensor
    reward: Tensor
    raw_reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    tallies: tuple[Tensor, ...]


class World(ABC):
    """A batch of worlds with one role in each, which step together; those that end begin anew by themselves.

    observation: what the role sees at its next decision, (B, *space.shape). legal: its legal actions, bool (B, flags).
    Both are replaced at a step, never written to. exact: whether all of its games went on as they were when its state
    was loaded.
    """

    observation: Observation
    legal: Tensor
    exact: bool = True

    @abstractmethod
    def step(self, action: Tensor, keys: Tensor) -> Outcome:
        """Play one decision in every world. keys: int64 (B,), for what chance the rules need."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class TensorWorld(World):
    """The World of a TensorGame with one role. A start that is over before its first decision ends after one step with
    reward 0. Where the game has a stepper, `state` is written to by every step."""

    def __init__(self, game: TensorGame, keys: Tensor) -> None:
        (self.role,) = game.roles
        self.game = game
        self.every = torch.ones(len(keys), dtype=torch.bool, device=game.device)
        self._put(game.reset(keys))

    def _put(self, state: State) -> None:
        self.state, self.stepper = state, self.game.stepper(state)
        self._look()

    def _look(self) -> None:
        self.observation = self.game.observe(self.state, self.role)
        self.legal = self.game.legal(self.state, self.role)

    def step(self, action: Tensor, keys: Tensor) -> Outcome:
        if self.stepper is not None:
            seen, self.observation, reward, over, truncated = self.stepper(action, keys)
            return Outcome(seen, self.legal, reward, reward, over, truncated, self.every, ())
        self.state, rewards, terminated, truncated = self.game.transition(self.state, {self.role: action}, keys)
        self._look()
        over = terminated[:, 0]
        tallies = tuple(self.state[name].clone() for name in self.game.tallies)  # a refill writes to the state
        reward = rewards[:, 0]
        outcome = Outcome(self.observation, self.legal, reward, reward, over, truncated, self.every, tallies)
        self._refill(over | truncated, keys + 1)
        return outcome

    def _refill(self, ended: Tensor, keys: Tensor) -> None:
        if ended.device.type == "cpu" and not ended.any():
            return
        self.state = self.game.refill(self.state, ended, keys)
        self._look()

    def state_dict(self) -> dict[str, Any]:
        return {"state": {name: value.clone() for name, value in self.state.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._put({name: value.to(self.game.device, copy=True) for name, value in state["state"].items()})
