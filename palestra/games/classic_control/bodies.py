"""The base of the games of classic control: a body of a few float64 variables, moved by one role, `agent`.

A game's file states its rules once, as functions on numbers (palestra.games.classic_control.arithmetic). In PyTorch
they make the game's `transition`. Compiled by numba they make its kernel: one call plays a step of all worlds, and
begins anew those that have ended. Both give the same bits.

Letters: B worlds, D variables of a body, O observed numbers.
"""

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numba.extending import overload
from pydantic import model_validator
from torch import Tensor

from palestra.config import ConfigError, PositiveInt
from palestra.games.classic_control.arithmetic import INLINED, Flag, Number, jitable, sin_cos, where
from palestra.games.config import TensorGameConfig
from palestra.games.game import Kernel, Moved, Observation, State, Stepper, TensorGame
from palestra.games.spaces import ActionSpace, Space
from palestra.randomness import U_GAMMA, mix, random_floats
from palestra.runtime.compiling import inner, njit

Array = np.ndarray[Any, Any]
Body = tuple[Number, ...]  # the variables, of a batch or of one world
Settings = tuple[float, ...]  # the parameters of the rules, from the config

NEVER = 2**31 - 1  # rounds are int32


class ClassicControlConfig(TensorGameConfig):
    """Base of the configs: how long a game may last."""

    name: str
    max_rounds: PositiveInt | None
    """cut a game off (truncated) after so many rounds; null: never"""


class BoundedStartConfig(ClassicControlConfig):
    """Base of the configs of games whose random start variables all have the same bounds."""

    initial_low: float
    """least value of a variable at the start of a game"""
    initial_high: float
    """largest value of a variable at the start of a game"""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        low, high = self.initial_low, self.initial_high
        if low > high:
            raise ConfigError.at("initial_low", f"expected a number <= initial_high, {high}, got {low}")
        return self


class Rules(NamedTuple):
    """A game's rules.

    move(body, action, settings): the body after one step, the reward, and whether the game is over; the action is a
    float64. is_over(body, settings). observe(body): the O observed numbers.
    """

    move: Callable[[Body, Number, Settings], tuple[Body, Number, Flag]]
    is_over: Callable[[Body, Settings], Flag]
    observe: Callable[[Body], tuple[Number, ...]]


class ClassicControl(TensorGame):
    """Base of the games of classic control.

    State: the `variables`, float64 (B,) each; rounds int32 (B,), those played so far.

    Observed: `observation`, float32 (B, O).

    low, high: bounds of the variables at the start, uniform in between. The kernel ("numba" on CPUs, "torch" anywhere)
    changes speed, never a result.
    """

    roles = ("agent",)
    moves = (("agent",),)
    lockstep = True
    always_legal = True
    rules: ClassVar[Rules]
    advance: ClassVar[Callable[..., None]]
    variables: ClassVar[tuple[str, ...]]
    num_observed: ClassVar[int]
    actions: ClassVar[ActionSpace]

    def __init__(
        self,
        config: ClassicControlConfig,
        settings: Settings,
        low: tuple[float, ...],
        high: tuple[float, ...],
        device: torch.device,
        kernel: Kernel,
    ) -> None:
        self.config, self.settings, self.device, self.kernel = config, settings, device, kernel
        self.starts = np.array([low, np.subtract(high, low)])  # lower bounds, and widths
        self.max_rounds = NEVER if config.max_rounds is None else config.max_rounds
        self.spaces = {"agent": {"observation": Space((self.num_observed,), torch.float32, padded=False)}}
        self.action_spaces = {"agent": self.actions}

    def reset(self, keys: Tensor) -> State:
        draws = random_floats(keys, len(self.variables)).to(torch.float64).unbind(1)
        starts = zip(self.variables, draws, *self.starts.tolist(), strict=True)
        state = {name: draw * width + low for name, draw, low, width in starts}
        return {**state, "rounds": torch.zeros_like(keys, dtype=torch.int32)}

    def deciding(self, state: State) -> Tensor:
        return ~self.rules.is_over(self._body(state), self.settings).unsqueeze(1)

    def observe(self, state: State, role: str) -> Observation:
        return {"observation": torch.stack(self.rules.observe(self._body(state)), dim=1).to(torch.float32)}

    def transition(self, state: State, actions: dict[str, Tensor], keys: Tensor) -> Moved:
        old, action = self._body(state), actions["agent"].reshape(len(keys)).to(torch.float64)
        was_over = self.rules.is_over(old, self.settings)
        moved, reward, over = self.rules.move(old, action, self.settings)
        body = [where(was_over, before, after) for before, after in zip(old, moved, strict=True)]
        rounds = state["rounds"] + ~was_over
        over = over | was_over
        reward = where(was_over, 0.0, reward).to(torch.float32)
        new = {**dict(zip(self.variables, body, strict=True)), "rounds": rounds}
        return new, reward.unsqueeze(1), over.unsqueeze(1), (rounds >= self.max_rounds) & ~over

    def _body(self, state: State) -> Body:
        return tuple(state[name] for name in self.variables)

    def stepper(self, state: State) -> Stepper | None:
        if self.kernel != "numba" or self.device.type != "cpu":
            return None
        body, rounds = tuple(value.numpy() for value in self._body(state)), state["rounds"].numpy()
        advance = type(self).advance  # of an instance it would be a method
        settings, starts, max_rounds = self.settings, self.starts, self.max_rounds
        num_worlds, shape = len(rounds), (len(rounds), self.num_observed)

        def step(action: Tensor, keys: Tensor) -> tuple[Observation, Observation, Tensor, Tensor, Tensor]:
            observation, next_observation = np.empty(shape, np.float32), np.empty(shape, np.float32)
            reward = np.empty(num_worlds, np.float32)
            over, cut = np.empty(num_worlds, np.bool_), np.empty(num_worlds, np.bool_)
            moves, results = action.numpy().ravel(), (observation, next_observation, reward, over, cut)
            advance(body, rounds, moves, keys.numpy(), settings, starts, max_rounds, *results)
            own, begun, rewards, ended, truncated = map(torch.from_numpy, results)
            return {"observation": own}, {"observation": begun}, rewards, ended, truncated

        return step


