"""`rows`: what is drawn, what players see, and what does not fit in a file."""

import csv
import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PLAIN
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import palestra
from palestra.cli import app
from palestra.config import ConfigError, check, load_yaml
from palestra.config.usual import completed
from palestra.data.columns import read_columns
from palestra.games import OneGame, make_game
from palestra.games.dialogue.game import DialogueGame
from palestra.games.tryout import try_game
from palestra.games.tryout_calls import are_same
from palestra.kinds.games.starting import ALGORITHM, spaces_of
from palestra.randomness import base_key, fold, world_keys
from palestra.storage.records_file import read_records

Data = dict[str, Any]
REWARDS: Data = {"right": 1.0, "wrong": -1.0, "out_of_time": -1.0, "go_on": 0.0, "prover": 1.0, "shared": False}
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
ROWS = [["a", "colour", "b", "y"], *([i, ["red", "blue", "green"][i % 3], -i / 4, int(i % 5 < 2)] for i in range(40))]

pytestmark = pytest.mark.usefixtures("in_tmp_path")


def write_csv(rows: Sequence[Sequence[Any]], name: str = "data.csv") -> None:
    with open(name, "w", newline="") as file:
        csv.writer(file).writerows(rows)


def scenario(**changes: Any) -> Data:
    return {
        "name": "rows",
        "file": "data.csv",
        "label": "y",
        "sees": {"prover": ["a", "colour", "b"], "verifier": ["b"]},
        "categorical": ["colour"],
        "images": [],
        "num_tokens": 3,
        "held_out": {"name": "fraction", "fraction": 0.25, "seed": 0},
        "balanced": True,
        "standardize": False,
    } | changes


def rules(protocol: str = "adp", **changes: Any) -> Data:
    return {
        "name": "dialogue",
        "protocol": {"name": protocol, "rewards": REWARDS} | ({"stance": "accept"} if protocol == "adp" else {}),
        "scenario": scenario(**changes),
        "observation": PLAIN,
    }


def made(protocol: str = "adp", **changes: Any) -> DialogueGame:
    game = make_game(rules(protocol, **changes))
    assert isinstance(game, DialogueGame)
    return game


def drawn(game: DialogueGame, num: int, seed: int = 0) -> Any:
    return game.reset(fold(world_keys(base_key(seed, "test"), num, game.device), 0))


def rows_of(game: DialogueGame, held_out: bool) -> set[int]:
    split = game.scenario.held_out if held_out else game.scenario.training  # type: ignore[attr-defined]
    return set(split.rows.tolist())


# ---- what is drawn -------------------------------------------------------------------------------------


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    labels=st.lists(st.integers(0, 1), min_size=8, max_size=40),
    share=st.floats(0.05, 0.95),
    seed=st.integers(0, 2**32),
    balanced=st.booleans(),
)
def test_training_and_evaluations_draw_different_rows(
    labels: list[int], share: float, seed: int, balanced: bool
) -> None:
    write_csv([["x", "y"], *([number, label] for number, label in enumerate(labels))])
    held_out = {"name": "fraction", "fraction": share, "seed": seed}
    sees = {"prover": ["x"], "verifier": []}
    try:
        game = made(held_out=held_out, sees=sees, categorical=[], balanced=balanced)
    except ConfigError as error:
        told = (
            "rows with both labels, got" if 0 < round(share * len(labels)) < len(labels) else "some on both sides, got"
        )
        assert told in str(error)  # noqa: PT017 (some draws have none)
        return
    parts = [rows_of(game, held_out) for held_out in (False, True)]
    assert parts[0] | parts[1] == set(range(len(labels)))
    assert parts[0] & parts[1] == set()
    assert len(parts[1]) == round(share * len(labels))
    for part, each in zip(parts, (game, game.held_out()), strict=True):
        state = drawn(each, 500, seed)
        assert set(state["instance.row"].tolist()) <= part
        assert [labels[row] for row in state["instance.row"].tolist()] == state["label"].tolist()
        seen = each.observe(state, "prover")["columns"]
        assert torch.equal(seen[:, 0], state["instance.row"].float())


