"""Hironaka's polyhedra game: the host names coordinates, the agent picks one of them and shears the points along it.

A state is a finite set S of points in N^n. The host picks a set I of at least two coordinates; the agent picks i in
I. Every point changes by x_i <- sum of x_k over k in I. Then only the vertices of the Newton polyhedron conv(S +
R^n_{>=0}) are kept. With one point left the game is over and the host has won; the agent wins by stalling. (Hironaka
1967; Spivakovsky 1983. Batched form after hironaka.trainer.)

Letters: B worlds, N points, n dimension. Rows with a negative entry are absent, present rows come first.
"""

import math
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from palestra.config import ConfigError, ConfigErrorItem, NonNegativeInt, PositiveInt
from palestra.games.config import GameConfig, TensorGameConfig
from palestra.games.game import GameEnds, Kernel, Moved, Observation, State, TensorGame
from palestra.games.polyhedra import game_kernel, newton, words
from palestra.games.polyhedra.rewards import RewardConfig, SumReward, make_reward
from palestra.games.spaces import Discrete, Space
from palestra.games.trace import Storyboard, Trace
from palestra.randomness import random_integers, runs_on_cpu
from palestra.runtime.scores import DeclaredScore, declared_returns
from palestra.runtime.statistics import Z95, Estimate, num_clusters, sum_of_squares

HOST, AGENT = ROLES = ("host", "agent")
SCORES = (
    DeclaredScore(
        name="rho",
        meaning="games that the host has ended by the rules, divided by rounds played",
        unit="share",
        high_for=(HOST,),
        low_for=(AGENT,),
        shown=True,
    ),
    *declared_returns(ROLES, zero_sum=False, shown=False),
)


def estimate_rho(finished: Tensor, lengths: Tensor, clusters: Tensor | None = None) -> Estimate:
    """Estimate rho = games finished / rounds played, over games that may have equal starts (`clusters`).

    finished: bool (n,); lengths: rounds played (n,), all >= 1.

    A ratio of two sums: the interval is the delta method's (Cochran 1977, section 6.3), with residuals f_i - rho * l_i.
    It is clipped to [0, 1]. If no game finished, the residuals are all zero, and the upper end is that of a Poisson
    count of zero, 3.69 / steps (97.5%).
    """
    n, steps = len(lengths), float(lengths.double().sum())
    if n == 0 or steps == 0.0:
        return Estimate(math.nan, math.nan, math.nan)
    num_finished = float(finished.sum())
    rho = num_finished / steps
    if num_finished == 0.0:
        independent = 1.0 if clusters is None else num_clusters(clusters) / n
        return Estimate(0.0, 0.0, min(3.688879454113936 / (steps * independent), 1.0))
    if n == 1:
        return Estimate(rho, 0.0, 1.0)
    half = Z95 * math.sqrt(sum_of_squares(finished.double() - rho * lengths.double(), clusters)) / steps
    return Estimate(rho, max(rho - half, 0.0), min(rho + half, 1.0))


# Below it sums of up to 8 coordinates stay below 2**53, so float64 holds every coordinate exactly.
MAX_COORDINATE = 2.0**50
STATE_NAMES = ("points", "num_points", "largest", "subset", "rounds", "overflow", "exact")


