"""Evaluators that are slow, hang, die or answer nothing: training is the same to the bit, and what failed is told.

Their place is taken by `fake_evaluator.py`, which gives the answers of a run that was evaluated in turn.

Covers palestra.training.worker.
"""

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, MakeRun
from resuming import (
    Killed,
    ask_to_leave,
    assert_same_bits,
    at_call,
    fit,
    kill,
    pointed_at,
    records,
    send_signal,
    stopping_at,
)
from rich.console import Console

from palestra.commands.replay import verify
from palestra.kinds.games.trainer import Trainer
from palestra.run.checkpoints import CheckpointError, Checkpoints
from palestra.storage.records_file import read_records
from palestra.storage.run_folder import RunFolder
from palestra.training import async_evaluations, workers
from tests.forked import Forked
from tests.forked import run as run_forked
from tests.training.test_stages import Twice

Data = dict[str, Any]
MakeConfig = Callable[..., Data]
ANSWERED = ("evaluation", "roles", "declared_scores", "pairs", "ratings", "overall_ratings")
FAKE = Path(__file__).with_name("fake_evaluator.py")
ROOT = Path(__file__).parent.parent.parent
EVALUATORS: Data = {
    "num_processes": 1,
    "results": {"after": 3, "unit": "opt_steps"},
    "timeout_s": 30.0,
    "max_restarts": 2,
}

NEVER_BETTER = {
    "of": {"name": "evaluation", "evaluation": "main", "pairing": 0, "measure": "rho"},
    "goal": "max",
    "min_delta": 1000.0,
}
STOPPING = {"name": "early_stopping", "patience": 2, **NEVER_BETTER}
REDUCING = {
    **{"name": "reduce_on_plateau", "player": "host", "key": "learning_rate", "factor": 0.5, "patience": 1},
    **NEVER_BETTER,
}

MOMENTS = random.Random(0)


@dataclass
class Fakes:
    """The plan of the fake evaluators, and the run whose answers they give."""

    plan: Path
    in_turn: Path

    def will(self, deeds: dict[str, list[str]]) -> None:
        """Do these, by evaluation and opt step."""
        answers = {}
        for record in read_records(self.in_turn / "records.jsonl"):
            if record["kind"] == "evaluation":
                key = f"{record['evaluation']}/{record['opt_steps']}"
                answers[key] = {name: record[name] for name in ANSWERED}
        self.plan.write_text(json.dumps({"answers": answers, "deeds": deeds}))
        self.plan.with_name("plan.tried").unlink(missing_ok=True)

    def tried(self) -> list[str]:
        return self.plan.with_name("plan.tried").read_text().split()


@pytest.fixture(scope="module")
def in_turn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in-turn")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("palestra.run.run.plot_scores", lambda *_: None)
        fit(folder / "run", TINY)
    return folder / "run"