def test_evaluations_of_a_run_play_held_out_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(ROWS)
    game = made()
    drawn_rows: dict[bool, set[int]] = {False: set(), True: set()}
    scenario_class = type(game.scenario)
    original = scenario_class.draw

    def draw(self: Any, keys: torch.Tensor, held_out: bool) -> Any:
        instances, label = original(self, keys, held_out)
        drawn_rows[held_out] |= set(instances["row"].tolist())
        return instances, label

    monkeypatch.setattr(scenario_class, "draw", draw)
    palestra.make_trainer(config(stop={"after": 8, "unit": "opt_steps"}), run="run").fit()
    assert drawn_rows == {held_out: rows_of(game, held_out) for held_out in (False, True)}


def test_labels_are_drawn_equally_often_or_as_the_rows_have_them() -> None:
    write_csv(ROWS)
    for held_out in (False, True):
        game = made()
        rows = rows_of(game, held_out)
        shares = {True: 0.5, False: sum(int(ROWS[row + 1][3]) for row in rows) / len(rows)}
        for balanced, share in shares.items():
            each = made(balanced=balanced)
            state = drawn(each.held_out() if held_out else each, 20_000)
            assert abs(float(state["label"].double().mean()) - share) < 0.015
            for label in (0, 1):  # all rows of a label are equally likely
                counts = torch.bincount(state["instance.row"][state["label"] == label])
                counts = counts[counts > 0].double()
                assert len(counts) == sum(int(ROWS[row + 1][3]) == label for row in rows)
                assert (counts / counts.sum() * len(counts) - 1).abs().max() < 0.15


def test_a_column_says_which_rows_are_held_out() -> None:
    write_csv([[*row, "test" if row is ROWS[0] else int(row[0] >= 30)] for row in ROWS])
    game = made(held_out={"name": "column", "column": "test"})
    assert rows_of(game, True) == set(range(30, 40))
    words = ["test", "y"]  # as pandas and others write booleans
    flags = [[str(row[0] >= 30), ("FALSE", "true")[row[3]]] for row in ROWS[1:]]
    write_csv([[*row[:3], *added] for row, added in zip(ROWS, [words, *flags], strict=True)])
    assert rows_of(made(held_out={"name": "column", "column": "test"}), True) == set(range(30, 40))
    assert made().scenario.labels.tolist() == [row[3] for row in ROWS[1:]]  # type: ignore[attr-defined]


def test_the_split_follows_its_own_seed_alone() -> None:
    write_csv(ROWS)
    splits = [
        rows_of(made(held_out={"name": "fraction", "fraction": 0.25, "seed": seed}), True) for seed in (0, 0, 1, 2)
    ]
    assert splits[0] == splits[1]
    assert len({frozenset(split) for split in splits}) == 3


# ---- what players see ----------------------------------------------------------------------------------


