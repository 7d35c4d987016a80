"""The gradient on which four replicas make a step: that of DistributedDataParallel, and that of all rows at once."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partialmethod
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from bare_losses import (
    CoefficientLoss,
    CriticLoss,
    DQNLoss,
    PPOLoss,
    Rows,
    SoftPolicyLoss,
    Work,
    gradient_of,
    gradients_by_ddp,
)
from combinations import config_of
from torch import Tensor, nn

from palestra import make_trainer
from palestra.algorithms.dqn import DQN
from palestra.algorithms.ppo import PPO
from palestra.algorithms.sac import SAC
from palestra.players.player import Player

Data = dict[str, Any]
NUM = 4
BY_REPLAY = {"game": "nim", "actions": "discrete", "observations": "as they are"}
BY_REPLAY |= {"replay": "uniform", "transitions": "one step", "value": "expected", "dueling": "no"}
ROLL_OUTS = {"actions": "discrete", "objective": "clip", "body": "separate"}
CARTPOLE = {"game": "classic control", "observations": "as they are"}
WALKS = {"game": "gymnasium", "vectorization": "sync", "autoreset": "next_step"}  # some rows only begin an episode


def configured(algorithm: str, combination: dict[str, str], **changes: Any) -> Data:
    config = config_of(algorithm, combination) | {"num_replicas": NUM, "evaluations": [], "best": None}
    (player,) = config["players"].values()
    player["algorithm"] |= changes
    config["stop"] = {"after": 6, "unit": "opt_steps"}
    return config


ASKED = {
    DQN: ["find_gradient"],
    PPO: ["find_gradient"],
    SAC: ["critic_gradient", "policy_gradient", "coefficient_gradient"],
}


def without_batch_norm(*nets: str) -> Data:
    return {net: {"name": "mlp", "net_arch": [8], "activation": "tanh"} for net in nets}


CRITIC_AND_POLICY = ("policy_net", "critic_net")
CASES: dict[str, Callable[[], Data]] = {
    "DQN": lambda: configured("dqn", BY_REPLAY, **without_batch_norm("net")),
    "DQN, batch norm": lambda: configured("dqn", BY_REPLAY),
    "SAC": lambda: configured("sac", BY_REPLAY | {"entropy": "automatic"}, **without_batch_norm(*CRITIC_AND_POLICY)),
    "SAC, batch norm": lambda: configured("sac", BY_REPLAY | {"entropy": "automatic"}),
    "PPO": lambda: configured("ppo", WALKS | ROLL_OUTS, normalize_advantages=False),
    "PPO, normalised advantages": lambda: configured("ppo", CARTPOLE | ROLL_OUTS),
}


# ---- what replicas do -----------------------------------------------------------------------------------


class Asked(NamedTuple):
    """A gradient that a replica was asked for. nets: of the player, as they were then."""

    kind: str
    algorithm: Any
    arguments: tuple[Any, ...]
    nets: Mapping[str, nn.Module]
    rows: Rows


def works_of(name: str, folder: Path) -> list[Work]:
    """Train four replicas, and return what their opt steps were made of."""
    asked: dict[int, list[Asked]] = defaultdict(list)
    joint: list[Tensor] = []
    mean = Player.mean_over_replicas

    def ask(self: Any, *arguments: Any, kind: str, method: Callable[..., Any]) -> Any:
        by_kind = asked[self.player.replica.index]
        by_kind.append(Asked(kind, self, arguments, deepcopy(self.player.nets), deepcopy(_rows(kind, arguments))))
        return method(self, *arguments)

    def note(self: Player, gradient: Tensor, metrics: Mapping[str, Any], weight: Any = None) -> Any:
        found = mean(self, gradient, metrics, weight)
        if metrics and self.replica is not None and self.replica.index == 0:
            joint.append(found[0].clone())
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Player, "mean_over_replicas", note)
        for cls, names in ASKED.items():
            for kind in names:
                patch.setattr(cls, kind, partialmethod(ask, kind=kind, method=getattr(cls, kind)))
        make_trainer(CASES[name](), run=folder / "run").fit()
    together = zip(*(asked[index] for index in range(NUM)), strict=True)
    return [
        Work([_loss(one, asked[index]) for index, one in enumerate(each)], [one.rows for one in each], gradient)
        for each, gradient in zip(together, joint, strict=True)
    ]


def _rows(kind: str, arguments: Sequence[Any]) -> Rows:
    """Return the rows of which a gradient is asked for."""
    if kind == "find_gradient" and len(arguments) > 1:  # of PPO, on a minibatch
        batch = arguments[0].minibatch(arguments[1])
        names = ("observation", "legal", "action", "log_prob", "advantage", "value_target", "weight")
    else:
        batch = arguments[1 if kind == "coefficient_gradient" else 0]
        names = ("observation", "next_observation", "legal", "next_legal", "action", "reward", "terminated")
    return {name: getattr(batch, name) for name in names}


def _loss(asked: Asked, by_replica: list[Asked]) -> nn.Module:
    """Return the bare loss whose gradient was asked for. by_replica: all that the replica was asked for."""
    nets: Any = asked.nets
    config = asked.algorithm.config
    match asked.kind:
        case "find_gradient" if isinstance(asked.algorithm, PPO):
            clip_range, _, entropy_coefficient = asked.arguments[2]
            coefficients = clip_range, config.value_coefficient, entropy_coefficient, config.normalize_advantages
            return PPOLoss(*(nets["actor_critic"].net_of(head) for head in ("policy", "value")), *coefficients)
        case "find_gradient":
            return DQNLoss(nets["q"], deepcopy(nets["q"]).eval(), nets["target"], config.gamma)
        case "critic_gradient":
            others = deepcopy(nets["policy"]).eval(), nets["targets"]
            return CriticLoss(nets["critics"], *others, asked.arguments[2], config.gamma)
        case "policy_gradient":
            return SoftPolicyLoss(nets["policy"], deepcopy(nets["critics"]).eval(), asked.arguments[2])
        case _:  # the entropy is that of the policy before its own step
            before = next(each for one, each in pairwise(by_replica[::-1]) if one is asked).nets["policy"]
            target = config.entropy_coefficient.target_entropy.value
            return CoefficientLoss(torch.tensor([0.0]), deepcopy(before), target)


# ---- it is what others compute --------------------------------------------------------------------------

NOTHING_NORMALISED = ("DQN", "SAC", "PPO")


@pytest.mark.parametrize("name", CASES)
def test_the_joint_gradient_is_the_mean_of_all_and_that_of_all_rows_at_once(name: str, tmp_path: Path) -> None:
    works = works_of(name, tmp_path)
    assert len(works) == (18 if name.startswith("SAC") else 6)
    for work in works:
        of_each = torch.stack(list(map(gradient_of, work.losses, work.rows)))
        weights = torch.stack([rows.get("weight", torch.ones(1)).sum() for rows in work.rows])
        mean = (of_each * (weights / weights.sum()).unsqueeze(1)).sum(dim=0)
        torch.testing.assert_close(work.joint, mean, rtol=1e-6, atol=1e-6)
        assert (of_each - mean).abs().amax() > 1e-3  # each replica has a gradient of its own
        if name in NOTHING_NORMALISED:
            at_once = gradient_of(work.losses[0], joined(work.rows))
            torch.testing.assert_close(work.joint, at_once, rtol=1e-5, atol=1e-5)


def joined(rows: Sequence[Any]) -> Any:
    if isinstance(rows[0], Mapping):
        return {name: joined([each[name] for each in rows]) for name in rows[0]}
    return torch.cat(list(rows))


@pytest.mark.slow
def test_the_joint_gradient_is_that_of_distributed_data_parallel(tmp_path: Path) -> None:
    names = [name for name in CASES if name != "PPO"]  # whose replicas do not all weigh alike, as ranks do
    works = [work for name in names for work in works_of(name, tmp_path / name)]
    torch.multiprocessing.spawn(gradients_by_ddp, (works, tmp_path), nprocs=NUM)
    found = torch.load(tmp_path / "gradients.pt")
    for work, gradient in zip(works, found, strict=True):
        torch.testing.assert_close(work.joint, gradient, rtol=1e-6, atol=1e-6)
