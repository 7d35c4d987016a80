"""Evaluates the checkpoints of a run as they come, from another process than the one that trains."""

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from palestra.runs.stored import StoredRun, record_name
from palestra.storage.checkpoints import CheckpointError, Checkpoints

LOOK_S = 1.0  # between two looks for a new checkpoint


def watch(run: StoredRun, names: Sequence[str], num_games: int | None) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Evaluate those that are there, the oldest first, and those that come, until the run has ended; gives the number
    of each, with a record, or with the reason why there is none.

    names: of the evaluations. num_games: per pairing; None: the config's final number. Only reads what the run writes,
    and takes no lock. What is filed with the same number of games is not played again.
    """
    checkpoints, seen = Checkpoints(run.folder, keep_last=1, keep_every=None), set[tuple[int, int]]()
    while True:
        for number in checkpoints.numbers():
            try:  # a number may come again, where a run goes on from an earlier checkpoint
                written = (checkpoints.folder.path / f"{number:08d}" / "manifest.json").lstat().st_mtime_ns
                if (number, written) in seen:
                    continue
                seen.add((number, written))
                run.load(str(number))
            except (CheckpointError, FileNotFoundError) as error:
                is_there = number in checkpoints.numbers()
                yield number, str(error) if is_there else "it is gone: the run keeps others"
                continue
            for name in names:
                record = _filed(run, name, num_games)
                yield number, run.evaluate(name, num_games)[1] if record is None else record
        if run.is_over:
            return
        time.sleep(LOOK_S)


def _filed(run: StoredRun, name: str, num_games: int | None) -> dict[str, Any] | None:
    """The record of an evaluation of the players that are loaded, if it was played with as many games."""
    config = run.evaluations.configs[name]
    wanted = [num_games or config.final_num_games] * len(config.pairings)
    try:
        file = record_name(name, run.counters["opt_steps"])
        record: dict[str, Any] = json.loads(run.folder.evaluations.read(file))
        played = [pair["games"] + pair["started_over"] for pair in record["pairs"]]
        is_same = run.counters.items() <= record.items() and played == wanted
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return record if is_same else None
