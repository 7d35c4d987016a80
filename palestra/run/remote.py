"""Remote storage through fsspec (s3, sftp, memory, ...): the few calls that a mirror needs. For file: LocalFiles.

A failed call is repeated with exponential backoff, unless the error is of a kind that stays. No call renames anything,
and every call may be repeated.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

from palestra.storage.disk import Folder, RefusedPathError
from palestra.storage.secrets import redacted
from palestra.storage.stored_files import CheckpointError

T = TypeVar("T")

EXTRAS = {"s3": "s3", "s3a": "s3", "sftp": "sftp", "ssh": "sftp"}  # of palestra, by protocol
LASTING = (
    *(RefusedPathError, FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError),
    *(ImportError, NotImplementedError, TypeError, ValueError),
)


class RemoteError(CheckpointError):
    """A remote call has failed after all attempts.

    The message names the URL, the call and the reason, with secrets removed.
    """

    def __init__(self, message: str) -> None:
        super().__init__(redacted(message))


class MissingError(RemoteError):
    """There is no such file, folder or bucket."""


def require_backend(url: str) -> None:
    """Raise RemoteError unless the package that a URL's protocol needs is installed."""
    protocol = url.partition("://")[0]
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        extra = EXTRAS.get(protocol)
        remedy = error if extra is None else f"pip install 'palestra[{extra}]'"
        raise RemoteError(f"{protocol}:// needs a package that is not installed: {remedy}") from None