@pytest.mark.parametrize("standardize", [False, True])
def test_numbers_are_those_of_a_plain_reading(standardize: bool) -> None:
    write_csv(ROWS)
    game = made(standardize=standardize)
    with open("data.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    training = sorted(rows_of(game, False))
    colours = sorted({lines[row]["colour"] for row in training})

    def number(name: str, row: int) -> float:
        value = float(lines[row][name])
        if not standardize:
            return value
        known = [float(lines[each][name]) for each in training]
        mean = sum(known) / len(known)
        return (value - mean) / math.sqrt(sum((each - mean) ** 2 for each in known) / len(known))

    for each in (game, game.held_out()):
        state = drawn(each, 100)
        of_prover, of_verifier = (each.observe(state, role)["columns"] for role in each.roles)
        for world, row in enumerate(state["instance.row"].tolist()):
            flags = [float(lines[row]["colour"] == colour) for colour in colours]
            expected = [number("a", row), *flags, number("b", row)]
            assert of_prover[world].tolist() == pytest.approx(expected, abs=1e-5)
            assert of_verifier[world].tolist() == pytest.approx([number("b", row)], abs=1e-5)
            assert state["label"][world] == int(lines[row]["y"])


def test_a_category_of_held_out_rows_alone_is_all_zeros() -> None:
    write_csv([["x", "y", "test"], *(["new" if i >= 30 else "ab"[i % 2], i % 2, int(i >= 30)] for i in range(40))])
    held_out = {"name": "column", "column": "test"}
    game = made(held_out=held_out, sees={"prover": ["x"], "verifier": []}, categorical=["x"])
    assert game.spaces["prover"]["columns"].shape == (2,)
    assert not game.held_out().observe(drawn(game.held_out(), 50), "prover")["columns"].any()
    assert (game.observe(drawn(game, 50), "prover")["columns"].sum(dim=1) == 1).all()


def test_a_constant_column_is_zero_where_numbers_are_standardized() -> None:
    write_csv([["x", "y"], *([0.1, i % 2] for i in range(40))])
    game = made(sees={"prover": ["x"], "verifier": []}, categorical=[], standardize=True)
    assert game.observe(drawn(game, 50), "prover")["columns"].abs().max() < 1e-6


def test_arrays_are_entries_of_their_own_and_images_are_pixels() -> None:
    random = np.random.default_rng(0)
    arrays = {
        "grey": random.integers(0, 256, (30, 8, 6), dtype=np.uint8),
        "rgb": random.integers(0, 256, (30, 3, 8, 6), dtype=np.uint8),
        "vector": random.normal(size=(30, 5)),
        "size": random.normal(size=30),
        "y": np.arange(30) % 2 == 0,
    }
    np.savez("data.npz", **arrays)
    sees = {"prover": ["grey", "size", "rgb", "vector"], "verifier": ["rgb"]}
    game = made(file="data.npz", sees=sees, categorical=[], images=["grey", "rgb"])
    assert {name: (space.shape, space.is_image) for name, space in game.spaces["prover"].items()} == {
        "columns": ((1,), False),
        "grey": ((1, 8, 6), True),
        "rgb": ((3, 8, 6), True),
        "vector": ((5,), False),
        "messages": ((2, 1, 3), False),
        "round": ((2,), False),
    }
    state = drawn(game, 20)
    row = state["instance.row"].numpy()
    seen = game.observe(state, "prover")
    assert (seen["grey"][:, 0].numpy() == arrays["grey"][row]).all()
    assert (seen["rgb"].numpy() == arrays["rgb"][row]).all()
    assert np.allclose(seen["vector"].numpy(), arrays["vector"][row])
    assert np.allclose(seen["columns"][:, 0].numpy(), arrays["size"][row])
    assert set(game.observe(state, "verifier")) == {"rgb", "messages", "round"}
    assert try_game(game, 12) == []


def test_csv_parquet_and_npz_give_the_same_game() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS[1:], columns=ROWS[0])
    frame.to_csv("data.csv", index=False)
    frame.astype({"colour": "category"}).to_parquet("data.parquet")
    np.savez("data.npz", **{name: np.array(frame[name].tolist()) for name in frame})
    games = [made(file=name, standardize=True) for name in ("data.csv", "data.parquet", "data.npz")]
    states = [drawn(game, 64) for game in games]
    for game, state in zip(games[1:], states[1:], strict=True):
        for name, value in state.items():
            assert torch.equal(value, states[0][name])
        for role in game.roles:
            for name, value in game.observe(state, role).items():
                assert torch.allclose(value, games[0].observe(states[0], role)[name])
        assert game.describe_board({name: value[0] for name, value in state.items()}) == games[0].describe_board(
            {name: value[0] for name, value in states[0].items()}
        )


