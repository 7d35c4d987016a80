"""What a run comes to, and ways to stop one: what the proofs of resuming share."""

import contextlib
import hashlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from palestra import make_trainer
from palestra.kinds.games.trainer import Trainer
from palestra.recording.recorders import without_clock
from palestra.storage.records_file import read_records
from palestra.training.training import Training

# ---- what a run comes to -------------------------------------------------------------------------------


def checkpoint_content(folder: Path) -> dict[str, Any]:
    """All that a checkpoint says, but for the clock and what records.jsonl was, which its digits move."""
    manifest = json.loads((folder / "manifest.json").read_text())
    rows = hashlib.sha256()
    for entry in manifest["buffers"].values():
        for segment in entry["segments"]:
            rows.update((folder / segment["file"]).read_bytes())
    left_out = ("records", "seconds", "sha256")
    return {key: value for key, value in manifest.items() if key not in left_out} | {"rows": rows.hexdigest()}


def pointed_at(run: Path, pointer: str) -> dict[str, Any] | None:
    path = run / "checkpoints" / pointer
    return checkpoint_content(run / "checkpoints" / path.read_text().strip()) if path.exists() else None


def all_checkpoints(run: Path) -> list[dict[str, Any]]:
    return [checkpoint_content(path) for path in sorted((run / "checkpoints").glob("[0-9]*"))]


def records(run: Path) -> list[dict[str, Any]]:
    return [without_clock(record) for record in read_records(run / "records.jsonl")]


def assert_same_bits(run: Path, uninterrupted: Path) -> None:
    """Equal records, last and best checkpoint, and each checkpoint of the uninterrupted run among the run's own."""
    assert records(run) == records(uninterrupted)
    assert list(map(json.dumps, records(run))) == list(map(json.dumps, records(uninterrupted)))  # in their keys' order
    assert pointed_at(run, "latest") == pointed_at(uninterrupted, "latest")
    assert pointed_at(run, "best") == pointed_at(uninterrupted, "best")
    own = all_checkpoints(run)
    assert [checkpoint for checkpoint in all_checkpoints(uninterrupted) if checkpoint not in own] == []


# ---- ways to stop --------------------------------------------------------------------------------------


class Killed(BaseException):
    """Nothing in palestra catches it: to the files, as good as kill -9."""


@contextlib.contextmanager
def at_call(owner: Any, name: str, number: int, deed: Callable[..., None]) -> Iterator[list[int]]:
    """Do something just before the number-th call of a function, counted from 1; gives the list of all its calls."""
    original = getattr(owner, name)
    calls: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(len(calls) + 1)
        if len(calls) == number:
            deed(*args)
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, counted)
        yield calls


def ask_to_leave(trainer: Trainer, *args: Any) -> None:
    trainer.run.signals.received = signal.SIGTERM


def send_signal(*args: Any) -> None:
    signal.raise_signal(signal.SIGTERM)


def kill(*args: Any) -> None:
    raise Killed


def stopping_at(safe_point: int) -> Any:
    return at_call(Training, "safe_point", safe_point, ask_to_leave)


def fit(run: Path, config: dict[str, Any] | None = None) -> Trainer:
    """Train a new run, or go on with one."""
    trainer: Trainer = Trainer.load(run) if config is None else make_trainer(config, run=run)
    trainer.fit()
    return trainer
