"""A2C: advantage actor-critic (Mnih et al. 2016), with generalized advantages (Schulman et al. 2016).

To run: palestra train a2c.yml
"""

from typing import Annotated

import torch

from palestra.algorithms.algorithm import Algorithm
from palestra.algorithms.parts.action_heads import SAMPLED, BoxActionsConfig, make_head
from palestra.algorithms.parts.actor_critic import ActorCriticPolicy
from palestra.algorithms.parts.advantages import Sequences, generalized_advantages, rows_of_sequences, values
from palestra.algorithms.terms import metrics_of, total_loss
from palestra.config import ByName, Discount, Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, UserConfig
from palestra.nets import NetConfig, make_net
from palestra.nets.kernels.acting import acting_net
from palestra.nets.recurrent import NamedNet
from palestra.nets.weights import flat_gradient, flatten_weights
from palestra.optimizers import OptimizerConfig
from palestra.randomness import base_key
from palestra.schedules import ScheduleConfig


class A2C(Algorithm):
    class Config(UserConfig):
        gamma: Discount
        """discount per decision of the player"""
        gae_lambda: Fraction
        """0: advantages from the value one decision ahead; 1: from all that follows"""
        rollout_length: PositiveInt
        """rounds played in every world per turn, which is one opt step"""
        value_coefficient: NonNegativeFloat
        """weight of the value's mean squared error in the loss"""
        entropy_coefficient: NonNegativeFloat
        """weight of the policy's entropy in the loss"""
        normalize_advantages: bool
        """scale the advantages of a roll-out to mean 0 and standard deviation 1"""
        max_grad_norm: PositiveFloat | None
        """longer gradients are scaled down to this norm; null: never"""
        policy: NetConfig
        """the policy's network"""
        value: NetConfig
        """the value's network"""
        box_actions: Annotated[BoxActionsConfig, ByName()] | None
        """how actions that are vectors of numbers are drawn; null: actions are discrete"""
        optimizer: OptimizerConfig
        """how gradients become steps"""
        learning_rate: ScheduleConfig
        """a function of the player's opt steps"""

    def __init__(self, config, player):
        super().__init__(config, player)
        key = base_key(player.seed, f"player/{player.name}/net")
        self.head = make_head(config.box_actions, player)  # draws actions from what the policy puts out
        self.policy_net = make_net(config.policy, player.spaces, self.head.num_outputs, key)
        self.value_net = make_net(config.value, player.spaces, 1, key + 1)
        self.net = torch.nn.ModuleList([self.policy_net, self.value_net, self.head]).to(player.device)
        self.optimizer = config.optimizer.build(flatten_weights(self.net))
        self.actor = NamedNet("policy", acting_net(self.policy_net))
        self.critic = NamedNet("value", acting_net(self.value_net))
        player.nets, player.optimizers = {"actor_critic": self.net}, {"actor_critic": self.optimizer}
        player.lr_schedule = config.learning_rate

    def policy(self, explore):
        return ActorCriticPolicy(self.actor, None, self.head, gives_value=False, draws=explore, kernel=None)

    def learn(self, turn):
        for _ in turn.once("update"):
            batch = turn.collect(self.config.rollout_length)
            turn.before_step()
            turn.after_step(self.opt_step(batch))

    @torch.no_grad()
    def compute_advantages(self, batch):
        """The advantages of the rows of a roll-out, and their value targets: float32 (M,) each."""
        value = values(self.critic, batch.observation, {})
        advantage = torch.zeros_like(value)
        for rows in rows_of_sequences(self.player, self.config.rollout_length, len(value)):
            sequences = Sequences.of(batch, value, self.critic, rows)
            advantage[rows] = generalized_advantages(sequences, self.config.gamma, self.config.gae_lambda)
        return advantage, advantage + value

    def loss(self, batch, advantage, value_target):
        """The terms of the loss: those named loss_* add up, the others are recorded."""
        distribution = self.head.distribution(self.policy_net(batch.observation), batch.legal)
        value = self.value_net(batch.observation)[:, 0]
        weight = batch.valid / batch.valid.sum().clamp(min=1)  # rows that are not valid count nothing
        if self.config.normalize_advantages:
            centered = advantage - weight @ advantage
            advantage = centered / ((weight @ centered.square()).sqrt() + 1e-8)
        log_prob = distribution.log_prob(batch.extras.get(SAMPLED, batch.action))
        value_loss = weight @ (value - value_target).square()
        entropy = weight @ distribution.entropy()
        return {
            "loss_policy": -(weight @ (log_prob * advantage)),
            "loss_value": self.config.value_coefficient * value_loss,
            "loss_entropy": -self.config.entropy_coefficient * entropy,
            "value_loss": value_loss,
            "entropy": entropy,
        }

    def opt_step(self, batch):
        terms = self.loss(batch, *self.compute_advantages(batch))
        loss = total_loss(terms)
        gradient = flat_gradient(loss, list(self.net.parameters()))
        metrics = {"loss": loss.detach(), **metrics_of(terms)}
        gradient, metrics = self.player.mean_over_replicas(gradient, metrics, weight=batch.valid)
        norms = self.optimizer.layer_norms(gradient)
        gradient, grad_norm = self.optimizer.clip(gradient, self.config.max_grad_norm)
        self.optimizer.learning_rate.fill_(self.config.learning_rate(self.player.opt_steps))
        self.optimizer.step(gradient)
        return {**metrics, "grad_norm": grad_norm, **norms}
