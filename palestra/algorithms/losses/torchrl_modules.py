"""Networks and distributions of palestra in the form that TorchRL's loss modules want.

Only losses/torchrl.py imports this, and only where a run asks for a loss of TorchRL.

An input TensorDict has the entries of the observation below `observation`, and `legal`. Letters: M rows, A actions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.distributions.kl import register_kl

from palestra.algorithms.losses.loss import ActionValues, AnyHead, Q
from palestra.algorithms.losses.off_policy_loss import ACTION, observes_actions
from palestra.algorithms.parts.action_heads import GaussianHead
from palestra.algorithms.parts.actor_critic import POLICY, VALUE, HeadedNet
from palestra.algorithms.parts.distributions import CategoricalDistribution, GaussianDistribution, HalfWidths
from palestra.algorithms.parts.exploration import best_legal
from palestra.algorithms.parts.return_distributions import of_action
from palestra.games.spaces import Box
from palestra.players.player import Player

OBSERVATION, LEGAL = "observation", "legal"


class ActionDistribution(Distribution):
    """A distribution of actions as the policy draws them, of a Box before they are clipped or squashed.

    outputs: of the head `policy`, (M, K). legal: bool (M, flags). head: makes actions of the outputs.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 (torch reads it as an attribute)

    def __init__(self, outputs: Tensor, legal: Tensor, head: Any) -> None:
        self.outputs, self.legal, self.head = outputs, legal, head
        self.own = head.distribution(outputs, legal)
        event = self.own.mean.shape[1:] if isinstance(self.own, GaussianDistribution) else torch.Size()
        super().__init__(outputs.shape[:1], event, validate_args=False)
        self.has_rsample = isinstance(self.own, GaussianDistribution)

    def rsample_and_log_prob(self, sample_shape: Any = ()) -> tuple[Tensor, Tensor]:
        """Draw one value for each row, through which gradients flow, and return it and its log-probability."""
        return self.own.draw(torch.randn_like(self.own.mean))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.rsample_and_log_prob()[0]

    def log_prob(self, value: Tensor) -> Tensor:
        return self.own.log_prob(value)

    def entropy(self) -> Tensor:
        return self.own.entropy()

    @property
    def logits(self) -> Tensor:
        """The log-probabilities of all actions of a Discrete: (M, A)."""
        assert isinstance(self.own, CategoricalDistribution)
        (log_probs,) = self.own.log_probs
        return log_probs

    @property
    def probs(self) -> Tensor:
        return self.logits.exp()


@register_kl(ActionDistribution, ActionDistribution)
def _kl_divergence(one: ActionDistribution, other: ActionDistribution) -> Tensor:
    return one.own.kl_divergence(other.own)


class _HeadOutputs(nn.Module):
    """Computes the outputs of a head. entries: those of the observation, in the order of the arguments."""

    def __init__(self, net: HeadedNet, head: str, entries: list[str]) -> None:
        super().__init__()
        self.net, self.entries = net.net_of(head), entries
        start = sum(list(net.heads.values())[: list(net.heads).index(head)]) if net.is_shared else 0
        self.columns = slice(start, start + net.heads[head])

    def forward(self, *entries: Tensor) -> Tensor:
        return cast(Tensor, self.net(dict(zip(self.entries, entries, strict=True))))[:, self.columns]


class _Policy(nn.Module):
    """Computes the outputs of the policy, and holds the weights by which actions are drawn, which TorchRL looks for."""

    def __init__(self, net: HeadedNet, entries: list[str]) -> None:
        super().__init__()
        self.outputs, self.draws = _HeadOutputs(net, POLICY, entries), net.head

    def forward(self, *entries: Tensor) -> Tensor:
        return cast(Tensor, self.outputs(*entries))


class _ActionValues(nn.Module):
    """Computes the values of all discrete actions, (M, A), the best legal action, (M,), and its value, (M, 1)."""

    def __init__(self, net: HeadedNet, head: str, entries: list[str]) -> None:
        super().__init__()
        self.outputs = _HeadOutputs(net, head, entries)

    def forward(self, legal: Tensor, *entries: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values = self.outputs(*entries)
        best = best_legal(values, legal)
        return values, best, of_action(values, best).unsqueeze(1)


class _Critic(nn.Module):
    """Computes the value, (M, 1), of an action as the policy draws it."""

    def __init__(self, net: HeadedNet, head: str, entries: list[str], player: Player) -> None:
        super().__init__()
        self.outputs = _HeadOutputs(net, head, [*entries, ACTION])
        self.action = cast(GaussianHead, net.head).action
        self.half_widths = HalfWidths(cast(Box, player.action_space), player.device)

    def forward(self, action: Tensor, *entries: Tensor) -> Tensor:
        return cast(Tensor, self.outputs(*entries, self.half_widths(self.action(action))))


def networks_of(net: HeadedNet, heads: Sequence[AnyHead], player: Player) -> dict[str, Any]:
    """Return the network of each head as a module on TensorDicts.

    `policy` is probabilistic and writes `action`; `value` writes `state_value`, a Critic `state_action_value`; a head
    with a value for each action writes `action_value`, the best legal `action` and `chosen_action_value`; any other
    head writes its outputs under its own name. heads: those of the loss.
    """
    networks: dict[str, Any] = {}
    of_actions = [Q, *(head.name for head in heads if isinstance(head, ActionValues))]
    for head in net.heads:
        entries = [entry for entry in net.others.get(head, player.spaces) if entry != ACTION]
        keys = [(OBSERVATION, entry) for entry in entries]
        if head == POLICY:
            outputs = TensorDictModule(_Policy(net, entries), in_keys=keys, out_keys=["outputs"])
            networks[head] = ProbabilisticTensorDictSequential(
                outputs,
                ProbabilisticTensorDictModule(
                    in_keys=["outputs", LEGAL],
                    out_keys=["action"],
                    distribution_class=ActionDistribution,
                    distribution_kwargs={"head": net.head},
                    return_log_prob=True,
                ),
            )
        elif observes_actions(net, head):
            critic = _Critic(net, head, entries, player)
            networks[head] = TensorDictModule(critic, in_keys=["action", *keys], out_keys=["state_action_value"])
        elif head in of_actions:
            values = ["action_value", "action", "chosen_action_value"]
            module = _ActionValues(net, head, entries)
            networks[head] = TensorDictModule(module, in_keys=[LEGAL, *keys], out_keys=values)
        else:
            key = "state_value" if head == VALUE else head
            networks[head] = TensorDictModule(_HeadOutputs(net, head, entries), in_keys=keys, out_keys=[key])
    return networks


def network_inputs(observation: Mapping[str, Tensor], legal: Tensor) -> dict[Any, Tensor]:
    """Return the entries of a TensorDict that networks read."""
    return {(OBSERVATION, name): entry for name, entry in observation.items()} | {LEGAL: legal}
