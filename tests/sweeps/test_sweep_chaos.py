"""Sweeps that are killed thirty times at random moments: the sweep, its runs, both, one of two workers. Trials, values
and the best config are those of an unkilled sweep; nothing is lost, nothing told twice, and no process is left.

With PALESTRA_TEST_DATABASE, the URL of a PostgreSQL database that may be written to (and PALESTRA_TEST_PASSWORD, if it
needs one), the same with the study there.
"""

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from palestra.commands.ranked_trials import to_csv
from palestra.config import render
from palestra.run.kinds import read_config
from palestra.sweeps.config import SweepConfig, read_sweep
from palestra.sweeps.stored import StoredSweep

ROOT = Path(__file__).parent.parent.parent
SMALL = ["num_worlds=4", "rollout_length=16", "num_minibatches=2", "stop.after=4096", "output.save.every=256"]
SMALL += ["evaluations.0.interval.every=512", "evaluations.0.num_games=2", "final_num_games=4", "recorders=[]"]
PALESTRA = [sys.executable, "-m", "palestra"]
NUM_KILLS = 30
TPE = {
    "name": "tpe",
    "startup_trials": 2,
    "ei_candidates": 8,
    "multivariate": True,
    "group": False,
    "constant_liar": False,
}
HALVING = {"name": "successive_halving", "num_seeds": 1, "min_resource": 512, "reduction_factor": 2}
LOCAL = {"name": "local", "cores": 1, "cores_per_run": 1, "gpus": [], "runs_per_gpu": 1}
SWEEP: dict[str, Any] = {
    "seed": 3,
    "base": ["base.yml"],
    "space": {
        "learning_rate": {"name": "choice", "values": [1e-4, 1e-3, 1e-2]},
        "gamma": {"name": "choice", "values": [0.9, 0.99]},
    },
    "constraints": [],
    "seeds": [0],
    "objective": {"evaluation": "main", "pairing": 0, "measure": "return/agent", "goal": "max", "of": "last"},
    "search": {"name": "grid"},
    "pruning": None,
    "budget": {"trials": 6, "total": None, "minutes": None},
    "max_restarts": 1000,
    "place": LOCAL,
    "storage": {"name": "sqlite"},
}


class Worker:
    """A `palestra sweep` on the folder, which is begun if it does not exist."""

    def __init__(self, file: Path, folder: Path) -> None:
        command = [*PALESTRA, "sweep", str(file), "--run", str(folder)]
        self.process = subprocess.Popen(command, cwd=folder.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    @property
    def is_done(self) -> bool:
        return self.process.poll() is not None

    def end(self, number: int | None = None) -> bytes:
        if number is not None:
            self.process.send_signal(number)
        output, _ = self.process.communicate(timeout=300)
        return output


def runs_of(folder: Path) -> Iterator[int]:
    """The processes that train."""
    for lock in folder.glob("trials/*/seed-*/lock"):
        with suppress(ValueError, OSError):
            pid = int(lock.read_text().partition(" ")[0])
            if str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                yield pid


def kill_a_run(folder: Path, draw: random.Random) -> None:
    found = sorted(runs_of(folder))
    if found:
        with suppress(ProcessLookupError):
            os.kill(draw.choice(found), signal.SIGKILL)


def killed(file: Path, folder: Path, draw: random.Random, most_workers: int) -> int:
    """Work on the sweep, and kill; gives how often before it was done."""
    for kill in range(NUM_KILLS):
        workers = [Worker(file, folder) for _ in range(draw.randint(1, most_workers))]
        end = time.monotonic() + draw.uniform(2.5, 6.0)
        while time.monotonic() < end and not all(worker.is_done for worker in workers):
            time.sleep(0.05)
        if all(worker.is_done for worker in workers):
            return kill
        what = draw.choice(["sweep", "run", "both", "term"])
        if what in ("run", "both"):
            kill_a_run(folder, draw)
            time.sleep(0.0 if what == "both" else draw.uniform(0.0, 2.0))
        worker = draw.choice(workers)
        worker.end(signal.SIGTERM if what == "term" else signal.SIGKILL)
        for other in workers:
            if other is not worker:  # it goes on alone for a while, and takes over what the dead one did
                time.sleep(draw.uniform(0.0, 4.0))
                other.end(signal.SIGKILL)
    return NUM_KILLS


def is_left(folder: Path) -> bool:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.append(path.read_bytes())
    return any(str(folder).encode() in line for line in lines)


def storage_of(kind: str, name: str) -> dict[str, Any]:
    if kind != "database":
        return {"name": "sqlite"} if kind == "sqlite" else {"name": "journal", "path": None, "study": name}
    password = "PALESTRA_TEST_PASSWORD" if "PALESTRA_TEST_PASSWORD" in os.environ else None
    url = os.environ["PALESTRA_TEST_DATABASE"]
    return {"name": "database", "url": url, "password_from": password, "study": f"{name}-{uuid.uuid4().hex}"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "journal", "database"])
@pytest.mark.parametrize("search", ["grid", "random", "tpe"])
def test_a_sweep_that_is_killed_thirty_times_equals_one_that_is_not(kind: str, search: str, tmp_path: Path) -> None:
    if kind == "database" and "PALESTRA_TEST_DATABASE" not in os.environ:
        pytest.skip("PALESTRA_TEST_DATABASE names no database")
    base = read_config(ROOT / "configs/ppo-cartpole.yml", SMALL)
    (tmp_path / "base.yml").write_text(render(base, type(base)))
    changes = {"search": TPE, "pruning": HALVING} if search == "tpe" else {"search": {"name": search}}
    seed = random.randrange(10**6)
    print("seed of the kills:", seed)
    draw = random.Random(seed)
    for name in ("whole", "killed"):
        config = read_sweep(SWEEP | changes | {"storage": storage_of(kind, name)}, [])
        (tmp_path / f"{name}.yml").write_text(render(config, SweepConfig))
    assert b"6 trials" in Worker(tmp_path / "whole.yml", tmp_path / "whole").end()
    folder = tmp_path / "killed"
    num_kills = killed(tmp_path / "killed.yml", folder, draw, most_workers=1 if search == "tpe" else 2)
    print("kills before it was done:", num_kills)
    assert num_kills >= 5, "the sweep ended too early to prove anything"
    assert b"6 trials" in Worker(tmp_path / "killed.yml", folder).end()
    both = [StoredSweep.open(path) for path in (tmp_path / "whole", folder)]
    tables = [to_csv(sweep, sweep.trials) for sweep in both]
    assert tables[1] == tables[0]
    assert [t.intermediate_values for t in both[1].trials] == [t.intermediate_values for t in both[0].trials]
    assert (folder / "best.yml").read_bytes() == (tmp_path / "whole" / "best.yml").read_bytes()
    end = time.monotonic() + 20
    while is_left(folder) and time.monotonic() < end:
        time.sleep(0.1)
    assert not is_left(folder)
