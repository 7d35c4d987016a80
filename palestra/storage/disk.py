"""The one door to the disk: what palestra keeps of a run is read, written, renamed and removed here alone.

A run may come from a stranger, and people link folders to larger disks. So folders below a run are opened one from the
other, never through a link; a file is opened only if it is a regular one, and written in place only if no other folder
holds it too (a hard link). Whatever else stands there is refused, and stays as it is.
"""

import errno
import hashlib
import os
import stat
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NoReturn

from palestra.storage.secrets import redacted

FAILURE = "failure.txt"
PIECE = 16 << 20  # bytes that are read at a time
MAX_BYTES = 64 << 20  # of a file that is read whole and whose size nothing states: many times the largest of ours

OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO must not block, and no link is followed
Kind = Literal["file", "folder", "link", "other"]
WORDS: dict[Kind, str] = {"file": "a file", "folder": "a folder", "link": "a symbolic link", "other": "no regular file"}


class RunFolderError(Exception):
    """A run's folder cannot be made, opened or locked; the message says which and why."""


class RefusedPathError(RunFolderError, OSError):
    """What stands at a path is not what palestra would have put there; it was neither followed nor changed."""


class Disk:
    """The calls that change what a disk holds. There is one, `DISK`; tests put one in its place that takes notes."""

    def create(self, folder: int, name: str) -> int:
        """A new file, open for reading and writing; FileExistsError where there is anything."""
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | OPEN, 0o666, dir_fd=folder)

    def write(self, file: int, content: bytes | memoryview) -> int:
        return os.write(file, content)

    def truncate(self, file: int, length: int) -> None:
        os.ftruncate(file, length)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def rename(self, folder: int, name: str, to_folder: int, to_name: str) -> None:
        os.replace(name, to_name, src_dir_fd=folder, dst_dir_fd=to_folder)

    def remove(self, folder: int, name: str) -> None:
        os.unlink(name, dir_fd=folder)

    def make_folder(self, folder: int, name: str) -> None:
        os.mkdir(name, dir_fd=folder)

    def remove_folder(self, folder: int, name: str) -> None:
        os.rmdir(name, dir_fd=folder)


DISK = Disk()


