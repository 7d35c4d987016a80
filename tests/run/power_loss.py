"""What a disk may hold after the power went: the calls of palestra's disk, taken down, and replayed in part.

A file system owes nothing but this: what was written to a file is there once the file was synced, and names in a folder
once the folder was. Of all that came since, any part may be there and any part missing, whatever the order.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import compress, product
from pathlib import Path
from typing import Any

from palestra.storage.disk import Disk

Names = dict[str, int]  # of what lies in a folder, by number
ROOT = 0


@dataclass
class State:
    """What lies on a disk: folders by number, with the numbers of what lies in them; files by number."""

    folders: dict[int, Names] = field(default_factory=lambda: {ROOT: {}})
    files: dict[int, bytes] = field(default_factory=dict)

    def copy(self) -> "State":
        return State({number: dict(names) for number, names in self.folders.items()}, dict(self.files))

    def tree(self, folder: int = ROOT, path: str = "") -> Iterator[tuple[str, bytes | None]]:
        """Every path with its content; None for a folder."""
        for name, number in sorted(self.folders.get(folder, {}).items()):
            if number in self.files:
                yield f"{path}{name}", self.files[number]
            else:
                yield f"{path}{name}", None
                yield from self.tree(number, f"{path}{name}/")

    def put_at(self, place: Path) -> None:
        place.mkdir()
        for path, content in self.tree():
            if content is None:
                (place / path).mkdir()
            else:
                (place / path).write_bytes(content)


@dataclass(frozen=True)
class Call:
    """A call that changes the disk. objects: those that must be synced before it is safe, any of them."""

    objects: tuple[int, ...]

    def apply(self, state: State) -> None: ...


@dataclass(frozen=True)
class Put(Call):
    """Names are given and taken, at once: (folder, name, number), where None takes the name away."""

    names: tuple[tuple[int, str, int | None], ...]
    new_file: int | None = None
    new_folder: int | None = None

    def apply(self, state: State) -> None:
        if self.new_file is not None:
            state.files.setdefault(self.new_file, b"")
        if self.new_folder is not None:
            state.folders.setdefault(self.new_folder, {})
        for folder, name, number in self.names:
            names = state.folders.setdefault(folder, {})
            if number is None:
                names.pop(name, None)
            else:
                names[name] = number


@dataclass(frozen=True)
class Write(Call):
    offset: int
    content: bytes

    def apply(self, state: State) -> None:
        (file,) = self.objects
        before = state.files.get(file, b"").ljust(self.offset, b"\0")  # a hole, where what comes before is missing
        state.files[file] = before[: self.offset] + self.content + before[self.offset + len(self.content) :]


@dataclass(frozen=True)
class Cut(Call):
    length: int

    def apply(self, state: State) -> None:
        (file,) = self.objects
        state.files[file] = state.files.get(file, b"")[: self.length].ljust(self.length, b"\0")


@dataclass(frozen=True)
class Sync:
    object: int


class RecordingDisk(Disk):
    """Does what it is asked for, and takes it down. root: the folder whose state is meant; it must be empty."""

    def __init__(self, root: Path) -> None:
        self.log: list[Call | Sync | Any] = []
        self._numbers = {self._key(os.stat(root)): ROOT}
        self._names: dict[int, Names] = {ROOT: {}}
        self._next = ROOT + 1

    def note(self, mark: Any) -> None:
        self.log.append(mark)

    @staticmethod
    def _key(status: os.stat_result) -> tuple[int, int]:
        return status.st_dev, status.st_ino

    def _number(self, descriptor: int) -> int | None:
        return self._numbers.get(self._key(os.fstat(descriptor)))  # None: outside of the root

    def _new(self, status: os.stat_result) -> int:
        self._numbers[self._key(status)] = number = self._next  # an inode's number may have been another's
        self._next += 1
        return number

    def create(self, folder: int, name: str) -> int:
        descriptor = super().create(folder, name)
        above = self._number(folder)
        if above is not None:
            self._names[above][name] = number = self._new(os.fstat(descriptor))
            self.note(Put((above,), ((above, name, number),), new_file=number))
        return descriptor

    def write(self, file: int, content: bytes | memoryview) -> int:
        offset = os.lseek(file, 0, os.SEEK_CUR)
        length = super().write(file, content)
        if (number := self._number(file)) is not None:
            written, half = bytes(content[:length]), length // 2
            self.note(Write((number,), offset, written[:half]))
            self.note(Write((number,), offset + half, written[half:]))
        return length

    def truncate(self, file: int, length: int) -> None:
        super().truncate(file, length)
        if (number := self._number(file)) is not None:
            self.note(Cut((number,), length))

    def sync(self, descriptor: int) -> None:
        if (number := self._number(descriptor)) is not None:
            self.note(Sync(number))

    def rename(self, folder: int, name: str, to_folder: int, to_name: str) -> None:
        super().rename(folder, name, to_folder, to_name)
        above, to_above = self._number(folder), self._number(to_folder)
        if above is None or to_above is None:  # outside of the root; nothing moves in or out
            assert above is to_above is None
            return
        number = self._names[above].pop(name)
        self._names[to_above][to_name] = number
        self.note(Put((above, to_above), ((above, name, None), (to_above, to_name, number))))

    def remove(self, folder: int, name: str) -> None:
        super().remove(folder, name)
        self._take(folder, name)

    def make_folder(self, folder: int, name: str) -> None:
        super().make_folder(folder, name)
        above = self._number(folder)
        if above is not None:
            self._names[above][name] = number = self._new(os.stat(name, dir_fd=folder))
            self._names[number] = {}
            self.note(Put((above,), ((above, name, number),), new_folder=number))

    def remove_folder(self, folder: int, name: str) -> None:
        super().remove_folder(folder, name)
        self._take(folder, name)

    def _take(self, folder: int, name: str) -> None:
        above = self._number(folder)
        if above is not None:
            del self._names[above][name]
            self.note(Put((above,), ((above, name, None),)))


def states_after_power_loss(log: list[Any], most: int) -> Iterator[tuple[list[Any], State]]:
    """What the disk may hold if the power goes, at every sync: each with the marks that were noted before it. All parts
    of what was not safe there, or `most` of them by a seeded draw where there are more. Equal states once a sync."""
    safe, waiting, marks = State(), list[Call](), list[Any]()
    rng = random.Random(0)
    for entry in [*log, Sync(-1)]:
        if isinstance(entry, Call):
            waiting.append(entry)
        elif isinstance(entry, Sync):
            seen = set()
            for chosen in _parts(len(waiting), most, rng):
                state = safe.copy()
                for call in compress(waiting, chosen):
                    call.apply(state)
                key = hash(tuple(state.tree()))
                if key not in seen:
                    seen.add(key)
                    yield list(marks), state
            for call in waiting:
                if entry.object in call.objects:
                    call.apply(safe)
            waiting = [call for call in waiting if entry.object not in call.objects]
        else:
            marks.append(entry)


def _parts(num: int, most: int, rng: random.Random) -> Iterator[tuple[bool, ...]]:
    if 2**num <= most:
        yield from product((False, True), repeat=num)
        return
    for _ in range(most):
        share = rng.random()  # most calls there, or most missing, or any
        yield tuple(rng.random() < share for _ in range(num))
