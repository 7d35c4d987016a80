"""Reads the folder of a run for a report, and the evaluations of runs that are compared.

These are the last ones, those at a checkpoint, or new games. Nothing is written or locked, so the run may train
meanwhile; each damaged or missing file becomes a line that says so.
"""

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from palestra.config import ConfigError, check, cut, load_yaml, under
from palestra.evaluation.evaluator import nobody_watches
from palestra.recording.recorders import numbers_of
from palestra.recording.results import Evaluation, PairResult, as_float, distinct_pairs
from palestra.run.base import BaseRunConfig
from palestra.run.checkpoints import Checkpoints
from palestra.run.kinds import is_tournament, kind_of_stored
from palestra.run.loaded_checkpoint import AT, moment, numbers_in_words
from palestra.run.tables import run_name
from palestra.runtime.intervals import Counters, Limit
from palestra.storage.disk import RunFolderError
from palestra.storage.manifest import Manifest
from palestra.storage.records_file import iterate_records, parse_record, plain
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import NOT_OURS, CheckpointError
from palestra.training.stored_training import StoredRun

T = TypeVar("T")


@dataclass(frozen=True)
class Evaluated:
    """An evaluation at one moment of training. record: as it stands in the file, with the counters."""

    evaluation: Evaluation
    record: Mapping[str, Any]

    @property
    def pairs(self) -> list[tuple[PairResult, Mapping[str, Any]]]:
        """The results of the pairings, each with its entry in the record."""
        return list(zip(self.evaluation.pairs, distinct_pairs(self.record), strict=True))

    @property
    def changes(self) -> list[str]:
        """What was changed for it by `palestra evaluate`, as arguments of that command."""
        changes = self.record.get("changes")
        return [str(change) for change in changes] if isinstance(changes, list) else []


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint of a run.

    fault: why it cannot be used; None if it can. marks: latest, best, both or none. num_bytes: the size of its own
    folder, without the replay rows that checkpoints share.
    """

    name: str
    marks: tuple[str, ...]
    counters: Mapping[str, int]
    num_bytes: int
    fault: str | None


@dataclass(frozen=True)
class RunData:
    """Everything that a report needs of a run, as plain data.

    name: its name in the report. at: the moment that is compared, in words; empty for the last one. config: the mapping
    in config.yml, empty if it cannot be read. config_text: the text of that file. facts: run.json. training: the
    training records. recorded: what it says of recorded play. evaluated: the evaluations during training; both lists
    begin with the oldest. again: evaluations by `palestra evaluate`. changes: the lines of changes.jsonl. faults: a
    line for each damaged or missing file or line.
    """

    path: Path
    name: str
    at: str
    config: Mapping[str, Any]
    config_text: str
    facts: Mapping[str, Any]
    training: tuple[Mapping[str, Any], ...]
    recorded: tuple[Mapping[str, Any], ...]
    evaluated: tuple[Evaluated, ...]
    again: tuple[Evaluated, ...]
    changes: tuple[Mapping[str, Any], ...]
    checkpoints: tuple[StoredCheckpoint, ...]
    is_in_use: bool
    faults: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the run in a folder. Raises RunFolderError if there is none."""
        folder = RunFolder.open(path)
        faults: list[str] = []
        records, changes = (list(_undamaged(path, faults)) for path in (folder.records, folder.changes))
        evaluations = [record for record in records if record.get("kind") == "evaluation"]
        config: dict[str, Any] = _or_fault(lambda: load_yaml(folder.config), {}, faults)
        kind_of_stored(config, faults.append)
        return cls(
            path=path,
            name=run_name(path),
            at="",
            config=config,
            config_text=_or_fault(lambda: folder.config.read_text(errors="replace"), "", faults),
            facts=_or_fault(lambda: folder.facts().model_dump(), {}, faults),
            training=tuple(record for record in records if record.get("kind") == "training"),
            recorded=tuple(record for record in records if record.get("kind") == "data_set"),
            evaluated=tuple(Evaluated(Evaluation.from_record(record), record) for record in evaluations),
            again=tuple(_read_again(folder, faults)),
            changes=tuple(changes),
            checkpoints=tuple(_read_checkpoints(folder)),
            is_in_use=folder.is_in_use(),
            faults=tuple(faults),
        )

    def results(self, name: str) -> list[Evaluated]:
        """Return the evaluations of one name during training."""
        return [each for each in self.evaluated if each.evaluation.name == name]

    @property
    def is_tournament(self) -> bool:
        """Whether nobody learned in it."""
        return is_tournament(self.config)

    @property
    def seed(self) -> Any:
        return self.config.get("seed")

    @cached_property
    def kind(self) -> type[BaseRunConfig]:
        """The kind of run, as far as its config says it."""
        return kind_of_stored(self.config)

    @property
    def subject(self) -> str:
        """The name of the game, the environment or the data; "" if the config cannot be read."""
        return self.kind.subject(self.config)

    @property
    def learning(self) -> list[str]:
        """The names of the algorithms, or of the model, that learn."""
        return self.kind.learns_by(self.config)

    @property
    def players(self) -> Mapping[str, Any]:
        """The players in the config, by name."""
        players = under(self.config, "players")
        return players if isinstance(players, Mapping) else {}

    @property
    def counters(self) -> dict[str, int]:
        """The counters at the run's last record."""
        last = [records[-1] for records in (self.training, [each.record for each in self.evaluated]) if records]
        return {name: max((count_in(record, name) for record in last), default=0) for name in self.kind.counters}

    @property
    def train_seconds(self) -> float:
        """The seconds of training at the last record; NaN if no record has them."""
        clocks = [as_float(under(record, "clock", "train_seconds")) for record in self.training]
        return max((seconds for seconds in clocks if math.isfinite(seconds)), default=math.nan)

    @property
    def share(self) -> float:
        """The share of the run that is done, 0..1; NaN if the config cannot be read."""
        now: Counters = self.counters | {"minutes": 0.0 if math.isnan(self.train_seconds) else self.train_seconds / 60}
        try:
            return check(dict(self.config["stop"]), Limit).share(now)
        except (*NOT_OURS, ConfigError):
            return math.nan

    @property
    def state(self) -> str:
        """The state in words: complete, ended early, running, or stopped; the last two with the share that is done."""
        ended = self.training[-1].get("ended") if self.training else None
        if isinstance(ended, str):
            return f"ended early: {ended}"
        share = self.share
        if share >= 1.0 and not self.is_in_use:
            return "complete"
        percent = "an unknown share" if math.isnan(share) else f"{math.floor(100 * share)}%"
        return f"running, at {percent}" if self.is_in_use else f"stopped at {percent}"

    @cached_property
    def metrics(self) -> dict[str, list[tuple[Mapping[str, Any], float]]]:
        """The numbers in the training records, by the name that recorders give them, each with its record."""
        found: dict[str, list[tuple[Mapping[str, Any], float]]] = {}
        for record in self.training:
            for name, number in numbers_of(record).items():
                found.setdefault(name, []).append((record, float(number)))
        return found


