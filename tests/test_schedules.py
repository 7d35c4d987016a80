from itertools import pairwise
from typing import Any

import pytest

from palestra.config import Config, ConfigError, check
from palestra.schedules import Schedule, ScheduleConfig, ShareScheduleConfig


class Holder(Config):
    schedule: ScheduleConfig


def schedule(name: str, **data: Any) -> Schedule:
    return check({"schedule": {"name": name, **data}}, Holder).schedule


def knots(*pairs: tuple[int, float]) -> list[dict[str, float]]:
    return [{"step": step, "value": value} for step, value in pairs]


LINEAR = schedule("linear", initial=1.0, final=0.2, num_steps=8)
EXPONENTIAL = schedule("exponential", initial=1.0, final=0.2, rate=0.5)
INVERSE = schedule("inverse", initial=2.0, rate=6.0)
COSINE = schedule("cosine", initial=1.0, final=0.2, num_steps=8)
WARM = schedule("warm_up_cosine", peak=1.0, final=0.2, num_warm_up_steps=3, num_steps=11)
PIECEWISE = schedule("piecewise", knots=knots((2, 1.0), (4, 0.5), (8, 0.3)))


@pytest.mark.parametrize(
    ("moving", "values"),
    [
        (schedule("constant", value=0.3), {0: 0.3, 1: 0.3, 10**9: 0.3}),
        (LINEAR, {0: 1.0, 1: 0.9, 4: 0.6, 7: 0.3, 8: 0.2, 9: 0.2, 10**9: 0.2}),
        (schedule("linear", initial=0.0, final=2.0, num_steps=1), {0: 0.0, 1: 2.0, 2: 2.0}),
        (EXPONENTIAL, {0: 1.0, 1: 0.6, 2: 0.4, 3: 0.3, 10**4: 0.2}),
        (schedule("exponential", initial=1.0, final=0.2, rate=0.0), {0: 1.0, 1: 0.2}),
        (schedule("exponential", initial=1.0, final=0.2, rate=1.0), {0: 1.0, 10**6: 1.0}),
        (INVERSE, {0: 2.0, 3: 1.0, 9: 0.5, 6 * 10**9: 1e-9}),
        (COSINE, {0: 1.0, 2: 0.6 + 0.4 * 0.5**0.5, 4: 0.6, 6: 0.6 - 0.4 * 0.5**0.5, 8: 0.2, 10**9: 0.2}),
        (WARM, {0: 0.25, 2: 0.75, 3: 1.0, 5: 0.6 + 0.4 * 0.5**0.5, 7: 0.6, 11: 0.2, 10**9: 0.2}),
        (PIECEWISE, {0: 1.0, 2: 1.0, 3: 0.75, 4: 0.5, 6: 0.4, 8: 0.3, 9: 0.3, 10**9: 0.3}),
        (schedule("piecewise", knots=knots((5, 0.7))), {0: 0.7, 5: 0.7, 6: 0.7}),
    ],
)
def test_values_are_those_of_the_formula(moving: Schedule, values: dict[int, float]) -> None:
    assert {step: moving(step) for step in values} == pytest.approx(values, rel=1e-9)


@pytest.mark.parametrize("falling", [LINEAR, EXPONENTIAL, INVERSE, COSINE, PIECEWISE])
def test_falling_schedules_fall_and_stay_above_zero(falling: Schedule) -> None:
    values = [falling(step) for step in range(100)]
    assert all(left >= right for left, right in pairwise(values))
    assert min(values) > 0.0


@pytest.mark.parametrize(
    "moving", [schedule("constant", value=0.3), LINEAR, EXPONENTIAL, INVERSE, COSINE, WARM, PIECEWISE]
)
def test_all_values_of_a_scaled_schedule_are_those_times_the_factor(moving: Schedule) -> None:
    scaled = moving.scaled(0.5)
    assert [scaled(step) for step in range(12)] == pytest.approx([0.5 * moving(step) for step in range(12)])


@pytest.mark.parametrize("moving", [LINEAR, EXPONENTIAL, INVERSE, COSINE, PIECEWISE])
def test_a_schedule_comes_back_from_its_own_data(moving: Schedule) -> None:
    again = schedule(**moving.state_dict())
    assert again == moving
    assert [again(step) for step in range(12)] == [moving(step) for step in range(12)]


@pytest.mark.parametrize("faulty", [[], knots((3, 1.0), (3, 0.5)), knots((4, 1.0), (2, 0.5))])
def test_piecewise_refuses_knots_that_do_not_ascend(faulty: list[dict[str, float]]) -> None:
    with pytest.raises(ConfigError) as caught:
        schedule("piecewise", knots=faulty)
    expected = f"expected at least one knot, with ascending steps, got {[knot['step'] for knot in faulty]}"
    assert [(e.path, e.message) for e in caught.value.errors] == [("schedule.knots", expected)]


@pytest.mark.parametrize(
    ("name", "data", "path"),
    [
        ("linear", {"initial": 1.0, "final": 0.0, "num_steps": 0}, "schedule.num_steps"),
        ("linear", {"initial": -1.0, "final": 0.0, "num_steps": 2}, "schedule.initial"),
        ("exponential", {"initial": 1.0, "final": 0.0, "rate": 1.5}, "schedule.rate"),
        ("inverse", {"initial": 0.0, "rate": 1.0}, "schedule.initial"),
        ("piecewise", {"knots": knots((-1, 0.5))}, "schedule.knots.0.step"),
    ],
)
def test_values_out_of_range_are_refused_at_their_place(name: str, data: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        schedule(name, **data)
    assert [error.path for error in caught.value.errors] == [path]


class Share(Config):
    share: ShareScheduleConfig


@pytest.mark.parametrize(
    ("said", "paths"),
    [
        ({"name": "constant", "value": 2.0}, ["value"]),
        ({"name": "linear", "initial": 2.0, "final": 1.0, "num_steps": 3}, ["initial"]),
        ({"name": "exponential", "initial": 0.0, "final": 2.0, "rate": 1.0}, ["final"]),
        ({"name": "inverse", "initial": 2.0, "rate": 0.5}, ["initial"]),
        ({"name": "cosine", "initial": 2.0, "final": 2.0, "num_steps": 3}, ["initial", "final"]),
        ({"name": "piecewise", "knots": knots((0, 1.0), (3, 2.0))}, ["knots.1.value"]),
    ],
)
def test_a_schedule_of_a_share_does_not_exceed_one(said: Any, paths: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        check({"share": said}, Share)
    message = "expected a fraction between 0 and 1, got 2"
    assert [(e.path, e.message) for e in caught.value.errors] == [(f"share.{path}", message) for path in paths]


def test_a_schedule_of_a_share_may_reach_one() -> None:
    said = {"name": "inverse", "initial": 1.0, "rate": 6.0}  # the rate is no value of it
    assert check({"share": said}, Share).share(0) == 1.0
