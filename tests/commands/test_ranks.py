"""A run in several processes: one is killed, all are stopped, and it goes on in one process."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from resuming import assert_same_bits, fit

from palestra.commands.ranks import begun_before
from palestra.config import ConfigError
from palestra.kinds.games.trainer import Trainer
from tests.forked import PALESTRA_OF_FORKED_RANKS, TORCHRUN_OF_FORKED_RANKS, Forked, living

PATIENCE_S = 120.0

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def records(run: Path) -> list[Any]:
    path = run / "records.jsonl"
    return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []


class Launched:
    """Commands that train a run in two processes: one of palestra, or several of torchrun, each for a machine."""

    def __init__(self, program: str, config: Any, folder: Path, *words: str) -> None:
        self.run, file = folder / "run", folder / "config.yml"
        file.write_text(json.dumps(config))
        self.given = ["train", str(file), "--run", str(self.run)]
        self.commands = list[Forked]()
        if program == PALESTRA_OF_FORKED_RANKS:
            self._start(program, folder, *self.given, "execution.num_processes=2", *words)
            return
        port = free_port()
        for _ in range(int(words[words.index("--nnodes") + 1])):
            way = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}")
            self._start(program, folder, *way, *words, "-m", "palestra", "--", *self.given)

    def _start(self, program: str, folder: Path, *words: str) -> None:
        options = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
        options["env"] = os.environ | {"PYTHONPATH": str(folder)}
        self.commands.append(Forked([sys.executable, "-c", program, *words], **options))

    def ranks(self) -> list[int]:
        """The processes that train, by their ranks."""
        return [pid for pid in living() if pid not in [each.pid for each in self.commands]]

    def await_records(self, num: int) -> None:
        """Wait until there are so many more."""
        number = len(records(self.run))
        wait_until(lambda: len(records(self.run)) >= number + num)

    def end(self, code: int) -> str:
        """Return what was said, once all processes have ended, the commands with this exit code."""
        said = ""
        for each in self.commands:
            with each:
                said += each.communicate(timeout=PATIENCE_S)[1]
            assert each.returncode == code, said
        wait_until(lambda: not living())
        return said


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture
def config(make_config: Any) -> Any:
    changes = {"num_replicas": 2, "stop.after": 100_000, "output.record.every": 10, "output.save.every": 10}
    return make_config({**changes, "evaluations": [], "best": None, "execution.timeout_s": 10 * PATIENCE_S})


def assert_goes_on_in_one_process(run: Path, config: Any) -> None:
    """Expect the bits of a run that nobody has stopped."""
    trainer = Trainer.load(run, overrides=["execution.num_processes=1"])
    end = records(run)[-1]["opt_steps"] + 30  # a record is every 10 opt steps
    trainer.extend([f"stop.after={end}"])
    trainer.fit()
    whole = run.parent / "whole"
    fit(whole, config | {"stop": {"after": end, "unit": "opt_steps"}})
    assert_same_bits(run, whole)


@linux
def test_a_lost_process_is_started_again_a_signal_stops_all_and_one_process_goes_on(
    config: Any, tmp_path: Path
) -> None:
    command = Launched(PALESTRA_OF_FORKED_RANKS, config, tmp_path, "execution.max_restarts=1")
    command.await_records(3)
    first = command.ranks()
    assert len(first) == 2
    os.kill(first[1], signal.SIGKILL)
    wait_until(lambda: len(command.ranks()) == 2 and first[0] not in command.ranks())
    command.await_records(3)
    command.commands[0].send_signal(signal.SIGTERM)
    said = command.end(128 + signal.SIGTERM)
    assert f"{command.run}: rank 1 ended with SIGKILL" in said
    assert f"{command.run}: its 2 processes are started again, 1 of 1 times" in said
    assert_goes_on_in_one_process(command.run, config)


@linux
def test_if_the_leading_process_hangs_the_command_says_so(config: Any, tmp_path: Path) -> None:
    command = Launched(PALESTRA_OF_FORKED_RANKS, config, tmp_path, "execution.timeout_s=5")
    command.await_records(1)
    ranks = command.ranks()
    os.kill(ranks[0], signal.SIGSTOP)
    wait_until(lambda: ranks[1] not in living())
    time.sleep(1)  # in which the launcher finds that it has ended
    os.kill(ranks[0], signal.SIGKILL)  # as the launcher does later
    said = command.end(1)
    assert "rank 0 did not come within execution.timeout_s = 5 s (what rank 0 did last: " in said
    assert f"to resume: palestra resume {command.run}" in said


def listening(pid: int) -> set[str]:
    """The addresses, in the kernel's hexadecimal digits, at which a process awaits connections."""
    files = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir() if os.path.lexists(each)}
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {line[1].partition(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in files}


@linux
def test_a_run_of_several_processes_listens_on_loopback_alone_and_meets_in_a_private_folder(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", socket.if_nameindex()[-1][1])  # else the machine's name decides
    command = Launched(PALESTRA_OF_FORKED_RANKS, config, tmp_path)
    command.await_records(1)
    found = [listening(pid) for pid in (command.commands[0].pid, *command.ranks())]
    folders = [each.stat().st_mode & 0o777 for each in tmp_path.glob("palestra-ranks-*")]
    command.commands[0].send_signal(signal.SIGTERM)
    command.end(128 + signal.SIGTERM)
    assert found == [set(), {"0100007F"}, {"0100007F"}]
    assert folders == [0o700]
    assert not [*tmp_path.glob("palestra-ranks-*")]


@linux
def test_a_process_that_is_stopped_ends_with_its_launcher_which_is_killed(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # its folder is left
    command = Launched(PALESTRA_OF_FORKED_RANKS, config, tmp_path)
    command.await_records(1)
    ranks = command.ranks()
    os.kill(ranks[1], signal.SIGSTOP)
    command.commands[0].kill()
    try:
        command.end(-signal.SIGKILL)
    finally:
        for pid in set(ranks) & set(living()):
            os.kill(pid, signal.SIGKILL)


def signalled() -> list[Any]:
    """Who gets which signals one after the other, and the exit code that they lead to."""
    found = [("rank", ["SIGKILL"], 1)]
    for whom in ("launcher", "rank", "group"):
        found += [(whom, ["SIGTERM"], 143), (whom, ["SIGTERM"] * 2, 143), (whom, ["SIGINT"], 130)]
    return [pytest.param(*each, id=f"{' and '.join(each[1])} to the {each[0]}") for each in found]


@pytest.mark.slow
@linux
@pytest.mark.parametrize(("whom", "signals", "code"), signalled())
def test_a_signal_to_any_process_stops_all_and_the_run_goes_on(
    whom: str, signals: list[str], code: int, config: Any, tmp_path: Path
) -> None:
    command = Launched(PALESTRA_OF_FORKED_RANKS, config, tmp_path)
    command.await_records(3)
    launcher = command.commands[0].pid
    pid = {"launcher": launcher, "rank": command.ranks()[1], "group": -launcher}[whom]
    for each in signals:
        with suppress(ProcessLookupError):  # of a second one, if the first has sufficed
            os.kill(pid, signal.Signals[each])
        time.sleep(0.02)  # else the two may become one
    command.end(code)
    assert_goes_on_in_one_process(command.run, config)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("whom", ["launcher", "group"])
def test_processes_end_with_their_launcher(whom: str, config: Any, tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "config.yml"
    file.write_text(json.dumps(config))
    command = [sys.executable, "-m", "palestra", "train", str(file), "--run", str(run), "execution.num_processes=2"]
    with subprocess.Popen(command, start_new_session=True) as launcher:
        wait_until(lambda: len(records(run)) > 2)
        ranks = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        assert len(ranks) >= 2
        os.kill(-launcher.pid if whom == "group" else launcher.pid, signal.SIGKILL)
    wait_until(lambda: not any(Path("/proc", pid).exists() for pid in ranks))
    assert_goes_on_in_one_process(run, config)


EARLY = """
import os, signal, time
from pathlib import Path
from palestra.callbacks import Callback
from palestra.config import UserConfig

class Early(Callback):
    Config = UserConfig

if os.environ.get("RANK") == "1":
    {deed}
"""


@linux
@pytest.mark.parametrize(
    ("deed", "code", "line"),
    [
        ("raise ImportError('no such library')", 2, "rank 1 has failed: ConfigError: callbacks.0.name: "),
        ("os.kill(os.getpid(), signal.SIGKILL)", 1, "run: rank 1 ended with SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGINT)", 128 + signal.SIGINT, ""),
        ("(Path(__file__).parent / 'waits').touch(); time.sleep(3600.0)", 128 + signal.SIGTERM, ""),
    ],
    ids=["import", "SIGKILL", "SIGINT", "SIGTERM of the launcher"],
)
def test_a_process_that_ends_before_it_is_connected_keeps_nobody_waiting(
    deed: str, code: int, line: str, config: Any, tmp_path: Path
) -> None:
    (tmp_path / "early.py").write_text(EARLY.format(deed=deed))
    config["callbacks"] = [{"name": "early:Early"}]
    config["execution"]["timeout_s"] = 60.0  # after which the others would say something else
    command = Launched(PALESTRA_OF_FORKED_RANKS, config, tmp_path)
    if "waits" in deed:
        wait_until((tmp_path / "waits").exists)
        command.commands[0].kill()
        command.end(-signal.SIGKILL)
        assert command.run.exists()
        (tmp_path / "waits").unlink()
        command = Launched(PALESTRA_OF_FORKED_RANKS, config, tmp_path)  # begins where the kill has left a folder
        wait_until((tmp_path / "waits").exists)
        command.commands[0].send_signal(signal.SIGTERM)
    said = command.end(code)
    assert line in said
    assert "Traceback" not in said
    assert not command.run.exists()


@linux
def test_two_launchers_of_torchrun_come_to_the_bits_of_one_process(make_config: Any, tmp_path: Path) -> None:
    config = make_config({"num_replicas": 2})
    torchrun = Launched(TORCHRUN_OF_FORKED_RANKS, config, tmp_path, "--nnodes", "2", "--nproc-per-node", "1")
    torchrun.end(0)
    fit(tmp_path / "whole", config)
    assert_same_bits(torchrun.run, tmp_path / "whole")


@linux
def test_torchrun_starts_a_run_again_that_has_lost_a_process(config: Any, tmp_path: Path) -> None:
    config["stop"]["after"] = 150
    words = ("--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", "1")
    torchrun = Launched(TORCHRUN_OF_FORKED_RANKS, config, tmp_path, *words)
    torchrun.await_records(1)
    first = torchrun.ranks()
    os.kill(first[1], signal.SIGKILL)
    wait_until(lambda: len(torchrun.ranks()) == 2 and first[0] not in torchrun.ranks())
    torchrun.end(0)
    fit(tmp_path / "whole", config)
    assert_same_bits(torchrun.run, tmp_path / "whole")


def test_what_torchrun_starts_again_goes_on_in_the_folder_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert begun_before(None, None) is None
    said = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_MAX_RESTARTS": 3}
    for name, value in (said | {"TORCHELASTIC_RUN_ID": 1, "TORCHELASTIC_RESTART_COUNT": 1}).items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(ConfigError, match=r"--run: expected the run's folder, by which torchrun's 3 restarts go on"):
        begun_before(None, None)
    with pytest.raises(ConfigError, match=r"--seeds: expected no such option in processes of torchrun, got 0..4"):
        begun_before(tmp_path, "0..4")
    assert begun_before(tmp_path / "run", None) is None  # a kill came before it had begun
