"""Nim: two players move alternately. A move takes any number of stones from one heap; who takes the last stone wins.

Solved by Bouton (1901): the player to move loses exactly when the exclusive or of the heaps is zero.

Letters: B worlds, H heaps, M most stones of a heap.
"""

import re
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from palestra.config import PositiveInt
from palestra.games.config import TensorGameConfig
from palestra.games.game import Kernel, Moved, Observation, State, TensorGame
from palestra.games.spaces import Discrete, Space
from palestra.randomness import random_integers
from palestra.runtime.scores import declared_returns


class NimConfig(TensorGameConfig):
    usual: ClassVar = {"num_heaps": 3, "max_stones": 3}
    usual_run: ClassVar = {"roles": {"first": "player", "second": "player"}}

    name: Literal["nim"]
    """Nim; the roles first and second move alternately; who takes the last stone wins"""
    num_heaps: PositiveInt
    """number of heaps"""
    max_stones: PositiveInt
    """a new heap has 0 to this many stones, at random"""

    def make(self, device: torch.device, kernel: Kernel) -> "NimGame":
        return NimGame(self, device)


class NimGame(TensorGame):
    """The game of Nim.

    State: heaps int64 (B, H); mover int64 (B,), 0 or 1.

    Action h * M + k - 1 takes k stones from heap h. A round is one move, in which one of the two roles decides, not the
    same in every world. A board without stones, which random heaps may give, is over before it begins.
    """

    roles = ("first", "second")
    declared_scores = declared_returns(roles, zero_sum=True, shown=True)
    moves = (("first", "second"),)
    lockstep = False
    fully_observable = True

    def __init__(self, config: NimConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        H, M = config.num_heaps, config.max_stones
        self.action_spaces = dict.fromkeys(self.roles, Discrete(H * M))
        self.spaces = {role: {"heaps": Space((H, M + 1), torch.float32, padded=False)} for role in self.roles}
        self.stones = torch.arange(1, M + 1, device=device)
        self.num_starts = (M + 1) ** H if H * (M + 1).bit_length() < 64 else (1 << 63) - 1  # or more

    def reset(self, keys: Tensor) -> State:
        heaps = random_integers(keys, self.config.num_heaps, self.config.max_stones + 1)
        return {"heaps": heaps, "mover": torch.zeros_like(keys)}

    def numbered_starts(self, numbers: Tensor) -> State:
        H, num = self.config.num_heaps, self.config.max_stones + 1
        places = num ** torch.arange(H, device=self.device)
        return {"heaps": numbers.unsqueeze(1) // places % num, "mover": torch.zeros_like(numbers)}

    def deciding(self, state: State) -> Tensor:
        running = (state["heaps"].sum(1) > 0).unsqueeze(1)
        return running & (state["mover"].unsqueeze(1) == torch.arange(2, device=self.device))

    def observe(self, state: State, role: str) -> Observation:
        """Observe the heaps, one-hot: float32 (B, H, M + 1)."""
        return {"heaps": torch.nn.functional.one_hot(state["heaps"], self.config.max_stones + 1).to(torch.float32)}

    def legal(self, state: State, role: str) -> Tensor:
        return (state["heaps"].unsqueeze(2) >= self.stones).flatten(1)

    def legal_by(self, role: str, observation: Observation) -> Tensor:
        return self.legal({"heaps": observation["heaps"].argmax(dim=2)}, role)

    def transition(self, state: State, actions: dict[str, Tensor], keys: Tensor) -> Moved:
        heaps, mover = state["heaps"], state["mover"]
        running = heaps.sum(1) > 0
        action = torch.where(mover == 0, actions.get("first", mover), actions.get("second", mover))
        heap, taken = action // self.config.max_stones, action % self.config.max_stones + 1
        taken = torch.where(running, taken, 0)
        heaps = heaps - taken.unsqueeze(1) * (torch.arange(heaps.shape[1], device=self.device) == heap.unsqueeze(1))
        has_ended = heaps.sum(1) == 0
        first = torch.where(mover == 0, 1.0, -1.0) * (has_ended & running)
        rewards = torch.stack([first, -first], dim=1)
        new = {"heaps": heaps, "mover": torch.where(running, 1 - mover, mover)}
        return new, rewards, has_ended.unsqueeze(1).expand(-1, 2), torch.zeros_like(has_ended)

    # ---- as people read and type it ------------------------------------------------------------------------

    def read_board(self, board: Any) -> State:
        """Read a list of heaps, such as [1,2,3]; the first role moves."""
        H, M = self.config.num_heaps, self.config.max_stones
        heaps = board if isinstance(board, list) else []
        if len(heaps) != H or not all(type(heap) is int and 0 <= heap <= M for heap in heaps):
            example = "[" + ",".join(str(min(number, M)) for number in range(1, H + 1)) + "]"
            raise ValueError(f"expected {H} heaps of 0 to {M} stones, such as {example}, got {board!r}")
        return {
            "heaps": torch.tensor([heaps], device=self.device),
            "mover": torch.zeros(1, dtype=torch.int64, device=self.device),
        }

    def describe_board(self, state: State) -> str:
        heaps = enumerate(state["heaps"].tolist(), start=1)
        return "\n".join(f"heap {number}: {'|' * stones}{' ' * bool(stones)}({stones})" for number, stones in heaps)

    def read_action(self, role: str, text: str) -> Tensor:
        found = re.fullmatch(r"(?:take )?(\d{1,9}) from (?:heap )?(\d{1,9})", " ".join(text.lower().split()))
        taken, heap = map(int, found.groups()) if found else (0, 0)
        H, M = self.config.num_heaps, self.config.max_stones
        if not (1 <= taken <= M and 1 <= heap <= H):
            raise ValueError(f"expected 1 to {M} stones from one of {H} heaps, such as '1 from heap {H}', got {text!r}")
        return torch.tensor((heap - 1) * M + taken - 1, device=self.device)

    def describe_action(self, role: str, action: Tensor) -> str:
        heap, taken = divmod(int(action), self.config.max_stones)
        return f"{taken + 1} from heap {heap + 1}"
