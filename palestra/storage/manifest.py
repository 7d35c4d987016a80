"""The manifest.json of a checkpoint, which contains its own SHA-256, and the replay rows that it names.

The file may be damaged or forged, so `Manifest` declares every key and type that it may have, and anything else is an
error.

Each full segment of a buffer's stream of rows is written once. The stream of a buffer is rows 0, 1, 2, ... in the order
in which they were added; a buffer of capacity C holds the last C of them. Segment k is the rows k * S to
(k + 1) * S - 1. A checkpoint needs the rows held: their full segments, which lie in `buffers/` and are shared among
checkpoints, and the unfinished tail, which lies in the checkpoint's folder.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Protocol, Self

from pydantic import AfterValidator, Field, model_validator
from torch import Tensor

from palestra.buffers.packed import is_planes, num_rows, part
from palestra.storage.disk import Folder
from palestra.storage.records_file import RecordsThen
from palestra.storage.stored_files import (
    Count,
    DamagedError,
    DamagedOnceError,
    Entry,
    FileName,
    SealedEntry,
    StoredFile,
    having,
    quoted_name,
    raising_damaged,
    read_checked,
    tensors_in,
    tensors_to_bytes,
)

SEGMENT_ROWS = 8192
SEGMENT_BYTES = 64 << 20  # at most, of rows with images; images that share their frames need a few MiB of it
BUFFERS_FROM_CHECKPOINT = "../../buffers/"
SEGMENT_NAME = r"[A-Za-z0-9_~%-]*-[0-9]+-[0-9]+-[0-9a-f]{8}\.safetensors"


class SegmentedRows(Protocol):
    """A replay buffer, as storage needs it. Rows are numbered from 0 in the order of adding, and never change."""

    @property
    def num_added(self) -> int:
        """The number of rows ever added."""

    @property
    def capacity(self) -> int:
        """The largest number of rows held: the last ones added."""

    @property
    def row_bytes(self) -> int:
        """The bytes of one row with its images; 1 before the first row."""

    def packed_rows(self, start: int, stop: int) -> dict[str, Tensor]:
        """The rows start to stop - 1, which the buffer must still hold.

        Tensors of shape (stop - start, ...), except for lists of planes (see palestra.buffers.packed).
        """

    def load_rows(self, start: int, packed: dict[str, Tensor]) -> None:
        """Restore rows start, start + 1, ... from CPU tensors. Calls come in ascending order, without gaps."""


def _require_place(file: str) -> str:
    if not re.fullmatch(rf"({re.escape(BUFFERS_FROM_CHECKPOINT)})?[^/.\0][^/\0]*\.safetensors", file):
        raise ValueError(f"expected a .safetensors file in the checkpoint or in `buffers/`, got {file!r}")
    return file


RowNumber = Annotated[int, Field(ge=0, lt=1 << 62)]


class Segment(Entry):
    """The rows start to stop - 1 of one buffer, in a file whose path is relative to the checkpoint's folder."""

    file: Annotated[str, AfterValidator(_require_place)]
    start: RowNumber
    stop: RowNumber
    stored: StoredFile

    def place(self, checkpoint: "CheckpointPlace") -> tuple[Folder, str]:
        """The folder of the file, and its name."""
        name = self.file.removeprefix(BUFFERS_FROM_CHECKPOINT)
        return (checkpoint.folder if name == self.file else checkpoint.buffers), name


class StoredRows(Entry):
    """The rows of one buffer in a checkpoint: rows start to num_added - 1, in ascending segments."""

    start: RowNumber
    num_added: RowNumber
    segments: Annotated[tuple[Segment, ...], Field(strict=False)]  # JSON has lists

    @model_validator(mode="after")
    def _require_every_row_once(self) -> Self:
        """Require segments that follow each other; the first may begin with rows that are no longer held."""
        reached, first = self.start, True
        for segment in self.segments:
            if not (segment.start == reached or (first and segment.start < reached)) or segment.stop <= reached:
                got = f"{segment.start} to {segment.stop}"
                raise ValueError(f"expected rows from {reached} on in {segment.file}, got {got}")
            reached, first = segment.stop, False
        if reached != self.num_added:
            raise ValueError(f"expected segments up to row {self.num_added}, got {reached}")
        return self

    def check(self, checkpoint: "CheckpointPlace") -> None:
        """Raise DamagedError if a segment differs from what was written."""
        for segment in self.segments:
            rows = tensors_in(read_checked(*segment.place(checkpoint), segment.stored), segment.file)
            expected = segment.stop - segment.start
            if any(value.shape[:1] != (expected,) for name, value in rows.items() if not is_planes(name)):
                raise DamagedError(f"{segment.file} does not hold the expected {expected} rows")

    def fault_of(self, capacity: int) -> str | None:
        """Say why a buffer of another capacity cannot hold the rows as they were held; None if it can."""
        num = self.num_added - self.start
        wanted = f"{num}, because rows came round" if self.start else f"at least {num}, as there are rows"
        return None if self.start == max(0, self.num_added - capacity) else f"expected {wanted}, got {capacity}"

    def read(self, checkpoint: "CheckpointPlace") -> Iterator[tuple[int, dict[str, Tensor]]]:
        """The rows, ascending, without gaps: pairs of the first row's number and CPU tensors.

        Raises DamagedError if a file differs from what was written.
        """
        for segment in self.segments:
            start = max(segment.start, self.start)
            rows = tensors_in(read_checked(*segment.place(checkpoint), segment.stored), segment.file)
            yield start, part(rows, start - segment.start, num_rows(rows))


