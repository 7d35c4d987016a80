"""The displays of a run in progress, and the summary at its end.

Covers palestra.recording.display.screen, palestra.recording.display.lines, palestra.recording.display.display,
palestra.recording.display.scores, palestra.recording.results, palestra.recording.summary.
"""

import io
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from scipy import stats

from palestra.commands.starting import starting_config
from palestra.recording.display import Display, LiveDisplay, PlainDisplay, make_display
from palestra.recording.display import display as plain_module
from palestra.recording.display.lines import in_ascii
from palestra.recording.display.scores import score_table
from palestra.recording.display.screen import Screen, Warnings
from palestra.recording.results import (
    Evaluation,
    PairResult,
    Progress,
    Stage,
    Task,
    count_text,
    duration_text,
    score_text,
    sparkline,
)
from palestra.recording.summary import mean_text, render_seeds_summary, render_summary, verdicts
from palestra.runtime.scores import DeclaredScore, Estimate
from tests.records import POLYHEDRA, RHO, evaluation_of, played_pair, result_of, returns_in

HOSTS = ("host", "random", "all-coordinates", "zeillinger", "look-ahead")
AGENTS = ("agent", "random", "choose-first", "choose-last", "greedy")
STAGES = {
    "train": Stage("host and agent update in turn", 20_000.0, "opt_steps"),
    "test": Stage("evaluation main: 25 pairings of 3,000 games each", 75_000, "games"),
}


def pair(host: str, agent: str, rho: float, half: float = 0.005) -> PairResult:
    learned = tuple(role for role, player in (("host", host), ("agent", agent)) if player == role)
    return result_of(
        {"host": host, "agent": agent}, learned, RHO, {"rho": Estimate(rho, rho - half, rho + half)}, 3000, 10
    )


def evaluation(opt_steps: int, learned_rho: float) -> Evaluation:
    pairs = [pair(h, a, learned_rho if "host" in h or "agent" in a else 0.1) for h in HOSTS for a in AGENTS]
    return Evaluation("main", opt_steps, tuple(pairs))


def seats_pair(x: str, o: str, return_of_x: float) -> PairResult:
    learned = tuple(role for role, player in (("x", x), ("o", o)) if player == "learner")
    scores = {f"return/{role}": Estimate(r, r - 0.1, r + 0.1) for role, r in (("x", return_of_x), ("o", -return_of_x))}
    return result_of({"x": x, "o": o}, learned, returns_in("x", "o"), scores, 100)


def progress(**changes: Any) -> Progress:
    metrics = {"loss": 0.0123, "q_mean": -1.23, "exploration": 0.38, "learning_rate": 3e-4}
    values: dict[str, Any] = {
        "name": "dqn-polyhedra-1",
        "run_folder": "runs/dqn-polyhedra-1",
        "device": "cuda:0",
        "stages": STAGES,
        "stage": "train",
        "fraction": 0.62,
        "elapsed_s": 75.2,
        "remaining_s": 45.9,
        "time": {"play": 30.0, "memory": 4.5, "update": 36.0, "evaluation": 4.0, "saving": 0.5, "other": 0.2},
        "counters": {"env_steps": 12_400_000, "opt_steps": 12_400, "epochs": 254, "episodes": 609_000},
        "rates": {"env_steps": 51_234.3, "opt_steps": 410.2},
        "players": {"host": metrics, "agent": metrics},
        "curves": {"host": {"loss": [0.3, 0.2, 0.1]}, "agent": {}},
        "evaluations": [evaluation(1000 * i, 0.02 * i) for i in range(12)],
        "tasks": [],
        "end_reason": None,
        "phase": lambda: "updating",
    }
    return Progress(**(values | changes))


def screen_lines(
    state: Progress, width: int = 80, height: int = 23, warnings: Sequence[str] = (), is_ascii: bool = False
) -> list[str]:
    """The screen as text."""
    lines = Screen().lines(state, Warnings(len(warnings), warnings[-3:]), 0.0, width, height)
    return ["".join(segment.text for segment in (in_ascii(line) if is_ascii else line)) for line in lines]


def terminal(width: int = 80, height: int = 24) -> Console:
    return Console(
        file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True),
        force_terminal=True,
        width=width,
        height=height,
        _environ={"TERM": "xterm-256color"},
    )


