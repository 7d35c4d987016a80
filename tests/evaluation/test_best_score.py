"""Which evaluation is the best one so far.

Covers palestra.evaluation.evaluations.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest

from palestra.config import check
from palestra.evaluation.evaluations import BestScore
from palestra.kinds.games.config import RunConfig

MakeConfig = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("goal", "scores", "better"),
    [
        ("max", [1.0, 1.0, 2.0, 2.0, 1.5, 2.5], [0, 2, 5]),
        ("min", [1.0, 1.0, 0.5, 0.5, 0.75, 0.25], [0, 2, 5]),
        ("max", [math.nan, -1.0, math.nan, -1.0, -0.5], [1, 4]),
    ],
)
def test_only_a_strictly_better_score_is_the_best_one(
    goal: str, scores: list[float], better: list[int], make_config: MakeConfig
) -> None:
    """Of equal ones the first stays: a tie would give up an older checkpoint for nothing."""
    config = check(make_config({"best.goal": goal, "best.measure": "rho"}), RunConfig)
    assert config.best is not None
    best = BestScore(config.best, config.measure(config.best))
    records = [
        {"evaluation": "main", "pairs": [{"players": best.measure.pairing, "scores": {"rho": score}}]}
        for score in scores
    ]
    assert [number for number, record in enumerate(records) if best.improves(record)] == better


def test_a_tie_after_a_best_that_could_not_be_saved_is_the_best_one(make_config: MakeConfig) -> None:
    config = check(make_config({"best.goal": "max", "best.measure": "rho"}), RunConfig)
    assert config.best is not None
    best = BestScore(config.best, config.measure(config.best))
    record = {"evaluation": "main", "pairs": [{"players": best.measure.pairing, "scores": {"rho": 1.0}}]}
    assert best.improves(record)
    best.take_back()
    assert best.has_lost_best
    assert best.improves(record)
    assert not best.has_lost_best


def test_another_evaluation_is_never_the_best_one(make_config: MakeConfig) -> None:
    config = check(make_config({"best.goal": "max", "best.measure": "rho"}), RunConfig)
    assert config.best is not None
    best = BestScore(config.best, config.measure(config.best))
    pairs = [{"players": best.measure.pairing, "scores": {"rho": 1.0}}]
    assert not best.improves({"evaluation": "another", "pairs": pairs})
    assert best.value is None
    assert best.improves({"evaluation": "main", "pairs": pairs})
