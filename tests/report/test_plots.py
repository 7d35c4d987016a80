"""Figures for papers: which lines and bands are drawn, where, and what stands beside them."""

import json
import re
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch
from matplotlib.figure import Figure
from typer.testing import CliRunner, Result

import palestra
from palestra.cli import app
from palestra.report.evaluation_tables import pairings
from palestra.report.groups import group_runs, score_curve
from palestra.report.page import write_report
from palestra.report.plots import panel_texts, plot_runs
from palestra.report.reading import read_runs
from palestra.runtime.statistics import Estimate, interquartile_mean_curve
from palestra.storage.facts import RUN_FORMAT
from tests.records import evaluation_of, played_pair, returns_in
from tests.report.parsing import Parsed

RETURN = "evaluation/main/agent/return/agent"
ABSENT = dict.fromkeys(("commit", "trainer_in_python", "branched_from", "mirror", "checkpoint_folder", "ended"))
FACTS = ABSENT | {"format": RUN_FORMAT, "id": "0" * 32, "command": "", "set_in_python": []}
FACTS |= {"versions": {}, "machine": {}, "user_classes": {}}


def make_run(
    path: Path, seed: int, values: dict[int, float], game: str = "CartPole-v1", algorithm: str = "ppo"
) -> Path:
    """A run of an agent with these returns by env steps; its loss is a tenth of them, and half as many opt steps."""
    path.mkdir(parents=True)
    config: dict[str, Any] = {"seed": seed, "game": {"name": "gymnasium", "id": game}}
    config["players"] = {"agent": {"algorithm": {"name": algorithm}}}
    (path / "config.yml").write_text(json.dumps(config))
    (path / "run.json").write_text(json.dumps(FACTS))
    lines = []
    for step, value in values.items():
        counters = {"env_steps": step, "opt_steps": step // 2, "epochs": 0, "episodes": 0}
        pair = played_pair({"agent": "agent"}, ["agent"], {"return/agent": value}, 1.0)
        lines.append(evaluation_of([pair], returns_in("agent"), ["agent"], **counters))
        lines.append({"kind": "training", **counters, "players": {"agent": {"loss": value / 10}}, "clock": {}})
    (path / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def seeds(tmp_path: Path) -> list[Path]:
    """Five runs that differ in seed alone, the last of which is far from the others."""
    values = [1.0, 2.0, 3.0, 4.0, 100.0]
    return [make_run(tmp_path / "cart" / f"seed-{i}", i, {0: 0.0, 10: value}) for i, value in enumerate(values)]


def drawn(
    monkeypatch: pytest.MonkeyPatch,
    *paths: Path,
    x: str = "env_steps",
    metrics: Any = (),
    single: bool = False,
    iqm: bool = False,
) -> Figure:
    """The figure that is saved."""
    figures: list[Figure] = []
    save = Figure.savefig
    with monkeypatch.context() as patch:
        patch.setattr(
            Figure, "savefig", lambda figure, *args, **kw: (figures.append(figure), save(figure, *args, **kw))
        )
        plot_runs(paths, x, "svg", metrics, single, pytest.fail, iqm)
    return figures[0]


def lines_of(figure: Figure, panel: int = 0) -> list[list[tuple[float, float]]]:
    return [list(map(tuple, line.get_xydata().tolist())) for line in figure.axes[panel].lines]


def palestra_plot(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["plot", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


# ---- lines and bands -----------------------------------------------------------------------------------


def test_runs_that_differ_in_seed_are_the_line_and_band_that_a_report_draws(
    seeds: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = drawn(monkeypatch, *seeds)
    groups = group_runs(read_runs(seeds))
    (pairing,) = (seats for seats, _ in pairings(groups, "main"))
    curve = score_curve(groups[0], "main", pairing, "return/agent", "env_steps")
    assert lines_of(figure) == [[(point.step, point.score.value) for point in curve.points]]
    assert lines_of(figure)[0][-1] == (10.0, 22.0)
    (band,) = figure.axes[0].collections
    ends = [y for x, y in band.get_paths()[0].vertices.tolist() if x == 10.0]
    assert (min(ends), max(ends)) == curve.points[-1].score[1:]


def test_runs_that_are_too_few_for_a_band_are_thin_lines_beside_their_mean(
    seeds: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    singles = lines_of(drawn(monkeypatch, *seeds[:3], single=True))
    for iqm in (False, True):
        axes = drawn(monkeypatch, *seeds[:3], iqm=iqm).axes[0]
        assert list(axes.collections) == []
        mean, *own = axes.lines
        assert [list(map(tuple, line.get_xydata().tolist())) for line in own] == singles
        assert mean.get_linewidth() > own[0].get_linewidth()
        assert {line.get_color() for line in own} == {mean.get_color()}
    assert len(drawn(monkeypatch, *seeds).axes[0].lines) == len(drawn(monkeypatch, seeds[0]).axes[0].lines) == 1


def test_interquartile_means_are_drawn_where_they_are_asked_for(
    seeds: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = drawn(monkeypatch, *seeds, iqm=True)
    assert lines_of(figure) == [[(0.0, 0.0), (10.0, 3.0)]]  # without the lowest and the highest
    (band,) = figure.axes[0].collections
    _, low, high = interquartile_mean_curve(torch.tensor([[1.0], [2.0], [3.0], [4.0], [100.0]]), 2000, 0, 0.95).tolist()
    ends = [y for x, y in band.get_paths()[0].vertices.tolist() if x == 10.0]
    assert (min(ends), max(ends)) == (low[0], high[0])
    assert figure.legends == []


def test_plot_report_and_compare_show_the_same_numbers_of_a_group(
    seeds: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def at_the_end(iqm: bool) -> Estimate:
        figure = drawn(monkeypatch, *seeds, iqm=iqm)
        ends = [y for x, y in figure.axes[0].collections[0].get_paths()[0].vertices.tolist() if x == 10.0]
        return Estimate(lines_of(figure)[0][-1][1], min(ends), max(ends))

    compared = CliRunner().invoke(app, ["compare", *map(str, seeds), "--json", str(tmp_path / "all.json")])
    mean, iqm = at_the_end(iqm=False), at_the_end(iqm=True)
    (found,) = json.loads((tmp_path / "all.json").read_text())["scores"]
    assert found["mean"] == pytest.approx([mean.value, mean.low, mean.high])
    assert found["iqm"] == pytest.approx([iqm.value, iqm.low, iqm.high])
    text = "22.000 [-32.158, 76.158]"
    assert mean.value == 22.0
    assert text in compared.stdout
    assert "IQM" not in compared.stdout
    page = Parsed(write_report(seeds, tmp_path / "report.html"))
    (table,) = (table for label, table in page.tables.items() if label.startswith("main, at opt step 5: means over 5"))
    assert table.column("mean") == [(text, 22.0)]
    asked = CliRunner().invoke(app, ["compare", *map(str, seeds), "--iqm"]).stdout
    assert f"{iqm.value:.3f} [{iqm.low:.3f}, {iqm.high:.3f}]" in asked
    assert " mean " not in asked


def test_single_runs_are_lines_without_bands_in_colours_of_their_own(
    seeds: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = drawn(monkeypatch, *seeds, single=True)
    assert [line[-1] for line in lines_of(figure)] == [(10.0, value) for value in (1.0, 2.0, 3.0, 4.0, 100.0)]
    assert list(figure.axes[0].collections) == []
    assert len({line.get_color() for line in figure.axes[0].lines}) == 5
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"cart/seed-{seed}" for seed in range(5)]


def test_a_run_keeps_its_colour_in_panels_where_another_has_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (make_run(tmp_path / "cart" / f"seed-{i}", i, {0: 1.0}) for i in (0, 1))
    records = (first / "records.jsonl").read_text()
    (first / "records.jsonl").write_text("".join(x for x in records.splitlines(True) if '"evaluation"' in x))
    figure = drawn(monkeypatch, first, second, metrics=["loss", "return/agent"], single=True)
    (alone,), (_, beside) = (axes.lines for axes in figure.axes)
    assert alone.get_color() == beside.get_color()


def test_groups_have_a_line_each_and_a_legend(
    seeds: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_run(tmp_path / "other", 0, {0: 5.0, 10: 6.0}, algorithm="mine:Own")
    figure = drawn(monkeypatch, *seeds, other)
    assert lines_of(figure) == [[(0.0, 0.0), (10.0, 22.0)], [(0.0, 5.0), (10.0, 6.0)]]
    assert len(figure.axes[0].collections) == 1  # a single run has no band
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["cart", "other"]
    assert figure.get_suptitle() == "PPO, Own on CartPole-v1"


def test_long_names_of_groups_fit_into_the_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("expert_iteration", "policy_gradient", "supervised_by_truth")
    runs = [make_run(tmp_path / name, 0, {0: 5.0, 10: 6.0}, algorithm=f"mine:{name}") for name in names]
    figure = drawn(monkeypatch, *runs)
    figure.draw_without_rendering()
    whole = figure.bbox
    for text in (figure._suptitle, *figure.legends[0].get_texts()):
        box = text.get_window_extent()
        assert whole.x0 <= box.x0 < box.x1 <= whole.x1, text.get_text()


def test_each_game_has_panels_of_its_own(seeds: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = make_run(tmp_path / "other", 0, {0: 5.0}, game="Acrobot-v1", algorithm="dqn")
    figure = drawn(monkeypatch, *seeds, other)
    assert figure.get_suptitle() == "PPO on CartPole-v1; DQN on Acrobot-v1"
    assert [axes.get_title() for axes in figure.axes] == ["CartPole-v1: agent", "Acrobot-v1: agent"]
    assert [len(axes.lines) for axes in figure.axes] == [1, 1]


def test_means_are_taken_where_all_runs_have_a_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = make_run(tmp_path / "cart" / "seed-0", 0, {0: 0.0, 10: 1.0})
    long = make_run(tmp_path / "cart" / "seed-1", 1, {0: 2.0, 10: 3.0, 20: 9.0})
    mean, *own = lines_of(drawn(monkeypatch, short, long))
    assert mean == [(0.0, 1.0), (10.0, 2.0)]
    assert [len(line) for line in own] == [2, 3]


def test_runs_without_common_steps_are_refused_and_may_be_drawn_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [make_run(tmp_path / "cart" / f"seed-{i}", i, {i + 1: 1.0}) for i in (0, 1)]
    with pytest.raises(
        palestra.ConfigError, match="at no common number of env steps; draw each by itself with --single"
    ):
        plot_runs(runs, "env_steps", "svg", (), False, pytest.fail)
    assert lines_of(drawn(monkeypatch, *runs, single=True)) == [[(1.0, 1.0)], [(2.0, 1.0)]]


def test_the_axis_counts_what_is_asked(seeds: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    figure = drawn(monkeypatch, seeds[0], x="opt_steps")
    assert lines_of(figure) == [[(0.0, 0.0), (5.0, 1.0)]]
    assert figure.axes[0].get_xlabel() == "opt steps"


# ---- which numbers, and their names ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metrics", "labels"),
    [
        ((), [("agent", "return")]),
        (["loss"], [("agent", "loss")]),
        (["players/agent/loss", RETURN], [("agent", "loss"), ("main: agent", "return")]),
        (
            ["agent/*"],
            [
                *(("main: agent", name) for name in ("games", "truncated", "return")),
                *(("main: agent", f"return of agent/{end}") for end in ("low", "high")),
                ("agent", "loss"),
            ],
        ),
    ],
)
def test_metrics_are_chosen_by_name_last_parts_or_pattern(
    seeds: list[Path], monkeypatch: pytest.MonkeyPatch, metrics: Any, labels: list[tuple[str, str]]
) -> None:
    figure = drawn(monkeypatch, *seeds, metrics=metrics)
    found = [(axes.get_title(), axes.get_ylabel()) for axes in figure.axes]
    assert sorted(found) == sorted(labels)
    assert {axes.get_xlabel() for axes in figure.axes} == {"env steps"}


@pytest.mark.parametrize(
    ("name", "several_kinds", "texts"),
    [
        ("evaluation/main/host vs choose_first/rho", False, ("host vs choose first", "rho")),
        ("evaluation/main/first vs random/return/first", True, ("main: first vs random", "return of first")),
        ("evaluation/main/a vs b/statistics/episode_length/mean", False, ("a vs b", "episode length, mean")),
        ("players/host/episodes/length", True, ("host", "episodes, length")),
        ("episodes", True, ("", "episodes")),
        ("clock/env_steps_per_s", True, ("", "clock/env steps per s")),
    ],
)
def test_panels_are_named_for_the_players_and_the_measure(
    name: str, several_kinds: bool, texts: tuple[str, str]
) -> None:
    assert panel_texts(name, several_kinds) == texts


# ---- the file ----------------------------------------------------------------------------------------------


def test_text_in_a_pdf_is_truetype_and_equal_runs_give_equal_files(seeds: list[Path], tmp_path: Path) -> None:
    result = palestra_plot(*seeds, "--out", tmp_path / "fig.pdf", "--iqm")
    assert "interquartile means of 5 runs, bands their bootstrapped 95% intervals" in result.stdout
    content = (tmp_path / "fig.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert b"/Type3" not in content.replace(b" ", b"")
    assert b"/Subtype /CIDFontType2" in content  # TrueType, by its glyphs
    palestra_plot(*seeds, "--out", tmp_path / "again.pdf", "--iqm")
    assert content == (tmp_path / "again.pdf").read_bytes()


def test_text_in_an_svg_is_text(seeds: list[Path], tmp_path: Path) -> None:
    with matplotlib.rc_context({"svg.fonttype": "path"}):
        palestra_plot(*seeds, "--out", tmp_path / "fig.svg")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "fig.svg").read_text())
    assert {"PPO on CartPole-v1", "agent", "return", "env steps"} <= set(texts)


def test_a_png_and_the_caption_of_few_runs(seeds: list[Path], tmp_path: Path) -> None:
    told = "lines are means of 3 runs, thin lines the single runs\n"
    assert told in palestra_plot(*seeds[:3], "--out", tmp_path / "fig.png").stdout
    result = palestra_plot(*seeds[:3], "--iqm", "--out", tmp_path / "fig.png")
    assert (tmp_path / "fig.png").read_bytes().startswith(b"\x89PNG")
    assert "of fewer than four runs it is their mean" in result.stdout
    assert "lines are single runs (5)" in palestra_plot(*seeds, "--single", "--out", tmp_path / "fig.png").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--x", "hours"), "--x: expected one of env_steps, opt_steps, epochs, got 'hours'"),
        (("--out", "fig.jpg"), "--out: expected a file that ends in .pdf, .svg or .png, got '.jpg'"),
        (("--metrics", "los"), "--metrics: expected the name of a recorded number, got 'los'; recorded are loss, low"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(seeds: list[Path], arguments: tuple[str, str], message: str) -> None:
    result = palestra_plot(*seeds, *arguments, code=2)
    assert result.stdout == ""
    assert result.stderr == f"{message}\n"


def test_a_run_without_evaluations_asks_for_names_of_metrics(tmp_path: Path) -> None:
    run = make_run(tmp_path / "cart", 0, {0: 1.0})
    records = (run / "records.jsonl").read_text().splitlines(True)
    (run / "records.jsonl").write_text(records[1])
    result = palestra_plot(run, code=2)
    assert "expected a name, because no evaluation of a learning player is recorded" in result.stderr
    assert "players/agent/loss" in result.stderr
    palestra_plot(run, "--metrics", "loss", "--out", tmp_path / "fig.svg")


def test_damaged_lines_are_told_and_the_rest_is_drawn(seeds: list[Path], tmp_path: Path) -> None:
    with (seeds[0] / "records.jsonl").open("a") as file:
        file.write("{\n")
    result = palestra_plot(*seeds, "--out", tmp_path / "fig.svg")
    assert "this line is left out" in result.stderr
    assert (tmp_path / "fig.svg").exists()
