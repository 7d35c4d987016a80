"""Comparisons: groups over seeds, keys that differ, the numbers of records or of games played afresh.

Covers palestra.report.comparison, palestra.report.groups, palestra.report.reading.
"""

import copy
import csv
import io
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from conftest import TINY
from rich.console import Console
from typer.testing import CliRunner, Result

import palestra
from palestra.cli import app
from palestra.config import load_yaml, render
from palestra.kinds.games.config import RunConfig
from palestra.report.comparison import Comparison, compare_groups, render_comparison, to_csv
from palestra.report.groups import group_runs
from palestra.report.reading import play_afresh, read_moments, read_runs
from palestra.runtime.scores import DeclaredScore, declared_returns
from palestra.runtime.statistics import Estimate, estimate_mean_of_few, probability_of_improvement
from palestra.storage.disk import RunFolderError
from palestra.storage.records_file import read_records
from palestra.training.stored_training import StoredRun
from tests.records import POLYHEDRA, evaluation_of, played_pair


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds with one gamma, two with another."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("palestra.run.run.plot_scores", lambda *_: None)
        for gamma in (0.95, 0.5):
            for seed in (0, 1):
                config = copy.deepcopy(TINY) | {"seed": seed}
                config["players"]["host"]["algorithm"]["gamma"] = gamma
                palestra.Trainer(config, run=folder / f"gamma-{gamma}" / f"seed-{seed}").fit()
    return [folder / f"gamma-{gamma}" / f"seed-{seed}" for gamma in (0.95, 0.5) for seed in (0, 1)]


def compared(runs: list[Path]) -> Comparison:
    return compare_groups(group_runs(read_runs(runs)))


def to_text(comparison: Comparison) -> str:
    console = Console(file=io.StringIO(), width=300)
    render_comparison(console, comparison)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def last_rho(run: Path, pairing: int) -> float:
    records = [record for record in read_records(run / "records.jsonl") if record["kind"] == "evaluation"]
    return float(records[-1]["pairs"][pairing]["scores"]["rho"])


