"""Checkpoints: folders that hold the whole state of a run to the bit, written atomically.

    checkpoints/00000003/manifest.json         format, number, counters, versions, machine, SHA-256 of every file
                         state.json            the state's tree; "$tensor" marks the place of a tensor
                         tensors.safetensors   its tensors, named by their path in the tree
                         <buffer>-...          the replay rows of an unfinished segment (see palestra.storage.manifest)
    checkpoints/latest, checkpoints/best       the name of a folder

A folder is written under a name that starts with a dot, synced, and renamed. Equal states give equal bytes: keys are
sorted, and no clock is read. Nothing is ever unpickled.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from palestra.run.loaded_checkpoint import (
    AT,
    LoadedCheckpoint,
    checkpoint_folder,
    checkpoints_in_words,
    find_checkpoint,
    read_checkpoint,
)
from palestra.storage.disk import Folder, OpenFile, written_name
from palestra.storage.facts import machine, versions
from palestra.storage.manifest import (
    BEGUN,
    BUFFERS_FROM_CHECKPOINT,
    FORMAT,
    GROWING,
    MANIFEST,
    NAME,
    NUMBER,
    ONCE,
    SEGMENT_NAME,
    SEGMENT_ROWS,
    STATE,
    TENSORS,
    CheckpointPlace,
    Manifest,
    Once,
    OnceFolder,
    Segment,
    SegmentedRows,
    StoredRows,
    number_in,
    numbers_in,
    rows_per_segment,
    store_full_segments,
    store_rows,
    training_reads,
)
from palestra.storage.records_file import RecordsThen, beginning_of, measured
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import (
    CheckpointError,
    DamagedError,
    DamagedOnceError,
    MissingCheckpointError,
    StoredFile,
    StoredTree,
    encode,
    parse_json,
    read_checked,
    tensors_to_bytes,
    to_json,
)

# The names of what a kill may leave: checkpoints and files that are written or removed in part.
LEFTOVER_FOLDER = re.compile(rf"\.{NAME}\.(tmp|removed(-[0-9]+)?)")
LEFTOVER_FILE = re.compile(r"\.(latest|best)\.[0-9]+\.tmp")
SEGMENT = re.compile(SEGMENT_NAME)
LEFTOVER_SEGMENT = re.compile(rf"\.{SEGMENT_NAME}\.[0-9]+\.tmp")
OUR_FILE = re.compile(rf"{MANIFEST}|{STATE}|{TENSORS}|{SEGMENT_NAME}|{LEFTOVER_SEGMENT.pattern}")


class Checkpoints:
    """The checkpoints of one run. One process writes (it holds the run's lock), any may read.

    Retention keeps the last `keep_last`, those whose number `keep_every` divides (None: no such rule), the latest and
    the best. If this process holds the run's lock, making this object removes what a killed save has left.
    """

    def __init__(
        self, run_folder: RunFolder, keep_last: int, keep_every: int | None, segment_rows: int = SEGMENT_ROWS
    ) -> None:
        if keep_last < 1 or (keep_every is not None and keep_every < 1):
            raise ValueError(f"expected keep_last and keep_every >= 1, got {keep_last} and {keep_every}")
        self.root = run_folder.root
        self.folder = run_folder.checkpoints
        self.buffers = run_folder.buffers
        self.keep_last = keep_last
        self.keep_every = keep_every
        self.segment_rows = segment_rows
        self.in_use: Callable[[], set[int]] = set  # the numbers of checkpoints that must not be deleted yet
        self.seconds: Callable[[], Mapping[str, float]] = dict  # of training so far, in all and by phase
        self.once: Once = {}  # the files that were written once, which later checkpoints name
        self.unwritten: dict[tuple[OnceFolder, str], bytes] = {}  # those that the disk has refused
        self._named: dict[str, tuple[Segment, ...]] = {}  # the segments of the last checkpoint, by buffer
        self._on_disk: dict[str, tuple[Segment, ...]] = {}  # these, or those that were written ahead of the next one
        if run_folder.holds_lock:
            with suppress(OSError):  # a later save tries again
                self._remove_leftovers()
                self._remove_unnamed()
                for name, ours in ONCE.items():
                    self.root.below(name).remove_files(partial(_is_unfinished, ours))

    def numbers(self) -> list[int]:
        """The numbers of all checkpoints, ascending, including damaged ones."""
        return numbers_in(self.folder)

    def save(
        self,
        number: int,
        state: Mapping[str, Any],
        counters: Mapping[str, int],
        buffers: Mapping[str, SegmentedRows],
        records: RecordsThen,
        is_due: bool = True,
        elsewhere: Callable[[str], Mapping[str, StoredRows]] = lambda unfinished: {},
    ) -> str:
        """Write checkpoint `number`, make it the latest, and apply retention. Gives the folder's name.

        state: dicts (keys all str or all int), lists and tuples of tensors, ints, floats, str, bool and None.
        is_due: False for a checkpoint that is saved because the run stops between two intervals. It is kept in addition
        to what retention keeps, until the next one that is due replaces it under the same number. elsewhere: lets other
        processes write rows of their buffers into the unfinished folder of that name, and says which; it may raise
        OSError.

        Checkpoints of a higher number were saved later in the run, and abandoned when it went back; they are removed,
        unless one is the best. Raises CheckpointError if the disk fails, and leaves the earlier checkpoints as they
        were. Raises TypeError for a state of other types.
        """
        name = f"{number:08d}"
        tensors: dict[str, Tensor] = {}
        content = {STATE: to_json(encode(state, "", tensors)).encode(), TENSORS: tensors_to_bytes(tensors)}
        try:
            self._write_refused()
            self._remove_leftovers()
            unfinished = self.folder.below(f".{name}.tmp").make()
            for file in content:
                unfinished.write_new(file, content[file])
            stored = self.store_rows(unfinished.path.name, buffers)
            everywhere = stored | dict(elsewhere(unfinished.path.name))
            segments = [segment for rows in everywhere.values() for segment in rows.segments]
            tails = {s.file: s.stored for s in segments if not s.file.startswith(BUFFERS_FROM_CHECKPOINT)}
            manifest = Manifest(
                format=FORMAT,
                number=number,
                is_due=is_due,
                counters=dict(counters),
                seconds=dict(self.seconds()),
                records=records,
                versions=versions(),
                machine=machine(),
                files={file: StoredFile.of(content[file]) for file in content} | tails,
                buffers=everywhere,
                once=self.once,
            )
            unfinished.write_new(MANIFEST, manifest.to_bytes())
            unfinished.sync()
            self._publish(unfinished, name)
            self.note_stored(stored)
            self.remove_unkept(number, None if is_due else number)
        except OSError as error:
            self.note_stored(None)
            with suppress(OSError):  # cleaning up works on a full disk; a broken one must not hide the error
                self._remove_leftovers()
                self._remove_unnamed()
            raise CheckpointError(f"checkpoint {name} could not be saved in {self.folder.path}: {error}") from error
        return name

    def store_rows(self, unfinished: str, buffers: Mapping[str, SegmentedRows]) -> dict[str, StoredRows]:
        """Write rows of buffers into the unfinished folder of a checkpoint, which this or another process saves.

        `note_stored` says how that has ended. Raises OSError if the disk refuses.
        """
        stored, folder = {}, self.folder.below(unfinished)
        for key, buffer in buffers.items():
            size = rows_per_segment(buffer, at_most=self.segment_rows)
            stored[key] = store_rows(key, buffer, self._on_disk.get(key, ()), folder, self.buffers, size)
        return stored

    def note_stored(self, stored: Mapping[str, StoredRows] | None) -> None:
        """Take note of the rows that a checkpoint names; None if it could not be saved."""
        if stored is not None:
            self._named = {key: rows.segments for key, rows in stored.items()}
        self._on_disk = dict(self._named)  # who fails to save a checkpoint removes what was written ahead

    def write_ahead(self, buffers: Mapping[str, SegmentedRows]) -> None:
        """Write the segments that were filled since the last save, because images take the next one seconds otherwise.

        An error of the disk is ignored here, because the next save meets and raises it.
        """
        with suppress(OSError):
            for key, buffer in buffers.items():
                size = rows_per_segment(buffer, at_most=self.segment_rows)
                known = self._on_disk.get(key, ())
                self._on_disk[key] = store_full_segments(key, buffer, known, self.buffers, size)

    def mark_best(self, name: str) -> None:
        """Make checkpoint `name` the best one, which retention keeps."""
        if self.folder.kind(name) != "folder":
            raise CheckpointError(f"there is no checkpoint {name} in {self.folder.path}")
        try:
            self.folder.write("best", f"{name}\n".encode())
        except OSError as error:
            raise CheckpointError(f"checkpoint {name} could not be marked as the best: {error}") from error

    def holding(self, counters: Mapping[str, int]) -> int | None:
        """The number of the newest undamaged checkpoint with these counters; None if there is none."""
        for number in reversed(self.numbers()):
            with suppress(DamagedError, CheckpointError):
                if counters.items() <= Manifest.read(self.folder.below(f"{number:08d}")).counters.items():
                    return number
        return None

    def latest(self) -> int | None:
        """The number of the latest checkpoint; None if none is marked."""
        return number_in(self.folder, "latest")

    def best(self) -> int | None:
        """The number of the best checkpoint; None if none is marked."""
        return number_in(self.folder, "best")

    def remove_unkept(self, latest: int, between_dues: int | None) -> None:
        """Remove the checkpoints that retention does not keep if `latest` is the latest, except those in use.

        between_dues: what the method of this name gives. Raises OSError.
        """
        past = [number for number in self.numbers() if number <= latest]
        kept = kept_numbers(past, self.keep_last, self.keep_every, self.best(), between_dues) | self.in_use()
        for number in self.numbers():
            if number not in kept:
                self._discard(f"{number:08d}")
        self._remove_leftovers()
        self._remove_unnamed()

    def is_alone(self) -> bool:
        """Whether there is one checkpoint at most, and no replay rows, as `keep_alone` leaves it."""
        numbers = self.numbers()
        places = [self.buffers, *(self.folder.below(f"{number:08d}") for number in numbers)]
        return len(numbers) <= 1 and not any(SEGMENT.fullmatch(name) for place in places for name in place.names())

    def keep_alone(self, number: int) -> None:
        """Keep checkpoint `number`, as the latest and the best if there is one, and without replay rows, and no other.

        A kill at any moment leaves it whole. Raises OSError, CheckpointError.
        """
        name, had_best = f"{number:08d}", self.best() is not None
        place = self.folder.below(name)
        manifest = Manifest.read(place)
        self.folder.write("latest", f"{name}\n".encode())  # first: a kill in `_publish` is undone for the latest one
        if manifest.buffers:
            content = {file: read_checked(place, file, manifest.files[file]) for file in (STATE, TENSORS)}
            content[STATE] = to_json(parse_json(content[STATE], STATE) | {"has_replay_rows": False}).encode()
            files = {file: StoredFile.of(content[file]) for file in content}
            content[MANIFEST] = manifest.model_copy(update={"files": files, "buffers": {}}).to_bytes()
            self._remove_leftovers()
            bare = self.folder.below(f".{name}.tmp").make()
            for file in content:
                bare.write_new(file, content[file])
            bare.sync()
            self._publish(bare, name)
        if had_best:
            self.mark_best(name)
        for other in self.numbers():
            if other != number:
                self._discard(f"{other:08d}")
        self._remove_leftovers()
        self._remove_unnamed()

    def between_dues(self, latest: int) -> int | None:
        """This number, if its checkpoint was saved for a stop and not at an interval; else None."""
        with suppress(CheckpointError):
            if not Manifest.read(self.folder.below(f"{latest:08d}")).is_due:
                return latest
        return None

    def load(self, which: int | str | Path, check_rows: bool = True) -> LoadedCheckpoint:
        """Read a checkpoint.

        which: "latest", "best", a number, "@" and an opt step, or a path of this run or another (`checkpoint_folder`).

        Every SHA-256 is checked; those of replay rows and of files that are written once, which may be large, only if
        `check_rows`. If the latest is damaged, earlier ones are tried, and `warnings` names the damaged ones, and
        changed files that training does not read. Raises CheckpointError if all are damaged, if the requested one is
        damaged, or if it has another format; MissingCheckpointError, a subclass, if it does not exist.
        """
        damaged: list[str] = []
        for place in self._candidates(which):
            try:
                loaded = read_checkpoint(place, damaged, check_rows)
                if check_rows and loaded.manifest.once:
                    damaged += loaded.manifest.check_once(self.run_of(loaded))  # `loaded.warnings` is this list
                if past := loaded.manifest.once.get("past"):
                    there = self.run_of(loaded).below("past")
                    loaded.state["copies"] = {name: StoredTree(there, name, stored) for name, stored in past.items()}
                return loaded
            except DamagedOnceError as error:
                damaged += [] if str(error) in damaged else [str(error)]  # checkpoints share the file
            except DamagedError as error:
                damaged.append(f"checkpoint {place.folder.path} is damaged: {error}")
        if damaged:
            raise CheckpointError("\n".join(damaged))
        raise MissingCheckpointError(f"there is no checkpoint in {self.folder.path}")

    def is_ours(self, loaded: LoadedCheckpoint) -> bool:
        """Return whether a checkpoint is of this run, not of the one that it branches off."""
        return loaded.folder.parent == self.folder.path

    def run_of(self, loaded: LoadedCheckpoint) -> Folder:
        """The folder of the run that a checkpoint belongs to, this one or another. Raises RunFolderError."""
        return self.root if self.is_ours(loaded) else RunFolder.of_checkpoint(loaded.folder).root

    def note_once(self) -> None:
        """Let later checkpoints name the files with which a run begins."""
        for folder in BEGUN:
            place = self.root.below(folder)
            for name in filter(ONCE[folder].fullmatch, place.names()):
                with place.reading(name) as file:
                    self.once.setdefault(folder, {})[name] = StoredFile.of_pieces(file.pieces(file.size))

    def write_once(self, folder: OnceFolder, name: str, content: bytes) -> None:
        """Write a file that never changes, and let later checkpoints name it.

        Raises OSError if the disk refuses; the next `save`, which needs the file, tries again.
        """
        self.unwritten[folder, name] = content
        self.once.setdefault(folder, {})[name] = StoredFile.of(content)
        self._write_refused()

    def _write_refused(self) -> None:
        for (folder, name), content in list(self.unwritten.items()):
            self.root.below(folder).make().write(name, content)
            del self.unwritten[folder, name]

    def read_once(self, folder: OnceFolder, name: str) -> bytes:
        """Read a file that was written once. Raises DamagedOnceError, with its path, if it is not as it was written."""
        try:
            return read_checked(self.root.below(folder), name, self.once[folder][name])
        except (DamagedError, KeyError) as error:
            raise DamagedOnceError(
                f"{self.root.path / folder / name} is missing, or differs from what was written"
            ) from error

    def take_once(self, loaded: LoadedCheckpoint) -> None:
        """Copy the files that a checkpoint of another run names, but those of which this run has its own.

        Files that only grow are copied with all that they have by now. Those that have changed, and that training does
        not read, are left out.
        """
        origin = self.run_of(loaded)
        for folder, files in loaded.manifest.once.items():
            for name in sorted(files.keys() - self.once.get(folder, {}).keys()) if folder not in GROWING else ():
                try:
                    self.write_once(folder, name, read_checked(origin.below(folder), name, files[name]))
                except DamagedError:
                    if training_reads(folder, name):
                        raise
        for folder in GROWING:
            there = origin.below(folder)
            for name in filter(ONCE[folder].fullmatch, there.names()):
                if (here := self.root.below(folder)).kind(name) is None:
                    with there.reading(name) as file:
                        here.make().write_pieces(name, file.pieces(file.size))

    def restore_buffers(self, loaded: LoadedCheckpoint, buffers: Mapping[str, SegmentedRows]) -> None:
        """Load into each buffer the rows that it held when the checkpoint was saved. Call it before the next `save`.

        Raises CheckpointError if the checkpoint has other buffers, or if a file cannot be read.
        """
        if set(buffers) != set(loaded.buffers):
            raise CheckpointError(
                f"checkpoint {loaded.folder}: expected rows of the buffers {sorted(buffers)}, got those of "
                f"{sorted(loaded.buffers)}"
            )
        self.note_stored(loaded.buffers if self.is_ours(loaded) else {})
        for key, stored in loaded.buffers.items():
            if (fault := stored.fault_of(buffers[key].capacity)) is not None:
                raise CheckpointError(f"checkpoint {loaded.folder}, capacity of the buffer of {key}: {fault}")
            for start, rows in stored.read(loaded.place):
                buffers[key].load_rows(start, rows)

    def fault_of_records(self, loaded: LoadedCheckpoint, records: OpenFile, path: Path) -> str | None:
        """Say what is wrong with the lines of records.jsonl that a checkpoint counts; None if nothing is."""
        then, beginning = loaded.records, beginning_of(records, loaded.records)
        if beginning.is_intact:
            return None
        if beginning.num_lost:
            lost = f"{beginning.num_lost} of the {then.num_lines} lines that it had at checkpoint {loaded.folder.name}"
            return f"{path} is damaged: it lacks the last {lost}; these are lost"
        first = 1
        for number in self.numbers():
            with suppress(CheckpointError):
                before = Manifest.read(self.folder.below(f"{number:08d}")).records
                if before.length < then.length and measured(records, before.length) == before:
                    first = max(first, before.num_lines + 1)
        where = f"line {then.num_lines}" if first == then.num_lines else f"a line from {first} to {then.num_lines}"
        return f"{path} is damaged: {where} differs from what was written"

    def _candidates(self, which: int | str | Path) -> list[CheckpointPlace]:
        if re.fullmatch(f"{AT}?{NUMBER}", str(which)):
            return [self._place(find_checkpoint(self.folder, str(which)))]
        if which == "best":
            if (best := self.best()) is None:
                raise MissingCheckpointError(f"no checkpoint in {self.folder.path} is marked as the best")
            if best not in self.numbers():
                raise CheckpointError(f"{self.folder.path / 'best'} names checkpoint {best:08d}, which does not exist")
            return [self._place(best)]
        if which != "latest":
            if isinstance(which, str) and os.sep not in which and not os.path.exists(which):  # no path, but misspelt
                expected = f"expected latest, best, or one of {checkpoints_in_words(self.folder)}"
                raise MissingCheckpointError(f"there is no checkpoint {which} in {self.folder.path}; {expected}")
            return [CheckpointPlace.at(checkpoint_folder(Path(str(which))))]
        numbers = self.numbers()
        if (latest := self.latest()) is not None:
            numbers = [number for number in numbers if number < latest] + [latest]
        return [self._place(number) for number in reversed(numbers)]

    def _place(self, number: int) -> CheckpointPlace:
        return CheckpointPlace(self.folder.below(f"{number:08d}"), self.buffers)

    def _publish(self, unfinished: Folder, name: str) -> None:
        if self.folder.kind(name) is not None:
            # a kill left it before `latest` moved, or the run went back before it, or it was saved for a stop
            if self.best() == int(name):
                self.folder.remove("best")
            self._discard(name)  # and after a kill here, `_restore_replaced` brings it back
        self.folder.rename(unfinished.path.name, name)
        self.folder.sync()
        self.folder.write("latest", f"{name}\n".encode())

    def _discard(self, name: str) -> None:
        """Rename a checkpoint so that it counts as a leftover.

        After a kill that comes while its files are removed, it must not look like a damaged checkpoint.
        """
        removed, count = f".{name}.removed", 1
        while self.folder.kind(removed) is not None:  # it still holds a user's files
            removed, count = f".{name}.removed-{count}", count + 1
        self.folder.rename(name, removed)

    def _restore_replaced(self) -> None:
        """Bring the latest checkpoint back if a kill or an error has come between the two renames of `_publish`."""
        latest = None if (number := self.latest()) is None else f"{number:08d}"
        if self.numbers() if latest is None else self.folder.kind(latest) is not None:
            return
        for name in self.folder.names():
            if discarded := re.fullmatch(rf"\.({latest or NAME})\.removed(-[0-9]+)?", name):
                with suppress(CheckpointError):  # a folder that only holds a user's files
                    Manifest.read(self.folder.below(name))
                    return self.folder.rename(name, discarded[1])

    def _remove_leftovers(self) -> None:
        """Remove what a kill has left. Files of the user's own in such folders stay."""
        self._restore_replaced()
        self.folder.remove_files(LEFTOVER_FILE.fullmatch)
        self.buffers.remove_files(LEFTOVER_SEGMENT.fullmatch)
        for name in self.folder.names():
            if not LEFTOVER_FOLDER.fullmatch(name):
                continue
            if self.folder.kind(name) == "folder":
                leftover = self.folder.below(name)
                leftover.remove_files(OUR_FILE.fullmatch)
                leftover.remove_empty()
            elif self.folder.kind(name) == "link":  # somebody replaced a checkpoint by a link
                self.folder.remove(name)

    def _remove_unnamed(self) -> None:
        """Remove the segments of rows and the copies of past selves that no checkpoint names, nor the next one will."""
        past = self.root.below("past")
        if not any(map(SEGMENT.fullmatch, self.buffers.names())) and not past.names():
            return  # and no manifest is read, which takes long where it names many files
        segments, copies = set[str](), {*self.once.get("past", {})}
        for number in self.numbers():
            try:
                manifest = Manifest.read(self.folder.below(f"{number:08d}"))
            except DamagedError:
                continue  # it cannot be loaded, with or without its rows
            segments |= manifest.segments().keys()
            copies |= manifest.once.get("past", {}).keys()
        self.buffers.remove_files(lambda name: SEGMENT.fullmatch(name) and name not in segments)
        if "past" in self.once:  # else it is not known yet what the next one names
            past.remove_files(lambda name: ONCE["past"].fullmatch(name) and name not in copies)


def _is_unfinished(ours: re.Pattern[str], name: str) -> bool:
    """Tell whether a kill has left this while one of our files was written."""
    return written_name(name) != name and ours.fullmatch(written_name(name)) is not None


def kept_numbers(
    past: Sequence[int], keep_last: int, keep_every: int | None, best: int | None, between_dues: int | None
) -> set[int]:
    """The numbers of the checkpoints that retention keeps: the last, every n-th, the best, and the latest if not due.

    past: the numbers up to the latest, in ascending order. between_dues: the latest if it was not due.
    """
    due = [number for number in past if number != between_dues]
    every = {number for number in due if keep_every is not None and number % keep_every == 0}
    return {*due[-keep_last:], *every} | {number for number in (best, between_dues) if number is not None}
