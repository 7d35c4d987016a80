"""Bases of the algorithms whose players act by a policy's network, or by the values of actions."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor, nn

from palestra.algorithms.algorithm import Algorithm
from palestra.algorithms.kernels import choices
from palestra.algorithms.parts.action_heads import AnyHead, DiscreteHead
from palestra.algorithms.parts.actor_critic import POLICY, VALUE, ActorCriticPolicy, HeadedNet
from palestra.algorithms.parts.exploration import EpsilonGreedyConfig, Exploration, UserExploration, best_legal
from palestra.algorithms.parts.exported import Deterministic, DeterministicRecurrent
from palestra.games.game import Observation
from palestra.games.policy import Decision, Memory, Observes, Policy, told_probabilities
from palestra.nets.kernels.acting import acting_net
from palestra.nets.recurrent import NamedNet
from palestra.nets.user_nets import RecurrentNet
from palestra.nets.weights import evaluation_view
from palestra.runtime.guard import kernel_property


class PlaysByPolicy(Algorithm):
    """The base of algorithms whose players draw actions from a network's outputs, or play the likeliest ones.

    A subclass sets `head`, with the methods `mode` and `probabilities`, and implements `net_of_policy` and
    `policy_that`. Its config has the key `evaluation`.
    """

    head: Any

    @abstractmethod
    def net_of_policy(self) -> nn.Module:
        """Return the network whose first outputs are the policy's."""

    @abstractmethod
    def policy_that(self, draws: bool, is_collecting: bool) -> Policy:
        """Return a policy that draws actions, or one that plays the likeliest.

        is_collecting: whether the player learns from its roll-outs.
        """

    def policy(self, explore: bool) -> Policy:
        return self.policy_that(explore or self.config.evaluation == "sampled", is_collecting=explore)

    def predictor(self, deterministic: bool) -> Policy:
        return self.policy_that(not deterministic, is_collecting=False)

    def choice_values(self, observation: Observation, legal: Tensor, memory: Memory) -> tuple[str, Tensor] | None:
        outputs, _ = self.actor.step(observation, memory or self.actor.initial_memory(len(legal), legal.device))
        probabilities = self.head.probabilities(outputs[:, : self.head.num_outputs], legal)
        return None if probabilities is None else ("probability", probabilities)

    def module(self) -> Deterministic | DeterministicRecurrent:
        if self.config.evaluation == "sampled":
            raise NotImplementedError(self.player.sampling_export_error())
        net, head, num_flags = evaluation_view(self.net_of_policy()), self.head, self.player.action_space.num_flags

        def choose(outputs: Tensor, legal: Tensor) -> Tensor:
            return cast(Tensor, head.mode(outputs[:, : head.num_outputs], legal))

        if isinstance(net, RecurrentNet):
            return DeterministicRecurrent(net, choose, num_flags, f"{POLICY}.")
        return Deterministic(net, choose, num_flags)

    @kernel_property
    def actor(self) -> NamedNet:
        """The policy's network, in evaluation mode."""
        return NamedNet(POLICY, acting_net(self.net_of_policy()))


class PlaysByHeads(PlaysByPolicy):
    """The base of algorithms whose networks are a HeadedNet, `net`."""

    net: HeadedNet

    @property
    def head(self) -> AnyHead:
        """The head that draws actions from the policy's outputs."""
        return self.net.head

    def net_of_policy(self) -> nn.Module:
        return self.net.net_of(POLICY)

    def policy_that(self, draws: bool, is_collecting: bool) -> Policy:
        critic, is_shared = self.critic, self.net.is_shared
        follows = is_collecting and critic is not None and not is_shared and critic.remembers
        entries = self.net.entries if is_collecting and self.config.centralized_critic else None
        gives_value = is_shared and critic is not None
        value = critic if follows else None
        return ActorCriticPolicy(self.actor, value, self.head, gives_value, draws, self.draw_kernel, entries)

    @kernel_property
    def critic(self) -> NamedNet | None:
        """The network whose last output is the value, in evaluation mode; None if there is no such head."""
        if VALUE not in self.net.heads:
            return None
        return self.actor if self.net.is_shared else NamedNet(VALUE, acting_net(self.net.net_of(VALUE)))

    @kernel_property
    def draw_kernel(self) -> choices.CategoricalDraw | None:
        head = self.head
        if self.player.device.type != "cpu" or not isinstance(head, DiscreteHead):
            return None
        return choices.CategoricalDraw(head.family) if self.may_run(choices.CATEGORICAL) else None


class ByValue:
    """Chooses legal actions by their values, and explores.

    choose: gives actions for Q-values, legal actions, keys, and an amount of exploration (0: none). teller: what tells
    the probabilities by which it draws them; None: nothing does.
    """

    observes: Observes = "observation"

    def __init__(
        self,
        values: Callable[[Any], Tensor],
        choose: Callable[[Tensor, Tensor, Tensor, float], Tensor],
        exploration: float,
        teller: Exploration | None = None,
    ) -> None:
        self.values, self.choose, self.exploration, self.teller = values, choose, exploration, teller

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        return Decision(self.choose(self.values(view), legal, keys, self.exploration), {}, memory)

    def probabilities(self, view: Mapping[str, Tensor], legal: Tensor) -> Tensor | None:
        asked = self.values(view), legal, self.exploration
        return None if self.teller is None else told_probabilities(self.teller, *asked)


class PlaysByValue(Algorithm):
    """The base of algorithms whose players choose actions by their values. The config has the key `exploration`."""

    @abstractmethod
    def values(self, observation: Observation) -> Tensor:
        """Return the values of all actions: (B, A)."""

    def policy_by_value(self, explores: bool) -> ByValue:
        """Return a policy that explores, or one that plays the best actions."""
        config = self.config.exploration
        if isinstance(config, UserExploration) and not explores:  # ours choose the best one for 0
            return ByValue(self.values, lambda q, legal, keys, amount: best_legal(q, legal), 0.0)
        amount = config.schedule(self.player.opt_steps) if explores else 0.0
        return ByValue(self.values, self.acting_kernel or config.choose, amount, config)

    @kernel_property
    def acting_kernel(self) -> Callable[[Tensor, Tensor, Tensor, float], Tensor] | None:
        """A kernel that chooses actions as the config's exploration does; None if there is none."""
        is_greedy = isinstance(self.config.exploration, EpsilonGreedyConfig)
        is_on_cpu = self.player.device.type == "cpu"
        return choices.choose_greedily if is_greedy and is_on_cpu and self.may_run(choices.GREEDY) else None