def read_runs(paths: Sequence[Path]) -> list[RunData]:
    """Read runs, each once.

    If two have the same name, all are named by their paths. Raises RunFolderError for a folder that is no run.
    """
    runs = list({path.resolve(): RunData.read(path) for path in reversed(paths)}.values())[::-1]
    if len({run.name for run in runs}) < len(runs):
        runs = [replace(run, name=str(run.path)) for run in runs]
    return runs


def count_in(record: Mapping[str, Any], name: str) -> int:
    """Return what a record counts under a name, 0 if it does not say it."""
    value = record.get(name)
    return value if isinstance(value, int) else 0


def _or_fault(read: Callable[[], T], otherwise: T, faults: list[str]) -> T:
    try:
        return read()
    except (OSError, RunFolderError, ConfigError) as error:
        faults.append(str(error))
        return otherwise


def _undamaged(path: Path, faults: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the records in a file without damaged lines; none if the file does not exist."""
    try:
        yield from iterate_records(path, lambda fault: faults.append(f"{fault}; this line is left out"))
    except OSError as error:
        faults.append(f"{path} cannot be read: {error.strerror or error}")


def _read_again(folder: RunFolder, faults: list[str]) -> Iterator[Evaluated]:
    for name in (name for name in folder.evaluations.names() if name.endswith(".json") and not name.startswith(".")):
        try:
            record = parse_record(folder.evaluations.read(name))
            if (kind := record.get("kind")) not in ("evaluation", "failed_evaluation"):
                raise ValueError(f"expected the record of an evaluation, got kind {kind!r}")
        except (OSError, ValueError) as error:
            faults.append(f"{folder.evaluations.path / name} cannot be read: {cut(str(error), 200)}")
        else:
            if kind == "evaluation":
                yield Evaluated(Evaluation.from_record(record), record)


def _read_checkpoints(folder: RunFolder) -> Iterator[StoredCheckpoint]:
    checkpoints = Checkpoints(folder, keep_last=1, keep_every=None)
    marked = {"latest": checkpoints.latest(), "best": checkpoints.best()}
    for number in checkpoints.numbers():
        place, fault, counters, num_bytes = folder.checkpoints.below(f"{number:08d}"), None, {}, 0
        try:
            manifest = Manifest.read(place)
            counters, num_bytes = manifest.counters, sum(stored.size for stored in manifest.files.values())
        except CheckpointError as error:
            if not place.exists():  # a run that goes on has dropped it
                continue
            fault = str(error)
        marks = tuple(mark for mark, marked_number in marked.items() if marked_number == number)
        yield StoredCheckpoint(place.path.name, marks, counters, num_bytes, fault)


# ---- of one moment --------------------------------------------------------------------------------------------


class Moment(NamedTuple):
    """A run with its evaluations, all or those of one moment.

    checkpoint: the one with its players then: latest, best, a number or @ and an opt step.
    """

    run: RunData
    checkpoint: str


def read_moments(paths: Sequence[Path], checkpoint: str | None) -> list[Moment]:
    """Read runs, each with the evaluations that were played at a checkpoint.

    paths: of runs, or of checkpoints (RUN/checkpoints/00000003, RUN/checkpoints/best). checkpoint: for paths of runs:
    best, latest, a number or @ and an opt step; None: all evaluations. Raises RunFolderError if there is no such run or
    checkpoint, CheckpointError for a damaged one.
    """
    runs = {path: path.resolve().parent.parent if is_checkpoint(path) else path for path in paths}
    read = {run.path.resolve(): run for run in read_runs(list(runs.values()))}
    found = []
    for path, folder in runs.items():
        run = read[folder.resolve()]
        which = (path.resolve().name.lstrip("0") or "0") if is_checkpoint(path) else checkpoint
        found.append(Moment(run, "latest") if which is None else Moment(_at(run, which), which))
    return found


def is_checkpoint(path: Path) -> bool:
    """Return whether a path is that of a checkpoint, not of a run."""
    path = path.resolve()
    return path.parent.name == "checkpoints" and re.fullmatch("@?[0-9]+|latest|best", path.name) is not None


def _at(run: RunData, which: str) -> RunData:
    stored = stored_checkpoint(run, which)
    steps, names = stored.counters.get("opt_steps", 0), (*run.kind.axes, "opt_steps")
    there = [each for each in run.evaluated if all(each.record.get(n) == stored.counters.get(n) for n in names)]
    again = [each for each in run.again if each.evaluation.opt_steps == steps and not each.changes]
    at = f"opt step {steps:,}" if re.fullmatch("@?[0-9]+", which) else f"the {which} checkpoint"
    return replace(run, at=at, evaluated=tuple(there or again), again=())


def stored_checkpoint(run: RunData, which: str) -> StoredCheckpoint:
    """Return a checkpoint of a run.

    which: best, latest, a number or @ and an opt step. Raises RunFolderError if it does not exist, CheckpointError if
    it is damaged.
    """
    for stored in reversed(run.checkpoints):
        is_there = which.startswith(AT) and which == f"{AT}{moment(stored.counters)}"
        if is_there or which in stored.marks or re.fullmatch(f"0*{re.escape(which.lstrip('0') or '0')}", stored.name):
            if stored.fault is not None:
                raise CheckpointError(f"{run.path}: checkpoint {stored.name} cannot be used: {stored.fault}")
            return stored
    there = numbers_in_words([(int(stored.name), stored.counters) for stored in run.checkpoints])
    raise RunFolderError(f"{run.path}: expected the checkpoint best, latest or one of {there}, got {which!r}")


def play_afresh(moments: Sequence[Moment], num_games: int, tell: Callable[[str], None]) -> list[RunData]:
    """Play the evaluations of runs anew, only the pairings in which a player learns; returns the runs with the results.

    For all runs the games of an evaluation begin from the same states: its seed is that of the first run that has it.
    Nothing is written. tell: called with a line before each run. Raises ConfigError for a kind of run that knows no
    games and a run without an evaluation of a learning player, RunFolderError and CheckpointError if players cannot be
    restored.
    """
    starts: dict[str, int] = {}
    played = []
    for run, _ in moments:
        if "--games" not in run.kind.options:
            message = f"expected no such option, because {run.path} is {run.kind.in_words}"
            raise ConfigError.at("--games", f"{message}, got --games {num_games}")
        if not under(run.config, "evaluations"):
            raise _nothing_to_play(run)
    for run, which in moments:
        tell(f"playing {num_games:,} games per pairing with the players of {run.name}, checkpoint {which}")
        played.append(replace(run, evaluated=_played(run, which, num_games, starts), again=()))
    return played


def _played(run: RunData, which: str, num_games: int, starts: dict[str, int]) -> tuple[Evaluated, ...]:
    evaluations = under(run.config, "evaluations")
    for evaluation in evaluations if isinstance(evaluations, list) else []:
        seed = under(evaluation, "seed")
        starts.setdefault(under(evaluation, "name"), run.seed if seed is None else seed)
    stored = StoredRun.open(run.path, starts=starts)
    stored.load(which)
    if not any(stored.evaluations.pairings(name, with_scripted=False) for name in stored.evaluations.configs):
        raise _nothing_to_play(run)
    results = (stored.judge(name, num_games, False, nobody_watches) for name in stored.evaluations.configs)
    records = [plain({"kind": "evaluation", **stored.counters, **result}) for result in results]
    return tuple(Evaluated(Evaluation.from_record(record), record) for record in records)


def _nothing_to_play(run: RunData) -> ConfigError:
    way = f"palestra evaluate {shlex.quote(str(run.path))} --pairing ROLE=PLAYER plays one"
    return ConfigError.at(
        "--games", f"expected runs with an evaluation of a learning player, got {run.path}, which has none; {way}"
    )
