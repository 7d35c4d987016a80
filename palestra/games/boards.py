"""Lines on a board: two roles place stones in turn, and who is the first to have enough of them in a line wins.

In `connect_four` stones fall to the lowest free square of a column, in `tic_tac_toe` they stay where they are placed.

Letters: B worlds, M rows, N columns, A actions.
"""

import re
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor

from palestra.config import ConfigError, ConfigErrorItem, PositiveInt
from palestra.games.config import TensorGameConfig
from palestra.games.game import Kernel, Moved, Observation, State, TensorGame
from palestra.games.spaces import Discrete, Space
from palestra.games.trace import PictureStyle, Scene, Storyboard, Trace
from palestra.runtime.scores import declared_returns

MOST_BITS = 63  # of an int64, without its sign
OVER = 2  # the mover of a game that is over


class BoardConfig(TensorGameConfig):
    """Base of the configs of the games on a board."""

    usual_run: ClassVar = {"roles": {"first": "player", "second": "player"}}

    def make(self, device: torch.device, kernel: Kernel) -> "BoardGame":
        return BoardGame(self, device)

    def usual_rounds(self: Any) -> int:
        return self.num_columns * self.num_rows


class ConnectFourConfig(BoardConfig):
    usual: ClassVar = {"num_columns": 7, "num_rows": 6, "num_connected": 4}

    name: Literal["connect_four"]
    """first and second drop stones into columns in turn; who has enough of them in a line wins"""
    num_columns: PositiveInt
    """columns of the board"""
    num_rows: PositiveInt
    """rows of the board; num_columns * (num_rows + 1) is at most 63"""
    num_connected: PositiveInt
    """stones in a line, along a column, a row or a diagonal, that win"""

    @model_validator(mode="after")
    def _check_board(self) -> Self:
        errors, longer = [], max(self.num_columns, self.num_rows)
        if (bits := self.num_columns * (self.num_rows + 1)) > MOST_BITS:
            expected = f"expected num_columns * (num_rows + 1) to be at most {MOST_BITS}"
            errors.append(ConfigErrorItem("num_rows", f"{expected}, got {bits} with {self.num_rows} rows"))
        if self.num_connected > longer:
            expected = f"expected at most {longer}, the longer side of the board"
            errors.append(ConfigErrorItem("num_connected", f"{expected}, got {self.num_connected}"))
        ConfigError.require_none(errors)
        return self


class TicTacToeConfig(BoardConfig):
    name: Literal["tic_tac_toe"]
    """first and second place stones on a board of 3 x 3 squares in turn; who has three of them in a line wins"""

    num_columns: ClassVar = 3
    num_rows: ClassVar = 3
    num_connected: ClassVar = 3