class OpenFile:
    """A file that grows at its end. Every method raises OSError."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def append(self, content: bytes) -> None:
        """Write at the end: all, or where the disk refuses nothing."""
        before = self.size
        os.lseek(self.descriptor, before, os.SEEK_SET)
        try:
            _write_all(self.descriptor, content)
        except OSError:
            self.truncate(before)
            raise

    def pieces(self, length: int) -> Iterator[bytes]:
        """The first `length` bytes, or what there is of them."""
        place = 0
        while place < length and (piece := os.pread(self.descriptor, min(PIECE, length - place), place)):
            place += len(piece)
            yield piece

    def truncate(self, length: int) -> None:
        DISK.truncate(self.descriptor, length)

    def sync(self) -> None:
        DISK.sync(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


class Folder:
    """A folder of a run: `names` lead to it from `root`, which the user has named and which may be a link itself.

    Nothing is held open: a folder may not exist yet, and a path that is swapped for a link is found out at each call.
    Every method raises OSError, and RefusedPathError for what is not a real folder or a regular file.
    """

    def __init__(self, root: Path, *names: str) -> None:
        self.root, self.parts = root, tuple(map(_checked, names))
        self.path = root.joinpath(*names)

    def __repr__(self) -> str:
        return f"Folder({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Folder) and self.path == other.path

    __hash__ = None  # type: ignore[assignment]

    def below(self, *names: str) -> "Folder":
        return Folder(self.root, *self.parts, *names)

    # ---- looking -----------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Of all that lies here, sorted; none where the folder does not exist."""
        try:
            with self._opened() as folder:
                return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def kind(self, name: str) -> Kind | None:
        """What stands under a name; None: nothing."""
        try:
            with self._opened() as folder:
                return _kind(folder, name)
        except FileNotFoundError:
            return None

    def exists(self) -> bool:
        """Whether there is such a folder, or anything in its place."""
        return Folder(self.root, *self.parts[:-1]).kind(self.parts[-1]) is not None

    # ---- reading -----------------------------------------------------------------------------------------

    def open(self, name: str) -> OpenFile:
        """A regular file, for reading."""
        with self._opened() as folder:
            return OpenFile(self._open_file(folder, name, os.O_RDONLY))

    def read(self, name: str, max_bytes: int = MAX_BYTES) -> bytes:
        """The content of a file of at most so many bytes."""
        with self.reading(name) as file:
            if file.size > max_bytes:
                raise RefusedPathError(f"{self.path / name} has {file.size} bytes, more than any file of its kind")
            return b"".join(file.pieces(max_bytes))

    def read_exactly(self, name: str, size: int) -> tuple[bytes, str]:
        """The content of a file of `size` bytes, and its SHA-256; RefusedPathError where it has another size."""
        with self.reading(name) as file:
            if file.size != size:
                raise RefusedPathError(f"{self.path / name} has {file.size} bytes, not the {size} that were written")
            sha256, pieces = hashlib.sha256(), []
            for piece in file.pieces(size):
                sha256.update(piece)
                pieces.append(piece)
        return b"".join(pieces), sha256.hexdigest()

    @contextmanager
    def reading(self, name: str) -> Iterator[OpenFile]:
        """A regular file, open for reading as long as this lasts."""
        file = self.open(name)
        try:
            yield file
        finally:
            file.close()

    # ---- writing -----------------------------------------------------------------------------------------

    def make(self) -> "Folder":
        """Make this folder, which may be there already, in one that exists."""
        above = Folder(self.root, *self.parts[:-1])
        with above._opened() as folder, suppress(FileExistsError):
            DISK.make_folder(folder, self.parts[-1])
        with self._opened():
            return self

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all: after a crash there is what was there, or this."""
        unfinished = f".{name}.{os.getpid()}.tmp"
        with self._opened() as folder:
            if (kind := _kind(folder, name)) not in ("file", None):
                self._refuse(name, kind)
            try:
                _create(folder, unfinished, content)
                DISK.rename(folder, unfinished, folder, name)
            except OSError:
                with suppress(OSError):
                    DISK.remove(folder, unfinished)
                raise
            DISK.sync(folder)

    def write_new(self, name: str, content: bytes) -> None:
        """Write a file and wait until the disk has its content; its name is safe after `sync`. What stood there under
        that name loses it."""
        with self._opened() as folder:
            _create(folder, name, content)

    def append(self, name: str) -> OpenFile:
        """A file to write on at its end, made where there is none."""
        with self._opened() as folder:
            with suppress(FileExistsError):
                file = OpenFile(DISK.create(folder, _checked(name)))
                DISK.sync(folder)
                return file
            descriptor = self._open_file(folder, name, os.O_RDWR)
            if os.fstat(descriptor).st_nlink > 1:
                os.close(descriptor)
                raise RefusedPathError(
                    f"{self.path / name} is a hard link, so that another folder holds the same file; put a copy in its "
                    "place"
                )
            return OpenFile(descriptor)

    def rename(self, name: str, to_name: str) -> None:
        """Give a file or folder another name here; a file of that name is replaced."""
        with self._opened() as folder:
            DISK.rename(folder, _checked(name), folder, _checked(to_name))

    def move(self, name: str, to: "Folder") -> None:
        """Move a file to another folder; one of that name is replaced."""
        with self._opened() as folder, to._opened() as to_folder:
            DISK.rename(folder, _checked(name), to_folder, name)

    def sync(self) -> None:
        """Wait until the disk has the names in this folder: a new or renamed file is safe only then."""
        with self._opened() as folder:
            DISK.sync(folder)

    def remove(self, name: str) -> None:
        """Remove a file, or a link to one; it may be gone."""
        with self._opened() as folder, suppress(FileNotFoundError):
            DISK.remove(folder, _checked(name))

    def remove_files(self, is_ours: Callable[[str], object]) -> None:
        """Remove the files here whose names are ours; whatever else lies here stays."""
        for name in self.names():
            if is_ours(name) and self.kind(name) == "file":
                self.remove(name)

    def remove_empty(self) -> bool:
        """Remove this folder if nothing lies in it; gives whether it is gone."""
        with Folder(self.root, *self.parts[:-1])._opened() as folder:
            try:
                DISK.remove_folder(folder, self.parts[-1])
            except FileNotFoundError:
                return True
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    return False
                raise
        return True

    # ---- opening -----------------------------------------------------------------------------------------

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The descriptor of this folder."""
        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for depth, name in enumerate(self.parts):
                above = Folder(self.root, *self.parts[:depth])
                if (kind := _kind(folder, name)) not in ("folder", None):
                    above._refuse(name, kind)
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | OPEN, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    def _open_file(self, folder: int, name: str, flags: int) -> int:
        if (kind := _kind(folder, name)) not in ("file", None):  # opening a device may do something
            self._refuse(name, kind)
        descriptor = os.open(name, flags | OPEN, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # it was swapped
            os.close(descriptor)
            self._refuse(name, "other")
        return descriptor

    def _refuse(self, name: str, kind: Kind | None) -> NoReturn:
        assert kind is not None
        raise RefusedPathError(f"{self.path / name} is {WORDS[kind]}, which palestra neither follows nor changes")


def write_traceback(folder: Folder, error: BaseException) -> str:
    """Write where an exception came from, for who mends what raised it, into failure.txt; gives the words that say
    where it stands."""
    path = folder.path / FAILURE
    try:
        folder.write(FAILURE, redacted("".join(traceback.format_exception(error))).encode())
    except OSError as refused:
        return f"its traceback could not be written to {path}: {refused}"
    return f"its traceback: {path}"


def open_plain(path: Path) -> OpenFile:
    """A regular file for reading, which is no link itself. Raises OSError, RefusedPathError."""
    return Folder(path.parent).open(path.name)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: after a crash `path` holds either what it held or this."""
    Folder(path.parent).write(path.name, content)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of a text in UTF-8."""
    write_bytes(path, text.encode())


def _create(folder: int, name: str, content: bytes) -> None:
    """A new file with that content, which the disk has. One that a kill has left loses its name: it is never written
    on."""
    try:
        file = DISK.create(folder, _checked(name))
    except FileExistsError:
        DISK.remove(folder, name)
        file = DISK.create(folder, name)
    try:
        _write_all(file, content)
        DISK.sync(file)
    finally:
        os.close(file)


def _write_all(file: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[DISK.write(file, rest) :]


def _checked(name: str) -> str:
    """A name that leads to no other folder."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise RefusedPathError(f"{name!r} cannot name a file or folder of a run")
    return name


def _kind(folder: int, name: str) -> Kind | None:
    try:
        mode = os.stat(_checked(name), dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(mode):
        return "link"
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"
