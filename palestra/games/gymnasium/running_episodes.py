"""The episodes that run in the worlds of a vector environment, with their actions so far: all that a replay needs.

Letters: B worlds.
"""

from typing import Any

import numpy as np
import torch


class RunningEpisodes:
    """Counts the episodes of B worlds and remembers the actions of those that run."""

    def __init__(self, num_worlds: int) -> None:
        self.numbers = np.zeros(num_worlds, dtype=np.int64)  # of the running episodes
        self.starts = np.zeros(num_worlds, dtype=np.int64)  # where they begin among the remembered steps
        self.actions = np.empty((0, num_worlds))  # (capacity, B, ...): those of the last `num_remembered` steps
        self.num_remembered = 0
        self.num_forgotten = 0  # steps before them

    def add(self, actions: np.ndarray) -> None:
        """Remember the actions of a step, (B, ...)."""
        if self.num_remembered == len(self.actions):
            self._extend(actions)
        self.actions[self.num_remembered] = actions
        self.num_remembered += 1

    def _extend(self, actions: np.ndarray) -> None:
        """Forget the actions that no running episode needs, and double the capacity if many are left."""
        first = int(self.starts.min())
        needed = self.actions[first : self.num_remembered]
        capacity = max(2 * len(needed), len(self.actions), 256)
        self.actions = np.empty((capacity, *actions.shape), dtype=actions.dtype)
        self.actions[: len(needed)] = needed.reshape(len(needed), *actions.shape)
        self.starts -= first
        self.num_forgotten += first
        self.num_remembered = len(needed)

    def begin(self, where: np.ndarray) -> None:
        """Count new episodes in some worlds, bool (B,); their first action will be the next one."""
        self.numbers += where
        np.putmask(self.starts, where, self.num_remembered)

    @property
    def num_steps(self) -> int:
        """The number of steps since the environments were made or replayed."""
        return self.num_forgotten + self.num_remembered

    def num_steps_of(self, world: int) -> int:
        """Count the steps of the episode that runs in a world."""
        return self.num_remembered - int(self.starts[world])

    def replays(self) -> list[tuple[int, np.ndarray]]:
        """Return for each world the number of its episode and a copy of the actions of that episode so far."""
        return [
            (int(number), self.actions[start : self.num_remembered, world].copy())
            for world, (number, start) in enumerate(zip(self.numbers, self.starts, strict=True))
        ]

    def state_dict(self) -> dict[str, Any]:
        first = int(self.starts.min())
        return {
            "episodes": torch.tensor(self.numbers),
            "starts": torch.tensor(self.starts - first),
            "actions": torch.tensor(self.actions[first : self.num_remembered]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.numbers, self.starts, self.actions = (
            state[name].cpu().numpy().copy() for name in ("episodes", "starts", "actions")
        )
        self.num_remembered = len(self.actions)
