"""The benchmark of models: both sides learn the same digits, by the same opt steps."""

from pathlib import Path

import pytest

from benchmarks.models import bare, ours
from benchmarks.models.__main__ import WORK
from benchmarks.models.work import WARMUP_EPOCHS, Digits

SHORT = WORK | {"seed": 0, "num_threads": 1, "timed_seconds": 0.0, "learning_rate": 1e-2}


def test_both_sides_learn_for_whole_epochs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(Digits()) == 1797
    for side in (bare, ours):
        answer = side.train(SHORT)
        assert answer["epochs"] == 1, f"{WARMUP_EPOCHS} epochs of warm-up, then one"
        assert answer["seconds"] > 0.0
