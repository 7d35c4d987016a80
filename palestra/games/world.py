"""World: the stateful face of a game of one role, on which a roll-out plays; and the World of a TensorGame.

Letters: B worlds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from palestra.config import Failed
from palestra.games.game import Game, Observation, State, TensorGame, choose_worlds
from palestra.games.info import InfoFields, StepInfo
from palestra.games.tryout_calls import described


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
    known. place: which environment it was, and the step or reset in which it failed; its World sets it.
    """

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
MOVED = ("rewards", "terminated", "truncated")


class Rules:
    """The rules of a game in B worlds, whose results are as kernels take them for granted, at any time.

    A game of the user's own may go wrong long after its try-out.
    """

    def __init__(self, game: TensorGame, num_worlds: int) -> None:
        self.game, flags = game, ((num_worlds, len(game.roles)), torch.bool)
        moved = ((flags[0], torch.float32), flags, (flags[0][:1], torch.bool))
        self.expected: dict[Any, Any] = {"deciding": flags, "transition": moved, "transition_in_place": moved}
        for role, space in game.action_spaces.items():
            self.expected["legal", role] = ((num_worlds, space.num_flags), torch.bool)
            for method, spaces in (("observe", game.spaces), ("observe_for_critics", game.critic_spaces)):
                entries = spaces.get(role, {}).items()
                self.expected[method, role] = {name: ((num_worlds, *each.shape), each.dtype) for name, each in entries}

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the game. Raises EnvironmentFailed for a result of another shape or dtype than promised.

        It is called several times per move, and calls nothing in Python but the game.
        """
        found: Any = getattr(self.game, method)(*arguments)
        # methods of a role get a state and the role
        expected = self.expected[(method, arguments[1]) if len(arguments) == 2 else method]
        named: Any = {}
        try:
            if isinstance(found, Tensor):
                layout: Any = LAYOUT(found)
            elif isinstance(found, tuple):
                layout = (*map(LAYOUT, found[1:]),)
            else:
                layout = dict(zip(found, map(LAYOUT, found.values()), strict=True))
                named = found
            if layout == expected:
                return found
        except (AttributeError, TypeError):  # of None, for instance
            pass
        method = method.removesuffix("_in_place")
        if method == "transition":
            named = dict(zip(MOVED, found[1:], strict=False)) if isinstance(found, tuple) else {}
            expected = dict(zip(MOVED, expected, strict=True))
        elif not isinstance(expected, dict):
            expected = {method: expected}
        wanted = ", ".join(f"{name} {dtype} {shape}" for name, (shape, dtype) in expected.items()).replace("torch.", "")
        of_role = f" for {arguments[1]!r}" if len(arguments) == 2 else ""
        got = ", ".join(f"{name} {described(value)}" for name, value in (named or {method: found}).items())
        raise self._failed(method, wanted + of_role, got)

    def look_back(self, role: str, rows: Any) -> Any:
        """Return a roll-out, Transitions; raise EnvironmentFailed for what is no number, and for missing legal actions.

        In a world that is over at its start nobody decides. A GPU is not waited for.
        """
        if rows.valid.is_cpu:
            for method, values in (("observe", rows.observation.values()), ("transition", [rows.reward])):
                if not all(map(Tensor.all, map(Tensor.isfinite, values))):
                    raise self._failed(method, f"finite numbers for {role!r}", "nan or inf")
            space: Any = self.game.action_spaces[role]
            masks = space.split(rows.legal) if space.num_flags and not self.game.always_legal else ()
            idle = ~rows.valid | (rows.terminated & (rows.reward == 0))
            if masks and not all(bool((flags.any(dim=1) | idle).all()) for flags in masks):
                raise self._failed("legal", f"a legal action for {role!r} wherever it decides", "none")
        return rows

    def _failed(self, method: str, expected: str, got: str) -> EnvironmentFailed:
        return EnvironmentFailed(f"expected {expected}, got {got}", place=f"{type(self.game).__name__}.{method}")


def diverged(role: str, action: Tensor, observation: Observation) -> EnvironmentFailed:
    """Make the error for actions, (B, n), that are no numbers, because a game would be blamed for what comes of them.

    observation: at which they were chosen.
    """
    is_told = all(map(Tensor.all, map(Tensor.isfinite, observation.values())))
    why = "it has diverged" if is_told else "it observes nan or inf"
    got = f"{action[~action.isfinite().all(dim=1)][0].tolist()} ({why})"
    return EnvironmentFailed(f"expected finite numbers as its action, got {got}", place=f"the player in {role!r}")


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
        self.is_plain = game.observation_transform is None
        self.with_critics, self.rules = False, Rules(game, len(keys))
        self._set_state(game.reset(keys))
        self.observation = game.transformed(self.role, self.rules.ask("observe", self.state, self.role), self.all_valid)

    def show_critics(self, with_critics: bool) -> None:
        """Let observations from now on hold what the game shows critics alone, or no longer. A stepper gives none."""
        if with_critics != self.with_critics:
            self.with_critics = with_critics
            self._set_state(self.state)
            self.observation = self._own() | self._for_critics()

    def _set_state(self, state: State) -> None:
        self.state, self.stepper = state, None if self.with_critics else self.game.stepper(state)
        self.legal = self.rules.ask("legal", state, self.role)

    def _for_critics(self) -> Observation:
        """Return what the game shows critics alone, if they are shown anything."""
        return self.rules.ask("observe_for_critics", self.state, self.role) if self.with_critics else {}

    def _own(self) -> Observation:
        """Return the observation of the next decision without what critics alone are shown."""
        return {name: self.observation[name] for name in self.game.spaces[self.role]}

    def step(self, action: Tensor, keys: Tensor) -> Outcome:
        game, role, ask = self.game, self.role, self.rules.ask
        if self.stepper is not None:
            own, self.observation, reward, ended, truncated = self.stepper(action, keys)
            observation = own if self.is_plain else self._observe(own, self.observation, ended, truncated)
            return Outcome(observation, self.legal, reward, reward, ended, truncated, self.all_valid, ())
        self.state, rewards, terminated, truncated = ask("transition", self.state, {role: action}, keys)
        own, legal = ask("observe", self.state, role), ask("legal", self.state, role)
        reward, ended = rewards[:, 0], terminated[:, 0]
        # a refill writes to the state
        tallies = tuple(self.state[name].clone() for name in game.tallies) if game.tallies else ()
        begun, self.legal, begins = own, legal, ended | truncated
        for_critics = begun_for_critics = self._for_critics() if self.with_critics else {}
        if begins.device.type != "cpu" or begins.any():
            self.state = game.refill(self.state, begins, keys + 1)
            begun, self.legal = ask("observe", self.state, role), ask("legal", self.state, role)
            begun_for_critics = self._for_critics()
        self.observation = begun
        observation = own if self.is_plain else self._observe(own, begun, ended, truncated)
        if self.with_critics:
            observation = observation | for_critics
            self.observation = self.observation | begun_for_critics
        return Outcome(observation, legal, reward, reward, ended, truncated, self.all_valid, tallies)

    def _observe(self, own: Observation, begun: Observation, ended: Tensor, truncated: Tensor) -> Observation:
        """Return the observation after a step as the player gets it, and keep that of the next decision.

        own: of the game, before worlds begin anew. begun: of the game, after that.
        """
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