@pytest.fixture
def fakes(in_turn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    fakes = Fakes(tmp_path / "plan", in_turn)
    fakes.will({})
    monkeypatch.setattr(workers, "COMMAND", [sys.executable, "-S", str(FAKE), str(fakes.plan)])
    return fakes


def with_evaluators(make_config: MakeConfig, changes: Data | None = None, **evaluators: Any) -> Data:
    return make_config({"evaluators": EVALUATORS | evaluators} | (changes or {}))


def of_kind(run: Path, kind: str) -> list[Data]:
    return [record for record in records(run) if record["kind"] == kind]


def trained(config: Data, run: Path) -> str:
    """What a run shows."""
    console = Console(file=io.StringIO(), width=200)
    config["output"]["display"] = "plain"
    Trainer(config, run=run, console=console).fit()
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def content(run: Path) -> Any:
    found = pointed_at(run, "latest")
    assert found is not None
    return found["files"]["tensors.safetensors"], found["rows"]


def alive(run: Path) -> list[int]:
    """The processes in whose command lines a run's folder stands, as evaluators have it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().split(b"\0")
        except OSError:
            continue  # it has just gone
        if str(run).encode() in arguments:
            found.append(int(path.parent.name))
    return found


def is_group(leader: int) -> bool:
    """Whether any process of a group is there."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True


# ---- training is the same ------------------------------------------------------------------------------


@pytest.mark.parametrize("deed", ["slow", "hang", "crash", "leave", "raise", "babble", "talk"])
def test_training_and_results_are_the_same_where_evaluators_misbehave_and_are_restarted(
    deed: str, fakes: Fakes, make_config: MakeConfig, tmp_path: Path
) -> None:
    fakes.will({"main/0": [deed], "main/16": [deed, deed]})
    hasty = {"timeout_s": 1.0, "max_restarts": 20} if deed == "hang" else {}  # it may be too hasty for who is slow
    shown = trained(with_evaluators(make_config, **hasty), tmp_path / "run")
    for kind in ("training", "evaluation"):
        assert of_kind(tmp_path / "run", kind) == of_kind(fakes.in_turn, kind)
    assert content(tmp_path / "run") == content(fakes.in_turn)
    assert alive(tmp_path / "run") == []
    why = {
        "hang": "no answer within evaluators.timeout_s = 1 s",
        "crash": "its process ended with SIGSEGV",
        "leave": "its process ended with exit code 3",
        "raise": "ValueError: no such board",
        "babble": "expected a message of an evaluator, got b'nothing that anybody asked for\\n'",
    }
    num_restarts = shown.count("; it is started again (see ")
    assert num_restarts == shown.count(why.get(deed, "started again"))
    if deed == "hang":
        assert num_restarts >= 3
    else:
        restarts = ["main/0"] + 2 * ["main/16"] if deed in why else []
        assert num_restarts == len(restarts)
        assert sorted(fakes.tried()) == sorted(["main/0", "main/8", "main/16", "main/24", *restarts])
    if deed == "talk":
        assert (tmp_path / "run/evaluations/async/evaluator-0.log").stat().st_size > 20_000


def test_training_is_that_of_a_run_without_evaluations(fakes: Fakes, make_config: MakeConfig, tmp_path: Path) -> None:
    fit(tmp_path / "beside", with_evaluators(make_config))
    fit(tmp_path / "without", make_config({"evaluations": [], "best": None}))
    assert of_kind(tmp_path / "beside", "training") == records(tmp_path / "without")
    assert content(tmp_path / "beside") == content(tmp_path / "without")


def test_many_processes_answer_in_any_order_and_results_count_in_that_of_the_config(
    fakes: Fakes, make_config: MakeConfig, tmp_path: Path
) -> None:
    fakes.will({"main/0": ["slow"], "main/16": ["slow"]})
    late = {"results": {"after": 20, "unit": "opt_steps"}}
    trained(with_evaluators(make_config, num_processes=3, **late), tmp_path / "run")
    assert of_kind(tmp_path / "run", "evaluation") == of_kind(fakes.in_turn, "evaluation")
    kinds = [(record["kind"], record["opt_steps"]) for record in records(tmp_path / "run")]
    assert kinds[-6:] == [
        ("evaluation", 0),  # at 20
        ("training", 20),
        *(("evaluation", step) for step in (8, 16, 24)),  # at the end
        ("training", 24),
    ]


# ---- what has failed -------------------------------------------------------------------------------------


def test_an_evaluation_that_fails_is_filed_and_told_and_decides_nothing(
    fakes: Fakes, make_config: MakeConfig, tmp_path: Path
) -> None:
    fakes.will({"main/8": ["crash"] * 3})
    config = with_evaluators(make_config, {"callbacks": [STOPPING], "stop.after": 24})
    shown = trained(config, tmp_path / "run")
    assert (
        "evaluation main of opt step 8 has failed, so nothing is decided by it: its process ended with SIGSEGV" in shown
    )
    [failed] = of_kind(tmp_path / "run", "failed_evaluation")
    assert (failed["evaluation"], failed["opt_steps"]) == ("main", 8)
    assert failed["why"] == "its process ended with SIGSEGV"
    assert json.loads((tmp_path / "run/evaluations/async/main-opt-step-8.json").read_text()) == failed
    # Of 0, 16 and 24 the second and the third improve on nothing; with 8 the run would have ended at 19.
    assert records(tmp_path / "run")[-1]["opt_steps"] == 24
    assert content(tmp_path / "run") == content(fakes.in_turn)


def test_what_has_failed_stays_so_where_the_run_goes_on(fakes: Fakes, make_config: MakeConfig, tmp_path: Path) -> None:
    config = with_evaluators(make_config, max_restarts=0)
    fakes.will({"main/8": ["leave"]})
    fit(tmp_path / "uninterrupted", config)
    fakes.will({"main/8": ["leave"]})
    with at_call(Trainer, "roll_out_of", 9, kill), pytest.raises(Killed):
        fit(tmp_path / "run", config)  # it was recorded at 11, after the checkpoint at 8
    fit(tmp_path / "run")
    assert fakes.tried().count("main/8") == 1
    assert_same_bits(tmp_path / "run", tmp_path / "uninterrupted")
    assert len(of_kind(tmp_path / "run", "failed_evaluation")) == 1
    assert verify(tmp_path / "run", "beginning").difference is None


def test_a_command_that_cannot_be_started_is_a_failed_evaluation(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "COMMAND", [str(tmp_path / "missing")])
    with pytest.raises(
        CheckpointError, match=r"no checkpoint is marked as the best, because evaluations failed: .*No such"
    ):
        fit(tmp_path / "run", with_evaluators(make_config))
    failed = of_kind(tmp_path / "run", "failed_evaluation")
    assert [record["opt_steps"] for record in failed] == [0, 8, 16, 24]
    assert "No such file" in failed[0]["why"]


# ---- stopping and going on -------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", range(4, 44, 4))
def test_a_run_stopped_or_killed_with_evaluations_pending_comes_to_the_same_records(
    stop: int, fakes: Fakes, make_config: MakeConfig, tmp_path: Path, uninterrupted_run: MakeRun
) -> None:
    changes: Data = {"output.save": {"every": 5, "unit": "opt_steps"}, "callbacks": [REDUCING]}
    changes["players.host.algorithm.learning_rate"] = {"name": "constant", "value": 0.01}
    config = with_evaluators(make_config, changes)
    uninterrupted = uninterrupted_run(config)
    if stop % 8:
        with stopping_at(stop):
            fit(tmp_path / "run", config)
    else:
        with at_call(Trainer, "safe_point", stop, kill), pytest.raises(Killed):
            fit(tmp_path / "run", config)
    trainer = fit(tmp_path / "run")
    assert trainer.finished
    assert trainer.host_lr_scheduler(0) == 0.01 / 8  # 8, 16 and 24 improved on nothing
    assert_same_bits(tmp_path / "run", uninterrupted)


def test_a_run_killed_again_and_again_at_any_moment_comes_to_the_same_records(
    fakes: Fakes, make_config: MakeConfig, tmp_path: Path
) -> None:
    """By kill -9, of forked processes; the evaluators end with them."""
    config, run = with_evaluators(make_config, {"output.save": {"every": 2, "unit": "opt_steps"}}), tmp_path / "run"
    fakes.will({"main/0": ["slow"], "main/16": ["slow"]})
    fit(tmp_path / "uninterrupted", config)
    for _ in range(6):
        child = os.fork()
        if child == 0:
            try:
                fit(run, None if (run / "config.yml").exists() else config)
            finally:
                os._exit(0)
        time.sleep(MOMENTS.uniform(0.1, 1.0))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if not (run / "config.yml").exists():
        shutil.rmtree(run, ignore_errors=True)
    assert fit(run, None if run.exists() else config).finished
    assert_same_bits(run, tmp_path / "uninterrupted")


@pytest.mark.parametrize(("evaluation", "wait", "left_at"), [("main/8", 2, 11), ("main/24", 4, 24)])
def test_a_signal_does_not_wait_for_an_evaluation_that_training_waits_for(
    evaluation: str,
    wait: int,
    left_at: int,
    fakes: Fakes,
    make_config: MakeConfig,
    tmp_path: Path,
    uninterrupted_run: MakeRun,
) -> None:
    config = with_evaluators(make_config, timeout_s=600.0)
    uninterrupted = uninterrupted_run(config)
    fakes.will({evaluation: ["hang"]})
    with at_call(async_evaluations, "_wait", wait, lambda *_: send_signal()):
        trainer = fit(tmp_path / "run", config)
    assert trainer.run.signals.received == signal.SIGTERM
    assert not trainer.finished
    assert trainer.opt_steps == left_at
    assert alive(tmp_path / "run") == []
    fit(tmp_path / "run")
    assert_same_bits(tmp_path / "run", uninterrupted)


@pytest.mark.parametrize("wait", [3, 4, 5])
def test_a_signal_in_a_test_of_several_evaluations_takes_nothing_from_the_run(
    wait: int, fakes: Fakes, make_config: MakeConfig, tmp_path: Path
) -> None:
    """The first of them has given what was pending, and the second does not come to its end."""
    config = with_evaluators(make_config, results={"after": 10, "unit": "opt_steps"})
    Twice(config, run=tmp_path / "uninterrupted").fit()
    with at_call(async_evaluations, "_wait", wait, lambda *_: send_signal()) as waits:
        fakes.will({"main/24": ["slow", "slow"], "main/16": ["slow"]})
        trainer = Twice(config, run=tmp_path / "run")
        trainer.fit()
    assert (trainer.opt_steps, trainer.finished, len(waits)) == (24, False, wait)
    assert [record["opt_steps"] for record in of_kind(tmp_path / "run", "evaluation")] == [0, 8]
    Twice.load(tmp_path / "run").fit()
    evaluated = [record["opt_steps"] for record in of_kind(tmp_path / "run", "evaluation")]
    assert evaluated == [0, 8, 16, 24, 24]
    assert_same_bits(tmp_path / "run", tmp_path / "uninterrupted")


def test_what_is_pending_counts_also_where_the_test_plays_nothing(
    fakes: Fakes, make_config: MakeConfig, tmp_path: Path
) -> None:
    class Untested(Trainer):
        def _test(self) -> None:
            pass

    Untested(with_evaluators(make_config, results={"after": 10, "unit": "opt_steps"}), run=tmp_path / "run").fit()
    assert [record["opt_steps"] for record in of_kind(tmp_path / "run", "evaluation")] == [0, 8, 16]


def test_a_run_in_which_decisions_were_pending_is_verified_from_everywhere(
    fakes: Fakes, make_config: MakeConfig, tmp_path: Path
) -> None:
    changes = {"output.save": {"every": 5, "unit": "opt_steps"}, "best.goal": "min"}
    fit(tmp_path / "run", with_evaluators(make_config, changes, results={"after": 5, "unit": "opt_steps"}))
    checkpoints = Checkpoints(RunFolder.open(tmp_path / "run"), 1, None)
    assert checkpoints.best() not in (None, 0)
    for number in checkpoints.numbers()[:-1]:
        verdict = verify(tmp_path / "run", str(number))
        assert (verdict.difference, verdict.num_records > 0) == (None, True)


def test_a_branch_begins_without_what_its_origin_waits_for(
    fakes: Fakes, make_config: MakeConfig, tmp_path: Path
) -> None:
    fit(tmp_path / "run", with_evaluators(make_config, {"output.save": {"every": 9, "unit": "opt_steps"}}))
    checkpoints = Checkpoints(RunFolder.open(tmp_path / "run"), 1, None)
    pending = [n for n in checkpoints.numbers() if checkpoints.load(n).state["evaluating"]["requests"]]
    assert pending
    origin = tmp_path / "run/checkpoints" / f"{pending[-1]:08d}"
    branch = Trainer.branch(origin, ["stop.after=19"], run=tmp_path / "branch")
    with pytest.raises(CheckpointError, match="evaluations failed"):  # the fakes know no answer for its end
        branch.fit()
    assert branch.opt_steps == 19
    asked = checkpoints.load(pending[-1]).state["evaluating"]["requests"][0]["request"]["counters"]["opt_steps"]
    assert asked not in [record["opt_steps"] for record in records(tmp_path / "branch")]


@pytest.mark.parametrize("unit", ["env_steps", "epochs"])
def test_the_delay_may_count_other_things(unit: str, fakes: Fakes, make_config: MakeConfig, tmp_path: Path) -> None:
    after = {"env_steps": 30, "epochs": 2}[unit]
    config = with_evaluators(make_config, results={"after": after, "unit": unit})
    config["output"]["record"] = {"every": 1, "unit": unit}
    fit(tmp_path / "run", config)
    found = records(tmp_path / "run")
    for index, record in enumerate(found):
        if record["kind"] == "evaluation" and record["opt_steps"] < 24:
            following = next(later for later in found[index:] if later["kind"] == "training")
            assert after <= following[unit] - record[unit] or following["opt_steps"] == 24
            before = [earlier[unit] for earlier in found[:index] if earlier["kind"] == "training"]
            assert all(count - record[unit] < after for count in before)


def test_a_second_fit_plays_what_the_first_left_pending(fakes: Fakes, make_config: MakeConfig, tmp_path: Path) -> None:
    fakes.will({"main/0": ["hang"]})
    config = with_evaluators(make_config)
    trainer = Trainer(config, run=tmp_path / "run")

    def leave_once_asked(trainer: Trainer, *args: Any) -> None:
        """A process that is still starting would be stopped before it has taken the request."""
        give_up = time.monotonic() + 60.0
        while not fakes.plan.with_name("plan.tried").exists():
            assert time.monotonic() < give_up, "the evaluator's process took no request"
            time.sleep(0.01)
        ask_to_leave(trainer)

    with at_call(Trainer, "safe_point", 4, leave_once_asked):
        trainer.fit()
    assert not trainer.finished
    assert fakes.tried() == ["main/0"]
    trainer.fit()
    assert trainer.finished
    fit(tmp_path / "uninterrupted", config)
    assert_same_bits(tmp_path / "run", tmp_path / "uninterrupted")


# ---- what is decided -------------------------------------------------------------------------------------


def test_the_best_checkpoint_holds_the_players_that_were_evaluated(
    fakes: Fakes, make_config: MakeConfig, tmp_path: Path
) -> None:
    rho = {record["opt_steps"]: record["pairs"][0]["scores"]["rho"] for record in of_kind(fakes.in_turn, "evaluation")}
    for goal, save in (("max", None), ("min", None), ("min", 1)):
        changes = {"best.goal": goal, "output.keep_last": 1, "output.keep_every": None}
        changes["output.save"] = {"every": save or 1000, "unit": "opt_steps"}
        run = tmp_path / f"{goal}-{save}"
        fit(run, with_evaluators(make_config, changes))
        folder = RunFolder.open(run)
        best = Checkpoints(folder, 1, None).load("best")
        chosen = max(rho, key=lambda step: rho[step] if goal == "max" else -rho[step])
        assert best.counters["opt_steps"] == chosen
        assert len(Checkpoints(folder, 1, None).numbers()) == len({chosen, 24})
        in_turn = Checkpoints(RunFolder.open(fakes.in_turn), 1, None)
        same = next(n for n in in_turn.numbers() if in_turn.load(n).counters["opt_steps"] == chosen)
        for name, net in best.state["players"]["host"]["nets"].items():
            for key, value in in_turn.load(same).state["players"]["host"]["nets"][name].items():
                assert value.equal(net[key])


@pytest.mark.parametrize(("after", "end"), [(3, 20), (1, 18), (8, 24)])
def test_early_stopping_is_decided_at_the_step_that_the_config_names(
    after: int, end: int, fakes: Fakes, make_config: MakeConfig, tmp_path: Path
) -> None:
    fakes.will({"main/8": ["slow"]})
    plan = json.loads(fakes.plan.read_text())
    plan["answers"] |= {f"main/{step}": plan["answers"]["main/24"] for step in (18, 20)}
    fakes.plan.write_text(json.dumps(plan))
    results = {"after": after, "unit": "opt_steps"}
    fit(tmp_path / "run", with_evaluators(make_config, {"callbacks": [STOPPING], "stop.after": 100}, results=results))
    # It is decided at 16 + after; the next safe point ends the run.
    *_, evaluation, last = records(tmp_path / "run")
    assert last["ended"].startswith("early stopping: rho of evaluation 'main'")
    assert (evaluation["kind"], evaluation["opt_steps"], last["opt_steps"]) == ("evaluation", end, end)


# ---- the end of the process that trains ------------------------------------------------------------------


def assert_ends(group: int) -> None:
    deadline = time.monotonic() + 60.0
    while is_group(group):
        assert time.monotonic() < deadline, "a process of the evaluator's group is still there"
        time.sleep(0.05)


@pytest.mark.parametrize("hang", ["time.sleep(600)", "os.kill(os.getpid(), signal.SIGSTOP)"])
def test_an_evaluator_that_hangs_and_its_children_end_with_the_process_that_started_them(
    tmp_path: Path, hang: str
) -> None:
    evaluator = (
        "import os, signal, subprocess, sys, time\n"
        "from palestra.runtime.signals import end_with_parent\n"
        "end_with_parent(int(sys.argv[1]))\n"
        "subprocess.Popen(['sleep', '600'])\n"
        "print('{\"num_over\": 1}', flush=True)\n"
        f"{hang}\n"
    )
    starter = (
        "import pathlib, sys\n"
        "from palestra.training import workers\n"
        f"workers.COMMAND = [sys.executable, '-c', {evaluator!r}]\n"
        "from palestra.storage.disk import Folder\n"
        f"log = workers.LogFile(Folder(pathlib.Path({str(tmp_path)!r})), 'log')\n"
        "terms = workers.Terms('evaluator', 'a:b', 600.0, 'key', 0, False)\n"
        "started = workers.Process(pathlib.Path('run'), log, terms)\n"
        "started._process.stdout.readline()\n"
        "print(started._process.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", starter]
    with Forked(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        group = int(process.stdout.readline())
        assert is_group(group)
        process.kill()
    assert_ends(group)


def test_an_evaluator_that_is_yet_to_start_when_that_process_ends_does_not_start() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    program = "import sys; from palestra.runtime.signals import end_with_parent; end_with_parent(int(sys.argv[1]))"
    done = run_forked([sys.executable, "-c", program, str(reading)], pass_fds=(reading,), cwd=ROOT)
    os.close(reading)
    assert done.returncode == 1


@pytest.mark.slow
def test_no_evaluator_outlives_a_run_that_is_killed(make_config: MakeConfig, tmp_path: Path) -> None:
    """The real worker, in which playing starts a child and hangs."""
    hanging = (
        "import subprocess, time\n"
        "from palestra.training import worker\n"
        "from palestra.evaluation.evaluations import Evaluations\n"
        "def play(*_):\n"
        "    subprocess.Popen(['sleep', '600'])\n"
        f"    open({str(tmp_path / 'playing')!r}, 'w').close()\n"
        "    time.sleep(600)\n"
        "Evaluations.play = play\n"
        "worker.main()\n"
    )
    (tmp_path / "hanging.py").write_text(hanging)
    (tmp_path / "run.json").write_text(json.dumps(with_evaluators(make_config, timeout_s=600.0)))
    training = (
        "import sys\n"
        "from palestra.training import workers\n"
        f"workers.COMMAND = [sys.executable, {str(tmp_path / 'hanging.py')!r}]\n"
        "from palestra.cli import main\n"
        f"main(['train', {str(tmp_path / 'run.json')!r}, '--run', {str(tmp_path / 'run')!r}, '--quiet'])\n"
    )
    trainer = subprocess.Popen([sys.executable, "-c", training], cwd=ROOT)
    deadline = time.monotonic() + 120.0
    while not (tmp_path / "playing").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    [evaluator] = [pid for pid in alive(tmp_path / "run") if pid != trainer.pid]
    trainer.kill()
    trainer.wait()
    assert_ends(evaluator)