@pytest.mark.parametrize("protocol", ["adp", "solo_verifier"])
def test_it_keeps_the_promises_of_a_game(protocol: str) -> None:
    write_csv(ROWS)
    sees = {"prover": ["a", "colour", "b"], "verifier": []} if protocol == "adp" else {"verifier": ["a", "colour"]}
    game = made(protocol, sees=sees)
    for each in (game, game.held_out()):
        assert try_game(each, 24) == []


def test_a_row_is_told_by_its_number_and_what_players_see() -> None:
    write_csv(ROWS)
    game = made(held_out={"name": "fraction", "fraction": 0.25, "seed": 0})
    assert game.scenario.describe({"row": torch.tensor(6)}) == "row 6: a 6, colour red, b -1.5"
    assert game.scenario.describe_token(2) == "symbol 2"


# ---- what does not fit ---------------------------------------------------------------------------------


def header(*cells: Any) -> list[list[Any]]:
    return [list(cells), *([i, i % 2] for i in range(20))]


def changed(row: int, column: int, value: Any) -> Callable[[], None]:
    rows = [list(each) for each in ROWS]
    rows[row][column] = value
    return lambda: write_csv(rows)


def text(content: str | bytes, name: str = "data.csv") -> Callable[[], None]:
    def write() -> None:
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def arrays(**changes: Any) -> Callable[[], None]:
    told = {"a": np.arange(40.0), "b": np.arange(40.0), "colour": np.array(["r", "b"] * 20), "y": np.arange(40) % 2}
    return lambda: np.savez("data.npz", **(told | changes))


