"""All access to the files of a run: they are read, written, renamed and removed here alone.

A run may come from another person, and people link folders to larger disks. So folders below a run are opened one from
the other, never through a symbolic link; a file is opened only if it is a regular one, and written in place only if it
has no second hard link. Anything else raises RefusedPathError and stays unchanged.
"""

import csv
import errno
import hashlib
import io
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, NoReturn

PIECE = 16 << 20  # bytes that are read at a time
MAX_CONFIG_BYTES = 16 << 20
MAX_BYTES = 64 << 20  # of a file that is read whole without a known size; palestra's own are much smaller

OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO must not block, and no link is followed
Kind = Literal["file", "folder", "link", "other"]
HERE: ContextVar[int | None] = ContextVar("HERE", default=None)
"""a descriptor of the folder in which relative paths begin; None: the working directory"""
WORDS: dict[Kind, str] = {"file": "a file", "folder": "a folder", "link": "a symbolic link", "other": "no regular file"}


class RunFolderError(Exception):
    """A run's folder cannot be made, opened or locked. The message names it and the reason."""


class RefusedPathError(RunFolderError, OSError):
    """A path holds something that palestra does not write, such as a link. It was neither followed nor changed."""


class Disk:
    """The calls that change the disk. There is one object, `DISK`; tests replace it by one that records the calls."""

    def create(self, folder: int, name: str) -> int:
        """A new file, open for reading and writing. Raises FileExistsError if the name exists."""
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
        """Write at the end: all of it, or nothing if the disk fails."""
        before = self.size
        os.lseek(self.descriptor, before, os.SEEK_SET)
        try:
            _write_all(self.descriptor, content)
        except OSError:
            self.truncate(before)
            raise

    def pieces(self, length: int, start: int = 0) -> Iterator[bytes]:
        """Read the bytes from `start` on, up to the first `length` of the file or to its end, in pieces."""
        place = start
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
    """A folder of a run: the folder `names` below `root`, which the user has named and which may itself be a link.

    The folder need not exist yet. It is not held open: each call checks again that no link has replaced a folder. Every
    method raises OSError, and RefusedPathError for anything but a real folder or a regular file.
    """

    def __init__(self, root: Path, *names: str) -> None:
        self.root, self.parts = root, tuple(map(_checked, names))
        self.path = root.joinpath(*names)

    def __repr__(self) -> str:
        return f"Folder({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Folder) and self.path == other.path

    def below(self, *names: str) -> "Folder":
        return Folder(self.root, *self.parts, *names)

    # ---- looking -----------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The names of all entries, sorted; empty if the folder does not exist."""
        with suppress(FileNotFoundError), self._opened() as folder:
            return sorted(os.listdir(folder))
        return []

    def kinds(self) -> dict[str, Kind]:
        """The kinds of all entries, by name; empty if the folder does not exist."""
        with suppress(FileNotFoundError), self._opened() as folder:
            return {name: kind for name in sorted(os.listdir(folder)) if (kind := _kind(folder, name)) is not None}
        return {}

    def kind(self, name: str) -> Kind | None:
        """The kind of an entry; None if there is none of that name."""
        with suppress(FileNotFoundError), self._opened() as folder:
            return _kind(folder, name)
        return None

    def require_plain(self, name: str, one_name: bool = True) -> None:
        """Raise RefusedPathError if this name belongs to anything but a regular file.

        With `one_name`, a file that has a second name is refused, too.
        """
        with self._opened() as folder:
            if self._require(folder, name, "file") is not None and one_name:
                self._require_one_name(name, os.stat(name, dir_fd=folder, follow_symlinks=False))

    def exists(self) -> bool:
        """Whether the folder, or anything else of its name, exists."""
        return Folder(self.root, *self.parts[:-1]).kind(self.parts[-1]) is not None

    # ---- reading -----------------------------------------------------------------------------------------

    def open(self, name: str) -> OpenFile:
        """A regular file, for reading."""
        with self._opened() as folder:
            return OpenFile(self._open_file(folder, name, os.O_RDONLY))

    def read(self, name: str, max_bytes: int = MAX_BYTES) -> bytes:
        """The content of a file. Raises RefusedPathError if it has more than `max_bytes`."""
        with self.reading(name) as file:
            if file.size > max_bytes:
                raise RefusedPathError(f"expected at most {max_bytes} bytes in {self.path / name}, got {file.size}")
            return b"".join(file.pieces(max_bytes))

    def read_exactly(self, name: str, size: int) -> tuple[bytes, str]:
        """The content of a file of `size` bytes, and its SHA-256. Raises RefusedPathError if it has another size."""
        with self.reading(name) as file:
            if file.size != size:
                raise RefusedPathError(f"expected {size} bytes in {self.path / name}, got {file.size}")
            content = b"".join(file.pieces(size))
        return content, hashlib.sha256(content).hexdigest()

    def reading(self, name: str) -> closing[OpenFile]:
        """A context in which a regular file is open for reading."""
        return closing(self.open(name))

    # ---- writing -----------------------------------------------------------------------------------------

    def make(self) -> "Folder":
        """Make this folder in an existing one; it may exist already."""
        with Folder(self.root, *self.parts[:-1])._opened() as folder, suppress(FileExistsError):
            DISK.make_folder(folder, self.parts[-1])
            DISK.sync(folder)  # else a crash could lose it with files that a checkpoint names
        with self._opened():
            return self

    def make_all(self) -> None:
        """Make this folder and those above it, also the root, where they are missing."""
        self.root.mkdir(parents=True, exist_ok=True)
        for depth in range(len(self.parts)):
            Folder(self.root, *self.parts[: depth + 1]).make()

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically: after a crash it has the old or the new content. Other links keep the old one."""
        self.write_pieces(name, (content,))

    def write_pieces(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a file atomically, as `write` does, with content that comes in pieces."""
        short = os.fsdecode(os.fsencode(name)[:200])  # a name has at most 255 bytes
        unfinished = f".{short}.{os.getpid()}.tmp"
        with self._opened() as folder:
            self._require(folder, name, "file")
            try:
                _create(folder, unfinished, pieces)
                DISK.rename(folder, unfinished, folder, name)
            except OSError:
                with suppress(OSError):
                    DISK.remove(folder, unfinished)
                raise
            DISK.sync(folder)

    def write_new(self, name: str, content: bytes) -> None:
        """Write a file and wait until its content is on the disk; its name is there after `sync`.

        An existing file of that name is removed first.
        """
        with self._opened() as folder:
            _create(folder, name, (content,))

    def append(self, name: str) -> OpenFile:
        """A file open for appending; made if it does not exist."""
        with self._opened() as folder:
            with suppress(FileExistsError):
                file = OpenFile(DISK.create(folder, _checked(name)))
                DISK.sync(folder)
                return file
            descriptor = self._open_file(folder, name, os.O_RDWR)
            try:
                self._require_one_name(name, os.fstat(descriptor))
            except RefusedPathError:
                os.close(descriptor)
                raise
            return OpenFile(descriptor)

    def rename(self, name: str, to_name: str) -> None:
        """Rename a file or folder; an existing file of the new name is replaced."""
        with self._opened() as folder:
            DISK.rename(folder, _checked(name), folder, _checked(to_name))

    def move(self, name: str, to: "Folder") -> None:
        """Move a file to another folder; an existing file of that name is replaced."""
        with self._opened() as folder, to._opened() as to_folder:
            DISK.rename(folder, _checked(name), to_folder, name)

    def sync(self) -> None:
        """Wait until the names in this folder are on the disk: only then do new and renamed files survive a crash."""
        with self._opened() as folder:
            DISK.sync(folder)

    def remove(self, name: str) -> None:
        """Remove a file or a link, if it exists."""
        with self._opened() as folder, suppress(FileNotFoundError):
            DISK.remove(folder, _checked(name))

    def remove_files(self, is_ours: Callable[[str], object]) -> None:
        """Remove the regular files with names for which `is_ours` is true; everything else stays."""
        for name in self.names():
            if is_ours(name) and self.kind(name) == "file":
                self.remove(name)

    def remove_empty(self) -> bool:
        """Remove this folder if it is empty. Gives whether the folder is gone."""
        with Folder(self.root, *self.parts[:-1])._opened() as folder:
            try:
                with suppress(FileNotFoundError):
                    DISK.remove_folder(folder, self.parts[-1])
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return False
        return True

    # ---- opening -----------------------------------------------------------------------------------------

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The descriptor of this folder."""
        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=HERE.get())
        try:
            for depth, name in enumerate(self.parts):
                Folder(self.root, *self.parts[:depth])._require(folder, name, "folder")
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | OPEN, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    def _open_file(self, folder: int, name: str, flags: int) -> int:
        self._require(folder, name, "file")  # opening a device may have effects
        descriptor = os.open(name, flags | OPEN, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # it was replaced in between
            os.close(descriptor)
            self._refuse(name, "other")
        return descriptor

    def _require_one_name(self, name: str, status: os.stat_result) -> None:
        if status.st_nlink > 1:
            raise RefusedPathError(
                f"expected {self.path / name} to have no other name, got a hard link that another folder shares; "
                "replace it by a copy"
            )

    def _require(self, folder: int, name: str, expected: Kind) -> Kind | None:
        """The kind of an entry; None if there is none. Raises RefusedPathError for another than the expected one."""
        if (kind := _kind(folder, name)) is not None and kind != expected:
            self._refuse(name, kind)
        return kind

    def _refuse(self, name: str, kind: Kind) -> NoReturn:
        raise RefusedPathError(f"{self.path / name} is {WORDS[kind]}, which palestra neither follows nor changes")


@contextmanager
def staying_here() -> Iterator[None]:
    """Keep relative paths of runs in the present working directory, where code of the user's own changes to another."""
    here = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))
    token = HERE.set(here)
    try:
        yield
    finally:
        HERE.reset(token)
        os.close(here)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError inside this context into a RunFolderError, which says that `path` cannot be written."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error}") from error


