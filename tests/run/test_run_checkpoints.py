"""The parts of a training, each without a training."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import MakeConfig

from palestra.run.evaluating import Evaluating, EvaluationHooks
from palestra.run.kinds import read_config
from palestra.run.run import ProgressReporter, Run, Standing
from palestra.run.run_checkpoints import RunCheckpoints
from palestra.runtime.timing import Mark
from palestra.storage.records_file import read_records
from palestra.storage.run_folder import RunFolder

COUNTS = {"env_steps": 8, "opt_steps": 4, "epochs": 2, "episodes": 1}


@contextmanager
def opened(config: dict[str, Any], place: Path | RunFolder) -> Iterator[RunCheckpoints]:
    run = Run(read_config(config), place, "alone", None, None, None)
    standing = Standing("train", 0.5, COUNTS, Mark(1.0, {}), {}, (), None)
    checkpoints = RunCheckpoints(ProgressReporter(run, lambda: standing))
    with run.opened(lambda folder: None, lambda: True), checkpoints.opened(list):
        yield checkpoints


def test_a_run_saves_a_state_and_reads_it_back_without_a_training(make_config: MakeConfig, tmp_path: Path) -> None:
    record = {"kind": "training", **COUNTS, "clock": {"train_seconds": 3.0}}
    with opened(make_config(), tmp_path / "run") as checkpoints:
        checkpoints.run.records.write(record)
        checkpoints.run.clock.set_before(3.0)
        saved = checkpoints.save({"weights": torch.arange(3)}, COUNTS, {}, True, True)
        checkpoints.run.records.write(record | {"opt_steps": 5})
    assert saved == tmp_path / "run" / "checkpoints" / "00000000"
    with opened(make_config(), RunFolder.open(tmp_path / "run")) as checkpoints:
        loaded = checkpoints.load_latest()
        assert loaded is not None
        checkpoints.go_back_to(loaded, {})
        assert loaded.state["weights"].tolist() == [0, 1, 2]
        assert (checkpoints.number, checkpoints.stored.best(), checkpoints.run.clock.seconds >= 3.0) == (0, 0, True)
    assert read_records(tmp_path / "run" / "records.jsonl") == [record]


def test_evaluations_of_nothing_are_never_due_and_their_test_is_over_at_once(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    with opened(make_config(), tmp_path / "run") as checkpoints:
        evaluating = Evaluating(checkpoints.progress, checkpoints, None)
        hooks = EvaluationHooks(torch.no_grad, lambda record: None)
        checkpoints.progress.begin({})
        assert (evaluating.at_end(), evaluating.must_save(COUNTS), evaluating.unkept_best()) == ([], False, None)
        inside = pytest.raises(RuntimeError, match="inside _test")
        with evaluating.test(COUNTS, hooks), inside, evaluating.test(COUNTS, hooks):
            pass
        evaluating.evaluate([], COUNTS, hooks)
    assert not evaluating.is_final
