import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.comparing import Comparison
from benchmarks.learning_settings import SAC
from benchmarks.measuring import ROOT
from benchmarks.peers import __main__ as peers
from benchmarks.peers.floor import products_of_update
from benchmarks.peers.plot import plot
from benchmarks.peers.processes import OWN_PYTHON, Failed, Script
from benchmarks.peers.rows import COMPARISONS, PALESTRA, SB3, SCRIPTS, Unit, script_of, value_of
from benchmarks.peers.rows import comparison as comparison_of
from benchmarks.peers.script import Stopwatch, time_batches
from benchmarks.peers.start import start


class Scripts:
    """Stands in for the libraries: gives answers by name, or fails."""

    def __init__(self, answers: dict[str, dict[str, Any] | Failed]) -> None:
        self.answers, self.asked = answers, list[str]()

    def comparison(self) -> Comparison:
        contenders: Any = {name: (self, {"name": name}) for name in self.answers}
        return Comparison("P0", "a work", "env steps/s", {}, contenders, partial(value_of, "env steps/s"))

    def run(self, work: dict[str, Any], num_threads: int, timeout_s: float) -> dict[str, Any]:
        self.asked.append(work["name"])
        answer = self.answers[work["name"]]
        if isinstance(answer, Failed):
            raise answer
        return {"startup_seconds": 1.0, "versions": {}} | answer


def comparison(unit: Unit, *contenders: str) -> Comparison:
    return comparison_of("P0", "a work", unit, {}, {name: {} for name in contenders})


# ---- repeats and table -----------------------------------------------------------------------------------


def test_contenders_alternate_and_every_other_repeat_is_reversed() -> None:
    scripts = Scripts({name: {"env_steps": 10, "seconds": 2.0} for name in "ab"})
    measured = peers.Measured(scripts.comparison(), 1)
    measured.measure(3, {"timed_seconds": 1.0}, 1.0)
    assert scripts.asked == ["a", "b", "b", "a", "a", "b"]
    assert measured.values == {"a": [5.0] * 3, "b": [5.0] * 3}


def test_who_fails_is_left_out_with_the_reason_and_asked_no_more() -> None:
    scripts = Scripts({"a": Failed("not installed"), "b": {"env_steps": 10, "seconds": 2.0}})
    measured = peers.Measured(scripts.comparison(), 1)
    measured.measure(2, {"timed_seconds": 1.0}, 1.0)
    assert scripts.asked == ["a", "b", "b"]
    assert measured.left_out == {"a": "not installed"}
    assert "- left out: P0, a work: a: not installed" in peers.report([measured])


@pytest.mark.parametrize(("unit", "best"), [("env steps/s", "skrl"), ("s to solved", "sbx")])
def test_palestra_is_set_against_the_baseline_and_the_best_other_one(unit: Unit, best: str) -> None:
    values = {SB3: [20.0, 20.0], "sbx": [10.0, 10.0], "skrl": [40.0, 40.0], "bare script": [99.0, 99.0]}
    rows = peers.Measured(comparison(unit, *values, PALESTRA), 1, values | {PALESTRA: [80.0, 160.0]}).rows()
    ratios = {(row.baseline, row.contender): row.ratio for row in rows}
    expected = {(SB3, "sbx"): 0.5, (SB3, "skrl"): 2.0, (SB3, "bare script"): 4.95, (SB3, PALESTRA): 6.0}
    assert ratios == expected | {(best, PALESTRA): {"skrl": 3.0, "sbx": 12.0}[best]}


def test_without_the_baseline_the_next_contender_takes_its_place() -> None:
    measured = peers.Measured(comparison("env steps/s", SB3, "skrl", "sbx"), 1, {"skrl": [1.0], "sbx": [3.0]})
    assert [(row.baseline, row.contender) for row in measured.rows()] == [("skrl", "sbx")]


def test_answers_become_rates_microseconds_and_seconds() -> None:
    answer = {"env_steps": 600, "opt_steps": 50, "seconds": 2.0}
    units: tuple[Unit, ...] = ("env steps/s", "us per batch", "s to solved")
    assert [comparison(unit, "skrl").value(answer) for unit in units] == [300.0, 40_000.0, 2.0]


def test_every_contender_of_every_row_has_a_script() -> None:
    names = {name for c in COMPARISONS for name in c.contenders}
    assert {script_of(name) for name in names} == set(SCRIPTS.values())


def test_every_row_has_a_contender_of_ours_and_the_rows_are_those_of_the_readme() -> None:
    assert [c.row for c in COMPARISONS if not any(name.startswith(PALESTRA) for name in c.contenders)] == []
    assert sorted({c.row for c in COMPARISONS}) == [f"P{i}" for i in range(1, 10)]


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    measured = peers.Measured(COMPARISONS[0], 1, {SB3: [1.0, 2.0], PALESTRA: [4.0, 5.0]})
    plot([measured.to_json()], tmp_path / "peers.png")
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")


