"""Losses on rows of a replay buffer: functions of a plain batch that give named terms.

Letters: M rows, A actions, n numbers of a Box.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from palestra.algorithms.losses import loss as losses
from palestra.algorithms.losses.loss import NUM_TRIED, Loss, LossFault, with_gradients
from palestra.algorithms.parts.action_heads import SAMPLED, DiscreteHead, GaussianHead
from palestra.algorithms.parts.actor_critic import POLICY, HeadedNet
from palestra.algorithms.parts.distributions import CategoricalDistribution, Distribution
from palestra.algorithms.parts.return_distributions import of_action
from palestra.config import ConfigError
from palestra.games.game import Observation
from palestra.nets.inputs import zeros_of
from palestra.nets.kernels.acting import ActingNet, acting_net
from palestra.nets.weights import flat_gradient
from palestra.players.player import Player
from palestra.randomness import fold, random_normals
from palestra.rollouts.transitions import Transitions

# What a first file says of the algorithm, if its loss weighs likelihoods of the actions taken.
OF_LIKELIHOODS: Mapping[str, Any] = {
    "batch_size": 256,
    "target": {"tau": 0.005, "interval": 1},
    "max_grad_norm": None,  # one norm is that of all heads, and the critics' gradient would scale the policy's down
    "box_actions": "clipped_gaussian",
    "learning_rate": 3e-4,
}
ACTION = "action"  # the entry beside the observation that critics observe


class ActingHeads:
    """Computes the outputs of heads without gradients, in evaluation mode, by kernels where there are any."""

    def __init__(self, net: HeadedNet) -> None:
        self.split = net.split if net.is_shared else None
        heads = list(net.heads)[:1] if net.is_shared else list(net.heads)
        self.nets: dict[str, Any] = {head: acting_net(net.net_of(head)) for head in heads}

    @torch.no_grad()
    def __call__(self, head: str, observation: Observation) -> dict[str, Tensor]:
        """Return the outputs of the head, and of all other heads of the same network: by name (M, K)."""
        if self.split is None:
            return {head: self.nets[head](observation)}
        (net,) = self.nets.values()
        return self.split(net(observation))

    def module(self, head: str) -> nn.Module:
        """Return the head's own network in evaluation mode, through which gradients flow."""
        net: nn.Module = self.nets[head].net if isinstance(self.nets[head], ActingNet) else self.nets[head]
        return net


BATCH_HAS = (
    "it has observation, legal, next_observation, next_legal, action, reward, terminated, discount, extras, weight, "
    "outputs, next_outputs, target_outputs, distribution, next_distribution, log_prob, opt_steps, sample(), "
    "next_sample(), mean, the values of critics, and those of the actions taken"
)


