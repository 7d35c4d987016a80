"""What `palestra verify` does: it trains a stretch of a run again in a temporary folder, and compares.

Every record must be equal apart from its `clock`, and so must the state in the checkpoint at the end of that stretch.
Intervals in minutes follow the clock, so that they are due at other steps each time: what depends on them is left out,
and the verdict says so.
"""

import io
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rich.console import Console
from torch import Tensor

from palestra.config import render, trusting, walk
from palestra.recording.recorders import without_clock
from palestra.run.base import BaseRunConfig
from palestra.run.branching import Change, tree_differences
from palestra.run.checkpoints import Checkpoints
from palestra.run.kinds import read_stored_config
from palestra.run.loaded_checkpoint import LoadedCheckpoint
from palestra.runtime.intervals import Interval, Limit
from palestra.storage.disk import Folder, RunFolderError
from palestra.storage.manifest import BEGUN, MANIFEST, CheckpointPlace
from palestra.storage.records_file import parse_record
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import DamagedOnceError, read_checked
from palestra.training.checks import TrainingEnds, TrainingFailed, Watcher
from palestra.training.training import Training

BEGINNING = "beginning"
NEVER = 1e12  # minutes
MOST_BYTES = 1 << 40  # of a file whose SHA-256 was found to be right
MOST_RECORDS = 4 << 30  # bytes of records.jsonl, which is read whole


class Difference(NamedTuple):
    """The first difference. where: the record's kind and counters, or the checkpoint's name."""

    where: str
    change: Change

    def __str__(self) -> str:
        key, before, after = self.change
        if isinstance(before, Tensor) and isinstance(after, Tensor) and before.shape == after.shape:
            return f"{self.where}: {int((before != after).sum())} of the {before.numel()} numbers of {key} differ"
        return f"{self.where}: {key} was {before}, is {after}"


@dataclass(frozen=True)
class Verdict:
    """The result of `verify`.

    start: the name of the checkpoint where it began, or "beginning". num_records: how many records were compared. end:
    the checkpoint whose state was compared, if any. difference: None if all is equal. changed: lines on versions and
    machine that are no longer those of the run. clocked: the keys that count minutes, whose effects were left out.
    damage: what is wrong with records.jsonl, if its SHA-256 is not the one that a checkpoint holds.
    """

    start: str
    num_records: int
    end: str | None
    difference: Difference | None
    changed: list[str]
    clocked: list[str]
    damage: str | None


def verify(run: Path, start: str | None, trust: bool = False) -> Verdict:
    """Train again from a checkpoint to the next one, or to the end of the records, and compare.

    start: the checkpoint's number, or "beginning"; None: the newest checkpoint after which anything was recorded. The
    run's folder is only read. trust: whether the modules that the run names are trusted from now on. Raises
    RunFolderError where there is nothing to compare, CheckpointError for a checkpoint that is missing or damaged,
    UntrustedError for modules that are not trusted.
    """
    with trusting(trust):
        return _verify(run, start)


