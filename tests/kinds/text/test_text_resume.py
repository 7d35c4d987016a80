"""Runs of players that talk in words, stopped in every stage and resumed, end in the bits of an uninterrupted one."""

import json
import os
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from damage import DAMAGES, Damage
from hypothesis import given, settings
from hypothesis import strategies as st
from resuming import Killed, ask_to_leave, assert_same_bits, at_call, kill, records, send_signal, stopping_at
from typer.testing import CliRunner

from palestra import make_trainer
from palestra.cli import app
from palestra.commands.replay import verify
from palestra.kinds.text.trainer import TextTrainer
from palestra.kinds.text.tunings import Tunings
from palestra.run.branching import tree_differences
from palestra.text.models.local import LocalTuning
from palestra.text.waves import Waves
from palestra.training.training import Training
from tests.test_damaged_runs import DAMAGING, assert_damage_is_told_or_harmless
from tests.text.runs import RUNS, made_folder, registered_text_algorithms

# Each stops a run once in that stage. A kill throws away what was done since the last save; a signal saves first.
STOPS: dict[str, Callable[[random.Random], AbstractContextManager[Any]]] = {
    "imitation": lambda rng: at_call(LocalTuning, "step", rng.randint(1, 3), rng.choice([kill, send_signal])),
    "sample": lambda rng: at_call(Waves, "play_batch", rng.randint(2, 6), rng.choice([kill, send_signal])),
    "create_jobs": lambda rng: at_call(TextTrainer, "create_jobs", 1, rng.choice([kill, send_signal])),
    "await_jobs": lambda rng: at_call(Tunings, "_tune", rng.randint(1, 2), rng.choice([kill, send_signal])),
    "evaluation": lambda rng: at_call(TextTrainer, "evaluate", 2, kill),
    "a safe point": lambda rng: at_call(Training, "safe_point", rng.randint(2, 6), ask_to_leave),
    "save": lambda rng: at_call(os, "fsync", rng.randint(1, 30), kill),
}


def fit(run: Path, config: dict[str, Any]) -> TextTrainer:
    """Train a new run, or go on with one."""
    trainer = TextTrainer.load(run) if (run / "run.json").exists() else make_trainer(config, run=run)
    trainer.fit()
    assert isinstance(trainer, TextTrainer)
    return trainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_folder(tmp_path_factory.mktemp("models"))


def test_every_algorithm_of_text_players_takes_part() -> None:
    missing = {name for name in registered_text_algorithms() if not any(name in run for run in RUNS)}
    assert missing == set(), "add a run with each of these algorithms to RUNS in tests/text/runs.py"


def assert_survives(config: dict[str, Any], stages: Sequence[str], seed: str, folder: Path) -> None:
    run, rng = folder / "run", random.Random(seed)
    uninterrupted = fit(folder / "uninterrupted", config)
    num_stops = 0
    for stage in stages:
        with STOPS[stage](rng):
            try:
                num_stops += not fit(run, config).finished
            except Killed:
                num_stops += 1
    trainer = fit(run, config)
    assert num_stops >= len(stages) // 2, "the run was over before it was stopped"
    assert list(tree_differences(uninterrupted.state_dict(), trainer.state_dict())) == []
    assert_same_bits(run, folder / "uninterrupted")
    counted = [each["opt_steps"] for each in records(run) if each["kind"] == "training"]
    assert counted[:-1] == list(range(1, trainer.opt_steps + 1)), "each opt step is recorded once"


