"""A game of three roles that move in turn. To run: palestra train bomb.yml"""

import torch

from palestra.config import PositiveInt
from palestra.games import TensorGame, UserGameConfig
from palestra.games.spaces import Discrete, Space


class Bomb(TensorGame):
    """In turn, everybody adds 1, 2 or 3 to a sum; who reaches the limit is blown up."""

    class Config(UserGameConfig):
        limit: PositiveInt
        """whoever reaches this sum loses 1; the two others win half of it each"""

    roles = ("first", "second", "third")
    moves = (("first",), ("second",), ("third",))
    lockstep = True

    def __init__(self, config, device):
        self.config, self.device = config, device
        self.spaces = {role: {"sum": Space((config.limit,), torch.float32, padded=False)} for role in self.roles}
        self.action_spaces = dict.fromkeys(self.roles, Discrete(3))

    def reset(self, keys):
        return {"sum": torch.zeros_like(keys), "mover": torch.zeros_like(keys)}

    def deciding(self, state):
        mover = torch.arange(3, device=self.device) == state["mover"].unsqueeze(1)
        return mover & (state["sum"] < self.config.limit).unsqueeze(1)

    def observe(self, state, role):
        return {"sum": (torch.arange(self.config.limit, device=self.device) < state["sum"].unsqueeze(1)).float()}

    def legal(self, state, role):
        return torch.ones(len(state["sum"]), 3, dtype=torch.bool, device=self.device)

    def transition(self, state, actions, keys):
        ((role, action),) = actions.items()  # a move of one role
        moves = self.deciding(state)[:, self.roles.index(role)]
        sums = state["sum"] + (action + 1) * moves
        blown = (sums >= self.config.limit) & moves
        loser = torch.arange(3, device=self.device) == self.roles.index(role)
        rewards = torch.where(loser, -1.0, 0.5) * blown.unsqueeze(1)
        new = {"sum": sums, "mover": (state["mover"] + moves) % 3}
        over = sums >= self.config.limit
        return new, rewards, over.unsqueeze(1).expand(-1, 3), torch.zeros_like(over)
