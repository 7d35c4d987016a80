"""Tables for papers: what stands in learning tables and cross-tables, in vector form."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from palestra.cli import app
from palestra.report import reading
from palestra.report.drawn_tables import plot_tables
from palestra.report.reading import StoredCheckpoint
from tests.records import POLYHEDRA, RHO, evaluation_of, played_pair
from tests.report.test_plots import FACTS, make_run


def drawn_texts(*paths: Path, kind: str, checkpoint: str | None = None, metrics: Sequence[str] = ()) -> list[str]:
    """The texts of the figure, from the SVG, in which text is text and nothing is an image."""
    svg = plot_tables(paths, kind, "svg", checkpoint, pytest.fail, metrics).content.decode()
    assert "<image" not in svg
    return [re.sub("<[^>]*>", " ", text).strip() for text in re.findall(r"<text[^>]*>(.*?)</text>", svg, re.DOTALL)]


def make_duel(path: Path, seed: int, trained: list[float], scripted: float = 0.5) -> Path:
    """A run of host and agent by DQN, with evaluations at 0, 10, ...: rho of the trained host against random. The
    scripted pair is played in the first one alone."""
    path.mkdir(parents=True)
    algorithm = {"algorithm": {"name": "dqn"}}
    config = {"seed": seed, "game": {"name": "polyhedra"}, "players": {"host": algorithm, "agent": algorithm}}
    (path / "config.yml").write_text(json.dumps(config))
    (path / "run.json").write_text(json.dumps(FACTS))
    lines: list[str] = []
    for number, rho in enumerate(trained):
        counters = {"env_steps": 10 * number, "opt_steps": 10 * number, "epochs": 0, "episodes": 0}
        pairs = [make_pair("host", "random", ["host"], rho)]
        pairs += [make_pair("zeillinger", "choose_first", [], scripted)] if number == 0 else []
        lines.append(json.dumps(evaluation_of(pairs, RHO, POLYHEDRA, **counters)) + "\n")
    (path / "records.jsonl").write_text("".join(lines))
    return path


def make_pair(host: str, agent: str, learned: list[str], rho: float) -> dict[str, Any]:
    return played_pair({"host": host, "agent": agent}, learned, {"rho": rho}, 0.25)


def palestra_plot(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["plot", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


# ---- learning tables -----------------------------------------------------------------------------------


def test_a_learning_table_has_a_line_for_each_environment_and_a_column_for_each_algorithm(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "fast" / f"seed-{i}", i, {0: 0.0, 10: value}) for i, value in enumerate((1.0, 2.0, 3.0))
    ]
    runs.append(make_run(tmp_path / "q", 0, {10: 7.0}, algorithm="dqn"))
    runs.append(make_run(tmp_path / "acrobot", 0, {10: -80.0}, game="Acrobot-v1"))
    assert drawn_texts(*runs, kind="learning-table") == [
        "PPO, DQN on CartPole-v1; PPO on Acrobot-v1",
        *("environment", "players", "score", "PPO", "DQN"),
        *("CartPole-v1", "agent", "return/agent", "2.000 ± 2.484", "7.000 ± 1.000"),  # t(2) = 4.303, over sqrt(3)
        *("Acrobot-v1", "agent", "return/agent", "-80.000 ± 1.000", "–"),
    ]


def test_groups_that_learn_by_the_same_algorithm_have_columns_with_their_names(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, 0, {10: value}) for name, value in (("slow", 1.0), ("fast", 2.0))]
    config = json.loads((runs[1] / "config.yml").read_text())
    config["players"]["agent"]["algorithm"]["learning_rate"] = 1.0
    (runs[1] / "config.yml").write_text(json.dumps(config))
    texts = drawn_texts(*runs, kind="learning-table")
    assert texts[4:6] == ["PPO: slow", "PPO: fast"]
    assert texts[-2:] == ["1.000 ± 1.000", "2.000 ± 1.000"]


# ---- cross-tables --------------------------------------------------------------------------------------


def test_a_cross_table_shows_last_results_and_earlier_ones_of_scripted_players(tmp_path: Path) -> None:
    runs = [make_duel(tmp_path / "duel" / f"seed-{i}", i, [0.125, rho]) for i, rho in enumerate((0.25, 0.75))]
    assert drawn_texts(*runs, kind="cross-table") == [
        *("DQN on polyhedra", "rho", "host \\ agent", "random", "choose first"),
        *("host", ".500", "± 3.177", "–"),  # t(1) = 12.706, times the standard error of a quarter
        *("zeillinger", "–", ".500", "± .000"),
    ]


def test_the_table_of_a_checkpoint_keeps_the_results_of_scripted_players(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were played at another moment, and do not change."""
    run = make_duel(tmp_path / "duel", 0, [0.125, 0.25, 0.75])
    at_10 = StoredCheckpoint("00000001", ("best",), {"env_steps": 10, "opt_steps": 10}, 0, None)
    monkeypatch.setattr(reading, "stored_checkpoint", lambda run, which: at_10)
    texts = drawn_texts(run, kind="cross-table", checkpoint="best")
    assert texts[5:] == ["host", ".250", "± .250", "–", "zeillinger", "–", ".500", "± .250"]


