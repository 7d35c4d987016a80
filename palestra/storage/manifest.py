"""The manifest.json of a checkpoint, which contains its own SHA-256.

The file may be damaged or forged, so `Manifest` declares every key and type that it may have, and anything else is an
error.
"""

import re
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from palestra.storage.disk import Folder
from palestra.storage.facts import Count, FileName
from palestra.storage.records_file import RecordsThen
from palestra.storage.segments import BUFFERS_FROM_CHECKPOINT, StoredRows
from palestra.storage.stored_files import (
    DamagedError,
    DamagedOnceError,
    SealedEntry,
    StoredFile,
    having,
    raising_damaged,
)

FORMAT: Literal[5] = 5  # 5 added the files that are written once, and the seconds of training
MANIFEST, STATE, TENSORS = "manifest.json", "state.json", "tensors.safetensors"

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
OnceFolder = Literal["players", "prompts", "rollouts", "learned", "transcripts", "calls"]
Once = dict[OnceFolder, dict[FileName, StoredFile]]
"""the files of a run that are written once beside its checkpoints, by folder and name"""
ONCE: dict[OnceFolder, re.Pattern[str]] = {
    "players": re.compile(r"[^./\\\x00][^/\\\x00]*\.(json|yml|safetensors)"),
    "prompts": re.compile(r"[^./\\\x00][^/\\\x00]*\.jinja"),
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
