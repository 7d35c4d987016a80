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
    latest, best = (_pointer(remote, there, file) for file in ("latest", "best"))
    for name in sorted(_checkpoints(there), key=lambda n: (number_of(n), n == latest), reverse=True):
        if _fetch_checkpoint(folder, remote, name, damaged):
            break
    else:
        raise CheckpointError("\n".join([f"there is no whole checkpoint at {remote.url}", *damaged]))
    checkpoint = folder.checkpoints / f"{number_of(name):08d}"
    for file in RUN_FILES:
        if (checkpoint / file).exists():
            os.rename(checkpoint / file, folder.path / file)
    write_text(folder.checkpoints / "latest", checkpoint.name + "\n")
    if best is None:
        return damaged
    is_fetched = number_of(best) == number_of(name) or _fetch_checkpoint(folder, remote, best, damaged)
    if is_fetched:
        checkpoint = folder.checkpoints / f"{number_of(best):08d}"
        for file in RUN_FILES:
            (checkpoint / file).unlink(missing_ok=True)
        write_text(folder.checkpoints / "best", checkpoint.name + "\n")
    return damaged


def _checkpoints(there: dict[str, int]) -> set[str]:
    """The folders of the checkpoints that are there, damaged or not."""
    return {name for name in folders_in(there) if f"checkpoints/{name}/{CONTENTS}" in there}


def _pointer(remote: Remote, there: dict[str, int], file: str) -> str | None:
    """The folder that `latest` or `best` names, if it is there."""
    if f"checkpoints/{file}" not in there:
        return None
    name = remote.read(f"checkpoints/{file}").decode(errors="replace").strip()
    return name if name in _checkpoints(there) else None


def _fetch_checkpoint(folder: RunFolder, remote: Remote, name: str, damaged: list[str]) -> bool:
    """Fetch one checkpoint; False, and a line in `damaged`, if it is not what was written."""
    target = folder.checkpoints / f"{number_of(name):08d}"
    try:
        contents = Contents.from_bytes(remote.read(f"checkpoints/{name}/{CONTENTS}"))
        target.mkdir()
        for file, sha256 in contents.files.items():
            _fetch_file(remote, f"checkpoints/{name}/{file}", target / file, sha256)
        for segment, sha256 in contents.segments.items():
            if not (folder.buffers / segment).exists():
                _fetch_file(remote, f"buffers/{segment}", folder.buffers / segment, sha256)
    except DamagedError as error:
        damaged.append(f"checkpoint {name} at {remote.url} is damaged: {error}")
        shutil.rmtree(target, ignore_errors=True)
        return False
    return True


def _fetch_file(remote: Remote, path: str, local: Path, sha256: str) -> None:
    try:
        remote.get(path, local)
    except MissingError:
        raise DamagedError(f"{path} is missing") from None
    if file_sha256(local) != sha256:
        local.unlink()
        raise DamagedError(f"{path} is not what was written: its SHA-256 differs")
