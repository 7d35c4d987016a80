"""World: the stateful face of a game of one role, on which a roll-out plays; and the World of a TensorGame.

Letters: B worlds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from palestra.config import Failed
from palestra.games.game import Game, Observation, State, TensorGame, choose_worlds
from palestra.games.info import InfoFields, StepInfo
from palestra.games.tryout_calls import CannotGoOn, CheckedCalls


class Outcome(NamedTuple):
    """The result of a step, all (B, ...). observation: the true one after the step, also where a game has ended.

    reward: float32, to learn from; raw_reward: float32, of which returns are sums; the two are the same unless the
    world transforms rewards. terminated (no bootstrap) and truncated (bootstrap from `observation`): bool, never both.
    valid: bool, False in worlds in which the step only began a new game, without a decision. tallies: the values of the
    game's counters after the step, in the order of `Game.tallies`.
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
    """A batch of worlds with one role in each, which step together. When a game ends, a new one begins in its place.

    observation: of the role at its next decision, (B, *space.shape). legal: its legal actions, bool (B, flags). A step
    replaces both with new tensors. exact: whether, after its state was loaded, all of its games went on to the same
    bits.
    """

    observation: Observation
    legal: Tensor
    exact: bool = True

    @abstractmethod
    def step(self, action: Tensor, keys: Tensor) -> Outcome:
        """Play one decision in every world.

        action: (B, ...) as the action space says. keys: int64 (B,), of the random numbers that the rules draw.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class EnvironmentFailed(Failed):
    """An environment has raised, exited or returned an invalid value, or its process has ended. It cannot go on.

    fault: what happened, in one line. world: the environment's index among those that step together; None if it is not
    known. place: which environment it was, and the step or reset in which it failed; its World sets it. would_repeat:
    whether a run that is resumed would surely fail again, because it is the fault of its player.
    """

    would_repeat = False

    def __init__(self, fault: str, world: int | None = None, place: str = "") -> None:
        super().__init__(fault, world, place)  # all of them, because pickle makes an exception anew from its args
        self.fault, self.world, self.place = fault, world, place

    def __str__(self) -> str:
        return f"{self.place}: {self.fault}" if self.place else self.fault


class EnvironmentWorld(World):
    """A World of environments that others have written: they can also be restarted, rendered and closed."""

    frames_per_second: float

    @abstractmethod
    def restart(self, where: Tensor) -> None:
        """Abandon the running games of some worlds, bool (B,), and begin the next ones."""

    @abstractmethod
    def render(self) -> np.ndarray:
        """Render the first world: uint8 (height, width, 3), height and width even, as video encoders need them.

        Raises ConfigError if it cannot be rendered.
        """

    @abstractmethod
    def read_info(self, info: InfoFields | StepInfo) -> None:
        """From now on, let this read its fields of the environments' `info` at every step."""

    @abstractmethod
    def close(self) -> None:
        """Close the environments; a later step opens them again."""


class WorldGame(Game):
    """A game of one role whose state lies in its worlds: an environment that others have written.

    Must be set, in addition to the attributes of Game: `can_restart`, whether a single world can be restarted before
    its game has ended.

    step_within_s: how long a step or reset of its worlds may take (`execution.step_within_s` of a run); None: for ever.
    """

    can_restart: bool
    step_within_s: float | None = None

    @abstractmethod
    def make_world(self, num_worlds: int, key: int, training: bool, first: int = 0) -> EnvironmentWorld:
        """Make new worlds, whose randomness comes from `key` and their numbers.

        training: whether they update what the game learns while it is played (running statistics, for instance). first:
        the number of the first of them.
        """

    @abstractmethod
    def play_outside(self, num_worlds: int, num_rounds: int, key: int, choose: Callable[[Any, Any], Any]) -> None:
        """Play environments as a program outside palestra would, without training.

        key: of the seeds of their episodes. choose: gives actions at a batch of observations, both in the environments'
        own form, and of legal actions, None where all are. Raises EnvironmentFailed.
        """

    @abstractmethod
    def with_rendering(self) -> "WorldGame":
        """Return the same game, with this one's state, whose worlds can `render`. Raises ConfigError if they cannot."""


LAYOUT = attrgetter("shape", "dtype")


