"""Covers palestra.text.algorithms too."""

import torch

from palestra.config import check
from palestra.randomness import world_keys
from palestra.text.algorithms.supervised import SupervisedConfig
from palestra.text.rollouts import Rollouts
from tests.text.rows import JOB, dialogue, seat


def test_a_verifier_learns_the_label_wherever_it_may_decide() -> None:
    rollouts = Rollouts([*dialogue(0, 1, 0), *dialogue(1, 1, 1), *dialogue(2, 0, 1)])
    config, keys = check({"name": "supervised", **JOB}, SupervisedConfig), world_keys(0, 1, torch.device("cpu"))
    found = config.build(seat()).examples(rollouts, keys)
    assert [(each.row.question, each.row.node, each.answer) for each in found] == [
        (0, 1, "no"),
        (1, 1, "yes"),
        (2, 1, "yes"),
    ]
    assert config.build(seat("prover")).examples(rollouts, keys) == []
