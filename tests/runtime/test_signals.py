"""Signals that stop: every phase saves and leaves with 128 + n, or leaves without saving within the config's bound."""

import faulthandler
import io
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from resuming import Killed, assert_same_bits, at_call, fit, kill, records

from palestra.kinds.games.trainer import Trainer
from palestra.runtime.limits import GuardedOutput
from palestra.runtime.signals import STOPPING, StopSignals, exit_text, exiting_on_signals
from tests.forked import run as run_forked

ROOT = Path(__file__).parents[2]
GENEROUS_S = 60.0  # the bound of what is stuck is 0.3 s, that of the others 600 s

MakeConfig = Callable[..., dict[str, Any]]


@pytest.mark.parametrize("options", [[], pytest.param(["--all"], marks=pytest.mark.slow)], ids=["one", "all"])
def test_a_signal_in_any_phase_leaves_within_the_bound_and_a_resume_gives_the_same_bits(options: list[str]) -> None:
    command = [sys.executable, "tests/signal_phases.py", *options]
    done = run_forked(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    tried = {(line["phase"], line["signal"]): line for line in map(json.loads, done.stdout.splitlines())}
    assert len({phase for phase, _ in tried}) == 15
    for (phase, number), line in tried.items():
        assert line["status"] == 128 + number, line
        assert line["seconds"] < GENEROUS_S, line
        if phase in ("building", "before the first epoch", "first evaluation"):
            assert line["checkpoints"] == 0, line
        elif not phase.startswith("stuck"):
            assert line["checkpoints"] > (phase != "first save"), line
    assert "expected a safe point within output.stop_within_s = 0.3 s, got none; left without saving" in done.stderr
    assert "expected a safe point within output.stop_within_s = 0.3 s, got none; left after saving" in done.stderr
    assert "a second signal; left without saving" in done.stderr


@pytest.mark.parametrize(
    "phases", [["warm-up", "evaluation"], pytest.param(["--all"], marks=pytest.mark.slow)], ids=["two", "all"]
)
def test_a_signal_to_one_of_two_processes_lets_both_leave_by_it(phases: list[str]) -> None:
    command = [sys.executable, "tests/signal_phases.py", "--ranks", *phases]
    done = run_forked(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    tried = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(tried) in (2, 2 * 15)
    for line in tried:
        is_alone = line["phase"].startswith(("building", "stuck"))  # before the other knows it, or without a safe point
        assert line["status"] == 128 + line["signal"], line
        assert line["other"] == (1 if is_alone else line["status"]), line
        assert line["checkpoints"] > 0 or line["phase"] in ("building", "first evaluation"), line


@pytest.mark.slow
def test_a_signal_while_the_update_is_compiled_leaves_and_the_run_goes_on(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config, run = make_config({"execution.compile": True, "evaluations": [], "best": None}), tmp_path / "run"
    (tmp_path / "run.yml").write_text(json.dumps(config))
    program = "from palestra.cli import main; main()"
    command = [sys.executable, "-c", program, "train", str(tmp_path / "run.yml"), "--run", str(run), "--quiet"]
    process = subprocess.Popen(command, cwd=ROOT)
    deadline = time.monotonic() + 120.0
    while not (run / "checkpoints" / "latest").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(3.0)  # the compiler is at work
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(120.0) == 128 + signal.SIGTERM
    assert fit(run).finished
    fit(tmp_path / "uninterrupted", config)
    assert records(run) == records(tmp_path / "uninterrupted")


@pytest.mark.parametrize(
    ("place", "why"), [("pipe", b"Broken pipe"), ("/dev/full", b"No space left on device")], ids=["pipe", "disk"]
)
def test_a_run_whose_output_nobody_takes_saves_and_leaves(
    place: str, why: bytes, make_config: MakeConfig, tmp_path: Path
) -> None:
    plain = {"output.display": "plain", "evaluations": [], "best": None}
    config, run = make_config(plain), tmp_path / "run"
    (tmp_path / "run.yml").write_text(json.dumps(config))
    if place == "pipe":
        reading, writing = os.pipe()
        os.close(reading)  # as when Ctrl-C ends also the `tee` that read it
    else:
        writing = os.open(place, os.O_WRONLY)
    words = ["train", str(tmp_path / "run.yml"), "--run", str(run)]
    command = [sys.executable, "-c", "from palestra.cli import main; main()", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = run_forked(command, stdout=writing, stderr=subprocess.PIPE, env=environment, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (
        128 + signal.SIGPIPE,
        b"nothing more can be printed: %b; saving, and leaving\n" % why,
    )
    assert len(list((run / "checkpoints").glob("[0-9]*"))) > 0
    assert fit(run).finished
    fit(tmp_path / "uninterrupted", config)
    assert_same_bits(run, tmp_path / "uninterrupted")


WAYS: dict[str, Callable[[], object]] = {
    "print": lambda: print("here", flush=True),
    "writelines": lambda: sys.stdout.writelines(["here", "there"]),
    "bytes": lambda: sys.stdout.buffer.write(b"here"),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_any_code_prints_to_nobody_stops_the_work_and_is_dropped(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    signals = StopSignals()
    with os.fdopen(writing, "w") as file, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", file)
        with signals.caught(60.0, lambda why: None):
            for _ in range(3):
                WAYS[way]()
                sys.stdout.flush()
    assert signals.received == signal.SIGPIPE


def test_a_stream_that_is_only_tried_has_not_failed() -> None:
    with GuardedOutput(io.TextIOWrapper(open("/dev/full", "wb", buffering=0), write_through=True)) as output:
        output.write("")  # as click does, which drops the error
        with pytest.raises(OSError, match=r"No space left on device: 'standard output'"):
            output.write("here")


def surroundings() -> tuple[Any, ...]:
    """What signals do in this process."""
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    return *map(signal.getsignal, STOPPING), wakeup, len(os.listdir("/dev/fd")), sys.stdout, sys.stderr


def test_handlers_are_restored_after_fit(make_config: MakeConfig, tmp_path: Path) -> None:
    fit(tmp_path / "first", make_config())  # opens what stays open
    before = surroundings()
    fit(tmp_path / "run", make_config())
    assert surroundings() == before
    with at_call(Trainer, "roll_out_of", 3, kill), pytest.raises(Killed):
        fit(tmp_path / "raises", make_config())
    assert surroundings() == before


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU])
def test_what_batch_systems_send_before_they_end_a_job_stops_the_work(number: int) -> None:
    signals = StopSignals()
    with signals.caught(60.0, lambda why: None):
        assert signal.getsignal(number) != signal.SIG_DFL  # by which this process would end
        os.kill(os.getpid(), number)
    assert signals.received == number


@pytest.mark.parametrize(
    ("number", "handler"),
    [(signal.SIGHUP, signal.SIG_IGN), (signal.SIGUSR1, lambda *_: None)],
    ids=["a hang-up below nohup", "a handler of others"],
)
def test_a_signal_that_would_not_end_the_process_does_what_it_did(number: int, handler: Any) -> None:
    before = signal.signal(number, handler)
    try:
        signals = StopSignals()
        with signals.caught(60.0, lambda why: None), exiting_on_signals():
            os.kill(os.getpid(), number)
            assert signal.getsignal(number) == handler
        assert signals.received is None
    finally:
        signal.signal(number, before)


def test_a_signal_that_faulthandler_handles_is_left_to_it(tmp_path: Path) -> None:
    with open(tmp_path / "frames.txt", "w+") as file:
        faulthandler.register(signal.SIGUSR1, file=file)
        try:
            signals = StopSignals()
            with signals.caught(60.0, lambda why: None):
                os.kill(os.getpid(), signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
        assert "test_signals.py" in (tmp_path / "frames.txt").read_text()
    assert signals.received is None


def test_what_the_system_sends_every_second_is_no_second_signal() -> None:
    signals = StopSignals()
    with signals.caught(60.0, lambda why: None):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGXCPU)
            time.sleep(0.02)
    assert signals.received == signal.SIGXCPU


def test_handlers_are_restored_after_a_command() -> None:
    before = surroundings()
    with exiting_on_signals():
        assert surroundings() != before
    assert surroundings() == before


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1, "ended with exit code 1"),
        (128, "ended with exit code 128"),
        (143, "ended with exit code 143 (SIGTERM)"),
        (255, "ended with exit code 255"),
        (-11, "ended with SIGSEGV"),
        (-9, "ended with SIGKILL (the kernel sends it when memory runs out)"),
        (-127, "ended with signal 127"),
    ],
)
def test_the_end_of_a_process_in_words(code: int, text: str) -> None:
    assert exit_text(code) == text


INTERRUPTED_AT = """
import atexit, os, signal, sys

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == {moment!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["palestra", "list"]
before = set(sys.modules)
from palestra.__main__ import main
print(*(set(sys.modules) - before), file=sys.stderr)
if {moment!r} == "exit":
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
main()
"""


@pytest.mark.parametrize("moment", ["palestra.cli", "typer", "rich.console", "torch", "exit"])
def test_ctrl_c_at_any_moment_of_a_start_prints_no_traceback(moment: str) -> None:
    """The imports before handlers are set are so few that only Python's own start is left; palestra.run is a dict."""
    program = INTERRUPTED_AT.format(moment=moment)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 128 + signal.SIGINT
    [line] = done.stderr.splitlines()
    assert set(line.split()) == {"__future__", "palestra", "palestra.__main__", "palestra.run"}


def test_the_console_script_sets_handlers_first() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"palestra": "palestra.__main__:main"}


def test_a_working_directory_that_is_gone_is_told_in_a_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    program = f"import os; os.rmdir({str(gone)!r}); from palestra.__main__ import main; main()"
    told = "the working directory is gone; change to another one: cd FOLDER\n"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], cwd=gone, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, told)
