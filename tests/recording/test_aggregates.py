"""What is gathered between two records.

Covers palestra.recording.values.
"""

import math
import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from palestra.recording.aggregates import Aggregates, Statistic
from palestra.recording.values import Image, Video
from palestra.run.checkpoints import Checkpoints
from palestra.storage.records_file import Measure
from palestra.storage.run_folder import RunFolder

ALL = get_args(Statistic)
CPU = torch.device("cpu")
PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)


def test_means_are_shown_until_there_are_new_ones() -> None:
    means = Aggregates(["mean"])
    assert means.shown() == {}
    means.add({"loss": 1.0, "q": torch.tensor(3.0)})
    means.add({"loss": 2.0})
    assert means.shown() == {"loss": 1.5, "q": 3.0}
    assert means.take() == {"loss": 1.5, "q": 3.0}
    assert means.means() == {}
    assert means.shown() == {"loss": 1.5, "q": 3.0}
    means.add({"loss": 4.0})
    assert means.shown() == {"loss": 4.0}
    assert means.take() == {"loss": 4.0}


def test_every_statistic_has_its_name_and_value() -> None:
    gathered = Aggregates(ALL)
    values = [3.0, -1.0, 2.5, 8.0]
    for value in values:
        gathered.add({"loss": value})
    assert gathered.take() == {
        "loss": 3.125,
        "loss/std": pytest.approx(statistics.pstdev(values), rel=1e-14),
        "loss/min": -1.0,
        "loss/max": 8.0,
        "loss/median": 2.75,
        "loss/last": 8.0,
        "loss/count": 4,
    }


def test_only_what_was_asked_for_is_recorded() -> None:
    gathered = Aggregates(["max", "count"])
    gathered.add({"loss": 3})
    gathered.add({"loss": np.float32(4.0)})
    assert gathered.take() == {"loss/max": 4.0, "loss/count": 2}


def test_std_of_large_numbers_that_lie_close_is_exact_enough() -> None:
    gathered = Aggregates(["std"])
    for value in (1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16):
        gathered.add({"x": value})
    assert gathered.take()["x/std"] == pytest.approx(math.sqrt(22.5), rel=1e-9)


def test_tensors_numbers_and_whole_arrays_of_numbers_come_to_the_same() -> None:
    values = np.random.default_rng(0).normal(5.0, 2.0, 20)
    found = []
    for way in range(3):
        gathered = Aggregates(ALL)
        if way == 2:
            gathered.add_numbers("x", values[:7])
            gathered.add_numbers("x", values[7:8])
            gathered.add_numbers("x", values[8:])
        else:
            for value in values:
                gathered.add({"x": torch.tensor(value) if way else float(value)})
        found.append(gathered.take())
    assert found[0] == found[1]
    assert found[2] == {name: pytest.approx(value, rel=1e-12) for name, value in found[0].items()}


def test_nan_stays_in_every_statistic_but_the_last_and_the_count() -> None:
    gathered = Aggregates(ALL)
    for value in (1.0, math.nan, 2.0, math.inf):
        gathered.add({"x": value})
    found = gathered.take()
    assert [math.isnan(found[name]) for name in ("x", "x/std", "x/min", "x/max", "x/median")] == [True] * 5
    assert (found["x/last"], found["x/count"]) == (math.inf, 4)


# ---- histograms ----------------------------------------------------------------------------------------


def histogram_of(*parts: Any) -> dict[str, Any]:
    gathered = Aggregates(["mean"])
    for part in parts:
        gathered.add({"x": part})
    return gathered.take()["x"]["histogram"]


def test_a_histogram_counts_every_number_in_its_bin() -> None:
    values = np.random.default_rng(0).normal(0.0, 3.0, 1000)
    found = histogram_of(values)
    edges = np.array(found["edges"])
    assert 32 <= len(found["counts"]) <= 65
    assert found["counts"] == np.histogram(values, edges)[0].tolist()
    assert sum(found["counts"]) == 1000
    assert min(found["counts"][0], found["counts"][-1]) > 0  # from the least to the greatest
    (width,) = set(np.diff(edges))
    assert math.frexp(width)[0] == 0.5  # a power of two


@pytest.mark.parametrize("scale", [1e-200, 1e-3, 1.0, 1e5, 1e200])
def test_a_histogram_does_not_depend_on_the_parts_in_which_its_numbers_come(scale: float) -> None:
    values = np.random.default_rng(1).normal(0.7, 1.0, 600) ** 3 * scale
    whole = histogram_of(values)
    assert histogram_of(values[:2], values[2:3], torch.tensor(values[3:50]), values[50:].reshape(-1, 10)) == whole
    assert histogram_of(values[300:], values[:300]) == whole
    assert sum(whole["counts"]) == 600


@pytest.mark.parametrize("value", [0.0, 5.0, -1e17, 1e-310])
def test_equal_numbers_lie_in_one_bin(value: float) -> None:
    found = histogram_of(np.full(7, value), np.full(3, value))
    assert found["counts"] == [10]
    assert found["edges"][0] <= value < found["edges"][1]


def test_neighbouring_numbers_and_mixed_kinds_have_a_histogram() -> None:
    assert sum(histogram_of(np.array([1.0, np.nextafter(1.0, 2.0)]))["counts"]) == 2
    assert sum(histogram_of(np.array([1e17, 1.0, -1e-30]))["counts"]) == 3
    assert (
        sum(histogram_of(np.array([True, False]), np.array([3, 4]), torch.ones(2, dtype=torch.bfloat16))["counts"]) == 6
    )