def test_darker_cells_have_higher_scores_and_text_that_can_be_read(tmp_path: Path) -> None:
    svg = plot_tables([make_duel(tmp_path / "duel", 0, [0.9], 0.1)], "cross-table", "svg", None, pytest.fail).content
    fills = re.findall(rb'id="patch_\d+">\s*<path [^>]*style="fill: #(\w{6}); stroke: #ffffff', svg)
    trained, scripted = (int(fill[:2], 16) for fill in fills)
    assert trained < scripted
    inks = dict(re.findall(rb'<text style="([^"]*)"[^>]*>(\.\d+)</text>', svg))
    assert {value: b"#ffffff" in style for style, value in inks.items()} == {b".900": True, b".100": False}


def test_a_tournament_has_a_cross_table_and_no_learning_table(tmp_path: Path) -> None:
    run = make_duel(tmp_path / "tour", 0, [0.25])
    config = {"seed": 0, "game": {"name": "polyhedra"}, "players": {}, "pairings": []}
    (run / "config.yml").write_text(json.dumps(config))
    records = json.loads((run / "records.jsonl").read_text())
    records["pairs"][0] |= {"players": {"host": "random", "agent": "random"}, "learned": []}
    (run / "records.jsonl").write_text(json.dumps(records) + "\n")
    texts = drawn_texts(run, kind="cross-table")
    assert texts[0] == "polyhedra"
    assert texts[-4:] == ["zeillinger", "–", ".500", "± .250"]
    result = palestra_plot(run, "--kind", "learning-table", code=2)
    assert "expected runs with an evaluation of a learning player for a learning table, got none" in result.stderr


def test_each_group_has_a_cross_table_with_its_name(tmp_path: Path) -> None:
    first, second = (make_duel(tmp_path / name, 0, [0.25]) for name in ("first", "second"))
    config = json.loads((second / "config.yml").read_text())
    config["players"]["host"]["algorithm"]["gamma"] = 1.0
    (second / "config.yml").write_text(json.dumps(config))
    texts = drawn_texts(first, second, kind="cross-table")
    assert [text for text in texts if "polyhedra" in text] == ["DQN on polyhedra, first", "DQN on polyhedra, second"]


@pytest.mark.parametrize("kind", ["learning-table", "cross-table"])
def test_a_table_is_limited_to_one_score_by_the_name_that_it_lists(kind: str, tmp_path: Path) -> None:
    run = make_duel(tmp_path / "duel", 0, [0.25])
    record = json.loads((run / "records.jsonl").read_text())
    record["declared_scores"].append(record["declared_scores"][0] | {"name": "wins_of_all"})
    for pair in record["pairs"]:
        pair["scores"]["wins_of_all"] = 0.625
    (run / "records.jsonl").write_text(json.dumps(record) + "\n")
    for metric in ("wins of all", "wins_of_all"):
        texts = drawn_texts(run, kind=kind, metrics=[metric])
        assert "wins of all" in texts
        assert "rho" not in texts
        assert any(text.startswith(".625") for text in texts)
    told = palestra_plot(run, "--kind", kind, "--metrics", "win", code=2).stderr
    assert told == "--metrics: expected the name of a recorded number, got 'win'; recorded are rho, wins_of_all\n"


# ---- arguments and files -------------------------------------------------------------------------------


def test_tables_are_written_with_a_caption_and_the_same_to_the_bit(tmp_path: Path) -> None:
    run = make_duel(tmp_path / "duel", 0, [0.25])
    for kind in ("learning-table", "cross-table"):
        caption = palestra_plot(run, "--kind", kind, "--out", tmp_path / "a.pdf").stdout
        assert "± half of their 95% intervals over games" in caption
        palestra_plot(run, "--kind", kind, "--out", tmp_path / "b.pdf")
        content = (tmp_path / "a.pdf").read_bytes()
        assert content == (tmp_path / "b.pdf").read_bytes()
        assert b"/Subtype /Image" not in content


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kind", "pie"), "--kind: expected curves, learning-table or cross-table, got 'pie'"),
        (("--checkpoint", "best"), "--checkpoint: expected it with --kind learning-table or cross-table, got curves"),
        (
            ("--kind", "cross-table", "--single"),
            "--kind: expected curves with --single, --iqm or --x, got 'cross-table'",
        ),
        (
            ("--kind", "cross-table", "--out", "x.jpg"),
            "--out: expected a file that ends in .pdf, .svg or .png, got '.jpg'",
        ),
        (
            ("--kind", "cross-table"),
            "--kind: expected runs with an evaluation of a game of two roles for a cross-table, got none",
        ),
    ],
)
def test_wrong_arguments_are_told_in_one_line(tmp_path: Path, arguments: tuple[str, str], message: str) -> None:
    result = palestra_plot(make_run(tmp_path / "run", 0, {0: 1.0}), *arguments, code=2)
    assert (result.stdout, result.stderr) == ("", f"{message}\n")
