"""Labelled texts of a file: the same questions from every kind of file, and what does not fit in one line."""

import csv
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from palestra.cli import app
from palestra.config import ConfigError
from palestra.text.game import TextGame
from tests.text.games import keys, text_config

ROWS: list[dict[str, Any]] = [
    {"question": f"is {n} even?\nsay, please", "number": 10**12 + n, "label": int(n % 2 == 0)} for n in range(12)
]
SEES = {"prover": ["question", "number"], "verifier": ["question"]}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(ROWS)


def write(rows: list[dict[str, Any]]) -> None:
    with open("rows.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ROWS[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + "\n")
    pd.DataFrame(rows).to_parquet("rows.parquet")


def made(suffix: str = "csv", **said: Any) -> TextGame:
    return text_config("adp", scenario={"name": "rows", "file": f"rows.{suffix}", "sees": SEES, **said}).build()


def test_every_kind_of_file_gives_the_same_texts() -> None:
    by_suffix = {suffix: made(suffix).questions(keys(50), held_out=False) for suffix in ("csv", "jsonl", "parquet")}
    assert by_suffix["csv"] == by_suffix["jsonl"] == by_suffix["parquet"]
    for question in by_suffix["csv"]:
        number = int(question.fields["question"].split()[1])
        assert question.fields == {"question": f"is {number} even?\nsay, please", "number": str(10**12 + number)}
        assert question.label == int(number % 2 == 0)


def test_half_of_a_pair_of_surrogates_is_told_with_its_row() -> None:
    text = Path("rows.jsonl").read_text()
    Path("rows.jsonl").write_text(text.replace("is 3 even", "is \\ud83d even"))
    with pytest.raises(ConfigError, match=r"UTF-8 can write in 'question', got half of a pair \(surrogate\) in row 3"):
        made("jsonl")


@pytest.mark.parametrize("balanced", [True, False])
def test_training_and_evaluations_draw_different_rows(balanced: bool) -> None:
    game = made(balanced=balanced, held_out={"name": "fraction", "fraction": 0.4, "seed": 3})
    drawn = [{q.fields["number"] for q in game.questions(keys(300), held_out)} for held_out in (False, True)]
    assert not drawn[0] & drawn[1]
    assert len(drawn[0] | drawn[1]) == 12
    assert [name for name in game.files if not name.startswith("prompts/")] == ["rows.csv"]


def test_a_first_file_shows_provers_all_columns_but_the_label_and_a_verifier_none_unless_it_is_alone() -> None:
    config = text_config("adp", scenario={"name": "rows", "file": "rows.jsonl"})
    assert config.scenario.sees == {"prover": ["question", "number"], "verifier": []}
    assert config.describe_turns()[-1] == "  of rows: prover sees question and number; verifier sees nothing"
    alone = text_config("solo_verifier", scenario={"name": "rows", "file": "rows.jsonl"})
    assert alone.scenario.sees == {"verifier": ["question", "number"]}
    write([{**row, "number": row["number"] if row["number"] % 5 else None} for row in ROWS])
    for suffix in ("csv", "jsonl", "parquet"):
        with_holes = text_config("adp", scenario={"name": "rows", "file": f"rows.{suffix}"})
        assert with_holes.scenario.sees == {"prover": ["question"], "verifier": []}


def test_who_sees_what_is_said_beside_a_first_file_and_which_rows_are_held_out_in_vain() -> None:
    words = ["config", "expert_iteration", "nip", "rows", "game.scenario.file=rows.csv", "game.scenario.label=label"]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stderr) == (0, "of rows: prover sees question and number; verifier sees nothing\n")
    assert yaml.safe_load(done.stdout)["game"]["scenario"]["sees"]["verifier"] == []
    assert made(sees={"prover": [], "verifier": []}).scenario.notes == ()
    column = {"name": "column", "column": "number"}  # 0: training draws it
    write([{**row, "number": int(place > 10)} for place, row in enumerate(ROWS + ROWS[:3])])
    game = made(sees={"prover": ["question"], "verifier": []}, held_out=column)
    told = "  of rows: 3 of 4 held-out rows equal training rows in all that is seen of them"
    assert game.scenario.notes == [told]
    Path("run.yml").write_text(done.stdout)
    sees = ["game.scenario.sees={prover: [question], verifier: []}"]
    shown = CliRunner().invoke(app, ["check", "run.yml", *sees, f"game.scenario.held_out={json.dumps(column)}"])
    assert told in shown.stdout.splitlines()


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"question": ""},
            "scenario.sees.prover.0: expected a text in every row of 'question', got none in row 3 (counted from 0); "
            "fill it, or leave the row out",
        ),
        ({"label": None}, "scenario.label: expected 0 or 1 in every row as the label 'label', got nan in row 3 (count"),
        ({"label": 2}, "scenario.label: expected 0 or 1 in every row as the label 'label', got 2.0 in row 3 (counted"),
    ],
)
def test_a_row_without_its_text_or_label_is_one_line(suffix: str, changed: dict[str, Any], line: str) -> None:
    write([row | changed if place == 3 else row for place, row in enumerate(ROWS)])
    with pytest.raises(ConfigError) as caught:
        made(suffix)
    [found] = str(caught.value).splitlines()
    assert found.startswith(line), found


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"a": 1}\n[1]\n', "scenario.file: expected a JSON object in every line of 'rows.jsonl', got [1] in line 2"),
        ('{"a": 1}\n\n{"a"\n', "scenario.file: expected a JSON object in every line of 'rows.jsonl', got in line 3: "),
        ("", "scenario.file: expected rows in 'rows.jsonl', got an empty file"),
        (
            '{"question": "a", "number": [], "label": 0}',
            "scenario.sees.prover.1: expected a number or text in every row of 'number', got an array or object in r",
        ),
        ('{"question": "a", "label": 0}', "scenario.sees.prover.1: expected a column of rows.jsonl (question, label),"),
    ],
)
def test_a_wrong_file_of_lines_is_one_line(text: str, line: str) -> None:
    Path("rows.jsonl").write_text(text)
    with pytest.raises(ConfigError) as caught:
        made("jsonl", label="label")
    [found] = str(caught.value).splitlines()
    assert found.startswith(line), found


def test_a_verifier_that_sees_the_label_is_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        made(sees={"prover": ["label"], "verifier": ["label"]})
    expected = "expected another column, because 'verifier' is to decide by what it sees, got the label 'label'"
    assert str(caught.value) == f"scenario.sees.verifier.0: {expected}"
