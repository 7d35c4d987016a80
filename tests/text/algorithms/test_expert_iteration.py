from itertools import permutations
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from palestra.config import ConfigError, check
from palestra.randomness import world_keys
from palestra.text.algorithms.expert_iteration import ExpertIterationConfig, drawn_by_weight, equally_many
from palestra.text.rollouts import Rollouts
from tests.text.rows import JOB, dialogue, seat

THRESHOLD = {"name": "threshold", "reward": 1.0}
KEYS = world_keys(3, 4000, torch.device("cpu"))


def constant(value: float) -> dict[str, Any]:
    return {"name": "constant", "value": value}


def chosen(rollouts: Rollouts, player: str = "verifier", key: int = 0, **changed: Any) -> list[tuple[int, str]]:
    """The numbers of the questions that are learned from, each with the answer."""
    usual = {
        "name": "expert_iteration",
        "select": THRESHOLD,
        "labels": "as_they_come",
        "epochs": "this",
        "truth": constant(0.0),
    }
    config = check({**usual, **JOB, **changed}, ExpertIterationConfig)
    found = config.build(seat(player)).examples(rollouts, KEYS[key : key + 1])
    return [(each.row.question, each.answer or each.row.answer) for each in found]


ROLLOUTS = Rollouts(
    [
        each
        for question, (verdict, label) in enumerate([(1, 1), (1, 0), (0, 0), (0, 1), (1, 1), (1, 1)])
        for each in dialogue(question, verdict, label)
    ]
)


def test_a_player_learns_from_dialogues_that_went_well_for_it() -> None:
    assert chosen(ROLLOUTS) == [(0, "yes"), (2, "no"), (4, "yes"), (5, "yes")]
    assert [question for question, _ in chosen(ROLLOUTS, "prover")] == [0, 1, 4, 5]
    assert chosen(ROLLOUTS, select={"name": "threshold", "reward": 1.5}) == []


def test_of_each_label_equally_many_are_learned_from() -> None:
    found = [chosen(ROLLOUTS, labels="equal", key=key) for key in range(20)]
    assert all(len(each) == 2 and (2, "no") in each for each in found)
    assert {question for each in found for question, _ in each} == {0, 2, 4, 5}


def test_a_verdict_that_is_replaced_by_the_label_is_paid_as_right() -> None:
    truth = {"name": "linear", "initial": 0.0, "final": 1.0, "num_steps": 1}
    assert chosen(ROLLOUTS, truth=truth) == chosen(ROLLOUTS)  # in epoch 0 none is
    later = Rollouts(each for q, (v, y) in enumerate([(1, 0), (0, 1), (0, 0)]) for each in dialogue(q, v, y, epoch=1))
    assert chosen(later, truth=truth) == [(0, "no"), (1, "yes"), (2, "no")]
    shares = [len(chosen(later, truth=constant(0.5), key=key)) - 1 for key in range(300)]  # of two wrong ones
    assert sum(shares) / 600 == pytest.approx(0.5, abs=0.06)


def test_a_share_of_replaced_verdicts_does_not_exceed_one() -> None:
    with pytest.raises(ConfigError, match=r"^truth\.value: expected a fraction between 0 and 1, got 1\.5$"):
        chosen(ROLLOUTS, truth=constant(1.5))


def test_dialogues_without_replacement_are_drawn_with_exact_frequencies() -> None:
    weights, num = torch.tensor([1.0, 0.0, 2.0, 3.0], dtype=torch.float64), 2
    expected: dict[tuple[int, ...], float] = {}
    for order in permutations((0, 2, 3), num):
        left, chance = float(weights.sum()), 1.0
        for item in order:
            chance *= float(weights[item]) / left
            left -= float(weights[item])
        expected[tuple(sorted(order))] = expected.get(tuple(sorted(order)), 0.0) + chance
    drawn = [tuple(drawn_by_weight(weights, num, False, KEYS[n : n + 1]).tolist()) for n in range(4000)]
    assert set(drawn) == set(expected)
    assert chisquare([drawn.count(each) for each in expected], [4000 * p for p in expected.values()]).pvalue > 0.001
    assert drawn_by_weight(weights, 9, False, KEYS[:1]).tolist() == [0, 2, 3]
    assert drawn_by_weight(torch.zeros(3, dtype=torch.float64), 9, True, KEYS[:1]).tolist() == []


def test_dialogues_with_replacement_are_drawn_in_proportion_to_their_weights() -> None:
    weights = torch.tensor([0.0, 1.0, 2.0, 0.0, 5.0, 0.0], dtype=torch.float64)
    drawn = drawn_by_weight(weights, 8000, True, KEYS[:1])
    counts = torch.bincount(drawn, minlength=6)
    assert not counts[weights == 0].any()
    assert chisquare(counts[weights > 0], weights[weights > 0] * 1000).pvalue > 0.001


def test_a_weighted_draw_goes_by_the_reward_above_a_floor() -> None:
    select = {"name": "weighted", "num_dialogues": 3, "floor": -1.0, "replacement": True}
    found = [question for key in range(20) for question, _ in chosen(ROLLOUTS, select=select, key=key)]
    assert len(found) == 60
    assert set(found) == {0, 2, 4, 5}


def test_of_a_label_that_is_missing_nothing_is_kept() -> None:
    assert equally_many(torch.tensor([1, 2]), torch.tensor([0, 1, 1]), KEYS[:1]).tolist() == []
