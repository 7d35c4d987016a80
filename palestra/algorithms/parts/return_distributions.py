"""What DQN's network estimates for an action, by name: the expected return, or one of three return distributions.

Each form has `num_outputs`, numbers per action; `q_values`, the expected returns; `target`, r + discount * the estimate
for the next action; and, all (B,), the `losses` of predictions against targets, their `td_error`, and the rows'
`priorities`.

Letters: B rows, A actions, K numbers per action, N predicted and M target quantiles.
"""

import math
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import huber_loss, kl_div, relu

from palestra.config import ByName, Config, ConfigError, InBranch, PositiveFloat, PositiveInt
from palestra.games.game import Observation
from palestra.randomness import random_floats

FRACTIONS = "fractions"  # the entry beside an observation that says for which fractions quantiles are asked for


class ExpectedConfig(Config):
    usual: ClassVar = {"huber_delta": 1.0}

    name: Literal["expected"]
    """the expected return of every action"""
    huber_delta: Annotated[PositiveFloat, InBranch.FREE]
    """TD error at which the loss turns from a parabola into a line"""

    num_outputs: ClassVar = 1

    def q_values(self, outputs: Tensor) -> Tensor:
        return outputs

    def target(self, next_outputs: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        return reward + discount * next_outputs

    def losses(self, outputs: Tensor, target: Tensor, extras: Mapping[str, Tensor]) -> Tensor:
        return huber_loss(outputs, target, delta=self.huber_delta, reduction="none")

    def td_error(self, outputs: Tensor, target: Tensor) -> Tensor:
        return outputs - target

    def priorities(self, outputs: Tensor, target: Tensor, extras: Mapping[str, Tensor]) -> Tensor:
        return self.td_error(outputs, target)


class _Distribution:
    """The base of return distributions: rows with a large loss are drawn often, however small their TD error is."""

    def priorities(self, outputs: Tensor, target: Tensor, extras: Mapping[str, Tensor]) -> Tensor:
        return self.losses(outputs, target, extras)  # type: ignore[attr-defined]


class CategoricalConfig(_Distribution, Config):
    usual: ClassVar = {"num_atoms": 51, "low": -10.0, "high": 10.0}

    name: Literal["c51"]
    """the return distribution as probabilities of fixed values, the atoms (Bellemare et al. 2017)"""
    num_atoms: Annotated[int, Field(ge=2)]
    """atoms per action, evenly spaced; 51 in the paper"""
    low: float
    """the least atom; smaller returns count as this"""
    high: float
    """the greatest atom; greater returns count as this"""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.low >= self.high:
            raise ConfigError.at("low", f"{self.low} is not below high, {self.high}; expected a smaller number")
        return self

    num_outputs = property(attrgetter("num_atoms"))

    def atoms(self, device: torch.device) -> Tensor:
        return torch.linspace(self.low, self.high, self.num_atoms, device=device)

    def q_values(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1) @ self.atoms(outputs.device)

    def target(self, next_outputs: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        atoms = self.atoms(next_outputs.device)
        return projected(next_outputs.softmax(-1), reward.unsqueeze(1) + discount.unsqueeze(1) * atoms, atoms)

    def losses(self, outputs: Tensor, target: Tensor, extras: Mapping[str, Tensor]) -> Tensor:
        """Return KL divergences: the paper's cross-entropies minus the targets' entropies, which no weight changes."""
        return kl_div(outputs.log_softmax(-1), target, reduction="none").sum(1)

    def td_error(self, outputs: Tensor, target: Tensor) -> Tensor:
        return (outputs.log_softmax(-1).exp() - target) @ self.atoms(outputs.device)


class _Quantiles(_Distribution):
    """The base of both kinds of quantiles."""

    def q_values(self, outputs: Tensor) -> Tensor:
        return outputs.mean(-1)

    def target(self, next_outputs: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        return reward.unsqueeze(1) + discount.unsqueeze(1) * next_outputs

    def td_error(self, outputs: Tensor, target: Tensor) -> Tensor:
        return outputs.mean(1) - target.mean(1)


class QuantileConfig(_Quantiles, Config):
    usual: ClassVar = {"num_quantiles": 200, "huber_delta": 1.0}

    name: Literal["quantile"]
    """the return distribution as quantiles at even fractions: QR-DQN (Dabney et al. 2018, "Distributional RL with
    Quantile Regression")"""
    num_quantiles: PositiveInt
    """quantiles per action; 200 in the paper"""
    huber_delta: Annotated[PositiveFloat, InBranch.FREE]
    """difference of two quantiles at which the loss turns from a parabola into a line; kappa in the paper"""

    num_outputs = property(attrgetter("num_quantiles"))

    def losses(self, outputs: Tensor, target: Tensor, extras: Mapping[str, Tensor]) -> Tensor:
        return quantile_losses(outputs, middles(self.num_quantiles, outputs.device), target, self.huber_delta)


class ImplicitQuantileConfig(_Quantiles, Config):
    usual: ClassVar = {
        "num_quantiles": 32,
        "num_target_quantiles": 32,
        "num_acting_quantiles": 32,
        "num_cosines": 64,
        "embedding_dim": 256,
        "huber_delta": 1.0,
    }

    name: Literal["implicit_quantile"]
    """the return distribution as quantiles at fractions that the network is asked for: IQN (Dabney et al. 2018,
    "Implicit Quantile Networks")"""
    num_quantiles: PositiveInt
    """fractions drawn per row for the prediction; N in the paper"""
    num_target_quantiles: PositiveInt
    """fractions drawn per row for the target; N' in the paper"""
    num_acting_quantiles: PositiveInt
    """even fractions over which values are averaged where an action is chosen; K in the paper, drawn there"""
    num_cosines: PositiveInt
    """cosines that a fraction is seen as; 64 in the paper"""
    embedding_dim: PositiveInt
    """numbers that the network makes of an observation, and an embedding of a fraction; their products are what the
    last layer sees"""
    huber_delta: Annotated[PositiveFloat, InBranch.FREE]
    """difference of two quantiles at which the loss turns from a parabola into a line; kappa in the paper"""

    def draw(self, key: Tensor, batch_size: int) -> dict[str, Tensor]:
        """Draw fractions for the prediction and for the target: float32 (batch_size, N) and (batch_size, M)."""
        num = self.num_quantiles + self.num_target_quantiles
        drawn = random_floats(key, batch_size * num).view(batch_size, num) + 2.0**-25
        return {FRACTIONS: drawn[:, : self.num_quantiles], f"target_{FRACTIONS}": drawn[:, self.num_quantiles :]}

    def losses(self, outputs: Tensor, target: Tensor, extras: Mapping[str, Tensor]) -> Tensor:
        return quantile_losses(outputs, extras[FRACTIONS], target, self.huber_delta)


ValueConfig = Annotated[
    ExpectedConfig | CategoricalConfig | QuantileConfig | ImplicitQuantileConfig,
    ByName(usual="expected"),
    InBranch.FIXED,
]


class ImplicitQuantileNet(nn.Module):
    """Computes quantiles of every output: float32 (B, num_outputs, N).

    The fractions are an entry beside the observation; if there is none, they are even ones.
    """

    def __init__(self, config: ImplicitQuantileConfig, body: nn.Module, num_outputs: int) -> None:
        super().__init__()
        self.body, self.num_acting = body, config.num_acting_quantiles
        self.embedding = nn.Linear(config.num_cosines, config.embedding_dim)
        self.output = nn.Linear(config.embedding_dim, num_outputs)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        features = relu(self.body({name: value for name, value in observation.items() if name != FRACTIONS}))
        fractions = observation.get(FRACTIONS)
        if fractions is None:
            fractions = middles(self.num_acting, features.device).unsqueeze(0)
        frequencies = math.pi * torch.arange(self.embedding.in_features, device=features.device)
        embedded = relu(self.embedding((fractions.unsqueeze(2) * frequencies).cos()))
        return self.output(features.unsqueeze(1) * embedded).transpose(1, 2)


class QValues(nn.Module):
    """A module that computes the expected return of every action, float32 (B, A)."""

    def __init__(self, net: nn.Module, q_values: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.q_values = net, q_values

    def forward(self, observation: Observation) -> Tensor:
        return self.q_values(self.net(observation))


def with_fractions(observation: Observation, fractions: Tensor | None) -> Observation:
    """Add the fractions at which quantiles are asked for to an observation, if there are any."""
    return observation if fractions is None else observation | {FRACTIONS: fractions}


# ---- the mathematics -----------------------------------------------------------------------------------


def of_action(outputs: Tensor, action: Tensor) -> Tensor:
    """Select the outputs for one action per row: (B,) of (B, A), or (B, K) of (B, A, K)."""
    index = action.unsqueeze(1) if outputs.dim() == 2 else action.view(-1, 1, 1).expand(-1, 1, outputs.shape[2])
    return outputs.gather(1, index).squeeze(1)


def dueling_outputs(streams: Tensor) -> Tensor:
    """Return the values of a dueling network (Wang et al. 2016): (B, A, K) of streams (B, A + 1, K).

    They are the state's value, which is the last stream, plus every action's advantage minus the mean advantage.
    """
    advantage, value = streams[:, :-1], streams[:, -1:]
    return value + advantage - advantage.mean(dim=1, keepdim=True)


def projected(probabilities: Tensor, values: Tensor, atoms: Tensor) -> Tensor:
    """Project the distribution with these probabilities at these values, (B, K), onto evenly spaced atoms (K,): (B, K).

    Two atoms share what lies between them, so that the mean stays; what lies outside goes to the nearest atom. These
    are sums of products, not scattered additions, because they have a fixed order on a GPU, too.
    """
    places = (values.clamp(atoms[0], atoms[-1]) - atoms[0]) / (atoms[1] - atoms[0])
    distance = places.unsqueeze(2) - torch.arange(len(atoms), device=atoms.device)
    return torch.bmm(probabilities.unsqueeze(1), (1.0 - distance.abs()).clamp(min=0.0)).squeeze(1)


def middles(num: int, device: torch.device) -> Tensor:
    """Return the middles of `num` equal segments of [0, 1]: float32 (num,)."""
    return (torch.arange(num, device=device) + 0.5) / num


def quantile_losses(predicted: Tensor, fractions: Tensor, target: Tensor, delta: float) -> Tensor:
    """Return the quantile Huber losses (Dabney et al. 2018): (B,).

    Each is |fraction - 1{target < predicted}| * huber(target - predicted) / delta, the mean over targets (B, M) and the
    sum over predictions (B, N). fractions: of the predictions, (N,) or (B, N).
    """
    above = target.unsqueeze(1) - predicted.unsqueeze(2)
    weight = (fractions.unsqueeze(-1) - (above.detach() < 0).float()).abs()
    losses = huber_loss(above, torch.zeros_like(above), delta=delta, reduction="none")
    return (weight * losses).mean(2).sum(1) / delta
