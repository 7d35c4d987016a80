"""Restores a run from its mirror: the newest complete checkpoint and the best one, into a new local folder.

Without replay rows, the run can only be looked at.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from palestra.run.checkpoints import OUR_FILE
from palestra.run.mirror import CONTENTS, EVALUATION, RUN_FILES, Contents, evaluations_in, folders_in, number_of
from palestra.run.remote import MissingError, Remote
from palestra.storage.disk import Folder, RunFolderError, writing
from palestra.storage.facts import require_our_format
from palestra.storage.manifest import GROWING, MANIFEST, ONCE, training_reads
from palestra.storage.run_folder import RunFolder
from palestra.storage.secrets import may_hold_secret, redacted, where_secrets_lie, where_users_stand
from palestra.storage.stored_files import CheckpointError, DamagedError, StoredFile

ATTEMPTS = 4
FIRST_WAIT_S = 1.0
FETCHED = re.compile(rf"{OUR_FILE.pattern}|{'|'.join(map(re.escape, RUN_FILES))}|latest|best|\..+\.[0-9]+\.tmp")


def is_url(run: str | Path) -> bool:
    """Whether a run is named by a URL, not by a folder's path."""
    return isinstance(run, str) and "://" in run


def fetch(url: str, into: Path | None, with_rows: bool = True) -> tuple[RunFolder, list[str]]:
    """Fetch the run whose mirror lies at a URL into a new folder. Gives the run, and one line per damaged checkpoint.

    into: the folder, new or empty; None: runs/<the last name in the URL>. with_rows: whether replay rows come,
    without which the run can be looked at, but cannot go on. Every SHA-256 is checked. Raises RunFolderError if there
    is no run, or if the folder cannot be made; CheckpointError if no checkpoint there is complete; RemoteError if the
    URL cannot be reached.
    """
    remote = _remote(url)
    path = into or Path("runs") / name_of(url)
    if path.exists() and (not path.is_dir() or os.listdir(path)):
        way = RunFolder(path).ways_on().to_resume() if with_rows else None
        remedy = "" if way is None else f"to go on with the run there: {way}; "
        raise RunFolderError(f"{path} exists already; {remedy}--run DIR fetches elsewhere")
    there = remote.files()
    if "run.json" not in there:
        raise RunFolderError(f"there is no run at {url}")
    with suppress(ValueError, RecursionError):  # damage shows where the checkpoint's own copy is read
        require_our_format(url, json.loads(remote.read("run.json")))
    unfinished = path.with_name(f".{path.name}.fetched")
    _remove(unfinished)  # a fetch that was killed may have left one
    try:
        with writing(path):
            warnings = _fill(RunFolder.create_at(unfinished), remote, there, with_rows)
            os.rename(unfinished, path)
            Folder(path.parent).sync()
    finally:
        _remove(unfinished)
    return RunFolder(path), warnings


def fetch_new_checkpoints(url: str, folder: RunFolder) -> None:
    """Fetch the checkpoints of a mirror that are missing in a folder which `fetch` has made, without replay rows.

    Checkpoints that are damaged, or that vanish meanwhile, are left out. Raises RemoteError.
    """
    remote = _remote(url)
    there = remote.files()
    for name in sorted(folders_in(there), key=number_of):
        local = _local(folder, name)
        if f"checkpoints/{name}/{CONTENTS}" in there and not _is_here(local, name):
            local.remove_files(FETCHED.fullmatch)
            if _fetch_checkpoint(folder, remote, there, name, [], with_rows=False):
                for file in RUN_FILES:
                    local.remove(file)


def _is_here(local: Folder, name: str) -> bool:
    """Whether a local folder holds the checkpoint with that name on the mirror. The name has its manifest's digest."""
    is_there = local.kind(MANIFEST) is not None
    return is_there and name.endswith(hashlib.sha256(local.read(MANIFEST)).hexdigest()[:8])


@contextmanager
def local_folders(runs: Sequence[str]) -> Iterator[list[Path]]:
    """A context with the folders of runs, to read them there.

    Mirrors are fetched, without replay rows, into folders of their names, which are removed at the end. Raises what
    `fetch` raises.
    """
    with TemporaryDirectory(prefix="palestra-") as place:
        folders = []
        for number, run in enumerate(runs):
            if is_url(run):
                folders.append(fetch(run, Path(place, str(number), name_of(run)), with_rows=False)[0].path)
            else:
                folders.append(Path(run))
        yield folders


def _remote(url: str) -> Remote:
    """The mirror at a URL. Raises RunFolderError for a URL with a secret, or of no file system."""
    if may_hold_secret(url):
        where = f"{where_secrets_lie(url)}{where_users_stand(url)}"
        raise RunFolderError(f"the URL may contain a secret, which other users of this machine could read; {where}")
    try:
        return Remote(url, {}, ATTEMPTS, FIRST_WAIT_S)
    except ValueError as error:
        raise RunFolderError(f"expected a URL of fsspec, got {url}: {redacted(str(error))}") from None


