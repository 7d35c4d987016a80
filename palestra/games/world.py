"""World: the stateful face of a game of one role, on which a roll-out plays; and the World of a TensorGame.

Letters: B worlds.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from palestra.games.game import Game, Observation, State, TensorGame
from palestra.games.policy import Policy
from palestra.recording.aggregates import Aggregates


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


class EnvironmentFailed(Exception):
    """An environment has raised, exited or given something wrong, or its process has ended. It cannot be stepped on.

    fault: what happened, in one line. world: the environment's index among those that step together; None where that
    cannot be told. place: which environment it was and what it was doing; its world fills it in.
    """

    def __init__(self, fault: str, world: int | None = None, place: str = "") -> None:
        super().__init__(fault, world, place)  # all: where it crosses processes it is made again from them
        self.fault, self.world, self.place = fault, world, place

    def __str__(self) -> str:
        return f"{self.place}: {self.fault}" if self.place else self.fault


class InfoFields(Protocol):
    """Numbers that environments tell beside observations and rewards, as they are gathered from one record to the
    next."""

    gathered: Aggregates

    def news(self) -> Iterator[str]:
        """What the user should know of the fields that were asked for; each line once."""


class EnvironmentWorld(World):
    """Environments that step together: what can be done with them beside playing."""

    frames_per_second: float

    @abstractmethod
    def restart(self, where: Tensor) -> None:
        """Leave the running games of some worlds, bool (B,), and begin the next ones."""

    @abstractmethod
    def picture(self) -> np.ndarray:
        """What the first world looks like now: uint8 (height, width, 3), both even, as the usual coding of video wants.
        Raises ConfigError where it cannot be drawn."""

    @abstractmethod
    def gather_info(self, names: Sequence[str], gathered: Aggregates) -> InfoFields:
        """Gather fields of what the environments tell beside observations and rewards, from now on."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the environments, which may be played on afterwards."""


class WorldGame(Game):
    """A game of one role whose worlds keep their state to themselves: an environment that others have written.

    Must be set, beside what every game tells: `can_restart`, whether single worlds can be begun anew before their end.
    """

    can_restart: bool

    @abstractmethod
    def make_world(self, num_worlds: int, key: int, training: bool) -> EnvironmentWorld:
        """Fresh worlds; their chance comes from `key`. training: whether the game may learn from them (running
        statistics, say)."""

    @abstractmethod
    def act(self, policy: Policy, observations: Any, key: int) -> np.ndarray:
        """What a policy does on a batch of the environment's own observations, as the environment takes it. What it
        draws comes from `key`."""

    @abstractmethod
    def drawn(self) -> "WorldGame":
        """The same game, whose worlds have a `picture`; it knows what this one has learned. Raises ConfigError where
        there is none."""


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
