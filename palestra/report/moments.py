"""Reads the evaluations of runs that are compared: the last ones, those at a checkpoint, or new games."""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from palestra.config import ConfigError, under
from palestra.evaluation.evaluator import nobody_watches
from palestra.recording.recorders import plain
from palestra.recording.results import Evaluation
from palestra.report.reading import Evaluated, RunData, StoredCheckpoint, read_runs
from palestra.storage.disk import RunFolderError
from palestra.storage.loaded_checkpoint import AT, moment, numbers_in_words
from palestra.storage.stored_files import CheckpointError
from palestra.training.stored_training import open_stored


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
    stored = open_stored(run.path, starts=starts)
    stored.load(which)
    if not any(stored.evaluations.pairings(name, with_scripted=False) for name in stored.evaluations.configs):
        raise _nothing_to_play(run)
    found = []
    for name in stored.evaluations.configs:
        result = stored.judge(name, num_games, False, nobody_watches)
        record = plain({"kind": "evaluation", **stored.counters, **result})
        found.append(Evaluated(Evaluation.from_record(record), record))
    return tuple(found)


def _nothing_to_play(run: RunData) -> ConfigError:
    way = f"palestra evaluate {shlex.quote(str(run.path))} --pairing ROLE=PLAYER plays one"
    return ConfigError.at(
        "--games", f"expected runs with an evaluation of a learning player, got {run.path}, which has none; {way}"
    )
