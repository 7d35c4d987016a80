"""What run.json says of a run, and on what a run ran: versions, machine, commit."""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field

from palestra.storage.secrets import redacted

RUN_FORMAT: Literal[1] = 1  # of run.json and config.yml; runs before 1 name no trainer

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Entry(BaseModel):
    """Base of what a file of a run says. It may be forged: any other key, type or value is an error."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class RunFacts(Entry):
    """What run.json says of a run. format: of run.json and config.yml. id: its own. versions, machine, commit, command:
    what it began on. user_classes: the SHA-256 of the sources of the user's own classes. set_in_python: calls that gave
    it objects which no config names. trainer_in_python: the class that trains it, where that is not the one which its
    config names. branched_from: the checkpoint that it branches off. mirror: the URL of its mirror. checkpoint_folder:
    where its checkpoints and replay rows lie, if not in the run's folder. ended: why it ended before its `stop`."""

    format: Literal[1]
    id: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    versions: dict[str, str | None]
    machine: dict[str, str | int | None]
    commit: str | None
    command: str
    user_classes: dict[str, Sha256]
    set_in_python: list[str]
    trainer_in_python: str | None
    branched_from: str | None
    mirror: str | None
    checkpoint_folder: str | None
    ended: str | None

    @classmethod
    def of_now(cls, **facts: Any) -> Self:
        """Of a run that begins: here, now, by this command."""
        return cls(**run_facts(), format=RUN_FORMAT, ended=None, **facts)


def run_facts() -> dict[str, Any]:
    """What a process runs on: versions, machine, palestra's git commit (null if there is none), and the command."""
    return {
        "versions": versions(),
        "machine": machine(),
        "commit": git_commit(),
        "command": redacted(shlex.join(sys.argv)),
    }


def to_json(data: Any) -> str:
    """The one text that equal data have: keys sorted, a line per entry. Raises ValueError on NaN and infinities, which
    JSON has not."""
    return json.dumps(data, sort_keys=True, indent=1, allow_nan=False) + "\n"


@cache
def versions() -> dict[str, str | None]:
    """The versions that a run's bits may depend on; null where the package is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in ("palestra", "torch", "numpy", "numba", "gymnasium", "mujoco", "ale-py", "Box2D"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


@cache
def machine() -> dict[str, str | int | None]:
    """Platform, processor model, number of CPUs, and the first GPU's name (null without one)."""
    return {
        "platform": platform.platform(),
        "processor": _processor_model(),
        "num_cpus": os.cpu_count(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
    }


def _processor_model() -> str:
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text()
    except OSError:
        cpuinfo = ""
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match[1] if match else platform.processor() or platform.machine()


def git_commit() -> str | None:
    """The commit of the checkout that palestra lies in, with "-dirty" if files differ from it; None outside of git."""
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
