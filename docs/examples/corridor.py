"""An environment of Gymnasium: a corridor with a treasure.

To run: palestra train corridor.yml
"""

import gymnasium
import numpy as np


class Corridor(gymnasium.Env):
    """Walk to the treasure, which lies in another cell of a corridor; every step costs 1.

    Observation: the own cell and that of the treasure, between 0 and 1. Actions: 0: to the left, 1: to the right.
    """

    def __init__(self, length):
        self.length = length
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds np_random, from which all chance must come
        self.cell, self.treasure = self.np_random.choice(self.length, size=2, replace=False)
        return self.observe(), {}

    def step(self, action):
        self.cell = np.clip(self.cell + (1 if action == 1 else -1), 0, self.length - 1)
        return self.observe(), -1.0, bool(self.cell == self.treasure), False, {}

    def observe(self):
        return np.array([self.cell, self.treasure], dtype=np.float32) / (self.length - 1)


gymnasium.register("Corridor-v0", entry_point=Corridor)