def open_plain(path: Path) -> OpenFile:
    """A regular file for reading. Raises OSError, and RefusedPathError for a link."""
    return Folder(path.parent).open(path.name)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: after a crash `path` has either the old or the new content."""
    Folder(path.parent).write(path.name, content)


def csv_text(head: Iterable[Any], rows: Iterable[Iterable[Any]]) -> str:
    """Return a table as the text of a CSV file."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return file.getvalue()


def write_file(path: Path, content: str | bytes) -> None:
    r"""Write a text, or the content of a file, atomically. Bytes of names that are no UTF-8 are written as \\udcff.

    Raises RunFolderError if it cannot be written.
    """
    try:
        write_bytes(path, content if isinstance(content, bytes) else content.encode(errors="backslashreplace"))
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror or error}") from error


def plain_path(folder: Folder, name: str) -> Path:
    """The path of a file to be read. Raises RefusedPathError for a link, a pipe, or what is larger than any config."""
    if folder.kind(name) is not None:
        folder.read(name, MAX_CONFIG_BYTES)
    return folder.path / name


def written_name(name: str) -> str:
    """The name that `Folder.write` was to give to the unfinished file of this name; any other name as it is."""
    match = re.fullmatch(r"\.(.+)\.[0-9]+\.tmp", name)
    return match[1] if match else name


def _create(folder: int, name: str, pieces: Iterable[bytes]) -> None:
    """Make a new file with this content, and wait until it is on the disk.

    An existing file of the name is removed, and never written into.
    """
    try:
        file = DISK.create(folder, _checked(name))
    except FileExistsError:
        DISK.remove(folder, name)
        file = DISK.create(folder, name)
    try:
        for piece in pieces:
            _write_all(file, piece)
        DISK.sync(file)
    finally:
        os.close(file)


def _write_all(file: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[DISK.write(file, rest) :]


def _checked(name: str) -> str:
    """The name. Raises RefusedPathError if it leads to another folder."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise RefusedPathError(f"expected the name of a file or folder of a run, got {name!r}")
    return name


def _kind(folder: int, name: str) -> Kind | None:
    try:
        mode = os.stat(_checked(name), dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(mode):
        return "link"
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"