def _verify(run: Path, start: str | None) -> Verdict:
    folder = RunFolder.open(run)
    folder.require_rebuildable()
    folder.require_named_trainer()
    config = read_stored_config(folder.config).in_one_process()
    counting = ((keys, value) for keys, value in walk(config) if isinstance(value, Interval | Limit))
    clocked = [".".join(keys) for keys, value in counting if value.unit == "minutes"]
    if recording := [key for key in clocked if key not in ("stop", "output.save")]:
        keys = " and ".join(recording)
        raise RunFolderError(
            f"{keys}: expected a unit other than minutes, which follow the clock, to verify {run}, got minutes"
        )
    checkpoints = Checkpoints(folder, keep_last=1, keep_every=None)
    loaded = _start(folder, checkpoints, start)
    number, first = (-1, 0) if loaded is None else (loaded.manifest.number, loaded.records.length)
    later = (checkpoints.load(later, check_rows=False) for later in checkpoints.numbers() if later > number)
    end = next((checkpoint for checkpoint in later if checkpoint.records.length > first), None)
    expected = _records(folder, first, None if end is None else end.records.length)
    if "stop" in clocked and (end is None or end.entry("finished")):  # what was recorded and saved at its end
        end = None
        moments = [(record["opt_steps"], record["epochs"]) for record in expected]
        expected = [record for record, moment in zip(expected, moments, strict=True) if moment != moments[-1]]
    if "output.save" in clocked:
        end = None
    if not expected:
        raise RunFolderError(
            f"--from: expected a checkpoint of {run} after which something was recorded, got a later one"
        )
    with TemporaryDirectory(prefix="palestra-verify-") as place:
        trainer = _replay_trainer(folder, config, loaded, Path(place) / "run")
        trainer.require_repeatable()
        # a checkpoint that was only saved for a stop is not saved again
        due_end = end.manifest.number if end is not None and end.manifest.is_due else None
        replay = Replay(trainer, first, expected, due_end)
        try:
            trainer.fit()
        except TrainingFailed as failed:  # the temporary folder is of no use, so it is not named
            raise TrainingFailed(f"{run} could not be trained again: {failed.why}") from failed
        if trainer.run.signals.received is not None:
            sys.exit(128 + trainer.run.signals.received)
        replay.compare()
        difference, checkpoints_now = replay.difference, trainer.checkpoints
        compared = end if difference is None and end is not None and checkpoints_now.number == replay.end else None
        if compared is not None:
            difference = _first_difference_of_states(compared, checkpoints_now.stored.load("latest", check_rows=False))
        changed = [] if loaded is None else trainer.checkpoints.differences(loaded)
    name = BEGINNING if loaded is None else loaded.folder.name
    state = None if compared is None else compared.folder.name
    damage = _damage(folder, checkpoints, newest) if (newest := end or loaded) is not None else None
    return Verdict(name, len(expected), state, difference, changed, clocked, damage)


def _damage(folder: RunFolder, checkpoints: Checkpoints, newest: LoadedCheckpoint) -> str | None:
    """Say what is wrong with the records that a checkpoint counts, or with the files that it names and shares."""
    try:
        if changed := newest.manifest.check_once(folder.root):
            return changed[0]
        with folder.root.reading(folder.records.name) as records:
            return checkpoints.fault_of_records(newest, records, folder.records)
    except DamagedOnceError as error:
        return str(error)
    except OSError as error:
        return f"{folder.records} cannot be read: {error}"


class Replay(Watcher):
    """Watches a run that is trained again.

    It ends the training at the first record that differs, or at the end of the stretch: at the checkpoint `end` or, if
    that is None, after the last record.

    first: how many bytes of records.jsonl come before the stretch. expected: the records of the stretch.
    """

    def __init__(self, trainer: Training, first: int, expected: list[dict[str, Any]], end: int | None) -> None:
        self.trainer, self.first, self.expected, self.end = trainer, first, expected, end
        self.difference: Difference | None = None
        self.num_bytes = self.num_new = 0
        trainer.watcher = self
        trainer.evaluating.may_mark_earlier = False  # earlier checkpoints lie in the run that is trained again

    def after_safe_point(self) -> None:
        length = self.trainer.run.records.jsonl.length
        if length > self.num_bytes:
            self.num_bytes = length
            self.compare()
        is_saved = self.end is None or self.trainer.checkpoints.number == self.end
        if self.difference is not None or self.num_new > len(self.expected) - is_saved:
            self.trainer.lockstep.dismiss()
            raise TrainingEnds

    def compare(self) -> None:
        """Compare the records so far."""
        new = _records(self.trainer.run.folder, self.first, None)
        self.num_new = len(new)
        for before, now in zip(self.expected, new, strict=False):
            env_step = f", env step {before['env_steps']}" if "env_steps" in before else ""
            where = f"{before['kind']} at opt step {before['opt_steps']}{env_step}"
            for change in tree_differences(before, now):
                self.difference = Difference(where, change)
                return