class BoardGame(TensorGame):
    """A game of lines on a board.

    State: first and second int64 (B,), the squares on which each role has a stone, as bits; mover int64 (B,), 0 or 1,
    and 2 once the game is over. Bit c * (M + 1) + r is the square in column c, r above the lowest row. The bit above
    each column stays 0, so that no line of bits runs from one column into the next.

    Action a drops a stone into column a, or places it on square a, counted row by row from the top. A full board
    without a line is a draw.

    A role sees `stones`, float32 (2, M, N): its own stones, then those of the other, with the highest row first. So one
    player can sit in both seats.
    """

    roles = ("first", "second")
    declared_scores = declared_returns(roles, zero_sum=True, shown=True)
    moves = (("first", "second"),)
    lockstep = False
    fully_observable = True
    num_starts = 1

    def __init__(self, config: Any, device: torch.device) -> None:
        self.config, self.device = config, device
        N, M, self.num_connected = config.num_columns, config.num_rows, config.num_connected
        self.falls = isinstance(config, ConnectFourConfig)
        self.action_name = "column" if self.falls else "square"
        columns, rows = torch.arange(N, device=device), torch.arange(M - 1, -1, -1, device=device)
        self.squares = 1 << (columns * (M + 1) + rows.unsqueeze(1))  # (M, N)
        # by action: where its stone may come to lie, and the lowest and the highest square of that
        each = self.squares.flatten()
        self.reached, self.lowest, self.highest = each, each, each
        if self.falls:
            self.reached, self.lowest, self.highest = self.squares.sum(0), self.squares[-1], self.squares[0]
        self.full = self.squares.sum()
        self.steps = torch.tensor([1, M, M + 1, M + 2], device=device)  # upwards, to the right, and both diagonals
        # of no win, first's, second's
        self.rewards = torch.tensor([[0.0, 0.0], [1.0, -1.0], [-1.0, 1.0]], device=device)
        self.action_spaces = dict.fromkeys(self.roles, Discrete(len(self.reached)))
        self.spaces = {role: {"stones": Space((2, M, N), torch.float32, padded=False)} for role in self.roles}

    def reset(self, keys: Tensor) -> State:
        return {name: torch.zeros_like(keys) for name in ("first", "second", "mover")}

    def refill(self, state: State, where: Tensor, keys: Tensor) -> State:
        return {name: value.masked_fill(where, 0) for name, value in state.items()}

    def deciding(self, state: State) -> Tensor:
        return torch.stack([state["mover"] == 0, state["mover"] == 1], dim=1)

    def observe(self, state: State, role: str) -> Observation:
        own, other = self.roles if role == "first" else self.roles[::-1]
        stones = torch.stack([state[own], state[other]], dim=1)
        return {"stones": (stones[..., None, None] & self.squares).bool().float()}

    def legal(self, state: State, role: str) -> Tensor:
        return ((state["first"] | state["second"]).unsqueeze(1) & self.highest).logical_not()

    def legal_by(self, role: str, observation: Observation) -> Tensor:
        stones = ((observation["stones"] > 0) * self.squares).sum((2, 3))
        return self.legal({"first": stones[:, 0], "second": stones[:, 1]}, role)

    def placed(self, occupied: Tensor) -> Tensor:
        """Find the square of each action's stone, as a bit, 0 if it is illegal: int64 (B, A) of squares (B,)."""
        return (occupied.unsqueeze(1) + self.lowest) & self.reached  # the sum carries to the lowest free square

    def has_line(self, stones: Tensor) -> Tensor:
        """Tell where there are enough stones in a line: bool, of squares as bits, int64 of any shape."""
        steps = self.steps.view(-1, *([1] * stones.dim()))
        run, length = stones.unsqueeze(0), 1  # the squares from which `length` stones lie in a line
        while length < self.num_connected:
            more = min(length, self.num_connected - length)
            run, length = run & (run >> more * steps), length + more
        return run.amax(dim=0).bool()

    def transition(self, state: State, actions: dict[str, Tensor], keys: Tensor) -> Moved:
        first, second, mover = state["first"], state["second"], state["mover"]
        is_first, is_second = (mover == 0).long(), (mover == 1).long()
        action = actions.get("first", mover) * is_first + actions.get("second", mover) * is_second
        reached, lowest = (squares.index_select(0, action) for squares in (self.reached, self.lowest))
        placed = ((first | second) + lowest) & reached
        first, second = first + placed * is_first, second + placed * is_second
        is_won = self.has_line(first * is_first + second * is_second)
        is_over = is_won | ((first | second) == self.full) | (mover == OVER)
        new = {"first": first, "second": second, "mover": (1 - mover).masked_fill(is_over, OVER)}
        rewards = self.rewards.index_select(0, is_won * (mover + 1))
        return new, rewards, is_over.unsqueeze(1).expand(-1, 2), torch.zeros_like(is_over)

    # ---- as people read and type it ------------------------------------------------------------------------

    def read_board(self, board: Any) -> State:
        """Read the moves that led to a board, as numbers from 1 on, such as [4,4,3]; [] is the empty board."""
        numbers = board if isinstance(board, list) else [None]
        state = self.reset(torch.zeros(1, dtype=torch.int64, device=self.device))
        for number in numbers:
            action = torch.tensor([number - 1 if type(number) is int else -1], device=self.device)
            is_legal = 0 <= int(action) < len(self.reached) and bool(self.legal(state, "first")[0, action])
            if not is_legal or int(state["mover"]) == OVER:
                expected = f"expected [] or the legal moves so far, each the number of a {self.action_name}"
                raise ValueError(f"{expected}, such as [1], got {board!r}")
            state = self.transition(state, dict.fromkeys(self.roles, action), action)[0]
        return state

    def describe_board(self, state: State) -> str:
        """Draw the board; free squares have the number of their action, or it stands below their column."""
        names = [str(action + 1) for action in range(len(self.reached))]
        free = ["."] * self.squares.numel() if self.falls else names
        marks = dict(zip(self.squares.flatten().tolist(), free, strict=True))
        for role, mark in zip(self.roles, "XO", strict=True):
            marks |= {bit: mark for bit in marks if bit & int(state[role])}
        lines = [[marks[bit] for bit in row] for row in self.squares.tolist()] + [names] * self.falls
        width = len(names[-1])
        return "\n".join([*(" ".join(mark.rjust(width) for mark in line) for line in lines), "first: X, second: O"])

    def read_action(self, role: str, text: str) -> Tensor:
        found = re.fullmatch(rf"(?:{self.action_name} )?(\d{{1,9}})", " ".join(text.lower().split()))
        number, most = int(found[1]) if found else 0, len(self.reached)
        if not 1 <= number <= most:
            raise ValueError(f"expected the number of a {self.action_name}, from 1 to {most}, got {text!r}")
        return torch.tensor(number - 1, device=self.device)

    def describe_action(self, role: str, action: Tensor) -> str:
        return f"{self.action_name} {int(action) + 1}"

    def storyboard(self, trace: Trace) -> Storyboard:
        """Show the last board; numbers on the stones tell their order."""
        occupied = [int(state["first"] | state["second"]) for state in (*(c.state for c in trace.choices), trace.end)]
        bits, (M, N) = self.squares.flatten().tolist(), self.squares.shape
        order = [bits.index(after - before) for before, after in pairwise(occupied)]
        winner = max(trace.returns, key=lambda role: trace.returns[role])
        end = f"{winner} wins." if trace.returns[winner] > 0 else "A draw." if trace.is_finished else "Cut off."
        moves = ", ".join(self.describe_action(choice.role, choice.action) for choice in trace.choices)
        paint = partial(_paint, num_rows=M, num_columns=N, order=order)
        scene = Scene("The last board", f"After {trace.length} moves: {end}", f"{end} The moves: {moves}.", paint)
        return Storyboard("The numbers say in which order the stones were placed; first has the odd ones.", [scene])


def _paint(figure: Any, style: PictureStyle, num_rows: int, num_columns: int, order: Sequence[int]) -> None:
    """Paint a board with numbered stones. order: their squares, counted row by row from the top."""
    M, N = num_rows, num_columns
    axes = figure.subplots()
    size = 0.75 * 72 * min(figure.get_figwidth() / N, figure.get_figheight() / M)  # of a stone, in points
    for number, square in enumerate(order):
        y, x = divmod(square, N)
        axes.plot(x, y, "o", color=style.series[number % 2], markersize=size)
        axes.text(x, y, str(number + 1), color="white", ha="center", va="center", fontsize=style.font_size)
    axes.set(xlim=(-0.5, N - 0.5), ylim=(M - 0.5, -0.5), xticks=[], yticks=[], aspect="equal")
    axes.hlines([y - 0.5 for y in range(1, M)], -0.5, N - 0.5, color=style.ink, linewidth=0.4)
    axes.vlines([x - 0.5 for x in range(1, N)], -0.5, M - 0.5, color=style.ink, linewidth=0.4)
