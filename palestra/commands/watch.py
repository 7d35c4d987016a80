"""Evaluates the checkpoints of a run as they are written, from another process than the one that trains."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from palestra.recording.results import counted_in
from palestra.runs.stored import Stored
from palestra.storage.checkpoints import CheckpointError, Checkpoints
from palestra.storage.records_file import parse_record

LOOK_S = 1.0  # between two searches for a new checkpoint


def watch(
    run: Stored, names: Sequence[str], num: int | None, look: Callable[[], None] = lambda: None
) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Evaluate all checkpoints of a run, the oldest first, and new ones as they are written, until the run has ended.

    Gives the number of each checkpoint with a record, or with the reason why there is none.

    names: of the evaluations. num: of games per pairing; None: as at the end of a run. look: called before every
    search, to bring new checkpoints from elsewhere. It takes no lock, and writes only into evaluations/. A checkpoint
    that was evaluated with as many games or items before is not evaluated again.
    """
    checkpoints, evaluated = Checkpoints(run.folder, keep_last=1, keep_every=None), set[tuple[int, int]]()
    while True:
        look()
        for number in checkpoints.numbers():
            try:  # a number comes again if the run was resumed from an earlier checkpoint
                written = (checkpoints.folder.path / f"{number:08d}" / "manifest.json").lstat().st_mtime_ns
                if (number, written) in evaluated:
                    continue
                evaluated.add((number, written))
                run.load(str(number))
            except (CheckpointError, FileNotFoundError) as error:
                is_there = number in checkpoints.numbers()
                yield number, str(error) if is_there else "it was deleted meanwhile, because the run keeps others"
                continue
            for name in names:
                record = _filed(run, name, num)
                yield number, run.evaluate(name, num)[1] if record is None else record
        if run.is_over:
            return
        time.sleep(LOOK_S)


def _filed(run: Stored, name: str, num: int | None) -> dict[str, Any] | None:
    """Return the record of an evaluation of the loaded checkpoint that was made before with as many games.

    None: there is none.
    """
    wanted = [num or run.evaluations.num(name, is_final=True)] * len(run.evaluations.pairings(name, with_scripted=True))
    try:
        record = parse_record(run.results.read(run.file_name(name)))
        played = [pair[counted_in(record)] + pair.get("started_over", 0) for pair in record["pairs"]]
        is_same = run.counters.items() <= record.items() and played == wanted
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return record if is_same else None