class ReplayBatch:
    """Rows of a replay buffer, as a loss gets them. Outputs of networks are computed when they are first asked for.

    From the buffer it has: observation, next_observation, by entry (M, ...); legal, next_legal, bool (M, flags of the
    action space), all true at the end of a game; action, as the policy drew it, or would have if somebody else chose
    it, of a Box before it was clipped or squashed; reward, float32 (M,), the discounted sum if it is of n steps;
    terminated, bool (M,); discount of the next value, float32 (M,): gamma^n after n steps, and 0.0 where the game
    terminated; extras, what the player's policy kept, such as `log_prob`; weight, float32 (M,), the importance of rows
    that were drawn by priority, else ones. opt_steps: the player's opt steps so far, for schedules.

    From the networks, by head, (M, K): outputs, with gradients; and without gradients, at the next observations,
    next_outputs of the same networks and target_outputs of the target networks.

    net: the networks. online, target: the same and the target networks without gradients; target: None if there are
    none. key: int64 (1,), of this opt step's random numbers.
    """

    def __init__(
        self,
        net: HeadedNet,
        online: ActingHeads,
        target: ActingHeads | None,
        player: Player,
        rows: Transitions,
        gamma: float,
        opt_steps: int,
        key: Tensor,
    ) -> None:
        self.net, self.player, self.opt_steps = net, player, opt_steps
        self.observation, self.next_observation = rows.observation, rows.next_observation
        self.legal, self.next_legal = rows.legal, rows.next_legal | rows.terminated.unsqueeze(1)
        self.played, self.reward, self.terminated = rows.action, rows.reward, rows.terminated
        self.discount = ~rows.terminated * rows.extras.get("discount", gamma)
        self.extras, self.importance = rows.extras, rows.extras.get("weight")
        self._online, self._target, self._key, self._num_draws = online, target, key, 0
        self.outputs = _Outputs(net, self._outputs)
        self.next_outputs = _Outputs(net, lambda head: self._online(head, self.next_observation))
        self.target_outputs = _Outputs(net, lambda head: self._target_nets()(head, self.next_observation))
        self._target_outputs_now = _Outputs(net, lambda head: self._target_nets()(head, self.observation))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a batch has no {name!r}; {BATCH_HAS}")

    @property
    def weight(self) -> Tensor:
        return torch.ones_like(self.reward) if self.importance is None else self.importance

    def mean(self, column: Tensor) -> Tensor:
        """Return the mean of a column, float32 (M,), in which rows drawn by priority carry their weights."""
        return (column if self.importance is None else column * self.importance).mean()

    @cached_property
    @with_gradients
    def action(self) -> Tensor:
        """The actions taken, (M,) or (M, n)."""
        if SAMPLED not in self.extras and isinstance(self.net.head, GaussianHead):
            return self.net.head.sampled(self.played)
        return self.extras.get(SAMPLED, self.played)

    # ---- values of the actions taken, and their means under the policy, by heads TakenValue -----------------

    def taken_values(self, head: str) -> Tensor:
        """Return a TakenValue's values of the actions taken, with gradients: (M,)."""
        if observes_actions(self.net, head):
            return cast(Tensor, self.net.net_of(head)(self.observation | self._taken))[:, 0]
        return of_action(self.outputs[head], self.action)

    def target_taken_values(self, head: str) -> Tensor:
        """Return the target network's values of the actions taken, at the observations, without gradients: (M,)."""
        if observes_actions(self.net, head):
            return self._target_nets()(head, self.observation | self._taken)[head][:, 0]
        return of_action(self._target_outputs_now[head], self.action)

    @torch.no_grad()
    def policy_value(self, heads: Sequence[str]) -> Tensor:
        """Return the mean under the present policy of the smallest of some TakenValues, at the observations: (M,).

        It has no gradients. It is exact for discrete actions; of a Box it is the value of an action that is drawn.
        """
        if isinstance(self.net.head, DiscreteHead):
            return _mean_of_smallest(self.distribution, [self.outputs[head] for head in heads])
        observation = self.observation | self._observed(self.sample()[0])
        return torch.stack([self._online(head, observation)[head][:, 0] for head in heads]).amin(dim=0)

    @torch.no_grad()
    def target_policy_value(self, heads: Sequence[str]) -> Tensor:
        """Return what `policy_value` does, by the target networks, at the next observations: (M,)."""
        if isinstance(self.net.head, DiscreteHead):
            return _mean_of_smallest(self.next_distribution, [self.target_outputs[head] for head in heads])
        action = self.next_sample()[0]
        return torch.stack([self.target_action_values(head, action) for head in heads]).amin(dim=0)

    # ---- values of any actions that critics observe --------------------------------------------------------

    def action_values(self, head: str, action: Tensor) -> Tensor:
        """Return a Critic's values of actions at the observations, with gradients: (M,).

        action: (M, n), as the policy draws them.
        """
        return self._critic(head)(self.observation | self._observed(action))[:, 0]

    def fixed_action_values(self, head: str, action: Tensor) -> Tensor:
        """Return a Critic's values of actions at the observations; gradients flow into the actions alone: (M,)."""
        self._critic(head)
        net = self._online.module(head)
        weights = {name: weight.detach() for name, weight in net.named_parameters()}
        return cast(Tensor, functional_call(net, weights, (self.observation | self._observed(action),)))[:, 0]

    def target_action_values(self, head: str, action: Tensor) -> Tensor:
        """Return the target Critic's values of actions at the next observations, without gradients: (M,)."""
        self._critic(head)
        return self._target_nets()(head, self.next_observation | self._observed(action))[head][:, 0]

    # ---- the policy ----------------------------------------------------------------------------------------

    @cached_property
    @with_gradients
    def distribution(self) -> Distribution:
        """The distribution of actions at the observations under the present policy, with gradients."""
        return self.net.head.distribution(self.outputs[POLICY], self.legal)

    @cached_property
    def next_distribution(self) -> Distribution:
        """The distribution of actions at the next observations under the present policy, without gradients."""
        with torch.no_grad():
            return self.net.head.distribution(self.next_outputs[POLICY], self.next_legal)

    @cached_property
    @with_gradients
    def log_prob(self) -> Tensor:
        """The log-probabilities of the actions taken under the present policy, with gradients: (M,)."""
        return self.distribution.log_prob(self.action)

    def sample(self) -> tuple[Tensor, Tensor]:
        """Draw actions at the observations from the policy, and return them and their log-probabilities (M,).

        Actions of a Box are (M, n), before they are clipped or squashed, and gradients flow through them.
        """
        return self._drawn(self.outputs[POLICY], self.legal)

    def next_sample(self) -> tuple[Tensor, Tensor]:
        """Draw actions at the next observations, as `sample` does, without gradients."""
        with torch.no_grad():
            return self._drawn(self.next_outputs[POLICY], self.next_legal)

    # ---- how they are computed -------------------------------------------------------------------------------

    @with_gradients
    def _outputs(self, head: str) -> dict[str, Tensor]:
        outputs = self.net.net_of(head)(self.observation)
        return self.net.split(outputs) if self.net.is_shared else {head: outputs}

    def _target_nets(self) -> ActingHeads:
        if self._target is None:
            raise LossFault("asks for target networks, of which there are none: the algorithm's `target` is null")
        return self._target

    def _critic(self, head: str) -> nn.Module:
        if not observes_actions(self.net, head):
            raise LossFault(f"asks for values of actions by the head {head!r}, which its `heads` name no Critic")
        return self.net.net_of(head)

    def _observed(self, action: Tensor) -> dict[str, Tensor]:
        head = cast(GaussianHead, self.net.head)
        return {ACTION: head.half_widths(head.action(action))}

    @cached_property
    @with_gradients
    def _taken(self) -> dict[str, Tensor]:
        """What critics observe of the actions taken."""
        return {ACTION: cast(GaussianHead, self.net.head).half_widths(self.played)}

    def _drawn(self, outputs: Tensor, legal: Tensor) -> tuple[Tensor, Tensor]:
        head, rows = self.net.head, torch.arange(len(outputs), device=outputs.device)
        keys = fold(fold(self._key, self._num_draws).expand(len(outputs)).contiguous(), rows)
        self._num_draws += 1
        if isinstance(head, DiscreteHead):
            action, extras = head.draw(outputs, legal, keys)
            return action, extras["log_prob"]
        distribution = head.distribution(outputs, legal)
        return distribution.draw(random_normals(keys, distribution.mean.shape[1]))


