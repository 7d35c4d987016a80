"""How a script of a library is run: a fresh interpreter of its own virtual environment, JSON in, JSON out."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measuring import ROOT

PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"  # made by `make peers`


class Failed(Exception):
    """A library could not do its work; the message says why."""


@dataclass(frozen=True)
class Script:
    """A script of the benchmarks, by the name of its module, and the interpreter that runs it."""

    module: str
    python: Path

    def run(self, work: dict[str, Any], num_threads: int, timeout_s: float | None) -> dict[str, Any]:
        """What the script answers. Raises Failed where it cannot be started, fails, or takes too long."""
        if not self.python.exists():
            raise Failed(f"{self.python.relative_to(ROOT)} is missing: `make peers` builds it")
        command = [str(self.python), "-m", self.module]
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUM_THREADS")
        environ = os.environ | dict.fromkeys(names, str(num_threads)) | {"PYTHONPATH": str(ROOT)}
        try:
            with TemporaryDirectory() as folder:  # for whatever a library leaves where it runs
                process = subprocess.run(
                    [*command, json.dumps(work | {"launched": time.time()})],
                    cwd=folder,
                    env=environ,
                    capture_output=True,
                    text=True,
                    timeout=timeout_s,
                )
        except subprocess.TimeoutExpired:
            raise Failed(f"not done within {timeout_s:.0f} s") from None
        if process.returncode != 0:
            lines = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
            raise Failed(lines[-1])
        answer: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
        return answer


OWN_PYTHON = Path(sys.executable)
