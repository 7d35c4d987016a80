"""Where the runs of a sweep are computed: a place starts commands of palestra, looks at them, and signals them.

A place of your own is a subclass of `Place`, named in a sweep's file as package.module:Class.
"""

import os
import re
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from palestra.config import Config, ConfigError, NonEmptyStr, PositiveInt, cut
from palestra.run.base import BaseRunConfig
from palestra.runtime.signals import start_leashed
from palestra.runtime.threads import available_cores
from palestra.storage.disk import Folder

COMMAND = [sys.executable, "-P", "-m", "palestra.sweeps.leashed"]
TAIL_BYTES = 65536  # of a log, in which its last line is looked for


class Job(ABC):
    """A command that a place has started."""

    @abstractmethod
    def poll(self) -> int | None:
        """Return its exit code, or -n if signal n ended it; None while it runs. Does not wait."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Send a signal: SIGTERM lets a run save and leave, SIGKILL ends it at once. Nothing happens if it is over."""


class Place(ABC):
    """Base of places that compute runs. config: the section of the sweep's file.

    Raises ConfigError if the config asks for more than there is.
    """

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    @abstractmethod
    def num_runs(self) -> int:
        """How many runs fit at the same time."""

    @abstractmethod
    def start(self, arguments: Sequence[str], log: Path) -> Job:
        """Start `palestra ARGUMENTS` in the present working directory. What it prints is added to the file `log`.

        Only called while fewer than `num_runs` jobs run. The job must not outlive this process.
        """


class LocalConfig(Config):
    """Processes of this machine."""

    @classmethod
    def usual(cls, said: Mapping[str, Any], bases: Mapping[str, BaseRunConfig]) -> dict[str, Any]:
        threads = max(base.cores() for base in bases.values())
        cores = max(available_cores(), threads)
        return {"cores": cores, "cores_per_run": threads, "gpus": [], "runs_per_gpu": 1}

    name: Literal["local"]
    cores: PositiveInt
    """how many cores all runs together may use"""
    cores_per_run: PositiveInt
    """how many of them one run uses, at least its execution.num_threads; so cores / cores_per_run runs fit at once"""
    gpus: list[NonEmptyStr]
    """the GPUs as CUDA_VISIBLE_DEVICES numbers them, as ["0", "1"]; each run sees one, as its `cuda`; []: none"""
    runs_per_gpu: Annotated[int, Field(ge=1)]
    """how many runs share a GPU"""

    @model_validator(mode="after")
    def _check_cores(self) -> Self:
        if self.cores_per_run > self.cores:
            raise ConfigError.at("cores_per_run", f"expected at most cores = {self.cores}, got {self.cores_per_run}")
        return self

    def build(self) -> "LocalPlace":
        return LocalPlace(self)


class LocalPlace(Place):
    """A place that starts processes of this machine, each with its share of cores and GPUs."""

    def __init__(self, config: LocalConfig) -> None:
        super().__init__(config)
        if config.cores > (available := available_cores()):
            message = f"expected at most {available}, the cores that this process may use, got {config.cores}"
            raise ConfigError.at("place.cores", message)
        self.shares: dict[int, LocalJob | None] = dict.fromkeys(range(self.num_runs))

    @property
    def num_runs(self) -> int:
        by_cores = self.config.cores // self.config.cores_per_run
        return min(by_cores, len(self.config.gpus) * self.config.runs_per_gpu) if self.config.gpus else by_cores

    def start(self, arguments: Sequence[str], log: Path) -> "LocalJob":
        share = next(share for share, job in self.shares.items() if job is None or job.poll() is not None)
        gpus = self.config.gpus
        environment = {"CUDA_VISIBLE_DEVICES": gpus[share % len(gpus)]} if gpus else {}
        job = self.shares[share] = LocalJob(arguments, log, environment)
        return job


class LocalJob(Job):
    """A process that is killed with its children when this process ends, even by kill -9 (palestra.sweeps.leashed)."""

    def __init__(self, arguments: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        with closing(Folder(log.parent).append(log.name)) as file:
            os.lseek(file.descriptor, 0, os.SEEK_END)
            streams = {"stdin": subprocess.DEVNULL, "stdout": file.descriptor, "stderr": file.descriptor}
            self._process, self._life = start_leashed(COMMAND, arguments, os.environ | environment, **streams)
        self._is_closed = False

    def poll(self) -> int | None:
        code = self._process.poll()
        if code is not None and not self._is_closed:
            self._is_closed = True
            os.close(self._life)
        return code

    def signal(self, number: int) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                if number == signal.SIGKILL:
                    os.killpg(self._process.pid, number)
                else:
                    self._process.send_signal(number)


def last_line(log: Path) -> str:
    """Return the last line that a job printed; "" if there is none."""
    with suppress(OSError), Folder(log.parent).reading(log.name) as file:
        text = os.pread(file.descriptor, TAIL_BYTES, max(0, file.size - TAIL_BYTES)).decode(errors="replace")
        lines = (cut(re.sub(r"\s+", " ", line).strip(), 500) for line in reversed(text.split("\n")))
        return next(filter(None, lines), "")
    return ""
