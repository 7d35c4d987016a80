"""A run in processes of torchrun's launcher: one is killed, all are stopped, and it goes on in one process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from resuming import assert_same_bits, fit

from palestra.commands.ranks import begun_before
from palestra.config import ConfigError
from palestra.training import Trainer
from tests.forked import Forked

PATIENCE_S = 120.0


def children(pid: int) -> list[int]:
    """The processes that train, by their ranks."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in found if b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes()]


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def records(run: Path) -> list[Any]:
    path = run / "records.jsonl"
    return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")
def test_a_lost_process_is_started_again_a_signal_stops_all_and_one_process_goes_on(
    make_config: Any, tmp_path: Path
) -> None:
    changes = {"num_replicas": 2, "stop.after": 100_000, "output.record.every": 10, "output.save.every": 10}
    config = make_config({**changes, "evaluations": [], "best": None})
    run, file = tmp_path / "run", tmp_path / "config.yml"
    file.write_text(json.dumps(config))
    ways = ["execution.num_processes=2", "execution.max_restarts=1"]
    command = [sys.executable, "-m", "palestra", "train", str(file), *ways, "--run", str(run)]
    with Forked(command, stderr=subprocess.PIPE, text=True) as launcher:
        wait_until(lambda: len(records(run)) > 2)
        ranks = children(launcher.pid)
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        wait_until(lambda: len(children(launcher.pid)) == 2 and ranks[0] not in children(launcher.pid))
        number = len(records(run))
        wait_until(lambda: len(records(run)) > number + 2)
        launcher.send_signal(signal.SIGTERM)
        _, said = launcher.communicate(timeout=PATIENCE_S)
    assert launcher.returncode == 128 + signal.SIGTERM
    assert f"{run}: rank 1 ended with SIGKILL" in said
    assert f"{run}: its 2 processes are started again, 1 of 1 times" in said
    end = records(run)[-1]["opt_steps"] + 5
    fit(tmp_path / "whole", config | {"stop": {"after": end, "unit": "opt_steps"}})
    trainer = Trainer.load(run, overrides=["execution.num_processes=1"])
    trainer.extend([f"stop.after={end}"])
    trainer.fit()
    assert_same_bits(run, tmp_path / "whole")


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
