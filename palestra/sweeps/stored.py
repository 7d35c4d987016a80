"""A stored sweep, to look at, and what is wrong with a study.

Faults are errors of Optuna, SQLAlchemy and SQLite, and trials that others have written. Nothing is written, and neither
torch nor a module that the sweep names is imported.
"""

import errno
import math
import os
import re
import shlex
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palestra.config import Config, ConfigError, Failed, check, under
from palestra.config.errors import cut
from palestra.config.own_modules import UntrustedError, reading_stored
from palestra.runtime.starting import without_garbage_collection
from palestra.storage.disk import RunFolderError
from palestra.sweeps import outcomes
from palestra.sweeps.folder import SweepFolder
from palestra.sweeps.storages import MOST_S, AnyStorageConfig

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial


DISK_ERRORS = {"SQLITE_FULL": errno.ENOSPC, "SQLITE_IOERR": errno.EIO}
OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


@contextmanager
def errors_of_study(folder: "SweepFolder") -> Iterator[None]:
    """Turn whatever the study's storage raises inside into RunFolderError with a line that says what to do.

    It becomes OSError if the disk refuses.
    """
    try:
        yield
    except (ConfigError, RunFolderError, UntrustedError, Failed):
        raise
    except Exception as error:  # of Optuna, SQLAlchemy, SQLite, or of what a damaged file makes them do
        if isinstance(error, OSError) and error.errno in OF_THE_DISK:
            raise
        name = str(getattr(list(causes(error))[-1], "sqlite_errorname", ""))
        if name == "SQLITE_READONLY_ROLLBACK":
            remedy = f"to repair it: palestra resume {shlex.quote(str(folder.path))}"
            raise RunFolderError(f"{folder.path}: a process was killed while it wrote the study; {remedy}") from error
        if name == "SQLITE_INTERRUPT":
            message = f"the study cannot be read: it takes more than {MOST_S:g} s to answer"
            raise RunFolderError(f"{folder.path}: {message}") from error
        for prefix, number in DISK_ERRORS.items():
            if name.startswith(prefix):
                raise OSError(number, os.strerror(number), str(folder.path / "study.db")) from error
        cause = error.__cause__ or error  # Optuna says only that something was raised
        why = re.sub(r"\s+", " ", f"{type(cause).__name__}: {cause}")
        raise RunFolderError(f"{folder.path}: the study cannot be read: {cut(why, 300)}") from error


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and those from which it came."""
    yield error
    if error.__cause__ is not None:
        yield from causes(error.__cause__)


def require_sound(folder: "SweepFolder", study: "Study", goal: str) -> "list[FrozenTrial]":
    """Return the trials of a study.

    Raises RunFolderError if there is one that palestra has not written so. goal: max or min.
    """
    directions = [direction.name.lower() for direction in study.directions]
    if directions != [expected := "maximize" if goal == "max" else "minimize"]:
        got = " and ".join(directions) or "none"
        raise RunFolderError(f"{folder.path}: the study is damaged: expected one objective, to {expected}, got {got}")
    if not isinstance(study.user_attrs.get(outcomes.DEFINITION, {}), Mapping):
        raise RunFolderError(f"{folder.path}: the study is damaged: expected a mapping in {outcomes.DEFINITION!r}")
    begun = num_begun(folder)
    trials = study.get_trials(deepcopy=False)
    if begun > len(trials):
        raise study_lost(folder, begun, len(trials))
    for number, trial in enumerate(trials):
        fault = _fault_of(trial) if trial.number == number else f"its number is {trial.number}"
        if fault:
            raise RunFolderError(f"{folder.path}: the study is damaged: trial {number}: {fault}")
    return trials


def num_begun(folder: "SweepFolder") -> int:
    """Return how many trials the study must have at least: a trial gets its folder when it is in the study."""
    return max((int(name) + 1 for name in folder.trials.names() if re.fullmatch(r"\d{4,9}", name)), default=0)


def study_lost(folder: "SweepFolder", begun: int, known: int) -> RunFolderError:
    message = f"expected a study with {begun} trials, because trials/ has so many, got {known or 'none'}"
    return RunFolderError(f"{folder.path}: {message}; put the study back from a copy, or begin a new sweep")


def _fault_of(trial: "FrozenTrial") -> str:
    """Return why palestra has not written a trial so; "" if it may have."""
    values, facts = trial.values or [], trial.user_attrs
    is_complete = trial.state.name == "COMPLETE"
    if len(values) > 1 or (is_complete and (len(values) != 1 or math.isnan(values[0]))):
        return f"expected a number as its value, got {cut(repr(trial.values))}"
    for name, (expected, is_one) in EXPECTED.items():
        if name in facts and not is_one(facts[name]):
            return f"expected {expected} as its {name}, got {cut(repr(facts[name]))}"
    for name, decision in facts.items():
        parts = {key: type(decision[key]) for key in decision} if isinstance(decision, Mapping) else {}
        if name.startswith("pruning/") and parts != {"prune": bool, "notes": dict}:
            return f"expected a decision as its {name}, got {cut(repr(decision))}"
    return ""


def _counts(value: Any) -> bool:
    return outcomes.is_number(value) and 0 <= value < math.inf


def _holds(values: Any, is_one: Callable[[Any], bool]) -> bool:
    return isinstance(values, Mapping) and all(map(is_one, values.values()))


EXPECTED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {  # of a trial's user attributes, where they are there
    **dict.fromkeys(
        ("folder", "claim", outcomes.FAILURE, outcomes.SKIPPED, outcomes.FAILED_BEFORE),
        ("a text", lambda value: isinstance(value, str)),
    ),
    outcomes.SECONDS: ("a number >= 0", _counts),
    outcomes.PARENT: ("the number of a trial", lambda value: type(value) is int and value >= 0),
    outcomes.COUNTS: ("a number >= 0 for each unit", lambda counts: _holds(counts, _counts)),
    outcomes.VALUES: ("a number for each seed", lambda values: _holds(values, outcomes.is_number)),
}


class _Storage(Config):
    storage: AnyStorageConfig


@dataclass(frozen=True)
class StoredSweep:
    """A stored sweep. data: of sweep.yml, as plain data, unchecked. trials: in the order of their numbers."""

    path: Path
    data: Mapping[str, Any]
    trials: Sequence["FrozenTrial"]

    @property
    def unit(self) -> str:
        """The unit in which the sweep counts."""
        return outcomes.unit_of(under(self.data, "budget", "total", "unit"), map(outcomes.counts_of, self.trials))

    @classmethod
    def open(cls, path: Path, trust: bool = False) -> "StoredSweep":
        """Read a stored sweep. trust: whether places outside of its folder, as a database, are trusted from now on.

        Raises RunFolderError if there is no sweep, ConfigError, UntrustedError for such a place that is not trusted.
        """
        folder = SweepFolder.open(path)
        with reading_stored(folder.config, trust):
            data = folder.data()
            storage = check({"storage": data.get("storage")}, _Storage).storage
        if not isinstance(data.get("objective"), dict):
            raise ConfigError.at(str(folder.config), "expected a sweep, but objective is missing")
        return cls(path, data, read_trials(folder, storage, data))


def read_trials(folder: SweepFolder, storage: AnyStorageConfig, data: Mapping[str, Any]) -> "list[FrozenTrial]":
    """Read the trials of a sweep, without failed ones that others have taken over.

    There are none if the sweep was killed before it had a whole study. data: of sweep.yml. Raises RunFolderError, also
    if the study is that of another sweep.
    """
    from optuna import load_study, logging

    if storage.name == "sqlite" and folder.root.kind("study.db") is None:
        if begun := num_begun(folder):
            raise study_lost(folder, begun, 0)
        return []
    logging.set_verbosity(logging.ERROR)
    # a thousand trials are read in half the time
    with without_garbage_collection(), errors_of_study(folder):
        try:
            study = load_study(study_name=storage.study, storage=storage.open(folder.root, for_writing=False))
        except Exception as error:
            first = list(causes(error))[-1]
            if storage.name == "sqlite" and _is_of_unmade_study(first) and not folder.trials.names():
                return []
            raise
        trials = require_sound(folder, study, data["objective"].get("goal"))
        theirs = study.user_attrs.get(outcomes.DEFINITION) or {}
        if other := [key for key in theirs if key != "base" and theirs[key] != data.get(key)]:
            raise RunFolderError(f"{folder.path}: study {storage.study!r} is that of a sweep with another {other[0]}")
        return outcomes.standing(trials)


def _is_of_unmade_study(error: BaseException) -> bool:
    """Return whether an error is one that a study.db raises whose process was killed before it had made it.

    Such an error is of a table or a study that is missing, or of a row that Optuna adds wherever it is missing, and may
    not where it only reads.
    """
    if isinstance(error, sqlite3.Error):
        return "no such table" in str(error) or getattr(error, "sqlite_errorname", None) == "SQLITE_READONLY"
    return isinstance(error, KeyError)