class CheckpointPlace(NamedTuple):
    """The folder of a checkpoint, and the folder of the segments that it shares with others."""

    folder: Folder
    buffers: Folder

    @classmethod
    def at(cls, path: Path) -> Self:
        """The place of the checkpoint whose folder is `path`."""
        return cls(Folder(path), Folder(path.resolve().parent.parent).below("buffers"))


def segment_bounds(buffer: SegmentedRows, segment_rows: int) -> Iterator[tuple[int, int]]:
    """Cut the rows that `buffer` holds at the multiples of `segment_rows`: gives pairs of (start, stop), ascending."""
    num_added = buffer.num_added
    start = max(0, num_added - buffer.capacity)
    while start < num_added:
        stop = min(num_added, (start // segment_rows + 1) * segment_rows)
        yield start, stop
        start = stop


def rows_per_segment(buffer: SegmentedRows, at_most: int) -> int:
    """The number of rows in a full segment: a power of two, or `at_most` if that is smaller.

    It is small because every save writes the unfinished segment again.
    """
    num = max(1, SEGMENT_BYTES // buffer.row_bytes)
    return min(at_most, 1 << num.bit_length() - 1)


def store_full_segments(
    name: str, buffer: SegmentedRows, known: Iterable[Segment], buffers_folder: Folder, segment_rows: int
) -> tuple[Segment, ...]:
    """Write the full segments of the rows that `buffer` holds, except those in `known`. Gives all of them.

    If more rows than the capacity came between two saves, the buffer holds only the last part of its oldest segment.
    Then that part is written.
    """
    on_disk = {segment.stop: segment for segment in known if segment.file.startswith(BUFFERS_FROM_CHECKPOINT)}
    segments = []
    for start, stop in segment_bounds(buffer, segment_rows):
        if stop % segment_rows:
            break  # the unfinished tail
        if stop in on_disk and on_disk[stop].start <= start:
            segment = on_disk[stop]
        else:
            segment = write_segment(buffers_folder.make(), name, buffer, start, stop)
            segment = segment.model_copy(update={"file": BUFFERS_FROM_CHECKPOINT + segment.file})
        segments.append(segment)
    return tuple(segments)


def store_rows(
    name: str,
    buffer: SegmentedRows,
    known: Iterable[Segment],
    checkpoint_folder: Folder,
    buffers_folder: Folder,
    segment_rows: int,
) -> StoredRows:
    """Write the rows that `buffer` holds: the full segments by `store_full_segments`, and the unfinished tail."""
    segments = store_full_segments(name, buffer, known, buffers_folder, segment_rows)
    num_added = buffer.num_added
    first = max(0, num_added - buffer.capacity)
    reached = segments[-1].stop if segments else first
    if reached < num_added:
        segments += (write_segment(checkpoint_folder, name, buffer, reached, num_added),)
    return StoredRows(start=first, num_added=num_added, segments=segments)


def write_segment(folder: Folder, name: str, buffer: SegmentedRows, start: int, stop: int) -> Segment:
    """Write rows start to stop - 1 into a file in `folder`, and wait until the disk has it.

    The file's name contains the content's SHA-256, so that a run that continues from an earlier checkpoint and adds
    different rows overwrites no rows of another checkpoint. The buffer's name may contain any character.
    """
    rows = buffer.packed_rows(start, stop)
    for key, tensor in rows.items():
        if not is_planes(key) and tensor.shape[:1] != (stop - start,):
            raise ValueError(f"buffer {name}: expected {stop - start} rows of {key}, got shape {tuple(tensor.shape)}")
    content = tensors_to_bytes(rows)
    stored = StoredFile.of(content)
    file = f"{quoted_name(name)}-{start}-{stop}-{stored.sha256[:8]}.safetensors"
    folder.write(file, content)
    return Segment(file=file, start=start, stop=stop, stored=stored)


FORMAT: Literal[5] = 5  # 5 added the files that are written once, and the seconds of training
NAME, NUMBER = r"[0-9]{8,18}", "[0-9]{1,18}"  # of a checkpoint's folder, and as one types it
MANIFEST, STATE, TENSORS = "manifest.json", "state.json", "tensors.safetensors"

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
OnceFolder = Literal["players", "prompts", "past", "rollouts", "learned", "transcripts", "calls"]
Once = dict[OnceFolder, dict[FileName, StoredFile]]
"""the files of a run that are written once beside its checkpoints, by folder and name"""
ONCE: dict[OnceFolder, re.Pattern[str]] = {
    "players": re.compile(r"[^./\\\x00][^/\\\x00]*\.(json|yml|safetensors)"),
    "prompts": re.compile(r"[^./\\\x00][^/\\\x00]*\.jinja"),
    "past": re.compile(r"[A-Za-z0-9_~%-]*-[0-9]+-[0-9a-f]{8}\.state"),
    "rollouts": re.compile(r"[^./\\\x00][^/\\\x00]*\.parquet"),
    "learned": re.compile(r"[^./\\\x00][^/\\\x00]*\.parquet"),
    "transcripts": re.compile(r"[^./\\\x00][^/\\\x00]*\.yml"),
    "calls": re.compile(r"[^./\\\x00][^/\\\x00]*\.jsonl"),
}
"""the folders of such files, each with the names that they have there"""
GROWING: tuple[OnceFolder, ...] = ("calls",)
"""those of them whose files only grow: a checkpoint names their beginning, as it was then"""
BEGUN: tuple[OnceFolder, ...] = ("players", "prompts")
"""those of them whose files a run has when it begins; the others get theirs while it trains"""
PUT_BACK = "every checkpoint needs it: put that file back as it was, or begin a new run"


def training_reads(folder: OnceFolder, name: str) -> bool:
    """Whether a run that goes on may need this file: not what people read, nor the roll-outs of evaluations."""
    is_for_people = folder in ("learned", "transcripts")
    return not is_for_people and (folder != "rollouts" or name.removesuffix(".parquet").isdecimal())


class Manifest(SealedEntry):
    """The list of what a checkpoint holds, and in which files.

    is_due: whether it was saved at an interval of the config, not because of a signal. seconds: those of training by
    then, in all and by phase. records: the records file at that time. versions, machine: where it was written. files:
    those in the checkpoint's folder. buffers: the replay rows by buffer. once: the files beside the checkpoints that
    were written once.
    """

    file: ClassVar = MANIFEST

    format: Literal[5]
    number: Annotated[int, Field(ge=0, lt=10**18)]
    is_due: bool
    counters: dict[str, Count]
    seconds: dict[str, Seconds]
    records: RecordsThen
    versions: dict[str, str | None]
    machine: dict[str, str | int | None]
    files: Annotated[dict[FileName, StoredFile], having(STATE, TENSORS)]
    buffers: dict[str, StoredRows]
    once: Once

    def segments(self) -> dict[str, StoredFile]:
        """The segments in `buffers/` that the checkpoint needs, by name."""
        return {
            segment.file.removeprefix(BUFFERS_FROM_CHECKPOINT): segment.stored
            for rows in self.buffers.values()
            for segment in rows.segments
            if segment.file.startswith(BUFFERS_FROM_CHECKPOINT)
        }

    def check_once(self, run: Folder) -> list[str]:
        """Raise DamagedOnceError if a file in this folder of the run that training reads is not as it was written.

        Returns a line for each of the others that is not.
        """
        changed = []
        for folder, files in self.once.items():
            for name, stored in files.items():
                path = run.path / folder / name
                remedy = f"; {PUT_BACK}" if folder in BEGUN else ""  # of the others, a checkpoint before needs fewer
                try:
                    with raising_damaged(str(path)), run.below(folder).reading(name) as file:
                        most = stored.size if folder in GROWING else min(file.size, stored.size + 1)
                        if StoredFile.of_pieces(file.pieces(most)) != stored:
                            raise DamagedError(f"{path} differs from what was written")
                except DamagedError as error:
                    if training_reads(folder, name):
                        raise DamagedOnceError(f"{error}{remedy}") from error
                    changed.append(f"{error}; training does not need it")
        return changed

    @classmethod
    def read(cls, folder: Folder) -> Self:
        """The manifest of the checkpoint in `folder`.

        Raises DamagedError if it differs from what was written, CheckpointError if it has another format.
        """
        with raising_damaged(MANIFEST):
            content = folder.read(MANIFEST)
        return cls.from_bytes(content, f"checkpoint {folder.path}")


def numbers_in(folder: Folder) -> list[int]:
    """The numbers of all checkpoints in a folder, ascending, including damaged ones; none if there is no folder."""
    return sorted(int(name) for name in folder.names() if re.fullmatch(NAME, name))


def number_in(folder: Folder, file: str) -> int | None:
    """The number of the checkpoint that the file `latest` or `best` names; None if there is no such name."""
    with suppress(OSError):
        name = folder.read(file, max_bytes=32).strip().decode("ascii", errors="replace")
        return int(name) if re.fullmatch(NAME, name) else None
    return None
