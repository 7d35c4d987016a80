"""The facts of a run in run.json: among them versions, machine and commit."""

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field

from palestra.storage.disk import RunFolderError
from palestra.storage.secrets import redacted
from palestra.storage.stored_files import Entry, Sha256

RUN_FORMAT: Literal[2] = 2  # of all that a run's folder holds; since 2 records say what their scores are

# variables of the environment by which MKL, oneDNN, OpenBLAS, torch, numpy, numba and CUDA compute other bits
ROUNDING = (
    *("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DYNAMIC", "ATEN_CPU_CAPABILITY", "OPENBLAS_CORETYPE", "NUMBA_OPT"),
    *("ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "NPY_DISABLE_CPU_FEATURES", "NVIDIA_TF32_OVERRIDE"),
    *("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX", "NUMBA_SLP_VECTORIZE", "CUBLAS_WORKSPACE_CONFIG"),
)
OF_TEXT = ("transformers", "tokenizers", "peft", "pyarrow", "jinja2")


class RunFacts(Entry):
    """The content of run.json.

    format: of the folder. versions, machine, commit, command: at the start of the run. user_classes: SHA-256 of the
    sources of the user's own classes. data_files: SHA-256 of files of recorded play, by path. set_in_python: calls that
    gave the trainer objects which no config names. trainer_in_python: the class that trains the run, if it is not the
    one in the config. branched_from: the checkpoint that the run branches off. mirror: URL of its mirror.
    checkpoint_folder: the folder of its checkpoints and replay rows, if outside of the run's folder. ended: why the run
    ended before its `stop`.
    """

    format: Literal[2]
    id: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    versions: dict[str, str | None]
    machine: dict[str, str | int | None]
    commit: str | None
    command: str
    user_classes: dict[str, Sha256]
    data_files: dict[str, Sha256] = Field(default_factory=dict)  # older runs have no such key
    set_in_python: list[str]
    trainer_in_python: str | None
    branched_from: str | None
    mirror: str | None
    checkpoint_folder: str | None
    ended: str | None

    @classmethod
    def of_now(cls, **facts: Any) -> Self:
        """The facts of a run that this process begins now."""
        return cls(**run_facts(), format=RUN_FORMAT, ended=None, **facts)


def require_our_format(path: Path | str, facts: Any) -> None:
    """Raise RunFolderError, which says what reads it, for a run of another format than ours.

    path: of its folder, or the URL of its mirror. facts: the content of its run.json. What is damaged there shows when
    it is needed.
    """
    number = facts.get("format", 0) if isinstance(facts, Mapping) else None
    if type(number) is not int or number == RUN_FORMAT:
        return
    versions = facts.get("versions")
    version = versions.get("palestra") if isinstance(versions, Mapping) else None
    raise RunFolderError(
        f"{path} is a run of format {number}, written by palestra {version}; this palestra reads format {RUN_FORMAT}: "
        f"use the version that wrote it{', or a later one' if number > RUN_FORMAT else ''}"
    )


def run_facts() -> dict[str, Any]:
    """Versions, machine, palestra's git commit (null if there is none), and the command of this process."""
    return {
        "versions": versions(),
        "machine": machine(),
        "commit": git_commit(),
        "command": redacted(shlex.join(sys.argv)),
    }


@cache
def versions() -> dict[str, str | None]:
    """The versions that a run's bits may depend on; null for a package that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in ("palestra", "torch", "numpy", "numba", "gymnasium", "mujoco", "ale-py", "Box2D", *OF_TEXT):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


@cache
def machine() -> dict[str, str | int | None]:
    """Platform, processor model, number of CPUs, the first GPU's name (null without one), and variables of ROUNDING."""
    return {
        "platform": platform.platform(),
        "processor": _processor_model(),
        "num_cpus": os.cpu_count(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        **{name: os.environ[name] for name in ROUNDING if name in os.environ},
    }


def _processor_model() -> str:
    cpuinfo = ""
    with suppress(OSError):
        cpuinfo = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match[1] if match else platform.processor() or platform.machine()


@cache
def git_commit() -> str | None:
    """The commit of the checkout that palestra lies in, with "-dirty" if files differ from it; None outside of git.

    It is asked for once: what this process has imported stays.
    """
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