class Remote:
    """A folder at a URL of fsspec; paths are relative to it. Every method raises RemoteError.

    options: arguments of the URL's file system. first_wait_s: the wait before the second attempt, doubled before each
    further one.
    """

    def __init__(self, url: str, options: Mapping[str, Any], attempts: int, first_wait_s: float) -> None:
        require_backend(url)
        self.url = url.rstrip("/")
        self.options = options
        self.attempts = attempts
        self.first_wait_s = first_wait_s
        self._connection: tuple[Any, str] | None = None

    def files(self) -> dict[str, int]:
        """The paths of all files, each with its size in bytes."""
        self._try("listing", lambda fs, root: fs.invalidate_cache())
        found: dict[str, int] = {}
        folders = [""]
        while folders:
            folder = folders.pop()
            try:
                entries = self._try(f"listing {folder}", partial(_list, folder=folder))
            except MissingError:
                continue
            folders += [path for path, kind, _ in entries if kind == "directory"]
            found |= {path: size for path, kind, size in entries if kind == "file"}
        return found

    def read(self, path: str) -> bytes:
        """The content of a file."""
        content: bytes = self._try(f"reading {path}", lambda fs, root: fs.cat_file(f"{root}/{path}"))
        return content

    def get(self, path: str, local: Path) -> None:
        """Copy a file from the remote folder."""
        self._try(f"fetching {path}", lambda fs, root: fs.get_file(f"{root}/{path}", str(local)))

    def write(self, path: str, content: bytes) -> None:
        """Write a file."""
        self._write(path, lambda fs, target: fs.pipe_file(target, content))

    def put(self, path: str, local: Path) -> None:
        """Copy a file to the remote folder."""
        self._write(path, lambda fs, target: fs.put_file(str(local), target))

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        with suppress(MissingError):
            self._try(f"removing {path}", lambda fs, root: fs.rm_file(f"{root}/{path}"))

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder, if the file system has folders; object stores have none."""
        with suppress(Exception):  # an empty folder does no harm
            fs, root = self._connected()
            fs.rmdir(f"{root}/{path}")

    def _write(self, path: str, write: Callable[[Any, str], None]) -> None:
        def attempt(fs: Any, root: str) -> None:
            target = f"{root}/{path}"
            try:
                write(fs, target)
            except FileNotFoundError:
                _make_folder(fs, fs._parent(target))
                write(fs, target)

        self._try(f"writing {path}", attempt)

    def _try(self, what: str, call: Callable[[Any, str], T]) -> T:
        attempt = 0
        while True:
            attempt += 1
            try:
                return call(*self._connected())
            except Exception as error:
                if isinstance(error, LASTING) or attempt >= self.attempts:
                    kind = MissingError if isinstance(error, FileNotFoundError) else RemoteError
                    tried = f" (attempt {attempt})" if attempt > 1 else ""
                    raise kind(f"{self.url}: {what}: {type(error).__name__}: {error}{tried}") from None
            self._connection = None  # it may be lost: the next attempt makes another
            time.sleep(self.first_wait_s * 2 ** (attempt - 1))

    def _connected(self) -> tuple[Any, str]:
        if self._connection is None:
            fs, root = fsspec.url_to_fs(self.url, skip_instance_cache=True, **self.options)
            is_local = isinstance(fs, LocalFileSystem)
            self._connection = (LocalFiles(Path(root)), "") if is_local else (fs, root.rstrip("/"))
        return self._connection


def _list(fs: Any, root: str, folder: str) -> list[tuple[str, str, int]]:
    """The entries of a folder: path relative to the root, "file" or "directory", size.

    fsspec's own walk leaves out folders that it cannot read; here that is an error.
    """
    entries = fs.ls(f"{root}/{folder}".rstrip("/"), detail=True)
    names = [(str(entry["name"]).rstrip("/").rsplit("/", 1)[-1], entry) for entry in entries]
    return [(f"{folder}/{name}".lstrip("/"), entry["type"], entry["size"]) for name, entry in names]


def _make_folder(fs: Any, path: str) -> None:
    """Make a folder and those above it, but no bucket, because a mistyped name must not create one."""
    try:
        fs.mkdir(path, create_parents=False)
    except FileExistsError:
        pass
    except FileNotFoundError:
        parent = fs._parent(path)
        if "/" not in parent.strip("/"):
            raise
        _make_folder(fs, parent)
        fs.mkdir(path, create_parents=False)


# ---- a disk of this machine -----------------------------------------------------------------------------


class LocalFiles:
    """The files of a mirror, by paths relative to its folder.

    root: that folder, which may itself be a link. Raises OSError, and RefusedPathError for a link or a pipe in place of
    a file or folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def invalidate_cache(self) -> None:
        pass

    def _parent(self, path: str) -> str:
        return path.rpartition("/")[0]

    def ls(self, path: str, detail: bool) -> list[dict[str, Any]]:
        folder = Folder(self.root, *_names(path))
        entries: list[dict[str, Any]] = []
        for name in folder.names():
            if folder.kind(name) == "folder":
                entries.append({"name": name, "type": "directory", "size": 0})
            else:
                with folder.reading(name) as file:
                    entries.append({"name": name, "type": "file", "size": file.size})
        return entries

    def cat_file(self, path: str) -> bytes:
        folder, name = self._place(path)
        return folder.read(name)

    def get_file(self, path: str, local: str) -> None:
        folder, name = self._place(path)
        _copy(folder, name, Folder(Path(local).parent), Path(local).name)

    def pipe_file(self, path: str, content: bytes) -> None:
        folder, name = self._place(path)
        folder.write(name, content)

    def put_file(self, local: str, path: str) -> None:
        folder, name = self._place(path)
        _copy(Folder(Path(local).parent), Path(local).name, folder, name)

    def rm_file(self, path: str) -> None:
        folder, name = self._place(path)
        folder.remove(name)

    def rmdir(self, path: str) -> None:
        Folder(self.root, *_names(path)).remove_empty()

    def mkdir(self, path: str, create_parents: bool) -> None:
        """Make a folder, and those above it."""
        Folder(self.root, *_names(path)).make_all()

    def _place(self, path: str) -> tuple[Folder, str]:
        *above, name = _names(path)
        return Folder(self.root, *above), name


def _names(path: str) -> list[str]:
    return path.strip("/").split("/") if path.strip("/") else []


def _copy(folder: Folder, name: str, to: Folder, to_name: str) -> None:
    with folder.reading(name) as file:
        to.write_pieces(to_name, file.pieces(file.size))
