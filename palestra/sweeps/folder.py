"""The folder of a sweep: its paths and locks.

sweep.yml        the resolved config
sweep.json       id, versions, machine, command
base/NAME.yml    the configs from which trials differ
study.db         Optuna's study, unless it lies elsewhere
trials/0003/     config.yml, and for each seed seed-N/ (a run) and seed-N.log
best.yml         the config of the best trial so far
"""

import errno
import importlib.util
import itertools
import json
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from palestra.config import MissingExtra, load_yaml
from palestra.storage.disk import WORDS, Folder, RunFolderError, plain_path
from palestra.storage.lock import Lock

OUR_FILES = ("sweep.yml", "sweep.json", "best.yml", "lock")
STUDY = re.compile(r"study\.(db|journal)([-.].+)?")
TRIAL, OF_TRIAL = re.compile(r"\d{4,9}"), re.compile(r"config\.yml|lock|seed-\d+(\.log)?")
FORMAT = 1
SEEDS = "seeds.yml"  # of a folder that `palestra train --seeds --at` has made: which seeds, and how many at a time


class SweepFolder:
    """The folder of a sweep. `create` makes it, `open` opens it.

    id: by which the study knows which trials lie here. is_new: whether this object has made it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = Folder(path)
        self.config = path / "sweep.yml"
        self.best = path / "best.yml"
        self.bases = self.root.below("base")
        self.trials = self.root.below("trials")
        self.is_new = False

    @classmethod
    def create(cls, path: Path, sweep: str, bases: dict[str, str]) -> "SweepFolder":
        """Make the folder, beside its place and then in one move, so that no kill leaves an unfinished folder there.

        Nothing is changed if another process was faster with the same sweep. sweep: the text of sweep.yml. bases: the
        texts of the configs by name. Raises RunFolderError if there is anything but an empty folder.
        """
        from palestra.storage.facts import run_facts
        from palestra.storage.stored_files import to_json

        folder, whole = cls(path), path.absolute()
        begun = cls(whole.parent / f".{uuid.uuid4().hex}.tmp")
        try:
            whole.parent.mkdir(parents=True, exist_ok=True)
            begun.path.mkdir()
        except OSError as error:
            raise RunFolderError(f"{path} cannot be made: {error.strerror or error}") from error
        try:
            begun.trials.make()
            begun.bases.make()
            for name, text in bases.items():
                begun.bases.write(f"{name}.yml", text.encode())
            begun.root.write("sweep.json", to_json({"format": FORMAT, "id": uuid.uuid4().hex, **run_facts()}).encode())
            begun.root.write("sweep.yml", sweep.encode())
            folder.is_new = begun._move_to(whole)
        finally:
            if not folder.is_new:
                begun._remove()
        if not (folder.is_new or (is_sweep_folder(path) and folder.data() == load_yaml(sweep))):
            raise RunFolderError(f"{path} exists already, and is no sweep of this file")
        return folder

    def _move_to(self, path: Path) -> bool:
        """Give the folder its place; returns False if there is anything but an empty folder."""
        try:
            self.path.rename(path)
            return True
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise RunFolderError(f"{path} cannot be made: {error.strerror} (at most 255 bytes)") from error
            return False

    @classmethod
    def open(cls, path: Path) -> "SweepFolder":
        folder = cls(path)
        if not is_sweep_folder(path):
            raise RunFolderError(f"{path} is not a sweep: expected a folder with sweep.yml and sweep.json")
        return folder

    def remove_unused(self) -> None:
        """Remove the folder if it is new and has no trial, for its sweep could not begin."""
        if self.is_new and not self.trials.names():
            self._remove()

    def _remove(self) -> None:
        """Remove the folder of a sweep without trials; files of others stay, and the folder with them."""
        self.bases.remove_files(lambda name: name.endswith(".yml"))
        self.root.remove_files(lambda name: name in OUR_FILES or STUDY.fullmatch(name))
        whole = self.path.absolute()
        for folder in (self.bases, self.trials, Folder(whole.parent, whole.name)):
            folder.remove_empty()

    def require_plain(self) -> None:
        """Raise RunFolderError if a link or another kind of file has replaced a file or folder that palestra writes.

        A link or a pipe in a trial, also one that has ended, or in one of its runs, keeps all trials from going on.
        """
        from palestra.storage.run_folder import RunFolder  # imports torch, which takes a second

        for name in (*OUR_FILES, "base", "trials"):
            kind, expected = self.root.kind(name), "file" if name in OUR_FILES else "folder"
            if kind not in (expected, None):
                raise RunFolderError(f"{self.path / name}: expected a {expected} of the sweep, got {WORDS[kind]}")
        for trial in _plain_folders(self.trials, TRIAL):
            for run in _plain_folders(trial, OF_TRIAL):
                RunFolder(run.path).require_plain()

    @property
    def id(self) -> str:
        return str(self.facts()["id"])

    def data(self) -> dict[str, Any]:
        """Read sweep.yml, which another person may have written, unchecked. Raises ConfigError, OSError."""
        return load_yaml(plain_path(self.root, self.config.name))

    def facts(self) -> dict[str, Any]:
        """Read sweep.json. Raises RunFolderError if it is damaged, or of another format."""
        try:
            facts = json.loads(self.root.read("sweep.json"))
            if facts["format"] == FORMAT and re.fullmatch("[0-9a-f]{32}", facts["id"]):
                return dict(facts)
            fault = f"expected format {FORMAT}, got {facts['format']}"
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            fault = str(error)
        raise RunFolderError(f"{self.path / 'sweep.json'} is damaged: {fault}")

    def trial(self, number: int) -> Folder:
        return self.trials.below(f"{number:04d}")

    def alone(self) -> Lock:
        """Take the lock of the folder, which one process at a time has, until its `with` is left."""
        lock = Lock.take(self.root, "lock", wait=True)
        assert lock is not None
        return lock


def _plain_folders(place: Folder, ours: re.Pattern[str]) -> Iterator[Folder]:
    """Yield the folders with such names in a folder. Raises RunFolderError for a link or a pipe with such a name."""
    for name, kind in place.kinds().items():
        if ours.fullmatch(name) and kind in ("link", "other"):
            raise RunFolderError(f"{place.path / name}: expected a file or folder of a trial, got {WORDS[kind]}")
        if ours.fullmatch(name) and kind == "folder":
            yield place.below(name)


def make_new(path: Path) -> bool:
    """Make a folder, and those above it; returns False if it exists. Raises RunFolderError if it cannot be made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
    except FileExistsError:
        return False
    except OSError as error:
        raise RunFolderError(f"{path} cannot be made: {error.strerror or error}") from error
    return True


