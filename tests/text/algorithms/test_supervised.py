"""Covers palestra.text.algorithms too."""

from dataclasses import replace

import torch

from palestra.config import check
from palestra.randomness import world_keys
from palestra.text.algorithms.supervised import SupervisedConfig
from palestra.text.rollouts import Rollouts
from tests.text.rows import JOB, dialogue, seat

KEYS = world_keys(0, 1, torch.device("cpu"))


def test_a_verifier_learns_the_label_wherever_it_may_decide() -> None:
    rollouts = Rollouts([*dialogue(0, 1, 0), *dialogue(1, 1, 1), *dialogue(2, 0, 1)])
    config = check({"name": "supervised", "scripted": None, **JOB}, SupervisedConfig)
    found = config.build(seat()).examples(rollouts, KEYS)
    assert [(each.row.question, each.row.node, each.answer) for each in found] == [
        (0, 1, "no"),
        (1, 1, "yes"),
        (2, 1, "yes"),
    ]
    assert config.build(seat("prover")).examples(rollouts, KEYS) == []


def test_a_player_learns_what_its_teacher_would_have_answered_in_every_role() -> None:
    rows = [replace(each, taught=f"taught {each.node}") for each in dialogue(0, 1, 0)]
    config = check({"name": "supervised", "scripted": "honest", **JOB}, SupervisedConfig)
    algorithm = config.build(seat("prover"))
    assert algorithm.teacher == "honest"
    assert [(each.row.node, each.answer) for each in algorithm.examples(Rollouts(rows), KEYS)] == [(0, "taught 0")]