def _mean_of_smallest(distribution: Distribution, values: Sequence[Tensor]) -> Tensor:
    """Return the means, (M,), of the smallest values of discrete actions, each (M, A)."""
    (log_probs,) = cast(CategoricalDistribution, distribution).log_probs
    return (log_probs.exp() * torch.stack(tuple(values)).amin(dim=0)).sum(dim=1)


def observes_actions(net: HeadedNet, head: str) -> bool:
    """Return whether a head is a Critic."""
    return ACTION in net.others.get(head, {})


class _Outputs(dict[str, Tensor]):
    """The outputs of heads by name, computed when they are first asked for."""

    def __init__(self, net: HeadedNet, compute: Callable[[str], dict[str, Tensor]]) -> None:
        super().__init__()
        self.net, self.compute = net, compute

    def __missing__(self, head: str) -> Tensor:
        if head not in self.net.heads:
            raise LossFault(f"uses the head {head!r}, which its `heads` ({', '.join(self.net.heads)}) do not name")
        if observes_actions(self.net, head):
            raise LossFault(f"asks for the outputs of {head!r}, which observes actions: batch.action_values has them")
        self.update(self.compute(head))
        return self[head]


class OffPolicyLoss(Loss):
    """The base of losses on rows of a player's replay buffer.

    A class of your own derives from it and carries its `Config`, a UserConfig with the loss's keys.

    It must set `heads`, the outputs that it learns: `q` or ActionValues(name), a value for each discrete action,
    `policy`, `value`, `label` (two logits), Critic(name), which observes an action, TakenValue(name), which is one of
    both, as the actions ask for, or Head(name, num_outputs) for another one; and `acts_by`, the head by which the
    player acts: `policy`, or one with a value for each discrete action. Both may be properties, which read `config`. It
    may set `weights`, a module with weights of its own that are learned too, such as a temperature; and `own_targets`:
    None if the algorithm keeps the target networks that its config asks for, else whether the loss keeps some, which
    `follow` moves.

    It must implement `terms`, and may implement `begin`, `priorities`, `follow`, `leaves`, `gradient`, and both or none
    of `state_dict`, `load_state_dict`.
    """

    acts_by: str = ""
    weights: nn.Module | None = None
    own_targets: bool | None = None
    learns_batch_norm: ClassVar[bool] = True

    def priorities(self, batch: ReplayBatch) -> Tensor:
        """Return the rows' priorities for prioritized replay, (M,), such as their TD errors.

        It is called after `terms`, with the same batch.
        """
        raise NotImplementedError

    def follow(self, share: float) -> None:
        """Move target networks that the loss itself keeps a share of the way to the networks that learn."""

    def leaves(self, weights: Mapping[str, nn.Parameter]) -> Mapping[str, Tensor]:
        """Return the tensors by which gradients are taken, by name. weights: all that are learned, by name."""
        return weights

    def gradient(self, loss: Tensor, leaves: list[Any], weights: Tensor) -> Tensor:
        """Return the gradient of a loss by the vector of all weights, (P,)."""
        return flat_gradient(loss, leaves)


