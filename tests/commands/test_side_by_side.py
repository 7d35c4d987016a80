"""`palestra train FILE --seeds 0..4 --at 2`: the same runs as one after the other, and stopped ones go on."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from palestra.sweeps.folder import runs_in
from palestra.sweeps.places import available_cores
from tests.sweeps.small_runs import done, palestra, write_base


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path)


def records(run: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "clock"} for record in found]


def test_runs_side_by_side_are_those_in_sequence_and_go_on_after_a_signal(base: Path, tmp_path: Path) -> None:
    at = min(2, available_cores())
    command = ("train", base, "--seeds", "3,5", "--run", "side", "--at", at)
    process = palestra(*command, cwd=tmp_path)
    while not (tmp_path / "side/seed-3/checkpoints/latest").exists():
        time.sleep(0.02)
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "to go on: palestra resume side\n" in output
    shutil.rmtree(tmp_path / "side/seed-5", ignore_errors=True)
    (tmp_path / "side/seed-5/checkpoints").mkdir(parents=True)  # as if it had been stopped before it was a run
    output = done("resume", "side", cwd=tmp_path)
    assert "seed 3: finished" in output
    assert "Over 2 seeds (3, 5)" in output
    done("train", base, "--seeds", "3,5", "--run", "one", "--quiet", cwd=tmp_path)
    for seed in (3, 5):
        assert records(tmp_path / f"side/seed-{seed}") == records(tmp_path / f"one/seed-{seed}")
    assert runs_in(tmp_path / "side") == [tmp_path / "side/seed-3", tmp_path / "side/seed-5"]
    message = done("resume", "one", cwd=tmp_path, code=2).splitlines()[-1]
    new = "to begin a seed that has no run: palestra train one/seed-3/config.yml --seeds SEED --run one"
    assert message == f"one holds 2 runs, none of which was stopped; {new}"
    done("train", "one/seed-3/config.yml", "--seeds", "4", "--run", "one", "--quiet", cwd=tmp_path)
    for seed in (3, 5):  # as if they had been stopped
        file = tmp_path / f"one/seed-{seed}/records.jsonl"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:3]))
    message = done("resume", "one", cwd=tmp_path, code=2).splitlines()[-1]
    ways = "palestra resume one/seed-3 && palestra resume one/seed-5"
    assert message == f"one holds 3 runs; to go on with what was stopped: {ways}; {new}"
    assert "Over 2 seeds (3, 5)" in done(*command, cwd=tmp_path)  # the same command goes on, too
    other = done(*command, "gamma=0.5", cwd=tmp_path, code=2)
    assert "side exists already, and does not hold runs of this config" in other


def test_a_run_that_is_killed_is_named_and_the_others_end(base: Path, tmp_path: Path) -> None:
    process = palestra("train", base, "--seeds", "0,1", "--run", "side", "--at", 1, cwd=tmp_path)
    while not (tmp_path / "side/seed-0/lock").exists() or not (tmp_path / "side/seed-0/lock").read_text():
        time.sleep(0.02)
        assert process.poll() is None
    os.kill(int((tmp_path / "side/seed-0/lock").read_text()), signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "seed 0: failed: its process ended with SIGKILL" in output
    assert "seed 1: finished" in output


def test_more_runs_than_cores_and_no_seeds_are_refused(base: Path, tmp_path: Path) -> None:
    most = available_cores()
    output = done("train", base, "--seeds", "0..9", "--at", most + 1, cwd=tmp_path, code=2)
    assert f"--at: expected at most {most}" in output
    assert "--at: expected it together with --seeds" in done("train", base, "--at", 1, cwd=tmp_path, code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["base.yml"]
