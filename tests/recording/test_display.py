"""The displays of a run in progress, and the summary at its end."""

import io
import logging
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType
from scipy import stats

from palestra.recording import display as display_module
from palestra.recording.display import LiveDisplay, PlainDisplay, QuietDisplay, make_display, render_progress
from palestra.recording.results import (
    Evaluation,
    PairResult,
    Progress,
    Score,
    count_text,
    duration_text,
    score_text,
    sparkline,
)
from palestra.recording.summary import mean_text, render_seeds_summary, render_summary, verdicts

HOSTS = ("host", "random", "all-coordinates", "zeillinger", "look-ahead")
AGENTS = ("agent", "random", "choose-first", "choose-last", "greedy")


def pair(host: str, agent: str, rho: float, half: float = 0.005) -> PairResult:
    learned = tuple(role for role, player in (("host", host), ("agent", agent)) if player == role)
    players = {"agent": agent, "host": host}
    return PairResult(players, learned, {"rho": Score(rho, rho - half, rho + half)}, 3000, 10)


def evaluation(opt_steps: int, learned_rho: float) -> Evaluation:
    pairs = [pair(h, a, learned_rho if "host" in h or "agent" in a else 0.1) for h in HOSTS for a in AGENTS]
    return Evaluation("main", opt_steps, tuple(pairs))


def seats_pair(x: str, o: str, return_of_x: float) -> PairResult:
    learned = tuple(role for role, player in (("x", x), ("o", o)) if player == "learner")
    scores = {f"return of {role}": Score(r, r - 0.1, r + 0.1) for role, r in (("x", return_of_x), ("o", -return_of_x))}
    return PairResult({"x": x, "o": o}, learned, scores, 100, 0)


def progress(**changes: Any) -> Progress:
    metrics = {"loss": 0.0123, "q_mean": -1.23, "exploration": 0.38, "learning_rate": 3e-4}
    values: dict[str, Any] = {
        "name": "dqn-polyhedra-1",
        "run_folder": "runs/dqn-polyhedra-1",
        "device": "cuda:0",
        "fraction": 0.62,
        "elapsed_s": 75.2,
        "remaining_s": 45.9,
        "time": {"play": 30.0, "memory": 4.5, "update": 36.0, "evaluation": 4.0, "saving": 0.5, "other": 0.2},
        "counters": {"env_steps": 12_400_000, "opt_steps": 12_400, "epochs": 254, "episodes": 609_000},
        "rates": {"env_steps": 51_234.3, "opt_steps": 410.2},
        "players": {"host": metrics, "agent": metrics},
        "evaluations": [evaluation(1000 * i, 0.02 * i) for i in range(12)],
        "tasks": [],
        "end_reason": None,
        "message": "checkpoint 12 saved",
    }
    return Progress(**(values | changes))


def lines_of(renderable: RenderableType, width: int = 80, height: int = 24) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), record=True, legacy_windows=False)
    console.print(renderable)
    return console.export_text().splitlines()


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
    monkeypatch.setattr(display_module, "monotonic", lambda: now[0])
    return now


# ---- the live frame ----------------------------------------------------------------------------------


def test_full_frame_fits_80x24_with_nothing_cut() -> None:
    lines = lines_of(render_progress(progress(), 80, 24))
    assert len(lines) < 24
    assert all(len(line) <= 80 for line in lines)
    assert not any("…" in line for line in lines)


def test_frame_shows_every_player_of_the_rho_table_and_the_change() -> None:
    text = "\n".join(lines_of(render_progress(progress(), 80, 24)))
    assert all(player in text for player in (*HOSTS, *AGENTS))
    assert ".220 +.220" in text


@pytest.mark.parametrize(("width", "height"), [(40, 12), (60, 18), (80, 24), (200, 60)])
def test_frame_of_much_data_fits_any_terminal(width: int, height: int) -> None:
    many = {f"player number {i}": {f"metric number {j}": 1e30 for j in range(20)} for i in range(20)}
    pairs = tuple(pair(f"h{i}" if i else "host", f"some agent {j}", 0.1) for i in range(30) for j in range(30))
    state = progress(name="n" * 300, run_folder="f" * 300, players=many, evaluations=[Evaluation("main", 5, pairs)] * 2)
    lines = lines_of(render_progress(state, width, height), width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)


def test_wider_terminal_shows_intervals_too() -> None:
    assert "±.005" not in "".join(lines_of(render_progress(progress(), 80, 24)))
    assert "±.005" in "".join(lines_of(render_progress(progress(), 140, 40), 140, 40))


