"""The layout of a run's mirror, and the file that lists what belongs to a checkpoint there.

    run.json                                   as in the run's folder; identifies the run
    checkpoints/00000003-1a2b3c4d/...          the checkpoint's files, and the run's files at that time
                                  contents.json   their SHA-256, and those of the segments that it needs; written last
    buffers/...                                segments of replay rows
    players/...                                copies of players that others have trained, written once
    evaluations/...                            results of `palestra evaluate`, as they are after a save

A checkpoint exists if and only if its contents.json is complete. The one with the highest number is the latest, and
names the best. The digits after the number are the first of the manifest's SHA-256, so different content has a
different name: no file of an existing checkpoint is ever overwritten, and the mirror needs no pointer files.
"""

import re
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from palestra.storage.manifest import MANIFEST, Once
from palestra.storage.run_folder import JOBS
from palestra.storage.stored_files import FileName, SealedEntry, StoredFile, having

FORMAT: Literal[4] = 4  # 4 has all files that are written once, by folder
FOLDER_NAME = re.compile(r"([0-9]{8,})-[0-9a-f]{8}")
CONTENTS = "contents.json"
RECORDS = "records.jsonl"
EVALUATION = re.compile(r"[^./\\\x00][^/\\\x00]*-opt-step-[0-9]+(-[0-9a-f]+)?\.(json|mp4)")  # a file's name
SOME = ("changes.jsonl", JOBS)  # which only some runs have
RUN_FILES = ("run.json", "config.yml", *SOME, RECORDS)


class Contents(SealedEntry):
    """The list of what belongs to a checkpoint on the mirror: the size and SHA-256 of each file, by name.

    files: those in the checkpoint's folder. segments: those in `buffers/` that it needs. once: those beside the
    checkpoints that were written once. best: the folder of the best checkpoint of the run so far.
    """

    file: ClassVar = CONTENTS

    format: Literal[4]
    files: Annotated[dict[FileName, StoredFile], having(*{*RUN_FILES, MANIFEST}.difference(SOME))]
    segments: dict[FileName, StoredFile]
    once: Once
    best: Annotated[str, Field(pattern=f"^{FOLDER_NAME.pattern}$")] | None

    def paths(self, name: str) -> set[str]:
        """The paths on the mirror of all files of the checkpoint whose folder has that name."""
        own = {f"checkpoints/{name}/{file}" for file in self.files}
        once = {f"{folder}/{file}" for folder, files in self.once.items() for file in files}
        return own | {f"buffers/{segment}" for segment in self.segments} | once


def number_of(name: str) -> int:
    """The number of the checkpoint in a folder of that name."""
    return int(name.split("-")[0])


def evaluations_in(files: Iterable[str]) -> set[str]:
    """The names of the results of evaluations among the files of a mirror."""
    names = {path.partition("/")[2] for path in files if path.startswith("evaluations/")}
    return {name for name in names if EVALUATION.fullmatch(name)}


def folders_in(files: Iterable[str]) -> set[str]:
    """The names of the checkpoints' folders among the files of a mirror, complete or not."""
    names = (path.split("/")[1] for path in files if path.startswith("checkpoints/") and path.count("/") == 2)
    return {name for name in names if FOLDER_NAME.fullmatch(name)}