def default_path(name: str) -> Path:
    """Return runs/NAME-N with the smallest N that is free."""
    paths = (Path("runs") / f"{name}-{number}" for number in itertools.count(1))
    return next(path for path in paths if not os.path.lexists(path))


def is_sweep_folder(path: Path) -> bool:
    return _has_files(path, "sweep.yml", "sweep.json")


def is_folder_of_seeds(path: Path) -> bool:
    return _has_files(path, SEEDS)


def _has_files(path: Path, *names: str) -> bool:
    with suppress(OSError):
        return all(Folder(path).kind(name) == "file" for name in names)
    return False


def sweep_of(run: Path) -> Path | None:
    """Return the folder of the sweep to one of whose trials a run belongs (SWEEP/trials/0003/seed-0)."""
    trials = run.absolute().parent.parent
    return trials.parent if trials.name == "trials" and is_sweep_folder(trials.parent) else None


def runs_in(path: Path) -> list[Path]:
    """Return the folders of the runs in a folder; [path] for a folder that is not of several runs.

    It may be that of a sweep, of one of its trials (SWEEP/trials/0003), or of the runs that `palestra train --seeds
    --run` put into one folder.
    """
    if is_sweep_folder(path):
        trials = SweepFolder(path).trials
        return [run for name in trials.names() if trials.kind(name) != "file" for run in _runs_of(trials.below(name))]
    if (sweep := sweep_of(path / "seed-0")) is not None:
        return _runs_of(SweepFolder(sweep).trials.below(path.absolute().name))
    folder = Folder(path)
    with suppress(OSError):
        if folder.kind("config.yml") is None and (runs := _runs_of(folder)):
            return runs
    return [path]


def _runs_of(trial: Folder) -> list[Path]:
    names = [name for name in trial.names() if re.fullmatch(r"seed-\d+", name) and trial.kind(name) != "file"]
    runs = map(trial.below, sorted(names, key=lambda name: int(name[5:])))
    return [run.path for run in runs if run.kind("config.yml") == "file"]


def require_optuna() -> None:
    """Raise MissingExtra if Optuna is not installed."""
    if importlib.util.find_spec("optuna") is None:
        raise MissingExtra.at("sweep", "the extra 'optuna' is missing; install it by: pip install 'palestra[optuna]'")