def _remove(unfinished: Path) -> None:
    """Remove what a fetch has written; other files in the folder stay."""
    folder = Folder(unfinished.parent, unfinished.name)
    with suppress(OSError):
        checkpoints = folder.below("checkpoints")
        for place in (*map(checkpoints.below, checkpoints.names()), folder.below("buffers"), checkpoints, folder):
            place.remove_files(FETCHED.fullmatch)
            if place != folder:
                place.remove_empty()
        for name, ours in (("evaluations", EVALUATION), *ONCE.items()):
            folder.below(name).remove_files(ours.fullmatch)
            folder.below(name).remove_empty()
        folder.remove_empty()


def name_of(url: str) -> str:
    """The name of the run at a URL, which is the last name in it. Raises RunFolderError if it has none."""
    name = PurePosixPath(url.partition("::")[0].partition("://")[2]).name
    if not name:
        raise RunFolderError(f"expected a URL that ends in a run's name, or --run DIR, got {url}")
    return name


def _fill(folder: RunFolder, remote: Remote, there: dict[str, int], with_rows: bool) -> list[str]:
    """Fetch the newest complete checkpoint, with the run's files at that time, and the best one; gives warnings."""
    damaged: list[str] = []
    for name in sorted(folders_in(there), key=number_of, reverse=True):
        if f"checkpoints/{name}/{CONTENTS}" in there:  # otherwise it is incomplete, left by a kill
            contents = _fetch_checkpoint(folder, remote, there, name, damaged, with_rows)
            if contents is not None:
                break
    else:
        raise CheckpointError("\n".join([f"there is no complete checkpoint at {remote.url}", *damaged]))
    checkpoint = _local(folder, name)
    best = contents.best
    for file in RUN_FILES:
        if checkpoint.kind(file) is not None:
            checkpoint.move(file, folder.root)
    folder.write_facts(folder.facts().model_copy(update={"checkpoint_folder": None}))  # they are here now
    folder.checkpoints.write("latest", f"{checkpoint.path.name}\n".encode())
    if best is not None and (best == name or _fetch_checkpoint(folder, remote, there, best, damaged, with_rows)):
        for file in RUN_FILES:
            _local(folder, best).remove(file)
        folder.checkpoints.write("best", f"{_local(folder, best).path.name}\n".encode())
    for file in evaluations_in(there):
        remote.get(f"evaluations/{file}", folder.evaluations.make().path / file)
    return damaged


def _local(folder: RunFolder, name: str) -> Folder:
    """The folder in the run for a checkpoint of the mirror."""
    return folder.root.below("checkpoints", f"{number_of(name):08d}")


def _fetch_checkpoint(
    folder: RunFolder, remote: Remote, there: Mapping[str, int], name: str, damaged: list[str], with_rows: bool
) -> Contents | None:
    """Fetch one checkpoint. Gives None, and adds a line to `damaged`, if a file differs from what was written."""
    target = _local(folder, name).make()
    buffers = folder.root.below("buffers")
    try:
        contents = Contents.from_bytes(_read_contents(remote, name))
        for file, stored in contents.files.items():
            _fetch_file(remote, there, f"checkpoints/{name}/{file}", target, stored)
        for segment, stored in contents.segments.items() if with_rows else ():
            if buffers.kind(segment) is None:
                _fetch_file(remote, there, f"buffers/{segment}", buffers.make(), stored)
        for name_of_folder, files in contents.once.items():
            place = folder.root.below(name_of_folder)
            for file, stored in files.items():
                if place.kind(file) is None:
                    try:
                        _fetch_file(remote, there, f"{name_of_folder}/{file}", place.make(), stored)
                    except DamagedError as error:
                        if training_reads(name_of_folder, file):
                            raise
                        damaged.append(f"{error}, at {remote.url}; training does not need it")
    except DamagedError as error:
        damaged.append(f"checkpoint {name} at {remote.url} is damaged: {error}")
        target.remove_files(FETCHED.fullmatch)
        target.remove_empty()
        return None
    return contents


def _read_contents(remote: Remote, name: str) -> bytes:
    try:
        return remote.read(f"checkpoints/{name}/{CONTENTS}")
    except MissingError:
        raise DamagedError(f"{CONTENTS} is missing") from None


def _fetch_file(remote: Remote, there: Mapping[str, int], path: str, folder: Folder, stored: StoredFile) -> None:
    """Fetch a file, of which only the beginning is checked if it has grown since. Raises DamagedError."""
    outer, _, name = path.rpartition("/")
    is_growing = outer in GROWING
    if there.get(path, stored.size) != stored.size and not is_growing:
        raise DamagedError(f"{path} differs from what was written: expected {stored.size} bytes, got {there[path]}")
    try:
        remote.get(path, folder.path / name)
    except MissingError:
        raise DamagedError(f"{path} is missing") from None
    with folder.reading(name) as file:
        is_whole = StoredFile.of_pieces(file.pieces(stored.size if is_growing else file.size)) == stored
    if not is_whole:
        folder.remove(name)
        raise DamagedError(f"{path} differs from what was written: its SHA-256 differs")
