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
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError

from palestra.storage.facts import Entry, to_json
from palestra.storage.segments import CheckpointError, DamagedError, StoredFile

FORMAT: Literal[2] = 2  # since 2 it says the size of every file
FOLDER_NAME = re.compile(r"([0-9]{8,})-[0-9a-f]{8}")
CONTENTS = "contents.json"
RECORDS = "records.jsonl"
RUN_FILES = ("run.json", "config.yml", "changes.jsonl", RECORDS)


FileName = Annotated[str, Field(pattern=r"^[^./\\\x00][^/\\\x00]*$")]


class Contents(Entry):
    """What each file in a checkpoint's folder holds, and each segment in `buffers/` that it needs, by name.

    best: the folder of the checkpoint that was the run's best so far.
    """

    format: Literal[2]
    files: dict[FileName, StoredFile]
    segments: dict[FileName, StoredFile]
    best: Annotated[str, Field(pattern=f"^{FOLDER_NAME.pattern}$")] | None

    def paths(self, name: str) -> set[str]:
        """Where the files of a checkpoint whose folder has that name lie on the mirror."""
        own = {f"checkpoints/{name}/{file}" for file in self.files}
        return own | {f"buffers/{segment}" for segment in self.segments}

    def to_bytes(self) -> bytes:
        document = self.model_dump()
        sha256 = hashlib.sha256(to_json(document).encode()).hexdigest()
        return to_json(document | {"sha256": sha256}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Raises DamagedError for what `to_bytes` has not written, CheckpointError for another format."""
        try:
            document = json.loads(content)
            found = document["format"]
            if isinstance(found, int) and found != FORMAT:
                raise CheckpointError(f"{CONTENTS} has format {found}; this palestra reads format {FORMAT}")
            document.pop("sha256", None)
            contents = cls.model_validate(document)
            if contents.to_bytes() != content:
                raise ValueError("its SHA-256 differs")
            if not {*RUN_FILES, "manifest.json"} - {"changes.jsonl"} <= contents.files.keys():
                raise ValueError("it names no whole checkpoint")
        except ValidationError as error:
            raise DamagedError(f"{CONTENTS} is not what was written ({error.errors()[0]['msg']})") from error
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
