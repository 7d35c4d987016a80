import pytest
import torch

from palestra.config import check
from palestra.randomness import world_keys
from palestra.text.algorithms.policy_gradient import EPSILON, PolicyGradientConfig
from palestra.text.rollouts import Rollouts
from tests.text.rows import JOB, dialogue, seat

VERDICTS = [[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 1]]  # by question and roll-out; every label is 1
ROLLOUTS = Rollouts(
    each
    for question, verdicts in enumerate(VERDICTS)
    for rollout, verdict in enumerate(verdicts)
    for each in dialogue(question, verdict, 1, rollout)
)
LOSS = {"name": "policy_gradient", "per": "token", "clip_range": None, "kl_coefficient": 0.0, "kl_to": "base"}
OWN = {"name": "policy_gradient", **JOB, "loss": LOSS}
REWARDS = 2.0 * torch.tensor(VERDICTS, dtype=torch.float64) - 1.0


def advantages(kind: str) -> torch.Tensor:
    algorithm = check(OWN | {"advantage": kind}, PolicyGradientConfig).build(seat())
    found = algorithm.examples(ROLLOUTS, world_keys(1, 1, torch.device("cpu")))
    assert [(each.row.question, each.row.rollout) for each in found] == [(q, r) for q in range(3) for r in range(4)]
    return torch.tensor([each.weight for each in found], dtype=torch.float64).view(3, 4)


def test_a_reward_is_compared_with_others() -> None:
    others = (REWARDS.sum(dim=1, keepdim=True) - REWARDS) / 3
    std = REWARDS.std(dim=1, keepdim=True)
    expected = {
        "batch": REWARDS - REWARDS.mean(),
        "question": REWARDS - others,
        "normalized": (REWARDS - REWARDS.mean(dim=1, keepdim=True)) / (std + EPSILON),
    }
    for kind, each in expected.items():
        assert advantages(kind) == pytest.approx(each), kind


def test_a_question_with_one_dialogue_teaches_nothing() -> None:
    rollouts = Rollouts(dialogue(0, 1, 1))
    for kind in ("question", "normalized"):
        algorithm = check(OWN | {"advantage": kind}, PolicyGradientConfig).build(seat())
        assert [each.weight for each in algorithm.examples(rollouts, world_keys(1, 1, torch.device("cpu")))] == [0.0]
