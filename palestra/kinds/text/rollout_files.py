"""What a run of text players writes once beside its checkpoints: prompts, roll-outs and transcripts."""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from itertools import chain, count
from typing import Any

from palestra.run.evaluating import PLAYED
from palestra.run.run import Run
from palestra.run.run_checkpoints import RunCheckpoints
from palestra.storage.disk import Folder, RunFolderError, writing
from palestra.storage.manifest import ONCE
from palestra.storage.run_folder import RunFolder
from palestra.text.algorithms.algorithm import Example
from palestra.text.rollouts import Rollouts, read_rollouts, transcripts

LEARNED = {
    **{"player": "string", "epoch": "int64", "question": "int64", "rollout": "int64", "node": "int64"},
    **{"weight": "float64", "answer": "string", "worse": "int64"},
}
"""the columns that say what was learned from, as pyarrow types"""


class RolloutFiles:
    """The files of the dialogues of a run: `rollouts/NAME.parquet` and `transcripts/NAME.yml`.

    `learned/EPOCH.parquet` says what players learned from in an epoch.
    """

    def __init__(self, run: Run, checkpoints: RunCheckpoints) -> None:
        self.run, self.checkpoints = run, checkpoints

    def write(self, name: str, rollouts: Rollouts, content: bytes) -> None:
        """Write finished dialogues. If the disk refuses, the display says so, and the next save tries again.

        content: the same dialogues, as Parquet.
        """
        self.checkpoints.write_once("rollouts", f"{name}.parquet", content)
        if (told := self.run.config.output.transcripts) is not None:
            text = transcripts(rollouts, with_prompts=told == "prompts")
            self.checkpoints.write_once("transcripts", f"{name}.yml", text.encode())

    def write_learned(self, epoch: int, chosen: Mapping[str, Sequence[Example]]) -> None:
        """Write which decisions players learn from in an epoch, by the numbers that these have in their own files."""
        rows = [
            (player, row.epoch, row.question, row.rollout, row.node, weight, answer, worse and worse.node)
            for player, examples in chosen.items()
            for row, weight, answer, worse in examples
        ]
        if rows:
            arrow, content = import_module("pyarrow"), io.BytesIO()
            schema = arrow.schema([(name, getattr(arrow, kind)()) for name, kind in LEARNED.items()])
            columns = dict(zip(LEARNED, map(list, zip(*rows, strict=True)), strict=True))
            import_module("pyarrow.parquet").write_table(arrow.table(columns, schema=schema), content)
            self.checkpoints.write_once("learned", f"{epoch}.parquet", content.getvalue())

    def write_evaluation(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Write the dialogues of an evaluation, and return its record without them.

        A second evaluation of the same name and epoch gets another file.
        """
        if PLAYED not in record:
            return dict(record)
        there = self.checkpoints.stored.once.get("rollouts", {})
        first = f"{record['evaluation']}-{record['epochs']}"
        names = chain([first], (f"{first}-{number}" for number in count(2)))
        content = base64.b64decode(record[PLAYED])
        name = next(name for name in names if f"{name}.parquet" not in there)
        self.write(name, read_rollouts(content, f"evaluation {name}"), content)
        return {key: value for key, value in record.items() if key != PLAYED}

    def read(self, epochs: Iterable[int]) -> Rollouts:
        """Read the dialogues of epochs. Raises DamagedOnceError, RunFolderError."""
        stored, names = self.checkpoints.stored, [f"{epoch}.parquet" for epoch in epochs]
        parts = [read_rollouts(stored.read_once("rollouts", name), f"rollouts/{name}") for name in names]
        return Rollouts(row for part in parts for row in part.rows)


def packed(rollouts: Rollouts) -> str:
    """Return roll-outs as a text, which an evaluation in another process hands over."""
    return base64.b64encode(rollouts.to_parquet()).decode()


def write_rollouts(folder: Folder, name: str, played: str, told: str | None) -> None:
    """Write dialogues as Parquet, and as a transcript.

    played: what `packed` gave. told: what the transcript has, as `output.transcripts` says it; None: there is none.
    """
    content = base64.b64decode(played)
    folder.write(f"{name}.parquet", content)
    if told is not None:
        folder.write(f"{name}.yml", transcripts(read_rollouts(content, name), told == "prompts").encode())


# ---- prompts -----------------------------------------------------------------------------------------------


def write_prompts(files: Mapping[str, str], folder: RunFolder) -> None:
    """Copy the files of prompts, by name, into the folder of a new run. Raises RunFolderError."""
    with writing(folder.path):
        place = folder.prompts.make()
        for name, text in files.items():
            place.write(name, text.encode())


def read_prompts(folder: RunFolder) -> dict[str, str]:
    """Read what `write_prompts` has written. Raises RunFolderError."""
    place = folder.prompts
    try:
        return {name: place.read(name).decode() for name in filter(ONCE["prompts"].fullmatch, place.names())}
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{place.path} is damaged: {error}") from error
