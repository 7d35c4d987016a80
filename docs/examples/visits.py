"""A callback that sees the roll-outs: what is done in each role, and how many positions have been seen there.

To run: palestra train visits.yml
"""

import torch

from palestra import Callback
from palestra.config import UserConfig


class Visits(Callback):
    """Notes for each role of a player that learns a histogram of its actions, and the number of different observations
    at which it has decided since the run began."""

    Config = UserConfig

    def __init__(self, config):
        super().__init__(config)
        self.seen = {}  # by role: all different observations, flattened, (number, ...)

    def after_roll_out(self, training, player, by_role):
        for role, rows in by_role.items():
            training.note(f"actions/{role}", rows.action[rows.valid])
            seen = torch.cat([entry[rows.valid].flatten(1) for entry in rows.observation.values()], dim=1).cpu()
            self.seen[role] = torch.cat([self.seen.get(role, seen[:0]), seen]).unique(dim=0)
            training.note(f"visited/{role}", len(self.seen[role]))

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]
