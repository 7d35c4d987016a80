"""Brings a run back from its mirror: the newest whole checkpoint, and the best, in a new folder on the local disk."""

import os
import shutil
from pathlib import Path, PurePosixPath

from palestra.storage.contents import CONTENTS, RUN_FILES, Contents, folders_in, number_of
from palestra.storage.mirror import PASSWORD, WHERE_SECRETS_LIE
from palestra.storage.remote import MissingError, Remote
from palestra.storage.run_folder import RunFolder, RunFolderError, file_sha256, sync_folder, write_text
from palestra.storage.segments import CheckpointError, DamagedError

ATTEMPTS = 4
FIRST_WAIT_S = 1.0


def is_url(run: str | Path) -> bool:
    """Whether a run is named by a URL, not by a folder's path."""
    return isinstance(run, str) and "://" in run


def fetch(url: str, into: Path | None) -> tuple[RunFolder, list[str]]:
    """The run whose mirror lies at a URL, in a new folder, and a line for each checkpoint there that is damaged.

    into: the folder, which must not exist; None: runs/<the last part of the URL>. Every SHA-256 is checked. Raises
    RunFolderError if there is no run, or the folder cannot be made; CheckpointError if no checkpoint there is whole;
    RemoteError if the place cannot be reached.
    """
    if PASSWORD.search(url):
        raise RunFolderError(f"a password stands in the URL, where others may read it; {WHERE_SECRETS_LIE}")
    try:
        remote = Remote(url, {}, ATTEMPTS, FIRST_WAIT_S)
    except ValueError as error:
        raise RunFolderError(f"{url} is no URL of fsspec: {error}") from None
    path = into or Path("runs") / _name(url)
    if path.exists():
        raise RunFolderError(f"{path} exists already; go on there: palestra resume {path}; or elsewhere: --run DIR")
    there = remote.files()
    if "run.json" not in there:
        raise RunFolderError(f"there is no run at {url}")
    unfinished = path.with_name(f".{path.name}.fetched")  # a fetch that was killed may have left one
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        warnings = _fill(RunFolder.create_at(unfinished), remote, there)
        os.rename(unfinished, path)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    sync_folder(path.parent)
    return RunFolder(path), warnings


def _name(url: str) -> str:
    name = PurePosixPath(url.partition("::")[0].partition("://")[2]).name
    if not name:
        raise RunFolderError(f"{url} names no run; expected a folder for it: --run DIR")
    return name


def _fill(folder: RunFolder, remote: Remote, there: dict[str, int]) -> list[str]:
    """Fetch the newest whole checkpoint, with the run's files as they were then, and the best; gives warnings."""
    damaged: list[str] = []
    for name in sorted(folders_in(there), key=number_of, reverse=True):
        if f"checkpoints/{name}/{CONTENTS}" in there:  # otherwise a kill has left a part of it
            contents = _fetch_checkpoint(folder, remote, name, damaged)
            if contents is not None:
                break
    else:
        raise CheckpointError("\n".join([f"there is no whole checkpoint at {remote.url}", *damaged]))
    checkpoint, best = _local(folder, name), contents.best
    for file in RUN_FILES:
        if (checkpoint / file).exists():
            os.rename(checkpoint / file, folder.path / file)
    write_text(folder.checkpoints / "latest", checkpoint.name + "\n")
    if best is not None and (best == name or _fetch_checkpoint(folder, remote, best, damaged)):
        for file in RUN_FILES:
            (_local(folder, best) / file).unlink(missing_ok=True)
        write_text(folder.checkpoints / "best", _local(folder, best).name + "\n")
    return damaged


def _local(folder: RunFolder, name: str) -> Path:
    """Where a checkpoint of the mirror lies in the run's folder."""
    return folder.checkpoints / f"{number_of(name):08d}"


def _fetch_checkpoint(folder: RunFolder, remote: Remote, name: str, damaged: list[str]) -> Contents | None:
    """Fetch one checkpoint; None, and a line in `damaged`, if it is not what was written."""
    target = _local(folder, name)
    try:
        contents = Contents.from_bytes(_read_contents(remote, name))
        target.mkdir()
        for file, sha256 in contents.files.items():
            _fetch_file(remote, f"checkpoints/{name}/{file}", target / file, sha256)
        for segment, sha256 in contents.segments.items():
            if not (folder.buffers / segment).exists():
                _fetch_file(remote, f"buffers/{segment}", folder.buffers / segment, sha256)
    except DamagedError as error:
        damaged.append(f"checkpoint {name} at {remote.url} is damaged: {error}")
        shutil.rmtree(target, ignore_errors=True)
        return None
    return contents


def _read_contents(remote: Remote, name: str) -> bytes:
    try:
        return remote.read(f"checkpoints/{name}/{CONTENTS}")
    except MissingError:
        raise DamagedError(f"{CONTENTS} is missing") from None


def _fetch_file(remote: Remote, path: str, local: Path, sha256: str) -> None:
    try:
        remote.get(path, local)
    except MissingError:
        raise DamagedError(f"{path} is missing") from None
    if file_sha256(local) != sha256:
        local.unlink()
        raise DamagedError(f"{path} is not what was written: its SHA-256 differs")