def palestra_compare(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


def test_runs_that_differ_in_seed_alone_are_a_group(runs: list[Path]) -> None:
    comparison = compared(runs)
    assert [group.label for group in comparison.groups] == ["gamma-0.95", "gamma-0.5"]
    assert [[run.seed for run in group.runs] for group in comparison.groups] == [[0, 1], [0, 1]]
    assert comparison.differences == {"players.host.algorithm.gamma": ["0.95", "0.5"]}


def test_runs_of_a_trial_are_apart_from_those_of_its_config_on_other_seeds(runs: list[Path], tmp_path: Path) -> None:
    trial = Path(shutil.copytree(runs[0], tmp_path / "s/trials/0000/seed-0"))
    for name in ("sweep.yml", "sweep.json"):
        (tmp_path / "s" / name).write_text("{}")
    fresh = Path(shutil.copytree(runs[1], tmp_path / "fresh/seed-1"))
    assert [[run.path for run in group.runs] for group in compared([trial, fresh]).groups] == [[trial], [fresh]]


def test_output_and_execution_make_no_other_group(runs: list[Path], tmp_path: Path) -> None:
    other = Path(shutil.copytree(runs[1], tmp_path / "other"))
    text = (other / "config.yml").read_text()
    assert "keep_last: 2" in text
    (other / "config.yml").write_text(text.replace("keep_last: 2", "keep_last: 5"))
    assert len(compared([runs[0], other]).groups) == 1


def test_a_run_and_its_copy_are_told(runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = "several runs have the seed 0. They are not independent, so intervals over runs are too narrow."
    (tmp_path / "away").mkdir()
    copied = shutil.copytree(runs[0], tmp_path / "away/seed-0")
    for words in (["compare"], ["plot"], ["plot", "--kind", "learning-table"]):
        assert told not in CliRunner().invoke(app, [*words, *map(str, runs)]).stderr
        assert CliRunner().invoke(app, [*words, *map(str, runs), str(copied)]).stderr == f"gamma-0.95: {told}\n"


def test_scores_are_means_of_the_last_records_with_t_intervals(runs: list[Path]) -> None:
    row = compared(runs).rows[1]
    assert (row.pairing, row.measure, row.is_high_good) == ("random vs agent*", "rho", False)
    for number, each in enumerate(row.groups):
        values = [last_rho(run, 1) for run in runs[2 * number : 2 * number + 2]]
        expected = estimate_mean_of_few(values)
        assert [score.value for _, score in each.by_run] == values
        assert tuple(each.mean) == (expected.value, expected.low, expected.high)
        assert each.iqm is not None
        assert each.iqm.value == pytest.approx(fmean(values))


def test_the_probability_of_improvement_is_that_of_the_statistics_and_the_agent_wants_rho_low(runs: list[Path]) -> None:
    for pairing, row in enumerate(compared(runs).rows):
        sign = 1 if row.is_high_good else -1
        first, second = (torch.tensor([sign * last_rho(run, pairing) for run in half]) for half in (runs[:2], runs[2:]))
        assert row.groups[0].improvement is None
        assert row.groups[1].improvement is not None
        assert row.groups[1].improvement.value == pytest.approx(float(probability_of_improvement(second, first)))


def with_pair(run: Path, folder: Path, pair: dict[str, Any], **keys: Any) -> Path:
    """A copy of a run whose one evaluation has that pair alone, and those keys."""
    copied = Path(shutil.copytree(run, folder / run.parent.name / run.name))
    records = read_records(run / "records.jsonl")
    record = next(record for record in reversed(records) if record["kind"] == "evaluation")
    record |= {"pairs": [record["pairs"][0] | pair]} | keys
    (copied / "records.jsonl").write_text(json.dumps(record) + "\n")
    return copied


def scored(rho: float) -> dict[str, Any]:
    return {"scores": {"rho": rho, "return/host": None, "return/agent": None}, "intervals": {}}


@pytest.mark.parametrize(
    ("learned", "zero_sum", "goods", "overall"),
    [
        (["first"], False, [True, None], 1.0),
        (["first", "second"], False, [True, True], 0.5),
        (["first"], True, [True, False], 1.0),
        (["first", "second"], True, [None, None], None),  # self-play says nothing about which of two is better
    ],
)
def test_a_score_counts_for_those_that_learn_and_want_it(
    learned: list[str],
    zero_sum: bool,
    goods: list[bool | None],
    overall: float | None,
    runs: list[Path],
    tmp_path: Path,
) -> None:
    copies = []
    for number, run in enumerate(runs):  # what the first gains, the second loses
        returns = {"return/first": float(number), "return/second": -float(number)}
        pair = played_pair({"first": "dqn", "second": "other"}, learned, returns, 0.0)
        keys = evaluation_of([], declared_returns(("first", "second"), zero_sum, shown=True), ["first", "second"])
        declared = {"roles": keys["roles"], "declared_scores": keys["declared_scores"]}
        copies.append(with_pair(run, tmp_path / str(len(learned)), pair, **declared))
    found = compared(copies)
    rows = [(row.measure, row.is_high_good) for row in found.rows]
    assert rows == [("return/first", goods[0]), ("return/second", goods[1])]
    improvements = [row.groups[1].improvement for row in found.rows]
    values = [None if improvement is None else improvement.value for improvement in improvements]
    assert values == [
        None if good is None else worth for good, worth in zip(goods, (1.0, float(not goods[1])), strict=True)
    ]
    assert (None if found.overall[0] is None else found.overall[0].value) == overall


@pytest.mark.parametrize(("learned", "improvement"), [(["host"], 1.0), (["agent"], 0.0), (["host", "agent"], None)])
def test_rho_is_good_high_for_a_host_and_low_for_an_agent(
    learned: list[str], improvement: float | None, runs: list[Path], tmp_path: Path
) -> None:
    pairs = [{"learned": learned} | scored(0.1 * number) for number in range(len(runs))]
    found = compared([with_pair(run, tmp_path, pair) for run, pair in zip(runs, pairs, strict=True)])
    ((row, overall),) = zip(found.rows, found.overall, strict=True)
    for each in (row.groups[1].improvement, overall):
        assert (None if each is None else each.value) == improvement
    assert ("rho (low is better)" in to_text(found)) == (learned == ["agent"])


def test_intervals_by_resampling_need_four_runs(runs: list[Path], tmp_path: Path) -> None:
    more = [
        Path(shutil.copytree(run, tmp_path / f"{run.parent.name}-{number}-{run.name}"))
        for number in (2, 3)
        for run in runs
    ]
    few, many = compared(runs).rows[0].groups[1], compared([*runs, *more]).rows[0].groups[1]
    for each, has_interval in ((few, False), (many, True)):
        assert each.iqm is not None
        assert each.improvement is not None
        for estimate in (each.iqm, each.improvement):
            assert math.isfinite(estimate.low) == math.isfinite(estimate.high) == has_interval
    ordered = [*runs[:2], *more[:2], *runs[2:], *more[2:4]]
    always = [with_pair(run, tmp_path / "won", scored(number)) for number, run in enumerate(ordered)]
    found = compared(always).rows[0].groups
    assert [len(each.by_run) for each in found] == [4, 4]
    assert found[1].improvement is not None
    assert found[1].improvement == Estimate(1.0, pytest.approx(0.58, abs=0.01), 1.0)


def test_of_runs_alone_there_is_no_probability_and_the_interval_is_that_of_games(runs: list[Path]) -> None:
    comparison = compared([runs[0], runs[2]])
    each = comparison.rows[0].groups[1]
    assert (each.iqm, each.improvement, comparison.overall) == (None, None, (None,))
    assert each.mean == each.by_run[0][1]


def test_a_checkpoint_is_compared_by_the_evaluation_that_was_played_there(runs: list[Path]) -> None:
    folder = runs[0] / "checkpoints" / "00000001"
    opt_steps = json.loads((folder / "manifest.json").read_text())["counters"]["opt_steps"]
    ((moment, which),) = read_moments([folder], None)
    assert (which, moment.at) == ("1", f"opt step {opt_steps}")
    assert [each.evaluation.opt_steps for each in moment.evaluated] == [opt_steps]
    later = read_moments([folder, runs[0]], None)
    assert len(group_runs([run for run, _ in later])) == 2
    ((best, _),) = read_moments([runs[0]], "best")
    assert len(best.evaluated) == 1


def test_a_checkpoint_that_is_not_there_is_told(runs: list[Path]) -> None:
    with pytest.raises(RunFolderError, match=r"expected the checkpoint best, latest or one of 0 \(@0\), .*, got '99'$"):
        read_moments([runs[0]], "99")


def test_games_played_afresh_begin_from_the_same_states_for_all(runs: list[Path]) -> None:
    before = set(runs[1].rglob("*"))
    told: list[str] = []
    same = play_afresh(read_moments([runs[0], runs[1]], "0"), 6, told.append)
    assert told[1] == "playing 6 games per pairing with the players of gamma-0.95/seed-1, checkpoint 0"
    pairs = [run.evaluated[0].record["pairs"][0] for run in same]
    assert [pair["games"] + pair["started_over"] for pair in pairs] == [6, 6]
    stored = StoredRun.open(runs[1], starts={"main": 0})
    stored.load("0")
    assert pairs[1]["scores"]["rho"] == stored.evaluations.play("main", 6, False)["pairs"][0]["scores"]["rho"]
    assert set(runs[1].rglob("*")) == before


def test_the_command_prints_and_writes_what_it_compares(runs: list[Path], tmp_path: Path) -> None:
    written = tmp_path / "a.json", tmp_path / "a.csv"
    told = palestra_compare(*runs, "--json", written[0], "--csv", written[1])
    assert ["gamma", "0.95", "0.5"] in [line.split() for line in told.stdout.splitlines()]
    assert "\x1b" not in told.stdout
    data: dict[str, Any] = json.loads(written[0].read_text())
    assert data["scores"][0]["runs"]["gamma-0.95/seed-1"][0] == last_rho(runs[1], 0)
    lines = list(csv.DictReader(io.StringIO(written[1].read_text())))
    assert len(lines) == 2 * 4
    assert float(lines[0]["value"]) == last_rho(runs[0], 0)


def test_later_evaluations_have_the_roles_in_the_order_of_the_run(runs: list[Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs[0], tmp_path / "run"))
    stored = palestra.StoredRun.open(run)
    stored.load("latest")
    stored.evaluate("main", 4)
    (file,) = (run / "evaluations").glob("*.json")
    assert [*json.loads(file.read_text())["pairs"][0]["players"]] == ["agent", "host"]  # by the alphabet
    ((read,),) = [[*each.again] for each in read_runs([run])]
    assert all([seat.role for seat in pair.seats] == ["host", "agent"] for pair in read.evaluation.pairs)
    assert read.evaluation.pairs[0].learned == ("host",)


def test_later_evaluations_have_the_scores_in_the_order_of_the_game(runs: list[Path], tmp_path: Path) -> None:
    declared = [DeclaredScore(name, "", "share", ("x",), (), shown=True) for name in ("win", "draw")]
    pair = played_pair({"x": "dqn", "o": "random"}, ["x"], {"win": 1.0, "draw": 0.0}, 0.0)
    (runs[0] / "evaluations").mkdir(exist_ok=True)
    later = runs[0] / "evaluations" / "later.json"
    later.write_text(json.dumps(evaluation_of([pair], declared, ["x", "o"]), sort_keys=True))
    ((read,),) = [[*each.again] for each in read_runs([runs[0]])]
    later.unlink()
    assert read.evaluation.pairs[0].measure == "win"


def test_a_run_that_begins_with_an_evaluation_of_the_users_own_is_read(runs: list[Path], tmp_path: Path) -> None:
    run = with_pair(runs[0], tmp_path, {})
    own = played_pair({"host": "host", "agent": "agent"}, ["host"], {"mine": 1.0}, 0.0, intervals={})
    declared = [DeclaredScore("mine", "", "", ("host", "agent"), (), shown=True)]
    (run / "records.jsonl").write_text(json.dumps(evaluation_of([own], declared, POLYHEDRA, evaluation="own")) + "\n")
    ((read,),) = [each.evaluated for each in read_runs([run])]
    assert read.evaluation.pairs[0].measure == "mine"


def test_a_mirror_is_compared_as_the_run_is(make_config: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    keys = {"url": f"file://{tmp_path}/mirrors", "options": {}, "attempts": 1, "first_wait_s": 0.0, "end_wait_s": 60.0}
    run = tmp_path / "run"
    palestra.Trainer(make_config({"output.mirror": keys}), run=run).fit()
    url, written = f"{keys['url']}/run", [tmp_path / "here.json", tmp_path / "there.json"]
    for extra in ([], ["--checkpoint", "best"], ["--games", "4"]):
        for place, path in zip((run, url), written, strict=True):
            palestra_compare(place, "--json", path, *extra)
        here, there = (json.loads(path.read_text()) for path in written)
        assert here["scores"][0]["runs"]["run"]
        groups = [list(each.pop("groups").values()) for each in (here, there)]
        assert groups == [[[str(run)]], [[url]]]
        assert here == there
    rows = [CliRunner().invoke(app, ["table", str(place)]).stdout for place in (run, url)]
    assert rows[0].count("\n") > 10
    assert rows[0] == rows[1]
    assert CliRunner().invoke(app, ["plot", url, "--out", str(tmp_path / "fig.svg")]).exit_code == 0
    told = palestra_compare("memory://nowhere/run", code=2)
    assert told.stderr == "there is no run at memory://nowhere/run\n"


def test_names_are_printed_as_they_are(runs: list[Path], tmp_path: Path) -> None:
    hostile = Path(shutil.copytree(runs[0], tmp_path / "[red]\x1b]0;x\x07"))
    comparison = compared([hostile])
    console = Console(file=io.StringIO(), width=300, force_terminal=True)
    render_comparison(console, comparison)
    assert isinstance(console.file, io.StringIO)
    assert "[red]?]0;x?" in console.file.getvalue()
    assert to_csv(comparison).count("\n") == 3


def test_a_run_without_evaluation_is_told(runs: list[Path], tmp_path: Path) -> None:
    bare = Path(shutil.copytree(runs[0], tmp_path / "bare"))
    (bare / "records.jsonl").unlink()
    assert "There is no evaluation of a learning player in bare; --games N plays one." in palestra_compare(bare).stdout


def test_games_of_a_run_that_has_no_evaluation_of_a_learner_are_refused(runs: list[Path], tmp_path: Path) -> None:
    bare = Path(shutil.copytree(runs[0], tmp_path / "bare"))
    config = load_yaml(bare / "config.yml")
    scripted = [config["evaluations"][0] | {"pairings": [{"host": "random", "agent": "random"}]}]
    for evaluations in ([], scripted):
        (bare / "config.yml").write_text(render(config | {"evaluations": evaluations, "best": None}, RunConfig))
        told = palestra_compare(runs[0], bare, "--games", "4", code=2).stderr.splitlines()[-1]
        got = f"got {bare}, which has none; palestra evaluate {bare} --pairing ROLE=PLAYER plays one"
        assert told == f"--games: expected runs with an evaluation of a learning player, {got}"


def test_what_is_no_run_is_one_clear_line(tmp_path: Path) -> None:
    told = palestra_compare(tmp_path, code=2)
    assert told.stderr == f"{tmp_path} is not a run: {tmp_path / 'config.yml'} is missing\n"


def test_a_place_that_cannot_be_written_is_one_clear_line(runs: list[Path], tmp_path: Path) -> None:
    told = palestra_compare(runs[0], "--json", tmp_path / "no" / "a.json", code=2)
    assert told.stderr == f"{tmp_path / 'no' / 'a.json'} cannot be written: No such file or directory\n"


def test_unequal_samples_are_said(runs: list[Path], tmp_path: Path) -> None:
    few = Path(shutil.copytree(runs[2], tmp_path / "few"))
    records = read_records(few / "records.jsonl")
    last = next(record for record in reversed(records) if record["kind"] == "evaluation")
    games = last["pairs"][0]["games"]
    for pair in last["pairs"]:
        pair["games"] = 7
    (few / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    equal, unequal = (" ".join(palestra_compare(runs[0], other).stdout.split()) for other in (runs[2], few))
    assert "samples" not in equal
    alike = []
    for run, over in ((runs[0], 0), (runs[2], 2)):  # each pairing has as many games in both, also over at their start
        copied = Path(shutil.copytree(run, tmp_path / f"{run.parent.name}-alike"))
        records = read_records(run / "records.jsonl")
        last = next(record for record in reversed(records) if record["kind"] == "evaluation")
        last["pairs"][0]["games"], last["pairs"][1]["games"] = 7 - over, 9
        last["pairs"][0]["started_over"] = over
        (copied / "records.jsonl").write_text(json.dumps(last) + "\n")
        alike.append(copied)
    assert "samples" not in palestra_compare(*alike).stdout
    assert f"The samples of main are unequal, per pairing: gamma-0.95/seed-0 {games} games; few 7 games." in unequal
