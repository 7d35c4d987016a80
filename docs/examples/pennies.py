import torch

from palestra.config import PositiveInt
from palestra.games import TensorGame, UserGameConfig
from palestra.games.spaces import Discrete, Space


class Pennies(TensorGame):
    """Matching pennies: both show heads or tails; `even` wins what `odd` loses if they are the same."""

    class Config(UserGameConfig):
        num_rounds: PositiveInt
        """rounds of a game"""

    roles = ("even", "odd")
    moves = (("even", "odd"),)
    lockstep = True

    def __init__(self, config, device):
        self.config, self.device = config, device
        self.spaces = {role: {"shown": Space((2,), torch.float32, padded=False)} for role in self.roles}
        self.action_spaces = dict.fromkeys(self.roles, Discrete(2))

    def reset(self, keys):
        shown = torch.full((len(keys), 2), -1, device=self.device)  # by each role in the round before
        return {"shown": shown, "round": torch.zeros_like(keys)}

    def deciding(self, state):
        return (state["round"] < self.config.num_rounds).unsqueeze(1).expand(-1, 2)

    def observe(self, state, role):
        return {"shown": state["shown"].float()}

    def legal(self, state, role):
        return torch.ones(len(state["round"]), 2, dtype=torch.bool, device=self.device)

    def transition(self, state, actions, keys):
        runs = state["round"] < self.config.num_rounds
        shown = torch.where(runs.unsqueeze(1), torch.stack([actions["even"], actions["odd"]], dim=1), state["shown"])
        even = torch.where(actions["even"] == actions["odd"], 1.0, -1.0) * runs
        new = {"shown": shown, "round": state["round"] + runs}
        over = new["round"] == self.config.num_rounds
        return new, torch.stack([even, -even], dim=1), over.unsqueeze(1).expand(-1, 2), torch.zeros_like(over)
