"""The folder of a run: its paths, atomic writes, the lock that admits one process, and the facts of run.json."""

import fcntl
import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from io import FileIO
from pathlib import Path
from typing import Any

import torch


class RunFolderError(Exception):
    """A run's folder cannot be made, opened or locked; the message says which and why."""


class RunFolder:
    """The paths of one run, and its lock. Made by `create`, `create_at` or `open`.

    The folders `checkpoints/`, `buffers/` and `evaluations/` exist from the start, the rest once it is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.holds_lock = False
        self.config = path / "config.yml"
        self.run = path / "run.json"
        self.records = path / "records.jsonl"
        self.changes = path / "changes.jsonl"
        self.checkpoints = path / "checkpoints"
        self.buffers = path / "buffers"
        self.unfiled = path / "unfiled"
        self.media = path / "media"
        self.evaluations = path / "evaluations"
        self.players = path / "players"

    @classmethod
    def create(cls, runs: Path, name: str) -> "RunFolder":
        """Make `runs/<name>-<n>`, n = 1 + the largest number in use, also when several processes ask at once."""
        if not name or "/" in name or name.startswith("."):
            raise RunFolderError(f"{name!r} cannot name a run; it must not be empty, start with a dot or hold a slash")
        runs.mkdir(parents=True, exist_ok=True)
        matches = (re.fullmatch(re.escape(name) + r"-(\d+)", path.name) for path in runs.iterdir())
        n = 1 + max((int(match[1]) for match in matches if match), default=0)
        while True:
            try:
                return cls._make(runs / f"{name}-{n}")
            except FileExistsError:  # another process was faster
                n += 1

    @classmethod
    def create_at(cls, path: Path) -> "RunFolder":
        """Make the run's folder at `path`. Raises RunFolderError if anything is there already."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return cls._make(path)
        except FileExistsError:
            raise RunFolderError(f"{path} exists already; a new run needs a folder that does not exist") from None
        except OSError as error:
            raise RunFolderError(f"{path} cannot be made: {error.strerror}") from None

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """The run that lies at `path`. Raises RunFolderError if there is none."""
        folder = cls(path)
        if not folder.config.is_file():
            is_url = path.parts and path.parts[0].endswith(":")
            remedy = "; palestra resume URL brings a run back from its mirror, into a folder" if is_url else ""
            raise RunFolderError(f"{path} is not a run: {folder.config} is missing{remedy}")
        return folder

    def facts(self) -> dict[str, Any]:
        """What run.json says. Raises RunFolderError if that is not what was written."""
        try:
            facts = json.loads(self.run.read_bytes())
            if isinstance(facts, dict):
                return facts
            fault = "no JSON object"
        except (OSError, ValueError, RecursionError) as error:
            fault = str(error)
        raise RunFolderError(f"{self.run} is damaged: {fault}")

    def require_rebuildable(self) -> None:
        """Raise RunFolderError for a run whose networks are not all named by its config (`Trainer.set_model`)."""
        if any(call.startswith("set_model") for call in self.facts().get("set_in_python", [])):
            raise self.not_rebuildable()

    def not_rebuildable(self) -> RunFolderError:
        calls = self.facts().get("set_in_python", [])
        steps = [f"trainer = palestra.Trainer.load({str(self.path)!r})", *(f"trainer.{call}" for call in calls)]
        return RunFolderError(
            f"{self.path} was trained with objects that no config names; it can go on from Python alone, with the same "
            f"ones: {'; '.join([*steps, 'trainer.fit()'])}"
        )

    @classmethod
    def _make(cls, path: Path) -> "RunFolder":
        path.mkdir()
        folder = cls(path)
        for inner in (folder.checkpoints, folder.buffers, folder.evaluations):
            inner.mkdir()
        sync_folder(path)
        sync_folder(path.parent)
        return folder

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that writes to this run. The kernel frees the lock however the process ends.

        Raises RunFolderError, which names the holder's process id, if another one holds it. May not be nested.
        """
        with self._lock_file() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read().decode(errors="replace").strip() or "of unknown id"
                raise RunFolderError(f"{self.path} is in use by process {holder}; wait for it or stop it") from None
            with suppress(OSError):  # on a full disk nobody is told who holds it, but it is held
                file.truncate(0)
                file.write(str(os.getpid()).encode())
            self.holds_lock = True
            try:
                yield
            finally:
                self.holds_lock = False
                fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough where a forked child shares the file

    def is_in_use(self) -> bool:
        """Whether a process of this machine holds the lock. It is not asked for, so that nobody finds it taken; where
        the kernel does not list locks (/proc/locks), nobody is seen."""
        try:
            inode, holder = (self.path / "lock").stat().st_ino, (self.path / "lock").read_text().strip()
            locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        except (OSError, ValueError):
            return False
        # as "1: FLOCK ADVISORY WRITE <process> <major>:<minor>:<inode> 0 EOF"
        return any(lock[1] == "FLOCK" and lock[4] == holder and lock[5].endswith(f":{inode}") for lock in locks)

    def _lock_file(self) -> FileIO:
        try:
            return open(self.path / "lock", "a+b", buffering=0)
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be used: {error}") from error


# ---- writing files that survive a crash --------------------------------------------------------------


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of a text in UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: after a crash `path` holds either what it held or this."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_synced(unfinished, content)
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_json(path: Path, data: Any) -> None:
    """Write `data` as JSON, whole or not at all. Raises ValueError on NaN and infinities, which JSON has not."""
    write_text(path, to_json(data))


def to_json(data: Any) -> str:
    """The one text that equal data have: keys sorted, a line per entry."""
    return json.dumps(data, sort_keys=True, indent=1, allow_nan=False) + "\n"


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it (not atomic)."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the disk has the names in a folder: a new or renamed file is safe only then."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- what a run ran on -------------------------------------------------------------------------------


def run_facts() -> dict[str, Any]:
    """What run.json says: versions, machine, palestra's git commit (null if there is none), and the command."""
    return {"versions": versions(), "machine": machine(), "commit": git_commit(), "command": shlex.join(sys.argv)}


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
