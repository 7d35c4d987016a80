"""A network that compares points, which pooled ones do not."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from palestra.config import PositiveInt
from palestra.games.spaces import Space
from palestra.nets import UserNetConfig


class PairsConfig(UserNetConfig):
    width: PositiveInt
    """of the hidden layers"""


class Pairs(nn.Module):
    """Sends the difference of each pair of points through layers, which also weigh the pairs: a mean by their softmax.

    Letters: B boards, N places for points, n dimension, Q pairs of places, P pairs of points.
    """

    Config = PairsConfig

    def __init__(self, config: PairsConfig, spaces: Mapping[str, Space], num_outputs: int) -> None:
        super().__init__()
        n, width = spaces["points"].shape[-1], config.width
        self.layers = nn.Sequential(nn.Linear(n, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.output = nn.Linear(width, 1 + num_outputs)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        points = observation["points"]
        i, j = torch.triu_indices(points.shape[1], points.shape[1], offset=1, device=points.device)
        are_points = (points[:, i, 0] >= 0) & (points[:, j, 0] >= 0)  # (B, Q)
        differences = (points[:, i] - points[:, j])[are_points]  # (P, n)
        found = self.output(self.layers(differences.sign() * differences.abs().log1p()))
        scores = torch.full(are_points.shape, -1e9, device=points.device).masked_scatter(are_points, found[:, 0])
        every = are_points.unsqueeze(2).expand(-1, -1, found.shape[1] - 1)
        outputs = torch.zeros(every.shape, device=points.device).masked_scatter(every, found[:, 1:])
        return (scores.softmax(dim=1).unsqueeze(2) * outputs).sum(dim=1)
