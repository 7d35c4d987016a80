"""SARSA (Rummery & Niranjan 1994; Sutton & Barto 2018, 6.4) with a network, on-policy, without a replay buffer.

To run: palestra train sarsa.yml
"""

import torch

from palestra.algorithms.algorithm import Algorithm
from palestra.algorithms.parts.advantages import rows_of_sequences
from palestra.config import Discount, PositiveFloat, PositiveInt, UserConfig
from palestra.games.policy import Decision
from palestra.nets import NetConfig, make_net
from palestra.nets.weights import flat_gradient, flatten_weights
from palestra.optimizers import OptimizerConfig
from palestra.randomness import base_key, fold, random_choice, random_floats
from palestra.schedules import ScheduleConfig


class EpsilonGreedy:
    observes = "observation"

    def __init__(self, net, epsilon):
        self.net, self.epsilon = net, epsilon

    def act(self, view, legal, keys, memory):
        best = self.net(view).masked_fill(~legal, -torch.inf).argmax(dim=1)
        explores = random_floats(fold(keys, 0), 1)[:, 0] < self.epsilon
        return Decision(torch.where(explores, random_choice(fold(keys, 1), legal), best), {}, memory)


class Sarsa(Algorithm):
    """A turn is a roll-out and one opt step on it. For players that decide once a round."""

    class Config(UserConfig):
        gamma: Discount
        """discount per decision"""
        rollout_length: PositiveInt
        """rounds played in every world per turn, which is one opt step"""
        max_grad_norm: PositiveFloat
        """longer gradients are scaled down to this norm"""
        net: NetConfig
        """the Q-network"""
        optimizer: OptimizerConfig
        """how gradients become steps"""
        learning_rate: ScheduleConfig
        """a function of the player's opt steps"""
        epsilon: ScheduleConfig
        """probability of a random action in roll-outs, a function of the player's opt steps"""

    def __init__(self, config, player):
        super().__init__(config, player)
        key = base_key(player.seed, f"player/{player.name}/net")
        self.net = make_net(config.net, player.spaces, player.action_space.num_flags, key).to(player.device)
        self.optimizer = config.optimizer.build(flatten_weights(self.net))
        player.nets, player.optimizers = {"q": self.net}, {"q": self.optimizer}
        player.lr_schedule, player.er_schedule = config.learning_rate, config.epsilon

    def policy(self, explore):
        return EpsilonGreedy(self.net, self.config.epsilon(self.player.opt_steps) if explore else 0.0)

    def learn(self, turn):
        for _ in turn.once("update"):
            batch = turn.collect(self.config.rollout_length)
            turn.before_step()
            turn.after_step(self.opt_step(batch))

    def target(self, batch):
        """r + gamma Q(s', a') with the next action that was taken, (M,); and which rows have one or need none."""
        next_action, has_next = torch.zeros_like(batch.action), torch.zeros_like(batch.valid)
        for rows in rows_of_sequences(self.player, self.config.rollout_length, len(batch.valid)):
            next_action[rows[:-1]] = batch.action[rows[1:]]
            has_next[rows[:-1]] = batch.valid[rows[1:]]
        with torch.no_grad():
            next_value = self.net(batch.next_observation).gather(1, next_action.unsqueeze(1)).squeeze(1)
        target = batch.reward + self.config.gamma * next_value * ~batch.terminated
        return target, batch.valid & (batch.terminated | (has_next & ~batch.truncated))

    def opt_step(self, batch):
        target, counts = self.target(batch)
        value = self.net(batch.observation).gather(1, batch.action.unsqueeze(1)).squeeze(1)
        loss = ((value - target).square() * counts).sum() / counts.sum().clamp(min=1)
        gradient = flat_gradient(loss, list(self.net.parameters()))
        metrics = {"loss": loss.detach(), "q_mean": value.mean().detach()}
        gradient, metrics = self.player.mean_over_replicas(gradient, metrics, weight=counts)
        gradient, grad_norm = self.optimizer.clip(gradient, self.config.max_grad_norm)
        self.optimizer.learning_rate.fill_(self.config.learning_rate(self.player.opt_steps))
        self.optimizer.step(gradient)
        return {**metrics, "grad_norm": grad_norm}
