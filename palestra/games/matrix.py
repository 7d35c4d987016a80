"""`matrix`: any game of two players with finitely many choices (a bimatrix game), played once or again and again.

Letters: B worlds, R and C choices of the roles row and column.
"""

from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor
from torch.nn.functional import one_hot

from palestra.config import ConfigError, ConfigErrorItem, PositiveInt
from palestra.games.config import TensorGameConfig
from palestra.games.game import Kernel, Moved, Observation, State, TensorGame
from palestra.games.spaces import Discrete, Space
from palestra.runtime.scores import DeclaredScore, declared_returns


class MatrixConfig(TensorGameConfig):
    name: Literal["matrix"]
    """two roles, row and column, choose at once; what both get stands in a table"""
    payoffs: list[list[list[float]]]
    """a list per choice of row, in it a pair per choice of column: what row gets, and what column gets"""
    num_rounds: PositiveInt
    """how often they choose in a game; 1: once"""

    usual: ClassVar[dict[str, Any]] = {
        "payoffs": [[[3.0, 3.0], [0.0, 5.0]], [[5.0, 0.0], [1.0, 1.0]]],  # the prisoner's dilemma
        "num_rounds": 10,
    }

    @model_validator(mode="after")
    def _check_table(self) -> Self:
        errors = []
        widths = [len(row) for row in self.payoffs]
        if not widths or 0 in widths:
            errors.append(ConfigErrorItem("payoffs", "expected at least one pair in every row, as [[[1.0, 1.0]]]"))
        for index, width in enumerate(widths):
            if width != widths[0]:
                message = f"expected {widths[0]} pairs, as in the first row, got {width}"
                errors.append(ConfigErrorItem(f"payoffs.{index}", message))
            for place, pair in enumerate(self.payoffs[index]):
                if len(pair) != 2:
                    message = f"expected two numbers, what row gets and what column gets, got {len(pair)}"
                    errors.append(ConfigErrorItem(f"payoffs.{index}.{place}", message))
        ConfigError.require_none(errors)
        return self

    def make(self, device: torch.device, kernel: Kernel) -> "MatrixGame":
        return MatrixGame(self, device)


class MatrixGame(TensorGame):
    """The game whose payoffs stand in a table.

    State: chosen int64 (B, 2), the last choices of both, -1 before the first; round int64 (B,).

    A role sees one vector, `seen`: its own last choice and the other role's, one-hot (zeros before the first), and the
    share of the rounds that have been played. So in a symmetric game one player can sit in both seats.
    """

    roles = ("row", "column")
    moves = (("row", "column"),)
    lockstep = True
    fully_observable = True
    always_legal = True
    num_starts = 1

    def __init__(self, config: MatrixConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.payoffs = torch.tensor(config.payoffs, dtype=torch.float32, device=device)
        self.nums = (len(config.payoffs), len(config.payoffs[0]))
        self.action_spaces = {role: Discrete(num) for role, num in zip(self.roles, self.nums, strict=True)}
        size = sum(self.nums) + 1
        self.spaces = {role: {"seen": Space((size,), torch.float32, padded=False)} for role in self.roles}

    @property
    def declared_scores(self) -> tuple[DeclaredScore, ...]:
        sums = {row + column for pairs in self.config.payoffs for row, column in pairs}
        return declared_returns(self.roles, zero_sum=len(sums) == 1, shown=True)

    def reset(self, keys: Tensor) -> State:
        return {"chosen": torch.full((len(keys), 2), -1, device=self.device), "round": torch.zeros_like(keys)}

    def deciding(self, state: State) -> Tensor:
        return (state["round"] < self.config.num_rounds).unsqueeze(1).expand(-1, 2)

    def observe(self, state: State, role: str) -> Observation:
        own = self.roles.index(role)
        # -1, before the first round, becomes the first column, which is cut off
        last = [one_hot(state["chosen"][:, i] + 1, self.nums[i] + 1)[:, 1:].float() for i in (own, 1 - own)]
        return {"seen": torch.cat([*last, (state["round"].float() / self.config.num_rounds).unsqueeze(1)], dim=1)}

    def transition(self, state: State, actions: dict[str, Tensor], keys: Tensor) -> Moved:
        running = state["round"] < self.config.num_rounds
        chosen = torch.stack([actions[role] for role in self.roles], dim=1)
        chosen = torch.where(running.unsqueeze(1), chosen, state["chosen"])
        rewards = self.payoffs[chosen[:, 0], chosen[:, 1]] * running.unsqueeze(1)
        new = {"chosen": chosen, "round": state["round"] + running}
        over = new["round"] == self.config.num_rounds
        return new, rewards, over.unsqueeze(1).expand(-1, 2), torch.zeros_like(over)

    # ---- as people read and type it ------------------------------------------------------------------------

    def read_board(self, board: Any) -> State:
        """Read the last choices of row and column, such as [0,1], or [] before the first.

        The first round or the one after it is to be played.
        """
        if board == []:
            return self.reset(torch.zeros(1, dtype=torch.int64, device=self.device))
        numbers = board if isinstance(board, list) and all(type(each) is int for each in board) else []
        if len(numbers) != 2 or not all(0 <= each < num for each, num in zip(numbers, self.nums, strict=True)):
            last = [num - 1 for num in self.nums]
            expected = f"expected the last choices of row and column, from [0,0] to {last}, or [] before the first"
            raise ValueError(f"{expected}, got {board!r}")
        if self.config.num_rounds == 1:
            raise ValueError(f"expected [], because the game has one round, got {board!r}")
        return {"chosen": torch.tensor([numbers], device=self.device), "round": torch.ones(1, dtype=torch.int64)}

    def describe_board(self, state: State) -> str:
        played = f"round {int(state['round'])} of {self.config.num_rounds} played"
        if int(state["round"]) == 0:
            return played
        row, column = state["chosen"].tolist()
        got, other = self.config.payoffs[row][column]
        return f"{played}; row chose {row} and got {got:g}, column chose {column} and got {other:g}"