@pytest.mark.parametrize("number", range(len(RUNS)), ids=RUNS)
def test_a_run_stopped_in_its_stages_ends_in_the_same_bits(number: int, folder: Path, tmp_path: Path) -> None:
    """Every second stage of one run, the others of the next one."""
    name = list(RUNS)[number]
    assert_survives(RUNS[name](folder), list(STOPS)[number % 2 :: 2], name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", RUNS)
def test_a_run_stopped_in_every_stage_ends_in_the_same_bits(name: str, seed: int, folder: Path, tmp_path: Path) -> None:
    assert_survives(RUNS[name](folder), list(STOPS), f"{name} {seed}", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_stopped_at_every_safe_point_ends_in_the_same_bits(name: str, folder: Path, tmp_path: Path) -> None:
    config, run = RUNS[name](folder), tmp_path / "run"
    fit(tmp_path / "uninterrupted", config)
    num_stops = 0
    while True:
        with stopping_at(2):
            if fit(run, config).finished:
                break
        num_stops += 1
    assert num_stops > 20
    assert_same_bits(run, tmp_path / "uninterrupted")


def test_jobs_are_created_once_though_a_run_is_stopped_while_they_are_done(folder: Path, tmp_path: Path) -> None:
    """So a trainer of one's own may create them by chance, or by models that have learned since."""
    config, run = RUNS["expert_iteration, of one player in both roles"](folder), tmp_path / "run"
    with at_call(TextTrainer, "create_jobs", 0, kill) as created:
        with at_call(LocalTuning, "step", 4, send_signal):
            assert fit(run, config).jobs
        assert len(created) == 1
        assert fit(run, config).finished
    assert len(created) == 2


# ---- stored runs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def original(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two adapters with all of its checkpoints."""
    config = RUNS["expert_iteration and policy_gradient, of two adapters on one folder"](folder)
    config["evaluations"][0]["final_num_games"] = 3
    config["output"] |= {"save": {"every": 1, "unit": "stages"}, "keep_last": 9}
    run = tmp_path_factory.mktemp("runs") / "run"
    fit(run, config)
    return run


def evaluations(run: Path) -> dict[int, dict[str, Any]]:
    return {each["opt_steps"]: each for each in records(run) if each["kind"] == "evaluation"}


def evaluated(run: Path, *words: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["evaluate", str(run), *words])
    assert result.exit_code == 0, result.output
    file = result.output.split()[-1]
    found: dict[str, Any] = json.loads(next((run / "evaluations").glob(Path(file).name)).read_text())
    return found


def test_a_checkpoint_is_evaluated_as_in_training(original: Path) -> None:
    expected = evaluations(original)
    assert len(expected) == 4  # at the start, after imitation, after an epoch, and at the end
    assert evaluated(original) == expected[max(expected)]
    assert evaluated(original, "--checkpoint", "0") == expected[0]


@pytest.mark.parametrize("start", ["1", "4"])
def test_a_stretch_of_a_run_is_verified_by_sampling_anew(original: Path, start: str) -> None:
    with at_call(Waves, "play_batch", 0, kill) as batches:
        verdict = verify(original, start)
    assert (verdict.difference, verdict.end is None) == (None, False)
    assert len(batches) > 3


@pytest.mark.slow
def test_other_processes_evaluate_to_the_same_bits(original: Path, folder: Path, tmp_path: Path) -> None:
    config = RUNS["expert_iteration and policy_gradient, of two adapters on one folder"](folder)
    results = {"after": 6, "unit": "opt_steps"}
    config["evaluations"][0]["final_num_games"] = 3
    config["evaluators"] = {"num_processes": 1, "results": results, "timeout_s": 120.0, "max_restarts": 1}
    run = tmp_path / "beside"
    with stopping_at(20):
        fit(run, config)
    fit(run, config)
    assert evaluations(run) == evaluations(original)
    assert verify(run, None).difference is None


@settings(max_examples=4, **DAMAGING)
@given(data=st.data(), damage=DAMAGES)
def test_any_damage_to_a_run_is_told_or_harmless(
    stopped: Path, data: st.DataObject, damage: Damage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert_damage_is_told_or_harmless(stopped, data, damage, tmp_path_factory)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped on its way."""
    place = tmp_path_factory.mktemp("stopped")
    with stopping_at(24):
        fit(place / "run", RUNS["expert_iteration, of one player in both roles"](place))
    return place / "run"