def test_what_is_not_finite_is_left_out_of_a_histogram() -> None:
    assert sum(histogram_of(np.array([1.0, math.nan, math.inf, 3.0]))["counts"]) == 2
    gathered = Aggregates(["mean"])
    gathered.add({"nothing": torch.full((3,), math.nan), "empty": np.zeros(0)})
    assert gathered.take() == {"nothing": None, "empty": None}


# ---- other values --------------------------------------------------------------------------------------


def test_of_texts_date_times_and_pictures_the_last_one_is_recorded_once() -> None:
    gathered = Aggregates(["mean"])
    image = Image(PIXELS)
    gathered.add({"text": "one", "at": datetime(2026, 1, 2, 3, tzinfo=UTC), "image": Image(PIXELS + 1)})
    gathered.add({"text": "two", "image": image})
    assert gathered.take() == {
        "text": {"text": "two"},
        "at": {"datetime": "2026-01-02T03:00:00+00:00"},
        "image": image,
    }
    assert gathered.take() == {}


def test_a_picture_is_copied_when_it_is_made() -> None:
    pixels = PIXELS.copy()
    image = Image(pixels)
    pixels[:] = 0
    assert np.array_equal(image.pixels, PIXELS)


@pytest.mark.parametrize(
    ("name", "make", "error", "message"),
    [
        ("x", lambda: {1, 2}, TypeError, "expected a number, .* as 'x', got a set"),
        ("x", lambda: None, TypeError, "expected a number, .* as 'x', got a NoneType"),
        ("x", lambda: np.array(["a"]), TypeError, "expected a number, .* as 'x', got a ndarray"),
        ("../x", lambda: Image(PIXELS), ValueError, "expected a name of letters, .*, got '../x'"),
        ("x", lambda: Image(PIXELS / 255), ValueError, "pixels: expected uint8 .*, got float64 of shape"),
        ("x", lambda: Image(PIXELS[None]), ValueError, r"expected uint8 \(height, width\) .*of shape \(1, 2, 4, 3\)"),
        (
            "x",
            lambda: Video(PIXELS[0], 30),
            ValueError,
            r"frames: expected uint8 \(frames.*, got uint8 of shape \(4, 3\)",
        ),
        ("x", lambda: Video(PIXELS, 0), ValueError, "fps: expected a number > 0 and <= 50, got 0"),
    ],
)
def test_what_cannot_be_recorded_is_told(name: str, make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Aggregates(["mean"]).add({name: make()})


# ---- state ---------------------------------------------------------------------------------------------


def some_values(number: int) -> dict[str, Any]:
    generator = np.random.default_rng(number)
    return {
        "z": float(generator.normal()),
        "a": torch.tensor(generator.normal()),
        "array": generator.normal(size=5),
        "text": f"number {number}",
        "at": datetime(2026, 1, 1, number),
        "image": Image(generator.integers(0, 256, (3, 2), dtype=np.uint8)),
        "video": Video(generator.integers(0, 256, (2, 3, 2, 3), dtype=np.uint8), 12.5),
    }


def written(record: dict[str, Any]) -> list[Any]:
    return [(name, value.to_bytes() if isinstance(value, Image | Video) else value) for name, value in record.items()]


def test_what_waits_for_a_record_goes_through_a_checkpoint_to_the_bit(tmp_path: Path) -> None:
    whole, before = Aggregates(ALL), Aggregates(ALL)
    for number in range(6):
        whole.add(some_values(number))
        if number < 4:
            before.add(some_values(number))
    folder = RunFolder.create_at(tmp_path / "run")
    with folder.lock():
        checkpoints = Checkpoints(folder, keep_last=1, keep_every=None)
        checkpoints.save(0, {"gathered": before.state_dict()}, {}, {}, Measure([b""]).then())
        state = checkpoints.load("latest").state["gathered"]
    after = Aggregates(ALL)
    after.load_state_dict(state, CPU)
    for number in range(4, 6):
        after.add(some_values(number))
    assert written(after.take()) == written(whole.take())  # in the same order, too


def test_what_was_gathered_for_other_statistics_is_dropped() -> None:
    before, after = Aggregates(["mean"]), Aggregates(["mean", "max"])
    before.add({"loss": 1.0})
    after.load_state_dict(before.state_dict(), CPU)
    after.add({"loss": 2.0})
    assert after.take() == {"loss": 2.0, "loss/max": 2.0}


@given(parts=st.lists(st.lists(st.floats(-1e3, 1e3), max_size=5), min_size=2, max_size=4))
@example(parts=[[64.0], [-5e-324]])
def test_what_several_have_gathered_is_joined_as_if_one_had(parts: list[list[float]]) -> None:
    whole, joined = Aggregates(ALL), Aggregates(ALL)
    for part in parts:
        own = Aggregates(ALL)
        for each in (whole, own):
            for value in part:
                each.add({"x": value})
            each.add({"array": torch.tensor(part, dtype=torch.float64), "text": f"{part}"})
            each.add_count("values", len(part))
        joined.join(own)
    expected, found = whole.take(), joined.take()
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name] == (pytest.approx(value, rel=1e-9, abs=1e-6) if isinstance(value, float) else value), name
