"""Explorations by name: they choose among actions by their values. To register one, add it to ExplorationConfig."""

from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from palestra.config import ByName, Config, UserConfig
from palestra.randomness import fold, random_choice, random_floats
from palestra.schedules import Schedule, ScheduleConfig, ShareScheduleConfig


def best_legal(q: Tensor, legal: Tensor) -> Tensor:
    """Return the legal action of largest value: int64 (B,). q, legal: (B, A). Rows without a legal action give 0."""
    return q.masked_fill(~legal, -torch.inf).argmax(dim=1)


class Exploration(Config):
    """The base of explorations, which choose actions in roll-outs. Letters: B worlds, A actions.

    May be implemented: `probabilities(q, legal, amount)`, those by which `choose` draws actions, (B, A), or None.
    """

    @property
    def schedule(self) -> Schedule:
        """The amount of exploration, a function of the player's opt steps."""
        raise NotImplementedError

    def choose(self, q: Tensor, legal: Tensor, keys: Tensor, amount: float) -> Tensor:
        """Choose a legal action in every world that has any: int64 (B,).

        q: float32 (B, A), the actions' values. legal: bool (B, A). keys: int64 (B,), for random numbers. amount: the
        present value of `schedule`.
        """
        raise NotImplementedError


class UserExploration(UserConfig, Exploration):
    """The base of a user's own explorations. Such a class is its own config: its fields are the keys.

    It must implement `schedule` and `choose`, of tensor operations alone; `probabilities` if it is to be measured.
    """


class EpsilonGreedyConfig(Exploration):
    usual: ClassVar = {"epsilon": {"name": "linear", "initial": 1.0, "final": 0.05, "num_steps": 10_000}}

    name: Literal["epsilon_greedy"]
    """the best legal action, and now and then a random legal one"""
    epsilon: ShareScheduleConfig
    """probability of a random one, a function of the player's opt steps"""

    @property
    def schedule(self) -> Schedule:
        return self.epsilon

    def choose(self, q: Tensor, legal: Tensor, keys: Tensor, epsilon: float) -> Tensor:
        explore = random_floats(fold(keys, 0), 1).squeeze(1) < epsilon
        return torch.where(explore, random_choice(fold(keys, 1), legal), best_legal(q, legal))

    def probabilities(self, q: Tensor, legal: Tensor, epsilon: float) -> Tensor:
        best = torch.nn.functional.one_hot(best_legal(q, legal), q.shape[1])
        return (1 - epsilon) * best + epsilon * legal / legal.sum(dim=1, keepdim=True)


class SoftmaxConfig(Exploration):
    usual: ClassVar = {"temperature": 1.0}

    name: Literal["softmax"]
    """legal actions with probabilities in proportion to exp(value / temperature)"""
    temperature: ScheduleConfig
    """a function of the player's opt steps; 0: the best legal action"""

    @property
    def schedule(self) -> Schedule:
        return self.temperature

    def choose(self, q: Tensor, legal: Tensor, keys: Tensor, temperature: float) -> Tensor:
        uniforms = random_floats(keys, q.shape[1]) + 2.0**-25  # the middles of the intervals: never 0, nor 1
        gumbel = -torch.log(-torch.log(uniforms))  # the largest of q / t + gumbel is distributed by the softmax
        return best_legal(q + temperature * gumbel, legal)

    def probabilities(self, q: Tensor, legal: Tensor, temperature: float) -> Tensor | None:
        return torch.softmax(q.masked_fill(~legal, -torch.inf) / temperature, dim=1) if temperature else None


ExplorationConfig = Annotated[
    EpsilonGreedyConfig | SoftmaxConfig | UserExploration, ByName(user_class=UserExploration, usual="epsilon_greedy")
]