NPZ = {"file": "data.npz"}
CASES: dict[str, tuple[Callable[[], None], Data, str, str]] = {
    "no file": (lambda: None, {}, "file", "expected a file at 'data.csv', got none (looked in "),
    "a folder": (lambda: Path("data.csv").mkdir(), {}, "file", "expected a file at 'data.csv', got something else"),
    "a URL": (
        lambda: None,
        {"file": "https://example.org/data.csv"},
        "file",
        "expected the path of a file on this machine, got the URL 'https://example.org/data.csv'; fetch it first",
    ),
    "another kind of file": (
        lambda: None,
        {"file": "data.xlsx"},
        "file",
        "expected a file that ends in .csv, .jsonl, .parquet, .npz, got 'data.xlsx'",
    ),
    "an empty file": (text(""), {}, "file", "expected rows in 'data.csv', got an empty file"),
    "blank lines": (text("\n\n"), {}, "file", "expected rows in 'data.csv', got an empty file"),
    "a header alone": (text("a,colour,b,y\n"), {}, "file", "expected rows in 'data.csv', got none"),
    "no UTF-8": (
        text(b"a,colour,b,y\n1,caf\xe9,2,0\n"),
        {},
        "file",
        "expected UTF-8 in 'data.csv', got the byte 0xe9 at 18; save it as UTF-8",
    ),
    "semicolons": (
        text("a;colour;b;y\n1;red;2;0\n"),
        {},
        "file",
        "expected cells separated by commas in 'data.csv', got the first line 'a;colour;b;y'",
    ),
    "an open quote": (text('a,colour,b,y\n1,"red,2,0\n'), {}, "file", "expected cells separated by commas in 'data"),
    "a cell too few": (
        text("a,colour,b,y\n1,red,2,0\n\n1,red,2\n"),
        {},
        "file",
        "expected 4 cells in every line of 'data.csv', as in the first one, got 3 in line 4",
    ),
    "a name twice": (
        text("a,colour,a,y\n1,red,2,0\n"),
        {},
        "file",
        "expected columns of different names in 'data.csv', got 'a' twice",
    ),
    "no parquet": (
        text("what", "data.parquet"),
        {"file": "data.parquet"},
        "file",
        "'data.parquet': expected a Parquet file, got another content: ",
    ),
    "no npz": (text("what", "data.npz"), NPZ, "file", "expected arrays that numpy.savez has written at 'data.npz', "),
    "pickled objects": (
        arrays(a=np.array([{}] * 40)),
        NPZ,
        "sees.prover.0",
        "expected an array of numbers or texts as 'a', got one that only pickle reads, or a damaged one",
    ),
    "complex numbers": (
        arrays(a=np.zeros(40, complex)),
        NPZ,
        "sees.prover.0",
        "expected an array of numbers or texts with an axis of rows as 'a', got complex128 of shape (40,)",
    ),
    "another length": (
        arrays(b=np.zeros(39)),
        NPZ,
        "sees.prover.2",
        "expected 40 rows in 'b', as in 'y', got 39",
    ),
    "channels last": (
        arrays(a=np.zeros((40, 8, 8, 3), np.uint8)),
        NPZ | {"images": ["a"]},
        "images.0",
        "expected images (rows, channels, height, width) as 'a', got (40, 8, 8, 3); transpose(0, 3, 1, 2) makes them "
        "so",
    ),
    "an array with a name of the game's": (
        arrays(round=np.zeros((40, 2))),
        NPZ | {"sees": {"prover": ["round"], "verifier": []}, "categorical": []},
        "sees.prover.0",
        "expected another name of an array than columns, messages, round, side, got 'round'",
    ),
    "an array of categories": (
        arrays(a=np.zeros((40, 2))),
        NPZ | {"categorical": ["a", "colour"]},
        "sees.prover.0",
        "expected a number or text in each row of the category 'a', got an array",
    ),
    "inf in an array": (
        arrays(a=np.where(np.arange(80) == 51, np.inf, 0.0).reshape(40, 2)),
        NPZ,
        "sees.prover.0",
        "expected finite numbers in the column 'a', got inf in row 25 (counted from 0); fill it, or leave the row out",
    ),
    "an unknown column": (
        changed(1, 0, 1),
        {"sees": {"prover": ["a", "color"], "verifier": []}, "categorical": []},
        "sees.prover.1",
        "expected a column of data.csv (a, colour, b, y), got 'color'; did you mean 'colour'?",
    ),
    "an unknown label": (
        changed(1, 0, 1),
        {"label": "z"},
        "label",
        "expected a column of data.csv (a, colour, b, y), got 'z'",
    ),
    "an unknown column of held-out rows": (
        changed(1, 0, 1),
        {"held_out": {"name": "column", "column": "test"}},
        "held_out.column",
        "expected a column of data.csv (a, colour, b, y), got 'test'",
    ),
    "another label": (
        changed(5, 3, 2),
        {},
        "label",
        "expected 0 or 1 in every row as the label 'y', got 2.0 in row 4 (counted from 0)",
    ),
    "a text as label": (
        changed(5, 3, "yes"),
        {},
        "label",
        "expected 0 or 1 in every row as the label 'y', got yes in row 4 (counted from 0)",
    ),
    "no label": (
        changed(5, 3, ""),
        {},
        "label",
        "expected 0 or 1 in every row as the label 'y', got nan in row 4 (counted from 0)",
    ),
    "something else says what is held out": (
        changed(1, 0, 1),
        {"held_out": {"name": "column", "column": "a"}},
        "held_out.column",
        "expected 0 or 1 in every row as the column 'a', got 2.0 in row 2 (counted from 0)",
    ),
    "nan": (
        changed(8, 2, "nan"),
        {},
        "sees.prover.2",
        "expected finite numbers in the column 'b', got none or nan in row 7 (counted from 0); fill it, or leave the "
        "row out",
    ),
    "an empty cell": (changed(8, 2, ""), {}, "sees.prover.2", "expected finite numbers in the column 'b', got none or"),
    "inf": (changed(8, 2, "-inf"), {}, "sees.prover.2", "expected finite numbers in the column 'b', got -inf in row 7"),
    "too large": (
        changed(8, 2, "1e300"),
        {},
        "sees.prover.2",
        "expected numbers that float32 holds in the column 'b', got inf in row 7 (counted from 0)",
    ),
    "a text among numbers": (
        changed(8, 2, "3,5"),
        {},
        "sees.prover.2",
        "expected numbers in the column 'b', got '3,5' in row 7 (counted from 0); if these are categories, name the "
        "column in `categorical`",
    ),
    "a missing category": (
        changed(8, 1, ""),
        {},
        "sees.prover.1",
        "expected a value in every row of 'colour', got none in row 7 (counted from 0); fill it, or leave the row out",
    ),
    "a category that nobody sees": (
        changed(1, 0, 1),
        {"categorical": ["colour", "a", "z"]},
        "categorical.2",
        "expected a column that some role sees, got 'z'",
    ),
    "a role without columns": (
        changed(1, 0, 1),
        {"sees": {"prover": ["a", "colour"]}},
        "sees.verifier",
        "expected a list of what it sees ([]: nothing), but the key is missing",
    ),
    "an unknown role": (
        changed(1, 0, 1),
        {"sees": {"prover": ["a", "colour"], "verifier": [], "judge": []}},
        "sees.judge",
        "unknown key; the roles of the protocol are prover, verifier",
    ),
    "a column twice": (
        changed(1, 0, 1),
        {"sees": {"prover": ["a", "colour", "a"], "verifier": []}},
        "sees.prover.2",
        "expected different columns, got 'a' twice",
    ),
    "a verifier that sees the label": (
        changed(1, 0, 1),
        {"sees": {"prover": ["a", "colour"], "verifier": ["b", "y"]}},
        "sees.verifier.1",
        "expected another column, because 'verifier' is to decide by what it sees, got the label 'y'",
    ),
    "no held-out row": (
        changed(1, 0, 1),
        {"held_out": {"name": "fraction", "fraction": 0.01, "seed": 0}},
        "held_out.fraction",
        "expected a fraction of 40 rows that leaves some on both sides, got 0.01",
    ),
    "one label in training": (
        lambda: write_csv([["a", "colour", "b", "y"], *([i, "r", i, int(i < 9)] for i in range(40))]),
        {"held_out": {"name": "column", "column": "y"}},
        "held_out",
        "expected training rows with both labels, got 31 with label 0 and 0 with label 1; choose other ones",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit_is_one_line(case: str) -> None:
    write, changes, path, message = CASES[case]
    write()
    with pytest.raises(ConfigError) as caught:
        made(**changes)
    [item] = caught.value.errors
    assert (item.path, item.message[: len(message)]) == (f"game.scenario.{path}", message)


def test_parquet_without_its_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("data.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"palestra\[frames\]"):
        made(file="data.parquet")


def test_other_kinds_of_columns_in_a_parquet_file_are_told() -> None:
    pandas = pytest.importorskip("pandas")
    dates = pandas.date_range("2020", periods=40)
    pandas.DataFrame({"a": dates, "y": [0, 1] * 20, "b": [1, None] * 20}).to_parquet("data.parquet")
    sees = {"prover": ["a"], "verifier": []}
    with pytest.raises(
        ConfigError,
        match=r"sees.prover.0: expected numbers, texts or lists of numbers in the column 'a', got timestamp",
    ):
        made(file="data.parquet", sees=sees, categorical=[])
    with pytest.raises(ConfigError, match=r"expected finite numbers in the column 'b', got none or nan in row 1 "):
        made(file="data.parquet", sees=sees | {"prover": ["b"]}, categorical=[])


def test_a_prover_may_see_the_label() -> None:
    write_csv(ROWS)
    game = made(sees={"prover": ["y"], "verifier": []}, categorical=[])
    state = drawn(game, 50)
    assert torch.equal(game.observe(state, "prover")["columns"][:, 0], state["label"].float())


def test_every_missing_key_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        check({"game": rules() | {"scenario": {"name": "rows"}}}, OneGame)
    keys = ["file", "label", "sees", "categorical", "images", "num_tokens", "held_out", "balanced", "standardize"]
    assert [item.path for item in caught.value.errors] == [f"game.scenario.{key}" for key in keys]


def test_the_file_is_read_as_it_is_hashed() -> None:
    write_csv(ROWS)
    file = read_columns("data.csv")
    assert file.sha256 == __import__("hashlib").sha256(Path("data.csv").read_bytes()).hexdigest()
    assert file.names == ("a", "colour", "b", "y")
    assert file.column("a").tolist() == list(range(40))
    with open("data.csv", "a") as more:
        more.write("1_000,red,2,0\n")
    assert read_columns("data.csv").column("a").tolist()[-1] == "1_000", "no number, as for pandas"


# ---- in a run ------------------------------------------------------------------------------------------


def config(protocol: str = "adp", changes: Data | None = None, **run: Any) -> Data:
    """Of docs/examples/telegram.yml, with this game."""
    data = load_yaml(EXAMPLES / "telegram.yml")
    data["game"] = rules(protocol, **(changes or {}))
    game = make_game(data["game"])
    player = data["players"]["verifier"]
    players = {role: deepcopy(player) for role in game.roles}
    for role, each in players.items():
        del each["algorithm"]["body"]
        each["algorithm"] = completed(each["algorithm"], ALGORITHM, spaces_of(game, role))
    for each in players.values():
        each["algorithm"]["rollout_length"] = game.protocol.max_rounds  # type: ignore[attr-defined]
    roles = {role: role for role in game.roles}
    data |= {"players": players, "roles": roles, "num_worlds": 64}
    data["evaluations"][0] |= {"interval": None, "num_games": 100, "final_num_games": 100, "pairings": [roles]}
    data["best"]["pairing"] = 0
    data["execution"]["num_threads"] = 1
    data["output"] |= {"display": "quiet", "recorders": []}
    return data | run


def last_accuracy(run: str) -> float:
    last = [record for record in read_records(Path(run) / "records.jsonl") if record["kind"] == "evaluation"][-1]
    accuracy: float = last["pairs"][0]["scores"]["accuracy"]
    return accuracy


def test_a_run_does_not_go_on_once_its_file_has_changed() -> None:
    write_csv(ROWS)
    palestra.make_trainer(config(stop={"after": 8, "unit": "opt_steps"}), run="run").fit()
    extend = ["extend", "run", "stop.after=16"]
    before = Path("data.csv").read_bytes()
    Path("data.csv").write_bytes(before.replace(b"39,", b"38,"))
    for words in (extend, ["resume", "run"], ["evaluate", "run"], ["branch", "run/checkpoints/latest", "seed=1"]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 2, result.output
        [line] = [line for line in result.stderr.splitlines() if line.startswith("game")]
        assert line.startswith("game.scenario: expected 'data.csv' as it was when the run began (SHA-256 "), line
        assert line.endswith("; put that file back, or begin a new run")
    assert not [*Path().glob("runs/*")], "of the branch nothing is left"
    Path("data.csv").unlink()
    result = CliRunner().invoke(app, ["evaluate", "run"])
    assert result.exit_code == 2
    assert "game.scenario.file: expected a file at 'data.csv', got none (looked in " in result.stderr
    Path("data.csv").write_bytes(before)
    assert CliRunner().invoke(app, ["resume", "run"]).exit_code == 0
    palestra.make_trainer(config(stop={"after": 16, "unit": "opt_steps"}), run="at once").fit()
    resumed, straight = (palestra.load_player(run, "prover", "latest").weights() for run in ("run", "at once"))
    assert resumed["opt_steps"] == straight["opt_steps"] > 0
    assert are_same(resumed["nets"], straight["nets"])


def test_an_evaluation_with_rows_that_players_would_see_otherwise_is_refused() -> None:
    write_csv(ROWS)
    write_csv(ROWS, "other.csv")
    for key, value in {"file": "other.csv", "standardize": True, "sees": {"prover": ["a"], "verifier": ["a"]}}.items():
        data = config()
        data["evaluations"][0]["game"] = rules(**{key: value, "categorical": [] if key == "sees" else ["colour"]})
        with pytest.raises(ConfigError) as caught:
            palestra.make_trainer(data, run="run")
        [item] = caught.value.errors
        assert item.path == f"evaluations.0.game.scenario.{key}"
        assert "expected the same as in the run's game, because it says how players see a row" in item.message
    data = config()
    data["evaluations"][0]["game"] = rules(balanced=False)
    palestra.make_trainer(data, run="run")


@pytest.mark.parametrize("net", ["nature_cnn", "impala_cnn"])
def test_networks_for_images_read_them(net: str) -> None:
    random = np.random.default_rng(0)
    y = np.arange(60) % 2
    pixels = random.integers(0, 100, (60, 12, 12), dtype=np.uint8) + (100 * y[:, None, None]).astype(np.uint8)
    np.savez("data.npz", pixels=pixels, size=random.normal(size=60), y=y)
    changes = {"file": "data.npz", "sees": {"prover": ["pixels", "size"], "verifier": []}, "categorical": []}
    changes["images"] = ["pixels"]
    data = config(changes=changes, stop={"after": 8, "unit": "opt_steps"})
    image = {"name": net, "channels": [4], "hidden_widths": [16]}
    image |= {"kernels": [3], "strides": [2]} if net == "nature_cnn" else {}
    body = data["players"]["prover"]["algorithm"]["body"]
    assert (body["name"], body["net"]["name"]) == ("shared", "multi_input")
    body["net"]["entries"]["pixels"] = image
    palestra.make_trainer(data, run="run").fit()
    assert 0.0 <= last_accuracy("run") <= 1.0


# ---- it learns -----------------------------------------------------------------------------------------

LEARNING: Data = {"num_worlds": 512, "stop": {"after": 480, "unit": "opt_steps"}}


def test_a_lone_verifier_comes_to_the_accuracy_of_the_bayes_rule() -> None:
    """A number and a colour, of which each combination has a probability of the label 1."""
    random = np.random.default_rng(0)
    chances = {
        (x, colour): chance
        for (x, colour), chance in zip(
            [(x, colour) for x in (-1, 0, 1) for colour in ("red", "blue")],
            (0.95, 0.1, 0.2, 0.85, 0.9, 0.3),
            strict=True,
        )
    }
    kinds = [list(chances)[i] for i in random.integers(0, len(chances), 4000)]
    rows = [[x, colour, int(random.random() < chances[x, colour])] for x, colour in kinds]
    write_csv([["x", "colour", "y"], *rows])
    changes = {"sees": {"verifier": ["x", "colour"]}, "balanced": False, "standardize": True}
    data = config("solo_verifier", changes, **LEARNING)
    data["evaluations"][0]["final_num_games"] = 10_000
    trainer = palestra.make_trainer(data, run="run")
    trainer.fit()
    held_out = rows_of(trainer.game, True)
    bayes = sum((chances[kinds[row]] > 0.5) == rows[row][2] for row in held_out) / len(held_out)
    assert 0.8 < bayes < 0.95
    assert last_accuracy("run") == pytest.approx(bayes, abs=0.02)


def test_a_prover_tells_a_verifier_what_only_the_prover_sees() -> None:
    """They agree on what symbols mean."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 5000)
    write_csv([["a", "b", "y"], *([y + random.normal() / 10, random.normal(), y] for y in labels)])
    changes = {"sees": {"prover": ["a"], "verifier": ["b"]}, "categorical": [], "standardize": True}
    data = config("adp", changes, **LEARNING)
    data["game"]["protocol"]["rewards"]["shared"] = True
    orthogonal = {"name": "orthogonal", "hidden_gain": math.sqrt(2), "policy_gain": 0.01, "value_gain": 1.0}
    for player in data["players"].values():
        player["algorithm"] |= {"num_passes": 2, "normalize_advantages": False, "initialization": orthogonal}
        player["algorithm"]["entropy_coefficient"]["value"] = 0.02
    palestra.make_trainer(data, run="run").fit()
    assert last_accuracy("run") == 1.0
