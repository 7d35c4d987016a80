"""A model of two networks that learn against each other, by a step of its own: a generative adversarial network.

To run: palestra train gan.yml
"""

import torch
from torch import nn
from torch.nn.functional import softplus
from torch.utils.data import Dataset

from palestra import FitTrainer, Model
from palestra.config import PositiveInt, UserConfig
from palestra.data.sets import UserDataConfig
from palestra.models.model import score


class Ring(Dataset):
    """Points near a circle of radius 2."""

    class Config(UserDataConfig):
        num: PositiveInt

    def __init__(self, config):
        angle, noise = torch.rand(2, config.num, generator=torch.Generator().manual_seed(0))
        radius = 2 + 0.1 * (noise - 0.5)
        self.points = radius.unsqueeze(1) * torch.stack([(6.2832 * angle).cos(), (6.2832 * angle).sin()], dim=1)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, item):
        return self.points[item]


class GAN(Model):
    """A generator makes points of noise, and a critic tells them from points of the data (Goodfellow et al. 2014)."""

    class Config(UserConfig):
        hidden: PositiveInt

    scores = (score("distance", "distance of a made point to the circle", "length", better="low"),)

    def __init__(self, config):
        super().__init__(config)
        num = self.config.hidden
        self.generator = nn.Sequential(nn.Linear(2, num), nn.ReLU(), nn.Linear(num, num), nn.ReLU(), nn.Linear(num, 2))
        self.critic = nn.Sequential(nn.Linear(2, num), nn.ReLU(), nn.Linear(num, num), nn.ReLU(), nn.Linear(num, 1))

    def forward(self, batch):
        return self.generator(torch.randn(len(batch), 2))

    def loss(self, outputs, batch):
        told = softplus(-self.critic(batch)) + softplus(self.critic(outputs.detach()))
        return {"loss_critic": told.squeeze(1), "loss_generator": softplus(-self.critic(outputs)).squeeze(1)}

    def evaluation_step(self, batch):
        return {"distance": (self(batch).norm(dim=1) - 2).abs()}


class Adversaries(FitTrainer):
    """In each step the critic learns, and then the generator, each with its own group of weights."""

    class Config(UserConfig):
        pass

    def train_step(self, batch, index):
        made = self.model(batch)
        critic = self.model.loss(made, batch)["loss_critic"].mean()
        self.learner.step(critic, "critic.*")
        generator = self.model.loss(made, batch)["loss_generator"].mean()  # by the critic as it is now
        self.learner.step(generator, "generator.*")
        return {"loss": critic + generator, "loss_critic": critic, "loss_generator": generator}
