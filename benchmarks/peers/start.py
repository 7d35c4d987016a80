"""From a command to its first opt step: `python -m benchmarks.peers.start WORK`, of palestra or stable-baselines3.

The command runs in a process of its own, which leaves when its first opt step is done; the seconds are those from its
start to its end, by the clock and of the processor. palestra is a fresh copy of the package. Cold is its first start:
no kernels in numba's cache, which lies in the copy, and no bytecode of palestra; that of the libraries is there, as
pip leaves it. Warm is the second start.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.measuring import ROOT
from benchmarks.peers.script import Work, answer, versions_of

LEAVE = "callbacks=[{name: 'benchmarks.peers.start_ours:Leave'}]"
DONE = "first opt step"


def measure(work: Work) -> dict[str, Any]:
    environ = dict(os.environ)
    if work["library"] == "palestra":
        copy = Path("checkout").absolute()
        shutil.copytree(ROOT / "palestra", copy / "palestra", ignore=shutil.ignore_patterns("__pycache__"))
        environ |= {"PYTHONPATH": os.pathsep.join((str(copy), str(ROOT)))}
        environ.pop("NUMBA_CACHE_DIR", None)
        config = str(ROOT / "configs" / f"{work['config']}.yml")
        threads = f"execution.num_threads={work['num_threads']}"
        command = ["-c", "from palestra.cli import main; main()", "train", config, threads, LEAVE]
        if not work["cold"]:
            start(command, environ)
        seconds, cpu_seconds = start(command, environ)
        versions = versions_of("palestra", "torch", "numba")
    else:
        seconds, cpu_seconds = start(["-m", "benchmarks.peers.start_sb3", work["config"]], environ)
        versions = versions_of("stable-baselines3", "torch")
    measured = {"env_steps": 0, "opt_steps": 1, "seconds": seconds, "cpu_seconds": cpu_seconds}
    return measured | {"startup_seconds": None, "versions": versions}


def start(arguments: list[str], environ: dict[str, str]) -> tuple[float, float]:
    """Seconds that a command takes by the clock, and those of the processor, its children's among them."""
    with open("output", "w+b") as output:
        begun = time.perf_counter()
        process = subprocess.Popen([sys.executable, *arguments], env=environ, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        lines = output.read().decode().splitlines()
    if process.returncode != 0 or DONE not in lines:
        raise SystemExit(lines[-1] if lines else f"exit code {process.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    answer(measure)
