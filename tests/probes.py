"""Probe games: worlds of one role so small that every right value is known, each failing for one reason alone.

After the ladder of A. Jones, "Debugging RL, without the agonizing pain" (2021), with one more for truncation.
"""

from typing import Literal

import torch
from torch import Tensor

from palestra.config import PositiveInt
from palestra.games import UserGameConfig
from palestra.games.game import Observation, State, TensorGame
from palestra.games.spaces import Box, Discrete, Space
from palestra.randomness import random_integers

Kind = Literal["constant", "observation", "delayed", "two_step", "policy", "both", "endless", "identity", "memory"]


class Probe(TensorGame):
    """State: sign int64 (B,), -1 or 1; age int64 (B,).

    Observed: [sign, age], float32. Actions: 0 or 1; `continuous`: a number between -1 and 1, above 0 meaning 1.

    | kind | the game | values with discount g |
    |---|---|---|
    | constant | one step, reward 1 | V = 1 |
    | observation | one step, reward `sign` | V = sign |
    | delayed | two steps, reward 1 at the end; sign is 1 | V = g, then 1 |
    | two_step | two steps; the first action decides the reward, 1 or -1, of the second, as sign | V = g, then sign |
    | policy | one step, reward 1 for action 1, -1 for 0; sign is 1 | V = 1 at best |
    | both | one step, reward 1 where the action matches the sign, else -1 | V = 1 at best |
    | endless | reward 1 for ever, sign drawn anew each step, cut off after `limit` steps | V = 1 / (1 - g) |
    | identity | `limit` steps, each: reward 1 where the action matches the sign, drawn anew | best return: limit |
    | memory | three steps; sign is seen in the first; 1 if the last move matches it, else -1 | V = g^2, g, 1 at best |
    """

    class Config(UserGameConfig):
        kind: Kind
        """which probe"""
        continuous: bool
        """a number as the action"""
        limit: PositiveInt
        """steps until `endless` is cut off and `identity` ends"""

    roles = ("agent",)
    moves = (("agent",),)
    quiet_moves = ()
    tallies = ()
    lockstep = True

    def __init__(self, config: Config, device: torch.device) -> None:
        self.config, self.device = config, device
        self.spaces = {"agent": {"seen": Space((2,), torch.float32, padded=False)}}
        self.action_spaces = {"agent": Box((-1.0,), (1.0,)) if config.continuous else Discrete(2)}

    def reset(self, keys: Tensor) -> State:
        fixed = self.config.kind in ("constant", "delayed", "two_step", "policy")
        sign = torch.ones_like(keys) if fixed else self._sign(keys)
        return {"sign": sign, "age": torch.zeros_like(keys), "over": torch.zeros_like(keys, dtype=torch.bool)}

    def _sign(self, keys: Tensor) -> Tensor:
        return random_integers(keys, 1, 2).squeeze(1) * 2 - 1

    def deciding(self, state: State) -> Tensor:
        return ~state["over"].unsqueeze(1)

    def observe(self, state: State, role: str) -> Observation:
        age = torch.zeros_like(state["age"]) if self.config.kind == "endless" else state["age"]  # no clock to be seen
        sign = state["sign"] * (age == 0) if self.config.kind == "memory" else state["sign"]
        return {"seen": torch.stack([sign, age], dim=1).to(torch.float32)}

    def legal(self, state: State, role: str) -> Tensor:
        flags = self.action_spaces["agent"].num_flags
        return torch.ones((1, flags), dtype=torch.bool, device=self.device).expand(len(state["age"]), -1)

    def transition(
        self, state: State, actions: dict[str, Tensor], keys: Tensor
    ) -> tuple[State, Tensor, Tensor, Tensor]:
        kind, sign, age = self.config.kind, state["sign"], state["age"] + 1
        action = actions["agent"]
        move = (action[:, 0] > 0).long() * 2 - 1 if self.config.continuous else action * 2 - 1
        matches = torch.where(move == sign, 1.0, -1.0)
        length = {"delayed": 2, "two_step": 2, "memory": 3, "endless": self.config.limit, "identity": self.config.limit}
        ends = age >= length.get(kind, 1)
        one = torch.ones_like(matches)
        reward = {
            "constant": one,
            "observation": sign.to(torch.float32),
            "delayed": one * ends,
            "two_step": sign * one * ends,
            "policy": move * one,
            "both": matches,
            "endless": one,
            "identity": (matches > 0).to(torch.float32),
            "memory": matches * ends,
        }[kind]
        if kind == "two_step":
            sign = torch.where(ends, sign, move)
        elif kind in ("endless", "identity"):
            sign = self._sign(keys)
        is_cut = ends if kind == "endless" else torch.zeros_like(ends)
        over = ends & ~is_cut
        new = {"sign": sign, "age": age, "over": state["over"] | over}
        return new, reward.unsqueeze(1), over.unsqueeze(1), is_cut
