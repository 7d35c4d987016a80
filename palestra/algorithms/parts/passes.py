"""Passes over the roll-outs of an actor-critic: the rows that it learns from, and their minibatches.

Letters: M rows of a roll-out; T decisions of each of W sequences.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from palestra.algorithms.algorithm import Seat
from palestra.algorithms.parts.action_heads import SAMPLED, AnyHead
from palestra.algorithms.parts.actor_critic import VALUE, HeadedNet, spaces_of_critic
from palestra.algorithms.parts.advantages import (
    Experience,
    Sequences,
    in_sequences,
    rows_of_sequences,
    values_at_roll_out,
)
from palestra.algorithms.parts.playing import PlaysByHeads
from palestra.config import ConfigError, ConfigErrorItem, below
from palestra.nets import is_recurrent_config
from palestra.nets.recurrent import NamedNet
from palestra.nets.user_nets import RecurrentNet
from palestra.nets.weights import flatten_weights
from palestra.optimizers import Optimizer, learning_rate_factors
from palestra.players.player import Player
from palestra.randomness import fold, random_permutation
from palestra.rollouts.transitions import Transitions

ROLE = "role"  # among the extras of a row: in which role it was decided, its place among the player's roles
Estimate = Callable[[Sequences], tuple[Tensor, Tensor]]


def minibatch_errors(config: Any, seat: Seat) -> list[ConfigErrorItem]:
    """Return the error of more minibatches than a roll-out has rows or sequences, at its path below the algorithm."""
    is_recurrent = any(map(is_recurrent_config, config.body.nets.values()))
    per_world = seat.num_roles if is_recurrent else config.rollout_length * seat.num_moves
    num_sequences = seat.num_worlds * per_world
    if config.num_minibatches <= num_sequences:
        return []
    what = "sequences, one per world and role" if is_recurrent else "rows"
    message = f"expected at most {num_sequences} (a roll-out has so many {what}), got {config.num_minibatches}"
    return [ConfigErrorItem("num_minibatches", message)]


def refuse_batch_norm(net: nn.Module) -> None:
    """Raise ConfigError, at a path below the algorithm's config, for batch norm.

    It computes otherwise in play than in learning, so that the two would disagree on every probability.
    """
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules()):
        message = "expected a network without batch norm, as with layer norm ('l'), got one with batch norm"
        raise ConfigError.at("body", message)


def make_optimizer(config: Any, weights: Tensor, named: dict[str, nn.Parameter], player: Player) -> Optimizer:
    """Build the optimizer of the vector of all weights, with the config's factor for each weight.

    named: the parameters in the vector, by name. Raises ConfigError.
    """
    optimizer: Optimizer = config.optimizer.build(weights)
    with below(f"players.{player.name}.algorithm.learning_rate_factors"):
        optimizer.factors = learning_rate_factors(config.learning_rate_factors, named)
    return optimizer


class Passes:
    """The experience of a roll-out, and passes over it, each in another random order.

    experience: None between two roll-outs. explained_variance: of the values when the roll-out was collected. num_made:
    all passes so far.
    """

    def __init__(self, net: HeadedNet, player: Player) -> None:
        self.player = player
        self.is_recurrent = any(isinstance(net.net_of(head), RecurrentNet) for head in net.heads)
        self.key = torch.tensor([player.own_key("minibatches")], device=player.device)
        self.experience: Experience | None = None
        self.explained_variance, self.num_made = torch.zeros((), device=player.device), 0

    def sequences(self, batch: Transitions, rollout_length: int) -> tuple[Transitions, list[Tensor]]:
        """Return a roll-out with each row's role among its extras, and by role the numbers of consecutive rows."""
        sequences = rows_of_sequences(self.player, rollout_length, len(batch.valid))
        role = torch.zeros(len(batch.valid), dtype=torch.int64, device=batch.valid.device)
        for place, rows in enumerate(sequences):
            role[rows] = place
        return replace(batch, extras=batch.extras | {ROLE: role}), sequences

    @torch.no_grad()
    def begin(self, batch: Transitions, sequences: list[Tensor], critic: NamedNet | None, estimate: Estimate) -> None:
        """Make rows the experience that the next passes learn from.

        sequences: the numbers of rows that follow each other, (T, W) each. critic: None where there are no values,
        which then count as 0. estimate: finds advantages and value targets, (T, W) each.
        """
        extras, value = batch.extras, values_at_roll_out(critic, batch)
        advantage, value_target = torch.empty_like(value), torch.empty_like(value)
        for rows in sequences:
            advantage[rows], value_target[rows] = estimate(Sequences.of(batch, value, critic, rows))
        experience = Experience(
            observation=batch.observation,
            memory={},
            episode_start=torch.zeros(1, len(value), dtype=torch.bool, device=value.device),
            legal=batch.legal,
            action=extras.get(SAMPLED, batch.action),
            log_prob=extras["log_prob"],
            value=value,
            advantage=advantage,
            value_target=value_target,
            weight=batch.valid.to(torch.float32),
            role=extras[ROLE],
        )
        self.explained_variance = experience.explained_variance()
        self.experience = in_sequences(experience, batch, sequences) if self.is_recurrent else experience

    def minibatches(self, num: int) -> tuple[Tensor, ...]:
        """Draw the sequences of each of `num` minibatches of the next pass; at most one minibatch per sequence."""
        num_sequences = cast(Experience, self.experience).episode_start.shape[1]
        order = random_permutation(fold(self.key, self.num_made), num_sequences)
        self.num_made += 1
        return order.tensor_split(min(num, num_sequences))

    def explained_by_all(self) -> Tensor:
        """Return the explained variance of the values, of several replicas its mean over those that have rows."""
        weight = 0.0 if self.experience is None else None
        return self.player.mean_over_replicas(self.explained_variance.reshape(1), {}, weight)[0].squeeze(0)

    def state_dict(self) -> dict[str, Any]:
        return {
            "num_made": self.num_made,
            "explained_variance": self.explained_variance,
            "experience": None if self.experience is None else self.experience._asdict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device, experience = self.player.device, state["experience"]
        self.num_made = state["num_made"]
        self.explained_variance = state["explained_variance"].to(device)
        self.experience = None if experience is None else Experience(**experience).to(device)


class LearnsInPasses(PlaysByHeads):
    """The base of algorithms that learn in passes over each roll-out, with one optimizer of all weights.

    heads: how many outputs each head of the networks has. head: draws actions. name: of the networks in `player.nets`.
    """

    def __init__(self, config: Any, player: Player, heads: Mapping[str, int], head: AnyHead, name: str) -> None:
        super().__init__(config, player)
        self.critic_spaces = spaces_of_critic(config.centralized_critic, player)
        net = HeadedNet(config.body, config.initialization, heads, head, player, {VALUE: self.critic_spaces})
        self.net = net.to(player.device)
        with below(f"players.{player.name}.algorithm"):
            refuse_batch_norm(net)
        self.weights = flatten_weights(net)
        self.optimizer = make_optimizer(config, self.weights, dict(net.named_parameters()), player)
        self.parameters = list(net.parameters())  # asking a module each time costs as much as a small layer
        self.passes = Passes(net, player)
        player.nets, player.optimizers = {name: net}, {name: self.optimizer}
        player.lr_schedule = config.learning_rate