# ---- the kernels ---------------------------------------------------------------------------------------


def compiled(rules: Rules) -> Callable[..., None]:
    """Compile the kernel of a game: `advance_worlds` of its rules."""
    move, is_over, observe = rules
    sources = {Path(inspect.getfile(part)).read_bytes() for part in (move, sin_cos, advance_worlds)}
    digest = hashlib.sha256(b"".join(sorted(sources))).hexdigest()

    @njit(error_model="numpy")
    def advance(*worlds: Any) -> None:
        digest  # noqa: B018 (numba compiles anew if a variable of the closure has changed, but tracks only one file)
        advance_worlds(move, is_over, observe, *worlds)

    return advance


@jitable
def advance_worlds(
    move: Any,
    is_over: Any,
    observe: Any,
    body: tuple[Array, ...],
    rounds: Array,
    action: Array,
    keys: Array,
    settings: Settings,
    starts: Array,
    max_rounds: int,
    observation: Array,
    next_observation: Array,
    reward: Array,
    terminated: Array,
    truncated: Array,
) -> None:
    """Play one step of all worlds, written into `body` and `rounds`.

    Worlds that end begin anew, as `reset` with their keys + 1 does.

    move, is_over, observe: the rules. body: D times float64 (B,). rounds: int32 (B,). action: (B,). keys: int64 (B,).
    starts: float64 (2, D), low bounds and widths. Results: observation float32 (B, O), before anything begins anew;
    next_observation, after it; reward float32 (B,); terminated, truncated bool (B,).
    """
    for world in range(len(action)):
        old = _variables(body, world)
        was_over = is_over(old, settings)
        new, move_reward, over = move(old, np.float64(action[world]), settings)
        for k in range(len(new)):
            body[k][world] = where(was_over, old[k], new[k])
        reward[world] = where(was_over, 0.0, move_reward)
        terminated[world] = was_over | over
    # of these the compiler sees the distance of neighbours, and vectorizes
    flat, next_flat = observation.ravel(), next_observation.ravel()
    for world in range(len(action)):
        numbers = observe(_variables(body, world))
        for k in range(len(numbers)):
            flat[world * len(numbers) + k] = numbers[k]
    for i in range(len(flat)):
        next_flat[i] = flat[i]
    for world in range(len(action)):
        rounds[world] += 1
        truncated[world] = (rounds[world] >= max_rounds) & (not terminated[world])
    for world in range(len(action)):
        if terminated[world] | truncated[world]:
            rounds[world] = 0
            key = np.uint64(keys[world]) + np.uint64(1)
            for k in range(len(body)):
                key += U_GAMMA
                body[k][world] = _float(key) * starts[1, k] + starts[0, k]
            numbers = observe(_variables(body, world))
            for k in range(len(numbers)):
                next_observation[world, k] = numbers[k]


@inner()
def _float(key: Any) -> Any:
    """Convert one number of a key as randomness.random_floats does: uniform in [0, 1)."""
    return np.float64(mix(key) >> np.uint64(40)) * 2.0**-24


def _variables(body: tuple[Array, ...], world: int) -> Body:
    """Return the variables of one world, in kernels alone."""
    raise NotImplementedError


@overload(_variables, strict=False, jit_options=INLINED)
def _variables_kernel(body: Any, world: Any) -> Any:
    if len(body) == 1:
        return lambda body, world: (body[0][world],)
    return lambda body, world: (body[0][world], *_variables(body[1:], world))
