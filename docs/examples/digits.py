from typing import Literal

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from palestra.config import PositiveInt, UserConfig
from palestra.data.sets import UserDataConfig
from palestra.models.model import Model, score


class Digits(Dataset):
    """Images of handwritten digits, 8 x 8 pixels between 0 and 1."""

    class Config(UserDataConfig):
        part: Literal["train", "test"]
        """test: every fifth image; train: the other 1,437"""

    def __init__(self, config):
        images, labels = load_digits(return_X_y=True)
        rows = (torch.arange(len(labels)) % 5 == 0) == (config.part == "test")
        self.images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8)[rows] / 16
        self.labels = torch.tensor(labels)[rows]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, item):
        return {"image": self.images[item], "label": self.labels[item]}


class Net(Model):
    """Two convolutions and a linear layer."""

    class Config(UserConfig):
        channels: PositiveInt

    scores = (score("accuracy", "share of images whose digit is found", "share", better="high"),)

    def __init__(self, config):
        super().__init__(config)
        num = self.config.channels
        self.body = nn.Sequential(
            nn.Conv2d(1, num, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(num, 2 * num, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.25),
        )  # fmt: skip
        self.head = nn.Linear(2 * num * 4, 10)

    def forward(self, batch):
        return self.head(self.body(batch["image"]))

    def loss(self, outputs, batch):
        return {"loss_digit": cross_entropy(outputs, batch["label"], reduction="none")}

    def evaluation_step(self, batch):
        outputs, label = self(batch), batch["label"]
        return {"accuracy": (outputs.argmax(dim=1) == label).float(), "outputs": outputs, "label": label}
