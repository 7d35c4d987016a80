"""A stored sweep, to look at: nothing is written, and neither torch nor a module that the sweep names is imported."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palestra.config import Config, ConfigError, check, under
from palestra.config.own_modules import reading_stored
from palestra.runtime.starting import without_garbage_collection
from palestra.storage.disk import RunFolderError
from palestra.sweeps.faults import causes, errors_of_study, num_begun, require_sound, study_lost
from palestra.sweeps.folder import SweepFolder
from palestra.sweeps.outcomes import DEFINITION, counts_of, standing, unit_of
from palestra.sweeps.storages import AnyStorageConfig

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


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
        return unit_of(under(self.data, "budget", "total"), map(counts_of, self.trials))

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
        theirs = study.user_attrs.get(DEFINITION) or {}
        if other := [key for key in theirs if key != "base" and theirs[key] != data.get(key)]:
            raise RunFolderError(f"{folder.path}: study {storage.study!r} is that of a sweep with another {other[0]}")
        return standing(trials)


def _is_of_unmade_study(error: BaseException) -> bool:
    """Return whether an error is one that a study.db raises whose process was killed before it had made it.

    Such an error is of a table or a study that is missing, or of a row that Optuna adds wherever it is missing, and may
    not where it only reads.
    """
    if isinstance(error, sqlite3.Error):
        return "no such table" in str(error) or getattr(error, "sqlite_errorname", None) == "SQLITE_READONLY"
    return isinstance(error, KeyError)