def require_finite(role: str, action: Tensor, observed: Mapping[str, Tensor]) -> None:
    """Raise EnvironmentFailed for actions, float32 (B, n), that are no finite numbers: a game would be blamed for them.

    Before each move, who plays asks it if their sum is none, which may also have overflowed. observed: what the role
    observes.
    """
    if not bool((are_finite := action.isfinite().all(dim=1)).all()):
        world, cause = int((~are_finite).int().argmax()), "as of a network that has diverged"
        if not all(bool(each.isfinite().all()) for each in observed.values()):
            cause = "after observations that were no finite numbers"
        fault = f"expected finite numbers as its action, got {action[world].tolist()}, {cause}"
        failed = EnvironmentFailed(fault, world, f"the player in the role {role!r}, world {world}")
        failed.would_repeat = True
        raise failed


class Layouts:
    """The LAYOUT of all that a game gives in B worlds, which kernels take for granted.

    A game of the user's own may go wrong long after its try-out. Whoever plays it compares the two in place, without a
    call of Python's per step. deciding: of that mask. seen: by role, the pairs of entries observed and legal actions
    that are right: nothing is observed, its own, and what critics observe, too. moved: of rewards, terminated and
    truncated.
    """

    def __init__(self, game: TensorGame, num_worlds: int) -> None:
        self.game, self.num_worlds, shape = game, num_worlds, (num_worlds, len(game.roles))
        self.deciding = (shape, torch.bool)
        self.moved = [(shape, torch.float32), self.deciding, (shape[:1], torch.bool)]
        self.seen = {}
        for role, space in game.action_spaces.items():
            own, critic = game.spaces[role], game.critic_spaces.get(role, {})
            layouts = {n: ((num_worlds, *each.shape), each.dtype) for n, each in {**own, **critic}.items()}
            legal = ((num_worlds, space.num_flags), torch.bool)
            self.seen[role] = [({}, legal), ({name: layouts[name] for name in own}, legal), (layouts, legal)]

    def refuse_seen(self, role: str, seen: Observation, legal: Any) -> NoReturn:
        """Raise EnvironmentFailed: of legal actions and what a role and its critics observe, something is not so."""
        calls = CheckedCalls(self.game)
        calls.check_tensor("legal", f"for {role!r} ", legal, torch.bool, self.seen[role][0][1][0])
        self._check_seen(calls, role, seen, self.num_worlds)
        self._refuse(calls)

    def _check_seen(self, calls: CheckedCalls, role: str, seen: Observation, num_rows: int) -> None:
        own, critic = self.game.spaces[role], self.game.critic_spaces.get(role, {})
        for method, where, spaces in (("observe", "spaces", own), ("observe_for_critics", "critic_spaces", critic)):
            found = {name: value for name, value in seen.items() if (name in critic) == (spaces is critic)}
            if found or spaces is own:
                calls.check_observation(method, role, found, spaces, where, num_rows, {})

    def refuse_deciding(self, deciding: Any) -> NoReturn:
        """Raise EnvironmentFailed for a mask of who decides that is not so."""
        calls, (shape, dtype) = CheckedCalls(self.game), self.deciding
        calls.check_tensor("deciding", "", deciding, dtype, shape)
        self._refuse(calls)

    def refuse_moved(self, moved: Any) -> NoReturn:
        """Raise EnvironmentFailed for what a move has given, something of which is not so."""
        calls = CheckedCalls(self.game)
        with suppress(CannotGoOn):
            calls.check_moved(moved, *self.deciding[0])
        self._refuse(calls)

    def require_legal(self, role: str, legal: Tensor, needed: Tensor) -> None:
        """Raise EnvironmentFailed if no action was legal where one is `needed`, bool (T * B,)."""
        calls = CheckedCalls(self.game)
        calls.check_legal(role, self.game.action_spaces[role], legal, needed, self.num_worlds)
        if calls.faults:
            self._refuse(calls)

    def require_finite(self, role: str, reward: Tensor, seen: Observation) -> None:
        """Raise EnvironmentFailed if rewards, (T * B,), or observations of a role are no finite numbers."""
        calls = CheckedCalls(self.game)
        if not bool(reward.isfinite().all()):
            calls.fault("transition", "finite rewards", "nan or inf")
        self._check_seen(calls, role, seen, len(reward))
        if calls.faults:
            self._refuse(calls)

    def _refuse(self, calls: CheckedCalls) -> NoReturn:
        method, fault = next(iter(calls.faults.values()))
        raise EnvironmentFailed(fault, place=f"{type(self.game).__name__}.{method}")