def test_scripted_pairings_of_an_earlier_evaluation_stay_in_the_table() -> None:
    later = Evaluation("main", 500, (pair("host", "random", 0.3),))
    text = "\n".join(lines_of(render_progress(progress(evaluations=[evaluation(0, 0.1), later]), 80, 24)))
    assert "zeillinger" in text
    assert "+.200" in text


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, None, 10**400, 1e300, -1e-300, "text"])
def test_odd_values_are_drawn(odd: Any) -> None:
    odd_pair = PairResult({"host": "host", "agent": "random"}, ("host",), {"rho": Score(odd, odd, odd)}, odd, odd)
    state = progress(
        fraction=odd,
        elapsed_s=odd,
        remaining_s=odd,
        counters={"env_steps": odd},
        rates={"env_steps": odd},
        players={"host": {"loss": odd}},
        evaluations=[Evaluation("main", 0, (odd_pair,)), Evaluation("main", 1, (odd_pair,))],
    )
    assert len(lines_of(render_progress(state, 80, 24))) > 5


def test_empty_progress_is_drawn() -> None:
    state = Progress("", None, "", 0.0, 0.0, None, {}, {}, {}, {}, [], [], None, None)
    assert len(lines_of(render_progress(state, 80, 24))) > 2
    empty_pair = PairResult({}, (), {}, 0, 0)
    state = progress(
        players={"host": {}}, evaluations=[Evaluation("main", 0, ()), Evaluation("main", 1, (empty_pair,))]
    )
    assert len(lines_of(render_progress(state, 80, 24))) > 2


def test_non_finite_loss_is_seen() -> None:
    assert any(
        " nan" in line for line in lines_of(render_progress(progress(players={"host": {"loss": math.nan}}), 80, 24))
    )


def test_game_of_other_roles_shows_the_return() -> None:
    state = progress(evaluations=[Evaluation("main", 0, (seats_pair("learner", "random", 0.75),))])
    text = "\n".join(lines_of(render_progress(state, 80, 24)))
    assert "return of x" in text
    assert ".750" in text


def test_names_are_not_markup() -> None:
    assert "[red]x[/]" in "\n".join(lines_of(render_progress(progress(name="[red]x[/]"), 80, 24)))


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
    assert type(make_display("quiet", terminal())) is QuietDisplay


def test_auto_is_plain_where_the_terminal_cannot_draw() -> None:
    ascii_file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert type(make_display("auto", Console(file=ascii_file, force_terminal=True))) is PlainDisplay
    dumb = Console(file=terminal().file, force_terminal=True, _environ={"TERM": "dumb"})
    assert type(make_display("auto", dumb)) is PlainDisplay