def test_rows_of_earlier_runs_stay_where_the_same_work_stands(tmp_path: Path) -> None:
    answer = {"startup_seconds": 1.0, "versions": {}}
    first, second = (
        peers.Measured(COMPARISONS[n], 1, {SB3: [1.0], PALESTRA: [4.0]}, {SB3: [answer], PALESTRA: [answer]})
        for n in (0, 1)
    )
    peers.write({m.place: m for m in (second, first)}, tmp_path)
    found = peers.earlier(tmp_path)
    assert [found[place] for place in sorted(found)] == [first, second]
    data = json.loads((tmp_path / "peers.json").read_text())
    data[0]["asked"]["environment"] = "another"
    (tmp_path / "peers.json").write_text(json.dumps(data))
    assert list(peers.earlier(tmp_path).values()) == [second]


def test_an_update_of_sac_is_counted_by_its_matrix_products() -> None:
    """One hidden layer of 2, 3 observations, 1 action, a batch of 5: multiplications counted by hand."""
    h = SAC(learning_rate=1.0, warmup_env_steps=0, batch_size=5, net_arch=(2,))
    actor, critic = 3 * 2 + 2 * 2, 4 * 2 + 2 * 1  # weights
    last_actor, last_critic = 2 * 2, 2 * 1  # those of the layers whose inputs' gradients are needed
    critics = 2 * (3 * critic + last_critic) + 2 * (2 * critic)
    actors = 3 * actor + last_actor
    assert sum(m * k * n for m, k, n in products_of_update(h, 3, 1)) == 5 * (critics + actors)


# ---- scripts -------------------------------------------------------------------------------------------


def test_a_missing_interpreter_is_named_with_what_builds_it() -> None:
    with pytest.raises(Failed, match=r"missing/python is missing: `make peers` builds it"):
        Script("sb3", ROOT / "missing" / "python").run({}, 1, 10.0)


def test_a_failing_script_tells_its_last_line() -> None:
    with pytest.raises(Failed, match="the bare script is PPO on CartPole"):
        Script("benchmarks.peers.bare", OWN_PYTHON).run({"kind": "replay"}, 1, 60.0)


def test_a_script_answers_on_stdout_alone_whatever_a_library_prints() -> None:
    code = (
        "import os\n"
        "from benchmarks.peers.script import answer\n"
        "def measure(work):\n"
        "    os.system('echo chatter')\n"
        "    return {'twice': 2 * work['value']}\n"
        "answer(measure)\n"
    )
    command = [sys.executable, "-c", code, '{"value": 21}']
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ('{"twice": 42}\n', "chatter\n")


# ---- the stopwatch -------------------------------------------------------------------------------------


def stopwatch(**work: Any) -> Stopwatch:
    common = {"launched": time.time(), "warmup_env_steps": 100, "timed_seconds": 0.0, "solved_at": None}
    return Stopwatch(common | work)


def test_times_begin_after_the_warm_up_and_the_first_opt_step() -> None:
    watch = stopwatch()
    watch.mark(100, ())  # the warm-up is over, but nothing was learned yet
    watch.opt_step()
    watch.mark(90, ())  # learned, but the warm-up goes on
    assert watch.begun is None
    watch.opt_step()
    assert not watch.mark(200, ())
    watch.opt_step()
    assert watch.mark(350, ())
    result = watch.result()
    assert (result["env_steps"], result["opt_steps"]) == (150, 1)


def test_times_end_at_the_first_mark_when_enough_seconds_have_passed() -> None:
    watch = stopwatch(timed_seconds=1e9, warmup_env_steps=0)
    watch.opt_step()
    assert not any(watch.mark(env_steps, ()) for env_steps in (1, 2, 3))
    with pytest.raises(AssertionError, match="before all was measured"):
        watch.result()


def test_solved_is_a_mean_over_100_episodes_and_counts_from_the_launch() -> None:
    watch = stopwatch(launched=time.time() - 100, solved_at=475.0)
    watch.opt_step()
    assert not watch.mark(1_000, [500.0] * 99)
    assert not watch.mark(2_000, [474.0] * 100)
    assert watch.mark(3_000, [500.0] * 50 + [450.0] * 50)
    result = watch.result()
    assert result["env_steps"] == 3_000
    assert result["seconds"] >= 100
    assert result["startup_seconds"] >= 100


def test_batches_are_counted_while_they_are_timed() -> None:
    drawn = []
    result = time_batches(lambda: drawn.append(1), timed_seconds=0.01)
    assert result["opt_steps"] == len(drawn) - 50  # the first ones warm up
    assert result["seconds"] >= 0.01


# ---- starts --------------------------------------------------------------------------------------------


def test_a_start_takes_seconds_by_the_clock_and_of_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seconds, cpu_seconds = start(["-c", "print('first opt step')"], dict(os.environ))
    assert min(seconds, cpu_seconds) > 0.0


@pytest.mark.parametrize("does", ["print('no opt step')", "print('first opt step'); raise OSError"])
def test_a_start_that_fails_or_comes_to_no_opt_step_counts_for_nothing(
    does: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        start(["-c", does], dict(os.environ))


def test_seconds_of_the_processor_have_a_table_of_their_own() -> None:
    answers = {"skrl": [{"cpu_seconds": 2.0, "startup_seconds": None, "versions": {}}]}
    measured = peers.Measured(comparison("s to first opt step", "skrl"), 1, {"skrl": [3.0]}, answers)
    assert "| P0 | a work | 1 | skrl | 2 |" in peers.report([measured])
