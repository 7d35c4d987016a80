"""`rows` as a data set: its items are the rows of a file, shown as the training rows say.

Covers palestra.data.items, palestra.data.table.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from palestra.config import Config, ConfigError, check
from palestra.data.reading import BatchKey, Reader
from palestra.data.rows import RowsData, RowsDataConfig
from palestra.data.sets import make_sets, overlaps
from palestra.games import make_game
from palestra.kinds.data.config import AnySetConfig

ROWS = [["a", "colour", "b", "y"], *([i, ["red", "blue", "green"][i % 3], -i / 4, int(i % 5 < 2)] for i in range(40))]

pytestmark = pytest.mark.usefixtures("in_tmp_path")


def write_csv(rows: Sequence[Sequence[Any]], name: str = "data.csv") -> None:
    with open(name, "w", newline="") as file:
        csv.writer(file).writerows(rows)


def keys(**changes: Any) -> dict[str, Any]:
    return {
        "name": "rows",
        "file": "data.csv",
        "label": "y",
        "label_kind": "class",
        "sees": ["a", "colour", "b"],
        "categorical": ["colour"],
        "images": [],
        "held_out": {"name": "fraction", "fraction": 0.25, "seed": 0},
        "part": "train",
        "standardize": True,
        "num_items": None,
    } | changes


class Sets(Config):
    data: dict[str, AnySetConfig]
    """sets"""


def made(**sets: Any) -> dict[str, RowsData]:
    return make_sets(check({"data": sets}, Sets).data, seed=0)


def test_items_are_what_the_scenario_shows_of_the_same_rows() -> None:
    write_csv(ROWS)
    sets = made(train=keys(), test=keys(part="held_out"), whole=keys(part="all"))
    scenario = keys(sees={"verifier": ["a", "colour", "b"]}, num_tokens=2, balanced=False)
    for key in ("label_kind", "part", "num_items"):
        del scenario[key]
    rewards = {"right": 1.0, "wrong": -1.0, "out_of_time": -1.0, "go_on": 0.0, "prover": 1.0, "shared": False}
    game: Any = make_game(
        {
            "name": "dialogue",
            "protocol": {"name": "solo_verifier", "rewards": rewards},
            "scenario": scenario,
            "observation": {"normalize": None, "clip": None},
        }
    )
    for data, split in ((sets["train"], game.scenario.training), (sets["test"], game.scenario.held_out)):
        assert set(data.rows.tolist()) == set(split.rows.tolist())
        for item, row in enumerate(data.rows.tolist()):
            shown = game.scenario.view({"row": torch.tensor([row])}, "verifier", torch.zeros(1, 1, 0))
            assert torch.equal(data[item]["columns"], shown["columns"][0])
            assert int(data[item]["label"]) == int(game.scenario.labels[row])
    assert sets["whole"].rows.tolist() == list(range(40))
    assert sets["train"].describe(0).startswith(f"row {sets['train'].rows[0]}: a ")


def test_a_batch_that_is_read_at_once_is_the_items_together() -> None:
    write_csv(ROWS)
    data, items = made(train=keys())["train"], (7, 3, 3, 20)
    reader = Reader("data.train", data, None, None, 0)
    assert reader.reads_at_once
    read, collated = reader[BatchKey(0, 0, items)], default_collate([data[item] for item in items])
    assert read.keys() == collated.keys() == {"columns", "label"}
    assert all(torch.equal(read[name], collated[name]) and read[name].dtype == collated[name].dtype for name in read)


def test_other_sets_are_shown_as_the_training_rows_say() -> None:
    write_csv(ROWS)
    write_csv([ROWS[0], [1000, "red", 3, 1], [1001, "pink", 4, 1]], "other.csv")
    sets = made(other=keys(file="other.csv", held_out=None, part="all"), train=keys())
    training = sets["train"].source.columns["a"][sets["train"].rows]
    expected = (np.array([1000, 1001]) - training.mean()) / training.std()
    assert sets["other"].entries["columns"][:, 0].tolist() == pytest.approx(expected.tolist(), rel=1e-6)
    assert sets["other"].entries["columns"][:, 1:4].tolist() == [[0, 0, 1], [0, 0, 0]]
    assert sets["other"].entries["label"].tolist() == [1, 1]


def test_classes_are_numbered_in_the_order_of_their_values() -> None:
    write_csv([["x", "y"], *([i, ["b", "10", "a"][i % 3]] for i in range(9))])
    changes: dict[str, Any] = {"sees": ["x"], "categorical": [], "held_out": None}
    texts = made(train=keys(**changes))["train"]
    assert (texts.classes, texts.entries["label"].tolist()) == (["10", "a", "b"], [2, 0, 1] * 3)
    write_csv([["x", "y"], *([i, [10, 2, 3][i % 3]] for i in range(9))])
    assert made(train=keys(**changes))["train"].entries["label"].tolist() == [2, 0, 1] * 3
    numbers = made(train=keys(**changes, label_kind="number"))["train"]
    assert (numbers.classes, numbers.entries["label"].dtype) == (None, torch.float32)
    assert numbers.entries["label"].tolist() == [10, 2, 3] * 3


def test_arrays_are_entries_of_their_own() -> None:
    pixels = np.arange(10 * 4 * 5, dtype=np.uint8).reshape(10, 4, 5)
    np.savez("data.npz", pixels=pixels, vector=np.ones((10, 3)), y=np.arange(10.0).reshape(10, 1) @ np.ones((1, 2)))
    changes: dict[str, Any] = {"sees": ["pixels", "vector"], "categorical": [], "images": ["pixels"]}
    changes |= {"held_out": None, "label_kind": "number"}
    item = made(train=keys(file="data.npz", **changes))["train"][3]
    assert {name: (value.dtype, tuple(value.shape)) for name, value in item.items()} == {
        "pixels": (torch.uint8, (1, 4, 5)),
        "vector": (torch.float32, (3,)),
        "label": (torch.float32, (2,)),
    }
    assert (item["pixels"][0].numpy() == pixels[3]).all()


def test_what_counts_as_an_image_is_said_by_a_key_whatever_its_type() -> None:
    grids = np.random.default_rng(0).normal(size=(10, 4, 5))
    np.savez(
        "data.npz", floats=grids, bytes=(99 * abs(grids)).astype(np.uint8), size=np.arange(10.0), y=np.arange(10) % 2
    )
    changes = keys(file="data.npz", sees=["floats", "bytes"], categorical=[], part="all", images=["floats", "bytes"])
    images = made(train=changes)["train"].entries
    assert (images["floats"][:, 0].numpy() == grids.astype(np.float32)).all()
    assert (images["bytes"].dtype, tuple(images["bytes"].shape)) == (torch.uint8, (10, 1, 4, 5))
    numbers = made(train=changes | {"images": [], "held_out": None})["train"].entries
    for name in ("floats", "bytes"):
        assert tuple(numbers[name].shape) == (10, 4, 5)
        assert numbers[name].mean(dim=0).abs().max() < 1e-5
    usual = RowsDataConfig.usual({"name": "rows", "file": "data.npz", "label": "y"}, None)
    assert (usual["sees"], usual["images"]) == (["floats", "bytes", "size"], ["floats", "bytes"])
    for sees, name, told in (
        (["floats", "size"], "size", r"got the shape \(10,\)"),
        (["bytes"], "floats", "got a column that nobody sees"),
    ):
        with pytest.raises(ConfigError, match=f"^data.train.images.0: expected an array .* as '{name}', {told}"):
            made(train=changes | {"sees": sees, "images": [name]})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"file": "no.csv"}, r"data.train.file: expected a file at 'no.csv', got none \(looked in "),
        (
            {"sees": ["a", "color"], "categorical": []},
            r"data.train.sees.1: expected a column of data.csv .*did you mean 'colour'",
        ),
        ({"sees": ["a", "y", "colour"]}, "data.train.sees.1: expected another column, because the model is to predict"),
        ({"sees": ["a", "a", "colour"]}, "data.train.sees.1: expected different columns, got 'a' twice"),
        ({"categorical": ["b", "x"]}, "data.train.categorical.1: expected a column that the model sees, got 'x'"),
        (
            {"label": "b", "sees": ["a", "colour"]},
            r"data.train.label: expected whole numbers or texts as classes, got -9.75 in row 39 .*number",
        ),
        (
            {"label": "colour", "label_kind": "number", "sees": ["a"], "categorical": []},
            "data.train.label: expected numbers in the column 'colour', got 'red' in row 0 .*label_kind: class",
        ),
        ({"held_out": None, "part": "held_out"}, "data.train.part: expected rows that are held out, got none of 40"),
        *(
            (
                {"held_out": {"name": "fraction", "fraction": fraction, "seed": 0}},
                f"data.train.held_out.fraction: expected a fraction of 40 rows that leaves some .* got {fraction}",
            )
            for fraction in (0.01, 0.99)
        ),
    ],
)
def test_what_does_not_fit_is_told(changes: dict[str, Any], told: str) -> None:
    write_csv(ROWS)
    with pytest.raises(ConfigError, match=f"^{told}"):
        made(
            train=keys(**({"sees": ["a", "colour"]} if "label" in changes and "sees" not in changes else {}) | changes)
        )


def test_rows_that_a_file_has_twice_are_counted_if_they_are_held_out() -> None:
    write_csv([ROWS[0], *ROWS[1:21], *ROWS[1:21]])
    data = made(train=keys(), test=keys(part="held_out"))
    rows = {name: [row % 20 for row in each.rows.tolist()] for name, each in data.items()}
    num = sum(row in rows["train"] for row in rows["test"])
    configs = check({"data": {"train": keys(), "test": keys(part="held_out")}}, Sets).data
    [line] = overlaps(data, configs)
    assert num > 0
    assert line == f"{num} rows or instances of data.test equal rows in data.train, from which the model learns"


def test_sets_of_one_file_are_split_alike_and_what_they_share_is_counted() -> None:
    """Whatever the path of the file is; so are instances of a scenario."""
    write_csv(ROWS)
    write_csv(ROWS, "copy.csv")
    fraction = {"name": "fraction", "fraction": 0.25, "seed": 0}
    for held_out in (fraction | {"seed": 1}, fraction | {"fraction": 0.5}, None):
        for file in ("data.csv", "./data.csv", "copy.csv"):
            with pytest.raises(ConfigError, match=r"^data.test.held_out: expected the same as in data.train, "):
                made(train=keys(held_out=held_out), test=keys(part="held_out", file=file))
    for train, test, shared in (
        ({}, {"part": "held_out"}, 0),
        ({"part": "all"}, {"part": "held_out"}, 10),
        ({}, {"part": "all", "held_out": None}, 30),
        ({"num_items": 7}, {"part": "all", "held_out": None, "num_items": 40}, 7),
    ):
        configs: Any = check({"data": {"train": keys(**train), "test": keys(**test)}}, Sets).data
        told = [f"{shared} rows or instances of data.test are also in data.train, from which the model learns"]
        assert overlaps(make_sets(configs, 0), configs) == (told if shared else [])
    write_csv([ROWS[0], *ROWS[5:9], *([1000, *row[1:]] for row in ROWS[1:4])], "other.csv")
    for num_items, num in ((None, 4), (6, 2)):
        sets = {"train": keys(part="all", held_out=None, num_items=num_items)}
        sets["test"] = keys(part="all", held_out=None, file="other.csv")
        configs = check({"data": sets}, Sets).data
        [line] = overlaps(make_sets(configs, 0), configs)
        assert line == f"{num} rows or instances of data.test equal rows in data.train, from which the model learns"
    rewards = {"right": 1.0, "wrong": -1.0, "out_of_time": -1.0, "go_on": 0.0, "prover": 1.0, "shared": False}
    drawn = {"name": "scenario", "protocol": {"name": "solo_verifier", "rewards": rewards}, "role": "verifier"}
    rows = keys(name="rows", sees={"verifier": ["a", "colour", "b"]}, num_tokens=2, balanced=False)
    for key in ("label_kind", "part", "num_items"):
        del rows[key]
    for scenario in ({"name": "witness", "num_bits": 8, "num_seen": 2}, rows):
        drawn |= {"scenario": scenario, "num_items": 500}
        for held_out in (True, False):
            sets = {"train": drawn | {"held_out": held_out}, "test": drawn | {"held_out": True}}
            configs = check({"data": sets}, Sets).data
            assert len(overlaps(make_sets(configs, 0), configs)) == held_out
    other = drawn | {"scenario": rows | {"held_out": fraction | {"seed": 1}}, "held_out": True}
    with pytest.raises(ConfigError, match=r"^data.test.scenario.held_out: expected the same as in data.train, because"):
        made(train=drawn | {"held_out": False}, test=other)


@pytest.mark.parametrize(("name", "quoted"), [(True, '"true"'), (2024, '"2024"')])
def test_a_column_whose_name_is_no_text_in_yaml_is_told_with_how_to_quote_it(name: Any, quoted: str) -> None:
    told = rf"^data.train.label: expected .*, got the \w+ .*; a text is quoted: {quoted}, on a command line '{quoted}'$"
    with pytest.raises(ConfigError, match=told):
        made(train=keys(label=name))
    text = {"label": str(name).lower(), "sees": ["a"], "categorical": [], "held_out": None}
    write_csv([["a", text["label"]], *([i, i % 2] for i in range(4))])
    assert len(made(train=keys(**text))["train"]) == 4


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e-300, 1e300, 5e-324])
def test_numbers_of_any_size_are_standardized(size: float) -> None:
    """Also where their squares are none that float64 holds."""
    write_csv([["a", "b", "y"], *([repr(size * (i % 3)), i % 3, i % 2] for i in range(12))])
    shown = made(train=keys(sees=["a", "b"], categorical=[], held_out=None))["train"].entries["columns"]
    assert shown[:, 0].tolist() == pytest.approx(shown[:, 1].tolist(), rel=1.0 if size == 5e-324 else 1e-6)


def test_another_set_that_cannot_be_shown_as_the_training_rows_say_is_told() -> None:
    write_csv(ROWS)
    write_csv([ROWS[0], [1, "red", 3, 2]], "other.csv")
    for changes, told in (
        ({"standardize": False}, "data.test.standardize: expected the same as in data.train, .* got False"),
        ({"file": "other.csv", "held_out": None}, r"data.test.label: expected one of the classes .* \(0, 1\), got 2"),
    ):
        with pytest.raises(ConfigError, match=f"^{told}"):
            made(train=keys(), test=keys(**changes))
    assert not Path("run").exists()