def test_live_redraws_at_most_four_times_a_second(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[float] = []
    monkeypatch.setattr(LiveDisplay, "_show", lambda self, progress: drawn.append(progress.fraction))
    with make_display("auto", terminal()) as display:
        for i in range(1001):
            display.update(progress(fraction=i / 1000))
            clock[0] += 0.002
    assert 8 <= len(drawn) <= 10
    assert drawn[-1] == 1.0  # the last state is shown when it closes


def test_live_shows_a_new_message_at_once(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str | None] = []
    monkeypatch.setattr(LiveDisplay, "_show", lambda self, progress: drawn.append(progress.message))
    with make_display("auto", terminal()) as display:
        for message in ("a", "a", "evaluating", "evaluating"):
            display.update(progress(message=message))
        assert drawn == ["a", "evaluating"]


def test_live_draws_the_frame_and_log_lines() -> None:
    console = terminal()
    with make_display("auto", console) as display:
        display.update(progress())
        display.log("a line [bold]that[/bold] stays")
    assert "dqn-polyhedra-1 · cuda:0" in written(console)
    assert "a line [bold]that[/bold] stays" in written(console)


def test_live_gives_the_cursor_back_when_training_fails() -> None:
    console = terminal()
    with suppress(ZeroDivisionError), make_display("auto", console) as display:
        display.update(progress())
        raise ZeroDivisionError
    assert written(console).rindex("\x1b[?25h") > written(console).rindex("\x1b[?25l")


def test_plain_is_ascii_without_control_codes(clock: list[float]) -> None:
    console = pipe()
    with make_display("auto", console) as display:
        display.update(progress(name="\x1b[31mred", message="naïve \x1b[31m\r\x07 ☃"))
        display.log("ünï\x1b[0m\ttab")
        display.error("bad\x00")
    text = written(console)
    assert text
    assert all(character == "\n" or " " <= character <= "~" for character in text)


def test_plain_writes_a_line_in_ten_seconds_and_for_each_evaluation(clock: list[float]) -> None:
    console = pipe()
    evaluations = [evaluation(100 * i, 0.1) for i in range(3)]
    with make_display("plain", console) as display:
        for i in range(301):  # 30 s
            display.update(progress(evaluations=evaluations[: 1 + i // 149], message=f"message {i}"))
            clock[0] += 0.1
    lines = written(console).splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("evaluation")] == [
        f"evaluation main at opt step {100 * i}" for i in range(3)
    ]
    assert 4 <= len([line for line in lines if "%" in line]) <= 6


def test_plain_lines_are_not_wrapped_to_a_width() -> None:
    console = pipe()
    make_display("plain", console).update(progress(evaluations=[]))
    assert len(written(console).splitlines()) == 1
    assert "exploration 0.38" in written(console)


def test_quiet_shows_errors_only() -> None:
    console = pipe()
    with make_display("quiet", console) as display:
        display.update(progress())
        display.log("a line")
        assert written(console) == ""
        display.error("loss is not finite")
    assert written(console) == "error: loss is not finite\n"


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


def summary_text(state: Progress, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO())
    render_summary(console, state, {"plot": Path("runs/a long folder", "x" * 90, "rho.png")})
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_summary_tells_before_and_after_with_intervals() -> None:
    text = summary_text(progress(evaluations=[evaluation(0, 0.1), evaluation(500, 0.2)]))
    row = next(line for line in text.splitlines() if line.startswith("host vs random"))
    assert ".100 [.095, .105]  .200 [.195, .205]" in row
    assert "host vs random 10" in text  # games that were cut off


def test_summary_leaves_paths_and_commands_in_one_piece() -> None:
    text = summary_text(progress(fraction=0.5, run_folder="runs/my run"))
    assert str(Path("runs/a long folder", "x" * 90, "rho.png")) in text
    assert "palestra resume 'runs/my run'\n" in text
    assert "palestra evaluate 'runs/my run'\n" in text


def test_summary_offers_resume_only_to_a_run_that_stopped() -> None:
    assert "resume" not in summary_text(progress(fraction=1.0))


def test_verdicts_follow_the_intervals() -> None:
    before = Evaluation("main", 0, (pair("host", "random", 0.1), pair("random", "agent", 0.3)))
    rivals = (pair("weak", "random", 0.1), pair("equal", "random", 0.195), pair("strong", "random", 0.4))
    scripted = (pair("random", "first", 0.2), pair("random", "hard", 0.05))
    after = Evaluation("main", 9, (pair("host", "random", 0.2), pair("random", "agent", 0.1), *rivals, *scripted))
    assert verdicts([before, after]) == [
        "host, beside the other players of the role host:",
        "  facing random: beats weak; no clear difference from equal; behind strong",
        "  since the first evaluation: better against random",
        "agent, beside the other players of the role agent:",
        "  facing random: beats first; behind hard",
        "  since the first evaluation: better against random",
    ]


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
    row = next(line for line in text.splitlines() if "return of o" in line)
    assert row.split()[3:] == ["-.000", "[-.100,", ".100]", "-.750", "[-.850,", "-.650]"]
    assert "facing random: beats random" in text
    assert "since the first evaluation: better against random" in text


def test_summary_of_a_lone_agent_says_whom_it_beats_and_what_changed() -> None:
    def alone(player: str, value: float) -> PairResult:
        learned = ("agent",) if player == "agent" else ()
        return PairResult({"agent": player}, learned, {"return of agent": Score(value, value - 5, value + 5)}, 100, 3)

    evaluations = [
        Evaluation("main", 0, (alone("agent", 20.0), alone("random", 22.0))),
        Evaluation("main", 9, (alone("agent", 480.0),)),
    ]
    text = summary_text(progress(evaluations=evaluations))
    assert any(line.split()[-3:] == ["22.000", "[17.000,", "27.000]"] for line in text.splitlines())
    assert "  beats random" in text.splitlines()
    assert "  since the first evaluation: better" in text.splitlines()


def test_summary_without_evaluation_says_so() -> None:
    assert "nothing is known" in summary_text(progress(evaluations=[]))


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
    record = {
        "evaluation": "main",
        "opt_steps": 7,
        "pairs": [
            {
                "players": {"host": "host", "agent": "random"},
                **{"rho": None, "low": None, "high": None, "games": 0, "finished": 0, "steps": 0, "truncated": 0},
                "returns": {"host": None},
                "return_intervals": {"host": [None, None]},
                "learned": ["host"],
            }
        ],
    }
    (found,) = Evaluation.from_record(record).pairs
    assert math.isnan(found.score.value)
    assert found.learned == ("host",)