class TensorWorld(World):
    """The World of a TensorGame with one role.

    A game that is over before its first decision ends after one step, with reward 0. If the game has a stepper, every
    step writes to `state`.

    with_critics: whether observations hold what the game shows critics alone, too; see `show_critics`. What it observes
    updates the game's running statistics, if there are any. An observation stays as it was transformed then, and is
    part of the state.
    """

    def __init__(self, game: TensorGame, keys: Tensor) -> None:
        (self.role,) = game.roles
        self.game = game
        self.all_valid = torch.ones(len(keys), dtype=torch.bool, device=game.device)
        self.with_critics = False
        self.layouts = Layouts(game, len(keys))
        self._set_state(game.reset(keys))
        self.observation = game.transformed(self.role, game.observe(self.state, self.role), self.all_valid)

    def show_critics(self, with_critics: bool) -> None:
        """Let observations from now on hold what the game shows critics alone, or no longer. A stepper gives none."""
        if with_critics != self.with_critics:
            self.with_critics = with_critics
            self._set_state(self.state)
            self.observation = self._own() | self._for_critics()

    def _set_state(self, state: State) -> None:
        self.state, self.stepper = state, None if self.with_critics else self.game.stepper(state)
        self.legal = self.game.legal(state, self.role)

    def _for_critics(self) -> Observation:
        """Return what the game shows critics alone, if they are shown anything."""
        return self.game.observe_for_critics(self.state, self.role) if self.with_critics else {}

    def _own(self) -> Observation:
        """Return the observation of the next decision without what critics alone are shown."""
        return {name: self.observation[name] for name in self.game.spaces[self.role]}

    def step(self, action: Tensor, keys: Tensor) -> Outcome:
        game, role = self.game, self.role
        if self.stepper is not None:
            own, begun, reward, ended, truncated = self.stepper(action, keys)
            observation = self._observe(own, begun, ended, truncated)
            return Outcome(observation, self.legal, reward, reward, ended, truncated, self.all_valid, ())
        moved = game.transition(self.state, {role: action}, keys)
        if [*map(LAYOUT, moved[1:])] != self.layouts.moved:
            self.layouts.refuse_moved(moved)
        self.state, rewards, terminated, truncated = moved
        own, legal = game.observe(self.state, role), game.legal(self.state, role)
        reward, ended = rewards[:, 0], terminated[:, 0]
        tallies = tuple(self.state[name].clone() for name in game.tallies)  # a refill writes to the state
        begun, self.legal, begins = own, legal, ended | truncated
        for_critics = begun_for_critics = self._for_critics()
        if begins.device.type != "cpu" or begins.any():
            self.state = game.refill(self.state, begins, keys + 1)
            begun, self.legal = game.observe(self.state, role), game.legal(self.state, role)
            begun_for_critics = self._for_critics()
        for seen, flags in (({**own, **for_critics}, legal), ({**begun, **begun_for_critics}, self.legal)):
            if (dict(zip(seen, map(LAYOUT, seen.values()), strict=True)), LAYOUT(flags)) not in self.layouts.seen[role]:
                self.layouts.refuse_seen(role, seen, flags)
        observation = self._observe(own, begun, ended, truncated)
        if self.with_critics:
            observation = observation | for_critics
            self.observation = self.observation | begun_for_critics
        return Outcome(observation, legal, reward, reward, ended, truncated, self.all_valid, tallies)

    def _observe(self, own: Observation, begun: Observation, ended: Tensor, truncated: Tensor) -> Observation:
        """Return the observation after a step as the player gets it, and keep that of the next decision.

        own: of the game, before worlds begin anew. begun: of the game, after that.
        """
        if self.game.observation_transform is None:
            self.observation = begun
            return own
        observation = self.observation = self.game.transformed(self.role, own, self.all_valid)
        if begun is not own:
            begins = ended | truncated
            first = self.game.transformed(self.role, begun, begins)
            self.observation = {name: choose_worlds(begins, value, observation[name]) for name, value in first.items()}
        return observation

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"state": {name: value.clone() for name, value in self.state.items()}}
        return state if self.game.observation_transform is None else state | {"observation": self._own()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.game.device
        self._set_state({name: value.to(device, copy=True) for name, value in state["state"].items()})
        if self.game.observation_transform is None:
            self.observation = self.game.observe(self.state, self.role)
        else:
            self.observation = {name: value.to(device) for name, value in state["observation"].items()}
        self.observation = self.observation | self._for_critics()