def _start(folder: RunFolder, checkpoints: Checkpoints, start: str | None) -> LoadedCheckpoint | None:
    if start == BEGINNING:
        return None
    if start is not None:
        loaded = checkpoints.load(start)
        if not loaded.entry("has_replay_rows"):
            raise RunFolderError(
                f"--from: expected a checkpoint with replay rows (output.replay_in_checkpoints), got {loaded.folder}"
            )
        return loaded
    length = len(_content(folder))
    without_rows = ""
    for number in reversed(checkpoints.numbers()):
        loaded = checkpoints.load(number)
        without_rows = without_rows if loaded.entry("has_replay_rows") else "without replay rows, or "
        if loaded.records.length < length and loaded.entry("has_replay_rows"):
            return loaded
    got = "none" if not checkpoints.numbers() else f"only ones {without_rows}after which nothing was recorded"
    expected = f"expected a checkpoint in {folder.path} to begin from, got {got}"
    raise RunFolderError(f"{expected}; to train all of it again: --from {BEGINNING}")


def _replay_trainer(folder: RunFolder, config: BaseRunConfig, loaded: LoadedCheckpoint | None, path: Path) -> Training:
    """Make a trainer of the same run in another folder, which holds what the run held at that checkpoint.

    A `stop` in minutes does not end it.
    """
    copy = RunFolder.create_at(path)
    if config.stop.unit == "minutes":
        config = config.model_copy(update={"stop": Limit(after=NEVER, unit="minutes")})
    alone: dict[str, Any] = {"recorders": [], "mirror": None, "checkpoint_folder": None}  # it writes nowhere else
    config = config.model_copy(update={"output": config.output.model_copy(update=alone)})
    copy.root.write(copy.config.name, render(config, type(config)).encode())
    copy.write_facts(folder.facts().model_copy(update={"mirror": None, "checkpoint_folder": None}))
    for begun in BEGUN if loaded is None else ():
        _copy_files(folder.root.below(begun), copy.root.below(begun))
    # evaluations that have failed must fail again
    _copy_files(folder.evaluations.below("async"), copy.evaluations.below("async"))
    if loaded is not None:
        place = CheckpointPlace(copy.checkpoints.below(loaded.folder.name).make(), copy.buffers.make())
        for name in (MANIFEST, *loaded.manifest.files):
            place.folder.write(name, loaded.place.folder.read(name, MOST_BYTES))
        for name, stored in loaded.manifest.segments().items():
            place.buffers.write(name, read_checked(loaded.place.buffers, name, stored))
        for name_of_folder, files in loaded.manifest.once.items():
            source, target = folder.root.below(name_of_folder), copy.root.below(name_of_folder).make()
            for name, stored in files.items():
                target.write(name, read_checked(source, name, stored))
        copy.checkpoints.write("latest", f"{loaded.folder.name}\n".encode())
        copy.root.write(copy.records.name, _content(folder)[: loaded.records.length])
    return Training.load(path, console=Console(file=io.StringIO()))  # its display is not of interest


def _copy_files(source: Folder, target: Folder) -> None:
    for name in source.names():
        if source.kind(name) == "file":
            target.make().write(name, source.read(name, MOST_BYTES))


def _content(folder: RunFolder) -> bytes:
    """Read the bytes of records.jsonl; none where it is missing."""
    try:
        name = folder.records.name
        return b"" if folder.root.kind(name) is None else folder.root.read(name, MOST_RECORDS)
    except OSError as error:
        raise RunFolderError(f"{folder.records} cannot be read: {error}") from error


def _records(folder: RunFolder, first: int, last: int | None) -> list[dict[str, Any]]:
    """Read the records in some bytes of records.jsonl, without their clocks."""
    path, content = folder.records, _content(folder)
    before = content[:first].count(b"\n")
    records = []
    for number, line in enumerate(content[first:last].splitlines(), start=before + 1):
        try:
            records.append(without_clock(parse_record(line)))
        except ValueError as error:
            raise RunFolderError(f"{path}, line {number}: {error}; the file is damaged") from error
    return records


def _first_difference_of_states(before: LoadedCheckpoint, now: LoadedCheckpoint) -> Difference | None:
    pairs = ((each.state, each.manifest.model_dump()) for each in (before, now))
    one, two = (state | {"rows": manifest["buffers"], "once": manifest["once"]} for state, manifest in pairs)
    change = next(tree_differences(one, two), None)
    return None if change is None else Difference(f"checkpoint {before.folder.name}", change)