# ---- tried once before anything is played ------------------------------------------------------------------


def try_loss(
    loss: OffPolicyLoss, config: Any, batch: ReplayBatch, leaves: Mapping[str, Tensor], is_prioritized: bool
) -> None:
    """Try a loss as losses.loss.try_loss does, and its priorities if the buffer is prioritized."""
    if is_prioritized and type(loss).priorities is OffPolicyLoss.priorities:
        message = f"expected uniform (the loss {config.name!r} has no `priorities`), got 'prioritized'"
        raise ConfigError.at("replay_buffer.name", message)

    def compute() -> Any:
        terms = loss.terms(batch)
        if is_prioritized:
            with torch.no_grad():
                priorities = loss.priorities(batch)
            if priorities.shape != (NUM_TRIED,):
                raise LossFault(f"gives priorities of shape {tuple(priorities.shape)}; expected one of each row")
        return terms

    losses.try_loss(loss, config, compute, leaves)


def rows_of_zeros(player: Player, draws: bool) -> Transitions:
    """Make rows of which all but the first have terminated. draws: whether the player keeps log-probabilities."""
    M, device, space = NUM_TRIED, player.device, player.action_space
    observation = zeros_of(player.spaces, M, device=device)
    legal = torch.ones(M, space.num_flags, dtype=torch.bool, device=device)
    return Transitions(
        observation=observation,
        action=torch.zeros(M, *space.shape, dtype=space.dtype, device=device),
        reward=torch.zeros(M, device=device),
        next_observation=observation,
        next_legal=legal,
        terminated=torch.arange(M, device=device) > 0,
        truncated=torch.zeros(M, dtype=torch.bool, device=device),
        valid=torch.ones(M, dtype=torch.bool, device=device),
        extras={"log_prob": torch.zeros(M, device=device)} if draws else {},
        legal=legal,
    )
