"""Runs of one config that differ in their seed, each a process: those of a trial, or of runs side by side."""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from palestra.config import load_yaml, render
from palestra.recording.results import printable
from palestra.runs.base import BaseRunConfig
from palestra.runs.branching import tree_differences
from palestra.runs.copies import files_of_copies
from palestra.runtime.signals import exit_text
from palestra.storage.disk import WORDS, Folder, RunFolderError, plain_path
from palestra.storage.run_folder import RunFolder
from palestra.sweeps.places import Job, Place, last_line
from palestra.sweeps.watching import Growing

POLL_S = 0.05


class SeedRun:
    """The run of one seed. records: what it has recorded so far. job: its process, from its start to its end."""

    def __init__(self, path: Path, seed: int, records: Growing) -> None:
        self.path, self.seed, self.records = path, seed, records
        self.job: Job | None = None

    @property
    def log(self) -> Path:
        return self.path.with_name(f"{self.path.name}.log")

    @property
    def is_running(self) -> bool:
        return self.job is not None and self.job.poll() is None

    def look(self) -> int | None:
        """Read what the run has recorded; returns the exit code of its process once it has ended, and forgets it."""
        code = None if self.job is None else self.job.poll()
        self.records.look()
        if code is not None:
            self.job = None
        return code

    def why(self, code: int) -> str:
        """Say why its process has ended with an exit code."""
        return last_line(self.log) or f"its process {exit_text(code)}"


AnyRun = TypeVar("AnyRun", bound=SeedRun)


class SeedRuns(Generic[AnyRun]):
    """The runs of some seeds. folder: in which they lie, each as seed-N, and the file `base` of the config of all."""

    def __init__(self, folder: Folder, base: str, config: BaseRunConfig, runs: list[AnyRun]) -> None:
        self.folder, self.base, self.config, self.runs = folder, folder.path / base, config, runs
        self._text = render(config, type(config))
        self._data = load_yaml(self._text)

    def has_base(self) -> bool:
        """Write the file of the config if there is none; returns whether that which is there is of this config."""
        if self.folder.kind(self.base.name) is None:
            self.folder.write(self.base.name, self._text.encode())
        return bool(load_yaml(plain_path(self.folder, self.base.name)) == self._data)

    def arguments(self, run: SeedRun) -> list[str]:
        """Return the arguments with which palestra begins a run, or goes on with it. Raises as `has_begun`."""
        if has_begun(self.folder, run.path.name, self.config, {**self._data, "seed": run.seed}):
            return ["resume", str(run.path), "--quiet"]
        return ["train", str(self.base), f"seed={run.seed}", "--run", str(run.path), "--quiet"]

    def start(self, run: AnyRun, place: Place) -> None:
        """Begin a run, or go on with it. Raises ConfigError, RunFolderError if something else is in its place."""
        run.job = place.start(self.arguments(run), run.log)

    @property
    def num_running(self) -> int:
        return sum(run.job is not None for run in self.runs)

    def signal(self, number: int) -> None:
        for run in self.runs:
            if run.job is not None:
                run.job.signal(number)


def let_end(several: Sequence[SeedRuns[Any]], show: Callable[[], None]) -> None:
    """Let the runs save and end."""
    for runs in several:
        runs.signal(signal.SIGTERM)
    while any(run.is_running for runs in several for run in runs.runs):
        show()
        time.sleep(POLL_S)


def has_begun(folder: Folder, name: str, config: BaseRunConfig, data: Mapping[str, Any]) -> bool:
    """Return whether there is a run to go on with. What is left of one that was killed before it was one is removed.

    folder: of the trial, or of the runs side by side. name: of the run in it. config: the run's. data: the same as the
    mapping that its config.yml holds. Raises RunFolderError or ConfigError for anything else than this run, as a link
    to another one, one with another config, or one that has lost a file; then nothing is changed.
    """
    for entry, expected in ((name, "folder"), (f"{name}.log", "file")):
        if (kind := folder.kind(entry)) not in (expected, None):
            raise RunFolderError(f"{folder.path / entry}: expected a {expected} of a run, got {WORDS[kind]}")
    if folder.kind(name) is None:
        return False
    run = RunFolder(folder.path / name)
    run.require_plain()
    has_config = run.root.kind(run.config.name) is not None
    found = load_yaml(plain_path(run.root, run.config.name)) if has_config else data
    if changes := list(tree_differences(data, found)):
        key, ours, theirs = changes[0]
        raise RunFolderError(
            f"{run.path}: expected the run in which {printable(key)} is {ours!r:.100}, got one in which it is "
            f"{theirs!r:.100}; move that one away, and the run begins anew"
        )
    if has_config and run.root.kind(run.run.name) is not None:
        return True
    run.remove_begun(files_of_copies(config.copied()))
    return False
