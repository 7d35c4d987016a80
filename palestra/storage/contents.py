"""How a run lies on a mirror, and the file that says what belongs to a checkpoint there.

    run.json                                   as in the run's folder: whose mirror it is
    checkpoints/00000003-1a2b3c4d/...          the checkpoint's files, and the run's files as they were then
                                  contents.json   their SHA-256, and those of the segments that it needs; written last
    buffers/...                                segments of replay rows

A checkpoint is there if and only if its contents.json is there whole. The latest is the one with the highest number,
and says which is the best. The digits after a number are the first of the manifest's SHA-256: other content has another
name. So no file of a checkpoint that is there is ever overwritten, and no pointer is needed that would be.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from palestra.storage.run_folder import to_json
from palestra.storage.segments import CheckpointError, DamagedError

FORMAT = 1
FOLDER_NAME = re.compile(r"([0-9]{8,})-[0-9a-f]{8}")
FILE_NAME = re.compile(r"[^./\\\0][^/\\\0]*")
CONTENTS = "contents.json"
RUN_FILES = ("run.json", "config.yml", "changes.jsonl", "records.jsonl")


@dataclass(frozen=True)
class Contents:
    """The SHA-256 of each file in a checkpoint's folder, and of each segment in `buffers/` that it needs, by name.

    best: the folder of the checkpoint that was the run's best so far.
    """

    files: dict[str, str]
    segments: dict[str, str]
    best: str | None

    def paths(self, name: str) -> set[str]:
        """Where the files of a checkpoint whose folder has that name lie on the mirror."""
        own = {f"checkpoints/{name}/{file}" for file in self.files}
        return own | {f"buffers/{segment}" for segment in self.segments}

    def to_bytes(self) -> bytes:
        document = {"format": FORMAT, "files": self.files, "segments": self.segments, "best": self.best}
        sha256 = hashlib.sha256(to_json(document).encode()).hexdigest()
        return to_json(document | {"sha256": sha256}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Contents":
        """Raises DamagedError for what `to_bytes` has not written, CheckpointError for a later format."""
        try:
            document = json.loads(content)
            found = document["format"]
            if isinstance(found, int) and found > FORMAT:
                raise CheckpointError(f"{CONTENTS} has format {found}; this palestra reads up to {FORMAT}")
            contents = cls(dict(document["files"]), dict(document["segments"]), document["best"])
            if contents.to_bytes() != content:
                raise ValueError("its SHA-256 differs")
            if not {*RUN_FILES, "manifest.json"} - {"changes.jsonl"} <= contents.files.keys():
                raise ValueError("it names no whole checkpoint")
            if contents.best is not None and not FOLDER_NAME.fullmatch(contents.best):
                raise ValueError(f"{contents.best!r} is no name of a checkpoint")
            for name in (*contents.files, *contents.segments):
                if not FILE_NAME.fullmatch(name):
                    raise ValueError(f"{name!r} is no name of a file")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError(f"{CONTENTS} is not what was written ({error})") from error
        return contents


def number_of(name: str) -> int:
    """The number of the checkpoint in a folder of that name."""
    return int(name.split("-")[0])


def folders_in(files: Iterable[str]) -> set[str]:
    """The names of the checkpoints' folders among the files of a mirror, whole or not."""
    names = (path.split("/")[1] for path in files if path.startswith("checkpoints/") and path.count("/") == 2)
    return {name for name in names if FOLDER_NAME.fullmatch(name)}
