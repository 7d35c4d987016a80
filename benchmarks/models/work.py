"""What every contender of benchmarks.models learns: scikit-learn's digits, with a network of one hidden layer.

scikit-learn is installed for palestra's tests, and for the peers (`make peers`).
"""

import time
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset

WARMUP_EPOCHS = 3
NUM_PIXELS, NUM_DIGITS = 64, 10


class Digits(Dataset[dict[str, Tensor]]):
    """1,797 images of 8 x 8 pixels, each float32 (64,) between 0 and 1 with its label."""

    def __init__(self, config: Any = None) -> None:
        images, labels = load_digits(return_X_y=True)
        self.images, self.labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, item: int) -> dict[str, Tensor]:
        return {"image": self.images[item], "label": self.labels[item]}


def network(hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(NUM_PIXELS, hidden), nn.ReLU(), nn.Linear(hidden, NUM_DIGITS))


class Epochs:
    """Times whole epochs, from the first one after the warm-up on, until the time is over."""

    def __init__(self, work: dict[str, Any]) -> None:
        self.timed_seconds: float = work["timed_seconds"]
        self.num_epochs = 0
        self.begun = self.seconds = 0.0

    def epoch(self) -> bool:
        """Tell of an epoch done; True once all has been measured."""
        self.num_epochs += 1
        now = time.perf_counter()
        if self.num_epochs == WARMUP_EPOCHS:
            self.begun = now
        self.seconds = now - self.begun
        return self.num_epochs > WARMUP_EPOCHS and self.seconds >= self.timed_seconds

    def result(self) -> dict[str, Any]:
        return {"epochs": self.num_epochs - WARMUP_EPOCHS, "seconds": self.seconds}
