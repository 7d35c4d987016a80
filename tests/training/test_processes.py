"""A run in several processes: the bits of one process, at any number of them, and errors that every process tells."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from combinations import LEARNERS, combinations_of, config_of, pairwise
from replica_cases import CASES, OWN_CLASSES, case
from resuming import ask_to_leave, assert_same_bits, at_call, fit

from palestra.config import ConfigError
from palestra.kinds.games.trainer import Trainer
from palestra.report.reading import RunData
from palestra.report.timings import waits_text
from palestra.storage.records_file import read_records
from palestra.training.training import Training
from tests.ranked import Ranked

Data = dict[str, Any]


def train_in_ranks(num: int, run: Path, config: Data | None, stop_at: int | None = None) -> Ranked:
    """Train in several processes, to the end or until one of them was asked to leave, which is the last one."""

    def body(rank: int) -> None:
        safe_point = stop_at if stop_at is not None and rank + 1 == num else 10_000
        with at_call(Training, "safe_point", safe_point, ask_to_leave):
            fit(run, config)

    ranks = Ranked(num, body, run.parent / f"{run.name}-{num}-{stop_at}")
    assert ranks.wait() == [0] * num, "\n".join(map(ranks.said, range(num)))
    return ranks


def cases() -> list[Any]:
    """Of each algorithm one combination, and the rest of the pairwise ones as slow."""
    found = []
    for algorithm in LEARNERS:
        for number, each in enumerate(pairwise(combinations_of(algorithm))):
            label = f"{algorithm}: {', '.join(each.values())}"
            found.append(pytest.param(algorithm, each, id=label, marks=[pytest.mark.slow] if number else []))
    return found


@pytest.mark.parametrize(("algorithm", "combination"), cases())
def test_how_many_processes_compute_changes_no_bit(algorithm: str, combination: Data, tmp_path: Path) -> None:
    config = config_of(algorithm, combination) | {"num_replicas": 4}
    fit(tmp_path / "whole", config)
    train_in_ranks(4, tmp_path / "run", config, stop_at=5)
    with at_call(Training, "safe_point", 8, ask_to_leave):  # of all four replicas together
        fit(tmp_path / "run")
    train_in_ranks(2, tmp_path / "run", None)
    assert_same_bits(tmp_path / "run", tmp_path / "whole")
    times = [
        record["clock"] for record in read_records(tmp_path / "run" / "records.jsonl") if record["kind"] == "training"
    ]
    assert [*times[-1]["waited_s"]] == ["0", "1"]
    assert waits_text(RunData.read(tmp_path / "run")).startswith("its processes have waited for each other: rank 0 ")


QUICK = "algorithm, trainer and callback of one's own"


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each == QUICK else [pytest.mark.slow]) for each in CASES]
)
def test_runs_of_every_kind_have_the_same_bits_in_one_process_two_and_four(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(OWN_CLASSES)
    fit(tmp_path / "whole", case(name))
    train_in_ranks(2, tmp_path / "two", case(name))
    train_in_ranks(4, tmp_path / "four", case(name), stop_at=6)
    assert RunData.read(tmp_path / "four").state.startswith("stopped")
    train_in_ranks(4, tmp_path / "four", None)
    for run in ("two", "four"):
        assert_same_bits(tmp_path / run, tmp_path / "whole")


@pytest.fixture
def config(make_config: Any) -> Data:
    found: Data = make_config({"num_replicas": 2, "stop.after": 12, "evaluations.0.interval.every": 6})
    return found


def failing(config: Data, folder: Path, body: Any) -> list[str]:
    """Return what each of two processes prints of a run that fails in both."""
    ranks = Ranked(2, body, folder / "ranks")
    assert ranks.wait() == [1, 1]
    logs = folder / "run" / "ranks" / "1.log"
    return [ranks.said(0), ranks.said(1) + (logs.read_text() if logs.exists() else "")]


def fail(*args: Any) -> None:
    raise ValueError("seen by the second process alone")


def die(*args: Any) -> None:
    time.sleep(1.2)  # until it is known what it does
    os.kill(os.getpid(), signal.SIGKILL)


def fit_with(deed: Any, run: Path, config: Data) -> Any:
    """Return what trains in each of two processes, the second of which does something at a safe point."""

    def body(rank: int) -> None:
        with at_call(Training, "safe_point", 4 if rank else 10_000, deed):
            fit(run, config)

    return body


def test_a_failure_of_one_process_is_that_of_all(config: Data, tmp_path: Path) -> None:
    said = failing(config, tmp_path, fit_with(fail, tmp_path / "run", config))
    assert "TrainingFailed: rank 1 has failed: ValueError: seen by the second process alone; " in said[0]
    assert "the last checkpoint is 00000000; to resume: palestra resume " in said[0]
    assert "ValueError: seen by the second process alone" in said[1]


def test_a_process_that_is_killed_is_named_and_the_run_goes_on_from_its_last_checkpoint(
    config: Data, tmp_path: Path
) -> None:
    config["output"]["save"] = {"every": 2, "unit": "opt_steps"}
    ranks = Ranked(2, fit_with(die, tmp_path / "run", config), tmp_path / "ranks")
    assert ranks.wait() == [1, -signal.SIGKILL]
    assert "ProcessLost: rank 1 has ended (what rank 1 did last: " in ranks.said(0)
    train_in_ranks(2, tmp_path / "run", None)
    fit(tmp_path / "whole", config)
    assert_same_bits(tmp_path / "run", tmp_path / "whole")


def test_processes_that_compute_something_else_are_told_before_anything_is_written(
    config: Data, tmp_path: Path
) -> None:
    said = failing(config, tmp_path, lambda rank: fit(tmp_path / "run", config | {"seed": rank}))
    assert all("ConfigError: seed: expected 0 in every process, as in rank 0, got 1 in rank 1" in each for each in said)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_one_process_does_not_see_is_told_by_all(
    config: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(rank: int) -> None:
        if rank:
            monkeypatch.setattr("palestra.training.processes.Path", lambda path: Path(f"{path}-elsewhere"))
        fit(tmp_path / "run", config)

    assert all("rank 1 does not see the run's folder: " in each for each in failing(config, tmp_path, body))


def test_a_log_of_a_process_that_is_a_link_is_refused_and_what_it_leads_to_stays(config: Data, tmp_path: Path) -> None:
    with at_call(Training, "safe_point", 4, ask_to_leave):
        fit(tmp_path / "run", config)
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "run" / "ranks").mkdir()
    (tmp_path / "run" / "ranks" / "1.log").symlink_to(tmp_path / "precious")
    ranks = Ranked(2, lambda rank: fit(tmp_path / "run"), tmp_path / "ranks")
    assert ranks.wait() == [1, 1]
    assert "1.log is a symbolic link, which palestra neither follows nor changes" in ranks.said(0)
    assert (tmp_path / "precious").read_text() == "precious"


def test_processes_that_nobody_has_started_are_asked_for_in_a_line(config: Data, tmp_path: Path) -> None:
    config["execution"]["num_processes"] = 2
    with pytest.raises(ConfigError, match="expected 1 in a program that torchrun has not started, got 2; `palestra"):
        Trainer(config, run=tmp_path / "run").fit()
    assert not (tmp_path / "run").exists()


def test_a_number_of_processes_that_does_not_divide_the_replicas_is_refused(config: Data) -> None:
    config["execution"]["num_processes"] = 3
    with pytest.raises(ConfigError, match=r"execution.num_processes: expected a divisor of num_replicas = 2, got 3"):
        Trainer(config)
