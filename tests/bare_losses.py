"""The losses of DQN, SAC and PPO once more, in plain torch, and their gradients by DistributedDataParallel.

Each loss is a module of the networks that it needs, whose parameters that require a gradient are those that learn; it
is called with rows, a dict of columns (M, ...). Letters: M rows, A actions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss
from torch.nn.parallel import DistributedDataParallel

Rows = Mapping[str, Any]


class DQNLoss(nn.Module):
    """Huber loss of the TD error of double Q-learning. choosing: the online network in evaluation mode."""

    def __init__(self, online: nn.Module, choosing: nn.Module, target: nn.Module, gamma: float) -> None:
        super().__init__()
        self.online, self.choosing, self.target = online, fixed(choosing), fixed(target)
        self.gamma = gamma

    def forward(self, rows: Rows) -> Tensor:
        with torch.no_grad():
            best = self.choosing(rows["next_observation"]).masked_fill(~rows["next_legal"], -torch.inf).argmax(dim=1)
            next_value = of_action(self.target(rows["next_observation"]), best)
            target = rows["reward"] + self.gamma * torch.where(rows["terminated"], 0.0, next_value)
        return smooth_l1_loss(of_action(self.online(rows["observation"]), rows["action"]), target)


class CriticLoss(nn.Module):
    """Half the mean squared TD errors of all critics of discrete SAC. policy: in evaluation mode."""

    def __init__(
        self, critics: nn.ModuleList, policy: nn.Module, targets: nn.ModuleList, alpha: Tensor, gamma: float
    ) -> None:
        super().__init__()
        self.critics, self.policy, self.targets = critics, fixed(policy), fixed(targets)
        self.alpha, self.gamma = alpha, gamma

    def forward(self, rows: Rows) -> Tensor:
        with torch.no_grad():
            log_probs = log_policy(self.policy(rows["next_observation"]), rows["next_legal"])
            least = torch.stack([net(rows["next_observation"]) for net in self.targets]).amin(dim=0)
            next_value = (log_probs.exp() * (least - self.alpha * log_probs)).sum(dim=1)
            target = rows["reward"] + self.gamma * torch.where(rows["terminated"], 0.0, next_value)
        errors = [of_action(net(rows["observation"]), rows["action"]) - target for net in self.critics]
        return sum(0.5 * error.square().mean() for error in errors)


class SoftPolicyLoss(nn.Module):
    """Minus the soft value of the policy of discrete SAC. critics: in evaluation mode."""

    def __init__(self, policy: nn.Module, critics: nn.ModuleList, alpha: Tensor) -> None:
        super().__init__()
        self.policy, self.critics, self.alpha = policy, fixed(critics), alpha

    def forward(self, rows: Rows) -> Tensor:
        log_probs = log_policy(self.policy(rows["observation"]), rows["legal"])
        least = torch.stack([net(rows["observation"]) for net in self.critics]).amin(dim=0)
        return -(log_probs.exp() * (least - self.alpha * log_probs)).sum(dim=1).mean()


class CoefficientLoss(nn.Module):
    """The loss of SAC's entropy coefficient, by its logarithm. policy: in training mode."""

    def __init__(self, log_alpha: Tensor, policy: nn.Module, target_entropy: float) -> None:
        super().__init__()
        self.log_alpha, self.policy = nn.Parameter(log_alpha), fixed(policy)
        self.target_entropy = target_entropy

    def forward(self, rows: Rows) -> Tensor:
        with torch.no_grad():
            log_probs = log_policy(self.policy(rows["observation"]), rows["legal"])
            entropy = -(log_probs.exp() * log_probs).sum(dim=1).mean()
        return self.log_alpha.squeeze(0) * (entropy - self.target_entropy)


class PPOLoss(nn.Module):
    """PPO's clipped loss, as the mean over the rows of weight 1; advantages are normalised over them if asked for."""

    def __init__(
        self,
        policy: nn.Module,
        value: nn.Module,
        clip_range: float,
        value_coefficient: float,
        entropy_coefficient: float,
        normalize_advantages: bool,
    ) -> None:
        super().__init__()
        self.policy, self.value, self.clip_range = policy, value, clip_range
        self.value_coefficient, self.entropy_coefficient = value_coefficient, entropy_coefficient
        self.normalize_advantages = normalize_advantages

    def forward(self, rows: Rows) -> Tensor:
        weight, advantage = rows["weight"] / rows["weight"].sum(), rows["advantage"]
        if self.normalize_advantages:
            advantage = advantage - (weight * advantage).sum()
            advantage = advantage / ((weight * advantage.square()).sum().sqrt() + 1e-8)
        log_probs = log_policy(self.policy(rows["observation"]), rows["legal"])
        ratio = (of_action(log_probs, rows["action"]) - rows["log_prob"]).exp()
        clipped = ratio.clamp(1.0 - self.clip_range, 1.0 + self.clip_range)
        surrogate = torch.minimum(ratio * advantage, clipped * advantage)
        error = (self.value(rows["observation"])[:, 0] - rows["value_target"]).square()
        entropy = -(log_probs.exp() * log_probs).sum(dim=1)
        each = -surrogate + self.value_coefficient * error - self.entropy_coefficient * entropy
        return (weight * each).sum()


def fixed(nets: nn.Module) -> nn.Module:
    return nets.requires_grad_(False)


def of_action(values: Tensor, action: Tensor) -> Tensor:
    return values.gather(1, action.unsqueeze(1)).squeeze(1)


def log_policy(logits: Tensor, legal: Tensor) -> Tensor:
    """Log-probabilities, (M, A); of illegal actions they are very low and finite."""
    return logits.masked_fill(~legal, -1e9).log_softmax(dim=1)


# ---- gradients ------------------------------------------------------------------------------------------


@dataclass
class Work:
    """The loss and the rows of each replica, and the gradient on which all of them have made a step.

    Losses differ in running statistics of batch norm, which replicas average after an opt step alone.
    """

    losses: Sequence[nn.Module]
    rows: Sequence[Rows]
    joint: Tensor


def gradient_of(loss: nn.Module, rows: Rows) -> Tensor:
    loss.zero_grad()
    loss(rows).backward()
    return gradient_at(loss)


def gradient_at(loss: nn.Module) -> Tensor:
    """Return what `backward` has left at the weights that learn, as one vector."""
    found = [each.grad for each in loss.parameters() if each.requires_grad]
    return torch.cat([grad.flatten() for grad in found if grad is not None])


def gradients_by_ddp(rank: int, works: Sequence[Work], folder: Path) -> None:
    """Be one of four ranks: compute each loss on one's own rows; rank 0 writes the gradients that come of it."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=4)
    found = []
    for work in works:
        loss = work.losses[rank]
        model = DistributedDataParallel(loss, broadcast_buffers=False, init_sync=False)  # each rank has its buffers
        model(work.rows[rank]).backward()
        found.append(gradient_at(loss))
    if rank == 0:
        torch.save(found, folder / "gradients.pt")
    torch.distributed.destroy_process_group()
