"""The scores of games in a report are those of the records, and the page says what they are."""

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from palestra.recording.results import score_text
from palestra.report.comparison import compare_groups, render_comparison
from palestra.report.evaluation_tables import ends_of_colours
from palestra.report.groups import group_runs
from palestra.report.page import write_report
from palestra.report.reading import read_runs
from palestra.storage.records_file import read_records
from tests.report.dialogues import train_dialogue
from tests.report.parsing import Parsed

pytestmark = pytest.mark.usefixtures("few_figures")


def evaluated(run: Path, pairing: str) -> list[dict[str, Any]]:
    """The entries of a pairing in the records of all evaluations."""
    evaluations = [record for record in read_records(run / "records.jsonl") if record["kind"] == "evaluation"]
    names = pairing.replace("*", "").split(" vs ")
    return [pair for record in evaluations for pair in record["pairs"] if [*pair["players"].values()] == names]


def measured(run: Path, pairing: str) -> list[dict[str, Any]]:
    scores = [pair["scores"] for pair in evaluated(run, pairing)]
    return [{name: each[name] for name in each if not name.startswith("return/")} for each in scores]


def test_scores_over_training_are_those_of_the_records(tmp_path: Path) -> None:
    run = train_dialogue(tmp_path / "nip", "nip", ["game.protocol.max_rounds=3"])
    page = Parsed(write_report([run], None))
    assert "scores" in page.ids
    meanings = page.tables["What the scores are."]
    assert [text for text, _ in meanings.rows[1]] == [
        "accuracy",
        "share",
        "share of games in which the verifier decides for the label",
    ]
    for pairing in ("prover* vs random", "random vs verifier*", "prover* vs verifier*"):
        table = page.tables[f"{pairing}: scores over epochs."]
        found = measured(run, pairing)
        assert [text for text, _ in table.rows[0]] == ["score", "0", "3", "6", "9", "12"]
        named = [name for name in found[0] if any(each[name] is not None for each in found)]
        assert [row[0][0] for row in table.rows[1:]] == named
        assert "information/main/1" in named
        interval = evaluated(run, pairing)[-1]["intervals"]["accuracy"]
        shown = page.tables[next(label for label in page.tables if label.startswith("main, at opt step"))]
        row = next(row for row in shown.rows if row[0][0] == pairing)
        ends = ", ".join(map(score_text, interval))
        assert row[1] == (f"{score_text(found[-1]['accuracy'])} [{ends}]", found[-1]["accuracy"])
        assert interval[0] < found[-1]["accuracy"] < interval[1]
        assert [text for text, _ in shown.rows[0]][:4] == [
            "pairing",
            "accuracy",
            "return/prover",
            "return/verifier",
        ]
        for row in table.rows[1:]:
            assert [value for _, value in row[1:]] == [each[row[0][0]] for each in found]
            assert all((text == "-") == (value is None) for text, value in row[1:])
    heats = [attrs["style"] for tag, attrs in page.tags if tag == "td" and "style" in attrs]
    assert all(0.0 <= float(str(style).removeprefix("--heat: ")) <= 1.0 for style in heats)


@pytest.mark.parametrize(
    ("values", "is_share", "ends"),
    [
        ([0.4, 0.6], True, (0.0, 1.0)),
        ([30.0, math.nan, 32.5], False, (30.0, 32.5)),
        ([0.1, 0.2], False, (0.1, 0.2)),
        ([math.nan], False, (0.0, 0.0)),
    ],
)
def test_only_shares_are_coloured_from_0_to_1(values: list[float], is_share: bool, ends: tuple[float, float]) -> None:
    assert ends_of_colours(values, is_share) == ends


def test_several_runs_share_a_table_of_means(tmp_path: Path) -> None:
    runs = [train_dialogue(tmp_path / f"adp-{seed}", "adp", [f"seed={seed}"]) for seed in (0, 1)]
    page = Parsed(write_report(runs, tmp_path / "both.html"))
    table = page.tables["prover* vs verifier*: scores over epochs, means over 2 runs."]
    found = [measured(run, "prover vs verifier") for run in runs]
    means = [(one["accuracy"] + other["accuracy"]) / 2 for one, other in zip(*found, strict=True)]
    assert [value for _, value in table.rows[1][1:]] == pytest.approx(means)
    for run, accuracy in zip(runs, (0.1, 0.9), strict=True):  # the t interval of two such runs is wider than all shares
        records = read_records(run / "records.jsonl")
        last = next(record for record in reversed(records) if record["kind"] == "evaluation")
        [pair] = [pair for pair in last["pairs"] if pair["learned"] == ["prover", "verifier"]]
        pair["scores"]["accuracy"] = accuracy
        (run / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    again = Parsed(write_report(runs, tmp_path / "again.html"))
    assert ".500 [.000, 1.000]" in [cell for rows in again.tables.values() for row in rows.rows for cell, _ in row]
    render_comparison(Console(file=(told := io.StringIO()), width=200), compare_groups(group_runs(read_runs(runs))))
    assert any("accuracy" in line and ".500 [.000, 1.000]" in line for line in told.getvalue().splitlines())


def test_damaged_scores_are_left_out(tmp_path: Path, make_config: Any) -> None:
    run = train_dialogue(tmp_path / "solo", "solo_verifier")
    lines = (run / "records.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        for pair in record.get("pairs", []):
            pair["scores"]["accuracy"] = "nothing"
    (run / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    page = Parsed(write_report([run], None))
    assert "scores" not in page.ids
