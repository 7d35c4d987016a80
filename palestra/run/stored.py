"""A stored run: loads its checkpoints, and evaluates them without training. The run may train meanwhile."""

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from palestra.config import Config, Failed, trusting
from palestra.config.own_modules import using_nothing_outside
from palestra.evaluation.evaluator import Watch, nobody_watches
from palestra.games.world import EnvironmentFailed
from palestra.run.base import BaseRunConfig
from palestra.run.changes import Changes, digest
from palestra.run.checkpoints import Checkpoints
from palestra.run.evaluating import PLAYED
from palestra.run.kinds import read_stored_config
from palestra.run.loaded_checkpoint import LoadedCheckpoint
from palestra.run.shipped import find_run
from palestra.run.tables import Library, Row, Rows, rows_of_run, run_name, table
from palestra.storage.disk import Folder, RunFolderError
from palestra.storage.records_file import plain
from palestra.storage.run_folder import RunFolder, write_traceback
from palestra.storage.stored_files import to_json


class EvaluationFailed(Failed, RuntimeError):
    """A part, such as an environment, has failed in an evaluation; the message names the file with its traceback."""


@contextmanager
def failures_filed(folder: Folder, failures: tuple[type[Exception], ...] = (EnvironmentFailed,)) -> Iterator[None]:
    """A context in which a failed part raises EvaluationFailed, with its traceback in a file of the folder."""
    try:
        yield
    except failures as error:
        raise EvaluationFailed(f"{error}; {write_traceback(folder, error)}") from error


class Stored(ABC):
    """A stored run of any kind, which is evaluated without training. First `load` a checkpoint, then `evaluate`.

    Must be implemented: `evaluations`, `change_evaluations`, `restore`, `judge`.

    counters: those of the loaded checkpoint. is_over: whether the run had ended there. results: the folder in which
    results are filed. with_rollouts: whether the dialogues of evaluations are filed, too, in a run that has some.
    failures: the exceptions of parts that end an evaluation as failed. notes: a line for each change that nobody has
    typed.
    """

    failures: tuple[type[Exception], ...] = (EnvironmentFailed,)

    def __init__(self, folder: RunFolder, config: Any) -> None:
        self.folder, self.config, self.results = folder, config, folder.evaluations
        self.counters: dict[str, int] = {}
        self.is_over = self.with_rollouts = False
        self.changes = Changes((), ())
        self.notes: Sequence[str] = ()
        self.warnings: Sequence[str] = ()

    @property
    @abstractmethod
    def evaluations(self) -> Any:
        """The run's evaluations (palestra.run.evaluating.AnyEvaluations)."""

    @abstractmethod
    def change_evaluations(self, changes: Changes) -> None:
        """Let other evaluations be played from now on. Raises ConfigError if they do not fit the run."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Load what is evaluated from a state of the run, as a checkpoint or `AnyEvaluations.snapshot` holds it."""

    @abstractmethod
    def judge(self, name: str, num: int, with_scripted: bool, watch: Watch) -> dict[str, Any]:
        """Evaluate, as `AnyEvaluations.play` does."""

    def load(self, which: str) -> None:
        """Load what is evaluated from a checkpoint.

        which: latest, best, a number, or @ and an opt step (in a run with stages, a stage), such as @2100. Raises
        CheckpointError for one that is missing or damaged. Of damaged latest ones the one before is loaded; `warnings`
        has a line for each, after `notes`.
        """
        loaded = self.find(Checkpoints(self.folder, keep_last=1, keep_every=None), which)
        self.warnings = [*self.notes, *loaded.warnings]
        with loaded.fitting():
            self.restore(loaded.state)
            self.is_over = loaded.state["finished"]

    def find(self, checkpoints: Checkpoints, which: str) -> LoadedCheckpoint:
        """Read a checkpoint, as `Checkpoints.load` does."""
        return checkpoints.load(which, check_rows=False)

    def file_into(self, folder: RunFolder) -> None:
        """File results in a new folder, because the run's own is part of palestra."""
        folder.root.below("checkpoints").remove_empty()
        self.results = folder.evaluations

    def evaluate(self, name: str, num: int | None, watch: Watch = nobody_watches) -> tuple[Path, dict[str, Any]]:
        """Evaluate by all pairings of one evaluation. Gives the file in evaluations/, and the record.

        num: of games per pairing; None: as at the end of a run. Raises EvaluationFailed if a part of the run fails,
        RunFolderError if its folder cannot be written to.
        """
        if not os.access(self.results.make().path, os.W_OK):  # else all that was played would be lost
            raise RunFolderError(f"{self.results.path} cannot be written to; evaluate a copy of the run")
        num = num or self.evaluations.num(name, is_final=True)
        with failures_filed(self.results, self.failures):
            result = self.judge(name, num, True, watch)
        played = result.pop(PLAYED, None)
        record = {"kind": "evaluation", **self.counters, **result}
        if self._is_changed(name):
            record["changes"] = self.changes.lines()
        file = self.file_name(name)
        self.results.make().write(file, to_json(plain(record)).encode())
        if self.with_rollouts and played is not None:
            self.file_rollouts(file.removesuffix(".json"), played)
        return self.results.path / file, record

    def file_rollouts(self, name: str, played: str) -> None:  # noqa: B027 (runs with dialogues override it)
        """Write the dialogues of an evaluation beside its record; in a run without dialogues it is never called."""

    def file_name(self, name: str) -> str:
        """The name of the file with the record of an evaluation; a changed evaluation has another one."""
        suffix = f"-{digest(self._judged_by(name))}" if self._is_changed(name) else ""
        return record_name(name, self.counters, suffix)

    def _is_changed(self, name: str) -> bool:
        return self.evaluations.configs[name] not in self.config.evaluations

    def _judged_by(self, name: str) -> Sequence[Config]:
        return [self.evaluations.configs[name]]

    def records(self) -> Iterator[Row]:
        """The run's records as tidy rows: every number of training and of evaluations, with its name and steps.

        Damaged lines are left out, each with a warning.
        """
        return rows_of_run(self.folder, run_name(self.folder.path), warnings.warn)

    def table(self, library: Library = "pandas") -> Any:
        """The rows of `records` as a DataFrame of pandas or polars, with a column for each field of `Row`.

        Raises ConfigError if the extra `frames` is missing.
        """
        return table(Rows(self.config.axes, self.records()), library)


def record_name(name: str, counters: Mapping[str, Any], suffix: str = "") -> str:
    """The name of the file that holds the record of an evaluation: it has its opt step, and its stage if it has one."""
    stage = f"-stage-{counters['stages']}" if "stages" in counters else ""
    return f"{name}{stage}-opt-step-{counters['opt_steps']}{suffix}.json"


def config_of(run: str | Path, trust: bool = False) -> BaseRunConfig:
    """The config of a run, or of one that palestra ships, to look at: nothing outside of its folder is used by it.

    Raises as `read_stored_config`.
    """
    with trusting(trust), using_nothing_outside():
        config: BaseRunConfig = read_stored_config(RunFolder.open(find_run(run).folder).config)
        return config
