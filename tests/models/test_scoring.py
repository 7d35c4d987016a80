"""Scores of a model are weighted means over items, with intervals; those of shares stay between 0 and 1."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from palestra.data.items import TensorItems
from palestra.models.gradients import TermsError
from palestra.models.model import score
from palestra.models.scoring import ItemScores, share_estimate, weighted_estimate
from palestra.runtime.statistics import Share, estimate_mean


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_weighted_mean_has_the_interval_of_a_ratio() -> None:
    values, ones = numbers(1, 0, 1, 1), numbers(1, 1, 1, 1)
    plain = estimate_mean(values)
    found = weighted_estimate(values, ones)
    assert found.value == plain.value
    assert found.low == pytest.approx(plain.low)
    doubled = weighted_estimate(values, 2 * ones)
    assert (doubled.value, doubled.high) == pytest.approx((found.value, found.high))
    assert weighted_estimate(values, numbers(1, 1, 0, 0)).value == 0.5


@pytest.mark.parametrize("hits", [0, 1, 3, 4])
def test_a_share_of_items_has_wilsons_interval(hits: int) -> None:
    values, ones = numbers(*[1] * hits, *[0] * (4 - hits)), numbers(1, 1, 1, 1)
    wilson = Share(hits, 4).estimate()
    assert share_estimate(values, ones) == pytest.approx(wilson)
    assert share_estimate(values, 3 * ones) == pytest.approx(wilson)
    assert share_estimate(values.repeat(2), torch.cat([ones, 0 * ones])) == pytest.approx(wilson)  # who has no weight
    assert 0 <= wilson.low <= hits / 4 <= wilson.high <= 1


def test_a_mean_of_shares_has_an_interval_between_0_and_1() -> None:
    found = share_estimate(numbers(1, 1, 0.5), numbers(1, 2, 1))
    plain = weighted_estimate(numbers(1, 1, 0.5), numbers(1, 2, 1))
    assert (found.value, found.low, found.high) == (0.875, plain.low, 1.0)
    assert plain.high > 1
    assert all(map(math.isnan, share_estimate(numbers(math.nan, 1), numbers(1, 1))))
    assert all(map(math.isnan, share_estimate(numbers(1, 0), numbers(0, 0))))


def test_the_unit_of_a_score_says_whether_it_is_a_share() -> None:
    scores = ItemScores([score(unit, "what it is", unit, better="high") for unit in ("share", "length")])
    scores.add({"share": torch.tensor([True, True]), "length": torch.tensor([5.0, 7.0])}, 2)
    found = scores.estimates()
    assert found["share"] == Share(2, 2).estimate()
    assert found["length"] == weighted_estimate(numbers(5, 7), numbers(1, 1))


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ([0.5, 97.0], "expected numbers between 0 and 1 as the score 'right', whose unit is share, got 97"),
        ([-0.1, 0.0], "expected numbers between 0 and 1 as the score 'right', whose unit is share, got -0.1"),
        ([[0.0], [1.0]], "expected one number per item, (2,), as the score 'right', got (2, 1)"),
    ],
)
def test_what_is_no_share_of_an_item_is_told(value: Any, told: str) -> None:
    with pytest.raises(TermsError) as raised:
        ItemScores([score("right", "what it is", "share", better="high")]).add({"right": torch.tensor(value)}, 2)
    assert str(raised.value) == told


def test_the_worst_items_are_among_the_wrong_ones() -> None:
    """Right and wrong, 1 and 0, are told by a score; an error without one tells nothing."""
    loss, right = torch.arange(12.0), torch.tensor([0.0, 1.0, 1.0] * 4)
    error, accuracy = score("loss", "", "", better="low"), score("accuracy", "", "share", better="high")
    for declared, numbers, expected in (
        ([error, accuracy], {"loss": loss, "accuracy": right}, [9, 6, 3, 0]),
        ([error, accuracy], {"loss": loss, "accuracy": right / 2}, [11, 10, 9, 8, 7, 6, 5, 4]),
        ([error], {"loss": loss}, [11, 10, 9, 8, 7, 6, 5, 4]),
        ([accuracy], {"accuracy": right}, [9, 6, 3, 0]),
    ):
        scores = ItemScores(declared)
        scores.add(numbers, 12)
        found = scores.extremes()
        assert [item for item, _ in found["worst"]] == expected
        assert len(found["best"]) == 8


@pytest.mark.parametrize(("better", "best"), [("high", [3, 2, 0, 1]), ("low", [0, 2, 3, 1])])
def test_a_number_that_is_nan_is_the_worst(better: str, best: list[int]) -> None:
    scores = ItemScores([score("gain", "", "", better=better)])
    scores.add({"gain": torch.tensor([1.0, math.nan, 2.0, 3.0])}, 4)
    found = scores.extremes()
    assert [item for item, _ in found["best"]] == best
    assert found["worst"][0][0] == 1


@pytest.mark.parametrize("wrong", [-1.0, math.nan])
def test_a_weight_below_0_is_told(wrong: float) -> None:
    numbers = {"gain": torch.ones(2), "weight": torch.tensor([2.0, wrong])}
    with pytest.raises(TermsError, match=f"^expected numbers >= 0 as the entry 'weight' .*, got {wrong:g}$"):
        ItemScores([score("gain", "", "", better="high")]).add(numbers, 2)


@pytest.mark.parametrize("values", [numbers(1, 0, 1, 1, 0, 1, 1), numbers(0.5, 0.1, 1, 0.7, 0.2, 0.9, 0.3)])
@pytest.mark.parametrize("estimate", [weighted_estimate, share_estimate])
def test_items_that_repeat_tell_as_much_as_each_of_them_once(estimate: Any, values: Tensor) -> None:
    again, ones = values.repeat(20), torch.ones(20 * len(values), dtype=torch.float64)
    same = torch.arange(len(values)).repeat(20)
    once, clustered = weighted_estimate(values, ones[: len(values)]), estimate(again, ones, same)
    assert clustered.value == pytest.approx(once.value)
    if estimate is weighted_estimate:
        assert clustered.half == pytest.approx(once.half)
    assert clustered.half > 2 * estimate(again, ones).half
    assert math.isnan(estimate(again, ones, torch.zeros_like(same)).half), "of one item there is no interval"


def test_equal_items_of_a_set_are_found_whatever_their_labels_say() -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])
    items = TensorItems({"x": rows, "on": torch.tensor([True, False, True])}, torch.tensor([0, 1, 1]))
    found = items.clusters()
    assert found is not None
    assert found.tolist() == [0, 1, 0]
    assert TensorItems({"x": rows[:2]}, None).clusters() is None