def pipe() -> Console:
    return Console(file=io.StringIO(), width=80, _environ={"FORCE_COLOR": "1"}, force_terminal=False)


def written(console: Console) -> str:
    file = console.file
    if isinstance(file, io.TextIOWrapper):
        return file.buffer.getvalue().decode()  # type: ignore[attr-defined]
    return file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock whose time is its one element."""
    now = [1000.0]
    monkeypatch.setattr(plain_module, "monotonic", lambda: now[0])
    return now


# ---- the live screen ----------------------------------------------------------------------------------


def test_full_frame_fits_80x24_with_nothing_cut() -> None:
    state = progress(tasks=[Task("main", 40, 100, "games")])
    lines = screen_lines(state, warnings=["warning: the disk is full"])
    assert len(lines) == 23
    assert {len(line) for line in lines} == {80}
    text = "\n".join(lines)
    assert "…" not in text
    assert all(player in text for player in (*HOSTS, *AGENTS))
    told = ["dqn-polyhedra-1 · cuda:0", "updating", " 62%  0:01:15 gone, 0:00:45 left", "play 40%", "env steps 12.4M"]
    told += ["(51,234/s)", "40 of 100 games", "q mean", "0.0123 █▅▁", ".220 +.220", "the disk is full"]
    assert [words for words in told if words not in text] == []


def test_the_rates_of_several_groups_are_not_cut() -> None:
    lines = screen_lines(progress(players={"model": {"loss": 0.1, "learning_rate/0": 0.01, "learning_rate/11": 0.02}}))
    assert [name in "\n".join(lines) for name in ("learning rate/0 ", "learning rate/11 ")] == [True, True]


@pytest.mark.parametrize(("width", "height"), [(40, 10), (40, 12), (60, 20), (80, 24), (120, 40), (200, 60)])
def test_frame_of_much_data_fits_any_terminal(width: int, height: int) -> None:
    many = {f"player number {i}": {f"metric number {j}": 1e30 for j in range(20)} for i in range(20)}
    pairs = tuple(pair(f"h{i}" if i else "host", f"some agent {j}", 0.1) for i in range(30) for j in range(30))
    state = progress(
        name="n" * 300,
        run_folder="f" * 300,
        players=many,
        evaluations=[Evaluation("main", 5, pairs)] * 2,
        tasks=[Task("t" * 300, i, 10**9, "games") for i in range(30)],
    )
    lines = screen_lines(state, width, height, ["w" * 300] * 9)
    assert len(lines) == height
    assert {len(line) for line in lines} == {width}


@pytest.mark.parametrize(("width", "height"), [(39, 24), (80, 9), (10, 3)])
def test_on_a_tiny_terminal_a_line_is_left(width: int, height: int) -> None:
    [line] = screen_lines(progress(), width, height)
    assert line == "62%  0:00:45 left, updating".ljust(width)[:width]


def test_on_a_narrow_terminal_share_and_time_left_are_whole() -> None:
    assert " 62%  0:00:45 left │" in screen_lines(progress(), 40, 12)[1]


def test_wider_terminal_shows_intervals_too() -> None:
    assert "±.005" not in "".join(screen_lines(progress()))
    assert "±.005" in "".join(screen_lines(progress(), 140, 40))


def test_frame_between_two_updates_has_a_moving_clock_phase_and_task() -> None:
    phase, task, screen = ["playing"], Task("main", 0, 10, "games"), Screen()
    state = progress(tasks=[task], phase=lambda: phase[0])
    seen = []
    for age_s in (0.0, 10.0, 100.0):
        lines = screen.lines(state, Warnings(0, ()), age_s, 80, 23)
        seen.append("\n".join("".join(segment.text for segment in line) for line in lines))
        phase[0], task.done = "saving", task.done + 3
    assert all(words in seen[0] for words in ("playing", "0:01:15 gone, 0:00:45 left", "0 of 10 games"))
    assert all(words in seen[1] for words in ("saving", "0:01:25 gone, 0:00:35 left", "3 of 10 games"))
    assert all(words in seen[2] for words in ("saving", "0:02:55 gone, 0:00:00 left", "6 of 10 games"))


def test_the_bar_of_an_evaluation_says_in_which_round_its_longest_game_is() -> None:
    task, screen = Task("main", 0, 40, "games", 27_000), Screen()
    told = []
    for moved in ((0, 0), (0, 1350), (40, 1600)):
        task.move(*moved)
        lines = screen.lines(progress(tasks=[task]), Warnings(0, ()), 0.0, 80, 23)
        told.append("\n".join("".join(segment.text for segment in line) for line in lines))
    assert "0 of 40 games  " in told[0].replace(" │", "  ")
    assert "0 of 40 games, round 1,350 of at most 27,000" in told[1]
    assert "40 of 40 games  " in told[2].replace(" │", "  ")


def test_every_evaluation_that_is_played_has_a_bar() -> None:
    tasks = [Task("main", 75, 300, "games"), Task("hard of opt step 512", 0, 100, "games")]
    one, other = (line for line in screen_lines(progress(tasks=tasks)) if " games " in line and " of " in line)
    bars = [line.count("━") + 0.5 * line.count("╸") for line in (one, other)]
    room = [line.count("─") + line.count("━") + line.count("╸") for line in (one, other)]
    assert bars[0] == pytest.approx(0.25 * room[0], abs=0.5)
    assert (bars[1], room[1]) == (0, room[0])
    assert "75 of 300 games" in one


def test_of_many_warnings_the_last_and_their_number_are_seen() -> None:
    text = "\n".join(screen_lines(progress(), 80, 40, [f"error: number {i}" for i in range(7)]))
    assert "7 warnings, the last: error: number 4" in text
    assert "error: number 6" in text
    assert "error: number 3" not in text
    assert "7 warnings, the last: error: number 6" in "\n".join(
        screen_lines(progress(), 80, 23, ["x"] * 6 + ["error: number 6"])
    )


def test_many_players_have_a_line_each() -> None:
    players = {f"player-{i}": {"loss": 0.1 * i, "q_mean": 1.0} for i in range(7)}
    lines = screen_lines(progress(players=players, evaluations=[]))
    assert [line.split()[1:4] for line in lines if "player-" in line] == [
        [f"player-{i}", f"{0.1 * i:.3g}", "1"] for i in range(7)
    ]


def test_frame_in_ascii_is_as_wide() -> None:
    state = progress(name="naïve", tasks=[Task("main", 40, 100, "games")])
    lines, plain = screen_lines(state), screen_lines(state, is_ascii=True)
    assert "\n".join(plain).isascii()
    assert [len(line) for line in plain] == [len(line) for line in lines]
    assert any("========" in line and "--------" in line for line in plain)


def test_scripted_pairings_of_an_earlier_evaluation_stay_in_the_table() -> None:
    later = Evaluation("main", 500, (pair("host", "random", 0.3),))
    text = "\n".join(screen_lines(progress(evaluations=[evaluation(0, 0.1), later])))
    assert "zeillinger" in text
    assert "+.200" in text


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, None, 10**400, 1e300, -1e-300, "text"])
def test_odd_values_are_drawn(odd: Any) -> None:
    players = {"host": "host", "agent": "random"}
    odd_pair = result_of(players, ("host",), RHO, {"rho": Estimate(odd, odd, odd)}, odd, odd)
    state = progress(
        fraction=odd,
        elapsed_s=odd,
        remaining_s=odd,
        counters={"env_steps": odd},
        rates={"env_steps": odd},
        players={"host": {"loss": odd}},
        curves={"host": {"loss": [math.nan, math.inf, 1.0]}},
        evaluations=[Evaluation("main", 0, (odd_pair,)), Evaluation("main", 1, (odd_pair,))],
    )
    assert len(screen_lines(state)) > 5


def test_empty_progress_is_drawn() -> None:
    state = Progress("", None, "", 0.0, 0.0, None, {}, [], lambda: "")
    assert len(screen_lines(state)) > 2
    empty_pair = result_of({}, (), (), {}, 0)
    state = progress(
        players={"host": {}}, evaluations=[Evaluation("main", 0, ()), Evaluation("main", 1, (empty_pair,))]
    )
    assert len(screen_lines(state)) > 2


def test_non_finite_loss_is_seen() -> None:
    assert any(" nan" in line for line in screen_lines(progress(players={"host": {"loss": math.nan}})))


def test_game_of_other_roles_shows_the_return() -> None:
    state = progress(evaluations=[Evaluation("main", 0, (seats_pair("learner", "random", 0.75),))])
    text = "\n".join(screen_lines(state))
    assert "return/x" in text
    assert ".750" in text


def test_names_are_not_markup() -> None:
    assert "[red]x[/]" in "\n".join(screen_lines(progress(name="[red]x[/]")))


# ---- text of numbers -----------------------------------------------------------------------------------


def test_numbers_are_written_in_few_characters() -> None:
    assert [count_text(n) for n in (0, 12_345, 999_999, 1_234_567, 3e10, 0.25)] == [
        "0",
        "12,345",
        "1.00M",
        "1.23M",
        "30.0G",
        "0.25",
    ]
    assert [score_text(x) for x in (0.1694, -0.5, 0.9999, 1.25, math.nan)] == [".169", "-.500", "1.000", "1.250", "-"]
    assert [duration_text(s) for s in (0, 123, 400_000, None)] == ["0:00:00", "0:02:03", "4d 15h", "?"]


def test_sparkline_spans_its_values_and_keeps_both_ends() -> None:
    assert sparkline([0.0, 0.5, 1.0, math.nan], 10) == "▁▅█ "
    bars = sparkline([float(i) for i in range(1000)], 20)
    assert (len(bars), bars[0], bars[-1]) == (20, "▁", "█")


# ---- the displays ----------------------------------------------------------------------------------------


def test_auto_is_live_on_a_terminal_and_plain_elsewhere() -> None:
    assert type(make_display("auto", terminal())) is LiveDisplay
    assert type(make_display("auto", pipe())) is PlainDisplay
    assert type(make_display("plain", terminal())) is PlainDisplay
    assert type(make_display("quiet", terminal())) is Display


def test_auto_is_plain_on_a_dumb_terminal() -> None:
    dumb = Console(file=terminal().file, force_terminal=True, _environ={"TERM": "dumb"})
    assert type(make_display("auto", dumb)) is PlainDisplay


@pytest.mark.parametrize(
    ("encoding", "locale", "is_ascii"),
    [("ascii", "en_US.UTF-8", True), ("utf-8", "C", True), ("utf-8", "POSIX", True), ("utf-8", "C.UTF-8", False)],
)
def test_live_is_ascii_where_the_terminal_knows_no_more(
    encoding: str, locale: str, is_ascii: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    display = make_display("auto", Console(file=file, force_terminal=True, _environ={"TERM": "xterm"}))
    assert isinstance(display, LiveDisplay)
    assert display.is_ascii == is_ascii


@pytest.mark.parametrize(("encoding", "told"), [("ascii", "?n?"), ("utf-8", "ünï")])
def test_plain_has_what_the_encoding_knows_without_control_codes(encoding: str, told: str, clock: list[float]) -> None:
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding=encoding), width=80)
    with make_display("auto", console) as display:
        display.update(progress(name="\x1b[31mred", phase=lambda: "naïve \x1b[31m\r\x07 ☃"))
        display.log("ünï\x1b[0m\ttab")
        display.error("bad\x00")
    text = written(console)
    assert f"{told}?[0m?tab\n" in text  # of a path, say, which a command names
    assert all(character == "\n" or character.isprintable() for character in text)
    assert text.isascii() == (encoding == "ascii")


def test_plain_writes_a_line_in_ten_seconds_and_for_each_evaluation(clock: list[float]) -> None:
    console = pipe()
    evaluations = [evaluation(100 * i, 0.1) for i in range(3)]
    with make_display("plain", console) as display:
        for i in range(301):  # 30 s
            display.update(progress(evaluations=evaluations[: 1 + i // 149]))
            clock[0] += 0.1
    lines = written(console).splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("evaluation")] == [
        f"evaluation main at opt step {100 * i}" for i in range(3)
    ]
    assert 4 <= len([line for line in lines if "%" in line]) <= 6


def test_plain_lines_are_not_wrapped_to_a_width() -> None:
    console = pipe()
    make_display("plain", console).update(progress(evaluations=[]))
    assert len(written(console).splitlines()) == 1 + len(STAGES)
    assert "exploration 0.38" in written(console)


def test_quiet_shows_errors_only(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(quiet=True)
    with make_display("auto", console) as display:
        display.update(progress())
        display.log("a line")
        display.warn("a warning")
        display.error("the disk is full")
    assert capsys.readouterr() == ("", "error: the disk is full\n")


@pytest.mark.parametrize("mode", ["auto", "plain"])
def test_a_failing_display_does_not_stop_training_and_is_reported_once(
    mode: Any, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    broken: Any = progress(players=7)
    with caplog.at_level(logging.WARNING), make_display(mode, terminal()) as display:
        for _ in range(3):
            display.update(broken)
            clock[0] += 60.0
    assert len(caplog.records) == 1


def test_what_is_closed_twice_is_closed_once() -> None:
    console = terminal()
    display = make_display("auto", console)
    with display:
        display.update(progress())
        display.close()
        console.file.flush()
        shown = console.file.buffer.getvalue()
    console.file.flush()
    assert console.file.buffer.getvalue() == shown
    assert shown


# ---- the summary -------------------------------------------------------------------------------------------


def summary_text(state: Progress, width: int = 80, ways: Mapping[str, str] | None = None) -> str:
    console = Console(width=width, file=io.StringIO())
    render_summary(console, state, {"plot": Path("runs/a long folder", "x" * 90, "rho.png")}, ways or {})
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_summary_tells_before_and_after_with_intervals() -> None:
    text = summary_text(progress(evaluations=[evaluation(0, 0.1), evaluation(500, 0.2)]))
    row = next(line for line in text.splitlines() if line.startswith("host vs random"))
    assert ".100 [.095, .105]  .200 [.195, .205]" in row
    assert "host vs random 10 of 3,000" in text  # games that a time limit ended


def lone(player: str, value: float, num_games: int, num_truncated: int = 0) -> PairResult:
    learned = ("agent",) if player == "agent" else ()
    scores = {"return/agent": Estimate(value, value - 5, value + 5)}
    return result_of({"agent": player}, learned, returns_in("agent"), scores, num_games, num_truncated)


def test_summary_says_how_many_games_each_moment_has() -> None:
    evaluations = [
        Evaluation("main", 0, (lone("agent", 22.0, 20), lone("random", 22.0, 20))),
        Evaluation("main", 900, (lone("agent", 480.0, 100),)),
    ]
    lines = " ".join(summary_text(progress(evaluations=evaluations), width=200).split())
    assert "Before: opt step 0, 20 games each; after: opt step 900, 100 games each; brackets: 95% intervals." in lines
    assert "since the first evaluation: better (20 games then, now 100 games)" in lines
    assert "beats random (100 games beside 20 games)" in lines


def test_summary_tells_precision_and_recall_with_intervals_and_they_count_for_nobody() -> None:
    declared = starting_config("ppo", ["nip", "witness"]).game.declared_scores()
    values = {"accuracy": 0.75, "accuracy/0": 1.0, "precision": 1.0, "recall": 0.5, "return/prover": 0.5}
    players = {"prover": "prover", "verifier": "verifier"}
    pair = played_pair(players, [*players], {score.name: values.get(score.name) for score in declared}, 0.0)
    pair |= {"intervals": {"accuracy": [0.6, 0.875], "precision": [0.8, 1.0], "recall": [0.3, 0.7]}}
    found = Evaluation.from_record(evaluation_of([pair], declared, [*players], opt_steps=7))
    rows = [line.split() for line in summary_text(progress(evaluations=[found]), width=200).splitlines()]
    start = ["prover", "vs", "verifier", "accuracy", "-", ".750", "[.600,", ".875]"]
    assert start in rows
    assert ["precision", "-", "1.000", "[.800,", "1.000]"] in rows
    assert ["recall", "-", ".500", "[.300,", ".700]"] in rows
    names = ["accuracy", "return/prover", "return/verifier", "precision", "recall", "undecided"]
    assert [*found.pairs[0].scores] == names
    assert [found.pairs[0].is_high_good(name) for name in names] == [True, True, True, None, None, None]


def test_a_game_of_ones_own_with_the_roles_host_and_agent_shows_its_own_scores() -> None:
    declared = [DeclaredScore("accuracy", "", "share", ("agent",), ("host",), shown=True), *returns_in(*POLYHEDRA)]
    values = {"accuracy": 0.75, "return/host": -2.0, "return/agent": 1.5}
    pair = played_pair({"host": "mine", "agent": "random"}, ["host"], values, 0.125)
    found = Evaluation.from_record(evaluation_of([pair], declared, POLYHEDRA, opt_steps=7))
    (result,) = found.pairs
    assert [result.is_high_good(name) for name in result.scores] == [False, True, None]
    rows = [line.split() for line in summary_text(progress(evaluations=[found]), width=200).splitlines()]
    assert ["mine", "vs", "random", "accuracy", "-", ".750", "[.625,", ".875]"] in rows
    assert ["return/host", "-", "-2.000", "[-2.125,", "-1.875]"] in rows


def test_summary_of_one_evaluation_has_no_before() -> None:
    text = summary_text(progress(evaluations=[Evaluation("main", 40, (lone("agent", 22.0, 20),))]), width=200)
    assert "After: opt step 40, 20 games each; brackets: 95% intervals." in text
    assert "\nagent:" not in text, "nothing is said of it"
    assert "efore: opt step" not in text


def test_intervals_of_equal_samples_need_no_remark() -> None:
    evaluations = [Evaluation("main", step, (lone("agent", 22.0 + step, 100),)) for step in (0, 900)]
    assert "  since the first evaluation: better" in verdicts(evaluations)


def test_a_perfect_score_that_a_time_limit_ends_is_not_called_unfinished() -> None:
    evaluations = [Evaluation("main", step, (lone("agent", 500.0, 100, 100),)) for step in (0, 900)]
    text = summary_text(progress(evaluations=evaluations), width=200)
    assert "not finished" not in text
    assert "Games that a time limit ended, and not the rules: agent 100 of 100." in text


def test_a_change_is_shown_with_the_games_that_it_is_measured_from() -> None:
    few, many = (evaluation(step, 0.1) for step in (0, 9))
    few = Evaluation("main", 0, tuple(replace(pair, num=500) for pair in few.pairs))
    for evaluations, told in (([few, many], "first evaluation of 500 games\n"), ([many, many], "first evaluation\n")):
        console = Console(width=200, file=io.StringIO())
        console.print(score_table(evaluations, 200, 100))
        assert told in re.sub(r" +\n", "\n", console.file.getvalue())  # type: ignore[attr-defined]


def test_summary_leaves_paths_and_commands_in_one_piece() -> None:
    way = f"palestra resume 'runs/my run{'x' * 90}'"
    text = summary_text(progress(fraction=0.5), ways={"go on from here": way})
    assert str(Path("runs/a long folder", "x" * 90, "rho.png")) in text
    assert f"Next\n  go on from here  {way}\n" in text
    assert "Next" not in summary_text(progress(fraction=0.5))


def test_what_opt_step_0_scored_is_no_result_of_a_training() -> None:
    text = summary_text(progress(evaluations=[evaluation(0, 0.1)]))
    assert "no evaluation after opt step 0, so it is unknown what was learned" in text
    assert ".100" not in text
    assert "beats" not in text
    console = Console(width=200, file=io.StringIO())
    render_seeds_summary(console, {0: [evaluation(0, 0.1)], 1: [evaluation(0, 0.1), evaluation(9, 0.3)]})
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert ".300" in shown
    assert ".200" not in shown  # the mean with a seed that was not evaluated after it had learned


def test_verdicts_follow_the_intervals() -> None:
    before = Evaluation("main", 0, (pair("host", "random", 0.1), pair("random", "agent", 0.3)))
    rivals = (pair("weak", "random", 0.1), pair("equal", "random", 0.195), pair("strong", "random", 0.4))
    scripted = (pair("random", "first", 0.2), pair("random", "hard", 0.05))
    after = Evaluation("main", 9, (pair("host", "random", 0.2), pair("random", "agent", 0.1), *rivals, *scripted))
    assert verdicts([before, after]) == [
        "host, compared with the other players in the role host:",
        "  facing random: beats weak; no clear difference from equal; behind strong",
        "  since the first evaluation: better against random",
        "agent, compared with the other players in the role agent:",
        "  facing random: beats first; behind hard",
        "  since the first evaluation: better against random",
    ]


def test_verdicts_on_one_player_in_two_roles_name_the_role() -> None:
    seats = (seats_pair("learner", "random", 0.5), seats_pair("random", "learner", 0.1))
    told = verdicts([Evaluation("main", step, seats) for step in (0, 9)])
    headings = [line for line in told if line.endswith(":")]
    assert headings == ["learner as x:", "learner as o:"]


def test_nothing_is_said_of_a_change_against_past_selves_who_are_others_each_time() -> None:
    def at(opt_steps: int, rho: float) -> Evaluation:
        against = replace(pair("host", "mixture", rho), learned=("host", "agent"), past=("agent",))
        return Evaluation("main", opt_steps, (against, pair("host", "random", rho)))

    assert verdicts([at(0, 0.1), at(9, 0.2)]) == ["host:", "  since the first evaluation: better against random"]
    console = Console(width=200, file=io.StringIO(), force_terminal=True)
    console.print(score_table([at(0, 0.1), at(9, 0.2)], 200, 100))
    assert re.findall(r"\[(\d+)m \+\.100", console.file.getvalue()) == ["2", "32"]  # type: ignore[attr-defined]


def test_one_evaluation_claims_no_change() -> None:
    assert not any("since" in line for line in verdicts([evaluation(0, 0.1)]))


def test_nan_claims_nothing() -> None:
    unknown = pair("host", "random", math.nan)
    lines = verdicts([Evaluation("main", 0, (unknown, pair("weak", "random", 0.1)))])
    assert lines[1:] == ["  facing random: no clear difference from weak"]


def test_summary_of_other_roles_shows_returns_and_judges_by_them() -> None:
    evaluations = [
        Evaluation("main", i, (seats_pair("learner", "random", 0.75 * i), seats_pair("random", "random", 0.0)))
        for i in range(2)
    ]
    text = summary_text(progress(evaluations=evaluations))
    row = next(line for line in text.splitlines() if "return/o" in line)
    assert row.split()[1:] == ["-.000", "[-.100,", ".100]", "-.750", "[-.850,", "-.650]"]
    assert "facing random: beats random" in text
    assert "since the first evaluation: better against random" in text


def test_summary_of_a_lone_agent_says_whom_it_beats_and_what_changed() -> None:
    def alone(player: str, value: float) -> PairResult:
        learned = ("agent",) if player == "agent" else ()
        scores = {"return/agent": Estimate(value, value - 5, value + 5)}
        return result_of({"agent": player}, learned, returns_in("agent"), scores, 100, 3)

    evaluations = [
        Evaluation("main", 0, (alone("agent", 20.0), alone("random", 22.0))),
        Evaluation("main", 9, (alone("agent", 480.0),)),
    ]
    text = summary_text(progress(evaluations=evaluations))
    assert any(line.split()[-3:] == ["22.000", "[17.000,", "27.000]"] for line in text.splitlines())
    assert "  beats random" in text.splitlines()
    assert "  since the first evaluation: better" in text.splitlines()


def test_summary_without_evaluation_says_so() -> None:
    assert "so it is unknown what was learned" in summary_text(progress(evaluations=[]))


def test_summary_says_where_no_opt_step_was_made() -> None:
    told = "nothing was learned: the run came to its `stop` without an opt step"
    for opt_steps, fraction in ((0, 1.0), (1, 1.0), (0, 0.5)):
        text = summary_text(progress(fraction=fraction, counters={"env_steps": 20, "opt_steps": opt_steps}))
        assert (told in text) == (opt_steps == 0 and fraction == 1.0)


def test_mean_over_seeds_has_the_t_interval_of_scipy() -> None:
    for values in ([0.1, 0.3], [0.21, 0.25, 0.22, 0.28, 0.24]):
        low, high = stats.t.interval(0.95, len(values) - 1, sum(values) / len(values), stats.sem(values))
        assert mean_text(values) == f"{score_text((low + high) / 2)} ±{score_text((high - low) / 2)}"
    assert mean_text([0.25]) == ".250"


def test_seeds_summary_has_a_row_for_each_learning_pairing() -> None:
    console = Console(width=80, file=io.StringIO())
    runs = {
        seed: [evaluation(0, 0.1), Evaluation("main", 9, (pair("host", "random", 0.2 + 0.01 * seed),))]
        for seed in range(3)
    }
    render_seeds_summary(console, runs)
    rows = [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert ["host", "vs", "random", "rho", ".100", "±.000", ".210", "±.025", ".200", ".220"] in rows


def test_record_with_null_reads_as_nan() -> None:
    pair = played_pair({"agent": "random", "host": "host"}, ["host"], {"rho": None}, 0.0)
    (found,) = Evaluation.from_record(evaluation_of([pair], RHO, POLYHEDRA)).pairs
    assert [seat.role for seat in found.seats] == ["host", "agent"]  # in the order of the game
    assert math.isnan(found.score.value)
    assert found.learned == ("host",)