class PolyhedraConfig(TensorGameConfig):
    usual: ClassVar = {
        "variant": "basic",
        "dimension": 3,
        "max_num_points": 20,
        "max_value": 20,
        "reduction": "minimal",
        "rescale": False,
        "rescale_state": False,
        "max_rounds": 100,
        "reward": "win",
    }

    name: Literal["polyhedra"]
    """Hironaka's polyhedra game; roles: host, agent"""
    variant: Literal["basic"]
    """the rules; basic: shear, then reduce"""
    dimension: Annotated[int, Field(ge=2, le=8)]
    """number of coordinates n, 2 to 8"""
    max_num_points: Annotated[int, Field(ge=2)]
    """places on a board; a fresh board has as many random points before its reduction"""
    max_value: NonNegativeInt
    """coordinates of fresh random points are integers from 0 to this, inclusive"""
    initial_points: list[list[list[int]]] | None
    """boards to start from, each a list of points, drawn at random per game; null: random points"""
    reduction: newton.Reduction
    """points kept after a move; vertices: of the Newton polyhedron; minimal: the Pareto-minimal ones (as
    hironaka.trainer)"""
    rescale: bool
    """divide what players see by the largest coordinate of the board; the state is not touched"""
    rescale_state: bool
    """divide the state itself after every move (as hironaka.trainer does): inexact, games drift from the true ones"""
    max_rounds: PositiveInt | None
    """cut a game off (truncated) after so many rounds; null: never"""
    reward: RewardConfig
    """the rewards of host and agent"""

    @field_validator("initial_points", mode="before")
    @classmethod
    def _expect_several_boards(cls, boards: Any) -> Any:
        depth, item = 0, boards
        while isinstance(item, list) and item:
            depth, item = depth + 1, item[0]
        if depth in (1, 2) and not isinstance(item, list):
            got = ("one point", "one board")[depth - 1]
            example = [boards] if depth == 2 else [[boards]]
            raise ValueError(f"expected a list of boards, each a list of points, got {got}; write {example}")
        return boards

    @model_validator(mode="after")
    def _check_boards(self) -> Self:
        errors = []
        for i, board in enumerate(self.initial_points or []):
            if not 1 <= len(board) <= self.max_num_points:
                errors.append(
                    ConfigErrorItem(
                        f"initial_points.{i}", f"expected 1 to {self.max_num_points} points, got {len(board)}"
                    )
                )
            for j, point in enumerate(board):
                if len(point) != self.dimension or not all(0 <= x <= MAX_COORDINATE for x in point):
                    expected = f"{self.dimension} integers from 0 to 2**50"
                    errors.append(ConfigErrorItem(f"initial_points.{i}.{j}", f"expected {expected}, got {point}"))
        if self.initial_points == []:
            errors.append(ConfigErrorItem("initial_points", "expected at least one board, or null, got []"))
        ConfigError.require_none(errors)
        return self

    def make(self, device: torch.device, kernel: Kernel) -> "PolyhedraGame":
        return PolyhedraGame(self, device, kernel)

    def misfit(self, other: GameConfig) -> ConfigErrorItem | None:
        if isinstance(other, PolyhedraConfig) and self._shows_rescaled() != other._shows_rescaled():
            message = f"expected {str(self.rescale).lower()}, as in the run's game, with which its players were trained"
            return ConfigErrorItem("rescale", f"{message}, got {str(other.rescale).lower()}")
        return super().misfit(other)

    def _shows_rescaled(self) -> bool:
        return self.rescale or self.rescale_state


def host_subsets(dimension: int) -> list[int]:
    """List the host's choices as bitmasks of coordinates: all subsets of size >= 2, ascending as the action codes."""
    return [mask for mask in range(2**dimension) if mask.bit_count() >= 2]


def _codes_of_masks(dimension: int) -> list[int]:
    """List the action code of every bitmask; -1 for those of fewer than two coordinates."""
    codes = {mask: code for code, mask in enumerate(host_subsets(dimension))}
    return [codes.get(mask, -1) for mask in range(2**dimension)]


def encode_host_action(coordinates: Tensor) -> Tensor:
    """Convert multi-binary choices to action codes.

    coordinates: (..., n) of 0 and 1; int64 (...). Raises ValueError for fewer than two.
    """
    dimension = coordinates.shape[-1]
    bits = (coordinates.long() << torch.arange(dimension, device=coordinates.device)).sum(-1)
    codes = torch.tensor(_codes_of_masks(dimension), device=coordinates.device)[bits]
    if (codes < 0).any():
        raise ValueError("expected a choice of at least two coordinates by the host, got fewer")
    return codes


def decode_host_action(actions: Tensor, dimension: int) -> Tensor:
    """Convert action codes (...) to multi-binary choices (..., n), int64. Raises IndexError for an unknown code."""
    masks = torch.tensor(host_subsets(dimension), device=actions.device)[actions]
    return (masks.unsqueeze(-1) >> torch.arange(dimension, device=actions.device)) & 1


