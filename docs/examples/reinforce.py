"""REINFORCE (Williams 1992), per transition: push up what was rewarded at once."""

from typing import ClassVar

import torch

from palestra.algorithms.algorithm import Algorithm
from palestra.config import PositiveFloat, PositiveInt, UserConfig
from palestra.games.policy import Decision
from palestra.nets import NetConfig, make_net
from palestra.nets.weights import flat_gradient, flatten_weights
from palestra.optimizers import OptimizerConfig
from palestra.randomness import base_key, random_floats


class Sampling:
    observes = "observation"

    def __init__(self, net, explore):
        self.net, self.explore = net, explore

    def act(self, view, legal, keys, memory):
        logits = self.net(view).masked_fill(~legal, -torch.inf)
        if self.explore:  # the Gumbel trick draws from the softmax
            noise = random_floats(keys, legal.shape[1]).clamp(min=1e-7)
            logits = logits - torch.log(-torch.log(noise))
        return Decision(logits.argmax(dim=1), {}, memory)


class Reinforce(Algorithm):
    class Config(UserConfig):
        usual: ClassVar = {"rollout_length": 4, "learning_rate": 1.0e-3}

        rollout_length: PositiveInt
        """rounds played in every world per turn"""
        learning_rate: PositiveFloat
        """step size"""
        net: NetConfig
        """the policy network"""
        optimizer: OptimizerConfig
        """how gradients become steps"""

    def __init__(self, config, player):
        super().__init__(config, player)
        key = base_key(player.seed, f"player/{player.name}/net")
        self.net = make_net(config.net, player.spaces, player.action_space.num_flags, key).to(player.device)
        self.optimizer = config.optimizer.build(flatten_weights(self.net))
        player.nets, player.optimizers = {"policy": self.net}, {"policy": self.optimizer}

    def policy(self, explore):
        return Sampling(self.net, explore)

    def learn(self, turn):
        for _ in turn.once("update"):
            batch = turn.collect(self.config.rollout_length)
            turn.before_step()
            turn.after_step(self.opt_step(batch))

    def opt_step(self, batch):
        log_probs = self.net(batch.observation).masked_fill(~batch.legal, -1e9).log_softmax(dim=1)
        taken = log_probs.gather(1, batch.action.unsqueeze(1)).squeeze(1)
        loss = -(taken * batch.reward * batch.valid).sum() / batch.valid.sum().clamp(min=1)
        gradient = flat_gradient(loss, list(self.net.parameters()))
        gradient, metrics = self.player.mean_over_replicas(gradient, {"loss": loss.detach()}, weight=batch.valid)
        self.optimizer.learning_rate.fill_(self.config.learning_rate)
        self.optimizer.step(gradient)
        return metrics
