"""A run that takes a moment, and palestra as a process, for tests of sweeps and of seeds side by side."""

import subprocess
import sys
from pathlib import Path

from palestra.config import render
from palestra.run.kinds import read_config
from tests.forked import Forked

ROOT = Path(__file__).parent.parent.parent
SMALL = ["num_worlds=4", "rollout_length=16", "num_minibatches=2", "stop.after=1024", "output.save.every=256"]
SMALL += ["evaluations.0.interval.every=256", "evaluations.0.num_games=2", "final_num_games=4", "recorders=[]"]
SMALL += ["evaluations.0.max_rounds=50"]


def write_base(folder: Path) -> Path:
    """base.yml, the config of a small run of ppo-cartpole."""
    file, config = folder / "base.yml", read_config(ROOT / "configs/ppo-cartpole.yml", SMALL)
    file.write_text(render(config, type(config)))
    return file


def palestra(*arguments: object, cwd: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "palestra", *map(str, arguments)]
    return Forked(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def done(*arguments: object, cwd: Path, code: int = 0) -> str:
    process = palestra(*arguments, cwd=cwd)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == code, output
    return output