class PolyhedraGame(TensorGame):
    """The game of host and agent.

    State: points float64 (B, N, n); num_points int64 (B,); largest float64 (B,), the largest coordinate; subset
    int64 (B,), the host's choice as a bitmask, 0 while the host decides; rounds int32 (B,); overflow bool (B,), cut
    off since a coordinate would leave the exact range of float64; exact int64 (B,), decisions that needed exact
    integers so far.

    The kernel ("numba" on CPUs, "torch" anywhere) changes speed, never a result.
    """

    roles = ROLES
    declared_scores = SCORES
    moves = (("host",), ("agent",))
    quiet_moves = (0,)
    tallies = ("overflow", "exact")
    lockstep = True
    fully_observable = True

    def __init__(self, config: PolyhedraConfig, device: torch.device, kernel: Kernel) -> None:
        self.config, self.device, self.kernel = config, device, kernel
        self.reward = make_reward(config.reward, config.max_num_points)
        n, N = config.dimension, config.max_num_points
        masks = host_subsets(n)
        self.masks = torch.tensor(masks, device=device)
        self.action_of_mask = torch.tensor(_codes_of_masks(n), device=device)
        self.coordinates = torch.arange(n, device=device)
        self.action_spaces = {"host": Discrete(len(masks)), "agent": Discrete(n)}
        points = Space((N, n), torch.float32, padded=True)
        self.spaces = {
            "host": {"points": points},
            "agent": {"points": points, "coords": Space((n,), torch.float32, padded=False)},
        }
        self.boards = None if config.initial_points is None else self._reduced_boards(config.initial_points)

    def _reduced_boards(self, boards: list[list[list[int]]]) -> Tensor:
        n, N = self.config.dimension, self.config.max_num_points
        points = torch.full((len(boards), N, n), -1.0, dtype=torch.float64)
        for row, board in zip(points, boards, strict=True):
            row[: len(board)] = torch.tensor(board, dtype=torch.float64)
        return newton.reduce_points(points, self.config.reduction, "torch")[0].to(self.device)

    def reset(self, keys: Tensor) -> State:
        config = self.config
        if self.boards is None:
            points = newton.random_points(
                keys, config.max_num_points, config.dimension, config.max_value, config.reduction, self.kernel
            )
        else:
            points = self.boards[random_integers(keys, 1, len(self.boards)).squeeze(1)]
        return self.state_of(points)

    def state_of(self, points: Tensor) -> State:
        """Make the state in which the host decides on these boards: float64 (B, N, n), already reduced."""
        zeros = torch.zeros(len(points), dtype=torch.int64, device=points.device)
        num_points, largest = newton.measure(points, self.kernel)
        if self.config.rescale_state:
            points, largest = _rescaled(points, largest), largest.clamp(max=1.0)
        return {
            "points": points,
            "num_points": num_points,
            "largest": largest,
            "subset": zeros,
            "rounds": zeros.int(),
            "overflow": zeros.bool(),
            "exact": zeros.clone(),
        }

    def refill(self, state: State, where: Tensor, keys: Tensor) -> State:
        config = self.config
        if self.boards is not None or config.rescale_state or not newton.uses_numba(self.kernel, keys):
            return super().refill(state, where, keys)
        newton.refill_points(state["points"], where, keys, config.max_value, config.reduction)
        arrays = [where.numpy(), *(state[name].numpy() for name in STATE_NAMES)]
        newton.run_in_chunks(game_kernel.begin_games, arrays, newton.axes_of(config.dimension))
        return state

    def deciding(self, state: State) -> Tensor:
        if newton.uses_numba(self.kernel, state["subset"]):
            deciding = np.empty((len(state["subset"]), 2), dtype=np.bool_)
            game_kernel.find_deciding(state["num_points"].numpy(), state["subset"].numpy(), deciding)
            return torch.from_numpy(deciding)
        running, host = state["num_points"] > 1, state["subset"] == 0
        return torch.stack([running & host, running & ~host], dim=1)

    def observe(self, state: State, role: str) -> Observation:
        points = _rescaled(state["points"], state["largest"]) if self.config.rescale else state["points"]
        observation = {"points": _to_float32(points)}
        return observation if role == "host" else observation | {"coords": _to_float32(self._chosen(state["subset"]))}

    def legal(self, state: State, role: str) -> Tensor:
        if role == "host":
            return self.every_action[role].expand(len(state["subset"]), -1)
        return self._chosen(state["subset"])

    def legal_by(self, role: str, observation: Observation) -> Tensor:
        if role == "host":
            return self.every_action[role].expand(len(observation["points"]), -1)
        return observation["coords"] > 0

    def transition(self, state: State, actions: dict[str, Tensor], keys: Tensor) -> Moved:
        new = dict(state)
        if "host" in actions:
            decides = (state["num_points"] > 1) & (state["subset"] == 0)
            new["subset"] = torch.where(decides, self.masks[actions["host"]], state["subset"])
        if "agent" not in actions:
            return new, *self._no_rewards(state)

        shearing = state["subset"] > 0
        after, num_exact = newton.blow_up(
            state["points"], state["subset"], actions["agent"], self.config.reduction, self.kernel
        )
        num_points, largest = newton.measure(after, self.kernel)
        over = num_points <= 1
        # A negative count: the device could not decide a point and cannot ask for exact integers without a wait.
        overflow = ((largest > MAX_COORDINATE) | (num_exact < 0)) & ~over
        new |= {
            "points": after,
            "num_points": num_points,
            "largest": largest,
            "subset": new["subset"].masked_fill(shearing, 0),
            "rounds": state["rounds"] + shearing,
            "overflow": overflow,
            "exact": state["exact"] + num_exact.clamp(min=0),
        }
        truncated = overflow
        if self.config.max_rounds is not None:
            truncated = truncated | ((new["rounds"] >= self.config.max_rounds) & ~over)
        moved = shearing & (state["num_points"] > 1)
        rewards = self.reward(state["points"], after, over & moved) * moved.unsqueeze(1)
        if self.config.rescale_state:
            new |= {"points": _rescaled(after, largest), "largest": largest.clamp(max=1.0)}
        return new, rewards, over.unsqueeze(1).expand(-1, 2), truncated

    def _no_rewards(self, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Return rewards, terminated and truncated of the host's move."""
        over = state["num_points"] <= 1
        return torch.zeros((len(over), 2), device=self.device), over.unsqueeze(1).expand(-1, 2), torch.zeros_like(over)

    def transition_in_place(self, state: State, actions: dict[str, Tensor], keys: Tensor) -> Moved:
        """Play a move as `transition` does, written over `state`: numba passes once over the worlds."""
        config, reward = self.config, self.reward
        if (
            not newton.uses_numba(self.kernel, state["subset"])
            or not isinstance(reward, SumReward)
            or config.rescale_state
            or len(actions) > 1
        ):
            return self.transition(state, actions, keys)
        if "host" in actions:
            tensors = (state["num_points"], self.masks, actions["host"], state["subset"])
            game_kernel.choose_subsets(*(tensor.numpy() for tensor in tensors))
            return state, *self._no_rewards(state)

        num_exact = newton.blow_up_in_place(state["points"], state["subset"], actions["agent"], config.reduction)
        B = len(num_exact)
        rewards, over = np.empty((B, 2), dtype=np.float32), np.empty((B, 2), dtype=np.bool_)
        truncated = np.empty(B, dtype=np.bool_)
        arrays = (num_exact.numpy(), *(state[name].numpy() for name in STATE_NAMES), rewards, over, truncated)
        limits = (MAX_COORDINATE, -1 if config.max_rounds is None else config.max_rounds)
        newton.run_in_chunks(game_kernel.end_round, arrays, *limits, *reward.terms, newton.axes_of(config.dimension))
        return state, torch.from_numpy(rewards), torch.from_numpy(over), torch.from_numpy(truncated)

    def scores(self, ends: GameEnds) -> dict[str, Estimate]:
        return {"rho": estimate_rho(ends.finished, ends.lengths, ends.clusters)}

    def wins(self, ends: GameEnds) -> dict[str, Tensor]:
        """Count rounds as contests; the host wins one if it ends the game, so that its share of wins is rho."""
        return {HOST: ends.finished.long(), AGENT: ends.lengths - ends.finished.long()}

    def storyboard(self, trace: Trace) -> Storyboard:
        from palestra.games.polyhedra.pictures import storyboard  # imports matplotlib, which playing does not need

        return storyboard(trace)

    # ---- as people read and type it ------------------------------------------------------------------------

    def read_board(self, board: Any) -> State:
        """Read a list of points, such as [[0,3],[2,2]]; it is reduced as the config says."""
        error = words.board_error(board, self.config.dimension, self.config.max_num_points, MAX_COORDINATE)
        if error is not None:
            raise ValueError(error)
        return self.state_of(self._reduced_boards([board]))

    def describe_board(self, state: State) -> str:
        return words.board_text(state)

    def read_action(self, role: str, text: str) -> Tensor:
        axes = words.read_axes(text, self.config.dimension)
        if len(axes) < 2 and role == "host":
            raise ValueError(f"expected at least two coordinates for a host, such as 'x1 x2', got {text!r}")
        if len(axes) != 1 and role == "agent":
            raise ValueError(f"expected one coordinate for an agent, such as 'x1', got {text!r}")
        return self.action_of_mask[sum(1 << axis for axis in axes)] if role == "host" else self.coordinates[axes[0]]

    def describe_action(self, role: str, action: Tensor) -> str:
        mask = int(self.masks[action]) if role == "host" else 1 << int(action)
        return words.axes_text([axis for axis in range(self.config.dimension) if mask >> axis & 1])

    def _chosen(self, subset: Tensor) -> Tensor:
        """Return the host's choice as multi-binary bool (B, n)."""
        if newton.uses_numba(self.kernel, subset):
            chosen = np.empty((len(subset), len(self.coordinates)), dtype=np.bool_)
            game_kernel.list_chosen(subset.numpy(), chosen)
            return torch.from_numpy(chosen)
        return ((subset.unsqueeze(1) >> self.coordinates) & 1).bool()


def _to_float32(tensor: Tensor) -> Tensor:
    if not runs_on_cpu(tensor):
        return tensor.to(torch.float32)
    return torch.from_numpy(tensor.numpy().astype(np.float32))  # starts four times faster


def _rescaled(points: Tensor, largest: Tensor) -> Tensor:
    """Divide boards by their largest coordinates (B,); all-zero boards are left alone, absent rows stay -1."""
    return torch.where(points < 0, points, points / largest.masked_fill(largest <= 0, 1.0)[:, None, None])
