"""The study of a sweep without any run: draws, claims, what is told once, what a pruner decides, and records as they
grow."""

import json
import math
import os
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.config import ConfigError, check, render
from palestra.run.checkpoints import Checkpoints
from palestra.run.kinds import read_config
from palestra.storage.disk import PIECE, RunFolderError
from palestra.storage.lock import Lock
from palestra.storage.records_file import Measure
from palestra.storage.run_folder import RunFolder
from palestra.sweeps.config import ObjectiveConfig, SweepConfig, read_sweep
from palestra.sweeps.folder import SweepFolder
from palestra.sweeps.outcomes import best_of, state_of
from palestra.sweeps.plan import Plan
from palestra.sweeps.seed_runs import Watched
from palestra.sweeps.space import Base, DimensionConfig, IntegerConfig, LogConfig, Space, UniformConfig
from palestra.sweeps.stored import StoredSweep
from palestra.sweeps.study import SweepStudy
from tests.sweeps.made_runs import evaluation

BASE = Path(__file__).parent.parent.parent / "configs/ppo-cartpole.yml"
TPE = {"name": "tpe", "startup_trials": 2, "ei_candidates": 4, "multivariate": True, "group": False}
HALVING = {"name": "successive_halving", "num_seeds": 1, "min_resource": 10, "reduction_factor": 2}
SWEEP: dict[str, Any] = {
    "seed": 3,
    "base": ["ppo-cartpole"],
    "space": {
        "learning_rate.initial": {"name": "log", "low": 1e-4, "high": 1e-1},
        "gamma": {"name": "choice", "values": [0.9, 0.99]},
    },
    "constraints": [],
    "seeds": [0],
    "objective": {"evaluation": "main", "pairing": 0, "measure": "return/agent", "goal": "max", "of": "last"},
    "search": TPE | {"constant_liar": False},
    "pruning": HALVING,
    "budget": {"trials": 4, "total": None, "minutes": None},
    "max_restarts": 3,
    "place": {"name": "local", "cores": 1, "cores_per_run": 1, "gpus": [], "runs_per_gpu": 1},
    "storage": {"name": "sqlite"},
}


def opened(path: Path, **changes: Any) -> SweepStudy:
    """The study in a folder, as a new process opens it."""
    plan = Plan(read_sweep(SWEEP | changes, []), {"ppo-cartpole": read_config(BASE)})
    folder = SweepFolder.create(path, render(plan.config, SweepConfig), {})
    return SweepStudy(folder, plan.config, plan.space, plan.search)


def values_of(path: Path, reopen: bool) -> list[tuple[Any, ...]]:
    """Four trials of made values, one after the other. reopen: by a new process at every step, asked twice."""
    study = opened(path)
    found = []
    for number in range(4):
        claimed = study.claim()
        if reopen:
            study = opened(path)
        point = study.point(claimed)
        if reopen:
            study = opened(path)
            [claimed] = study.running()
            assert study.point(claimed) == point, "what was drawn is kept"
        pruned_at = None
        for step in (10, 20, 40):
            value = math.log(point["players.agent.algorithm.learning_rate.initial"]) * step
            is_over = study.report(number, step, value)
            if reopen:
                study = opened(path)
                assert study.report(number, step, -1e9) == is_over, "the first value counts, and the first decision"
            if is_over:
                pruned_at = step
                study.prune(number)
                break
        else:
            study.complete(number, value)
        study.complete(number, 12345.0)  # told again, it changes nothing
        found.append((point, pruned_at, study.trials()[number].value, state_of(study.trials()[number])))
    return found


def test_draws_and_decisions_do_not_depend_on_who_asks_and_how_often(tmp_path: Path) -> None:
    once, often = values_of(tmp_path / "a", reopen=False), values_of(tmp_path / "b", reopen=True)
    assert once == often
    assert {state for *_, state in once} == {"succeeded", "pruned"}
    other = opened(tmp_path / "c", seed=4)
    assert other.point(other.claim()) != once[0][0]


def test_a_study_of_another_sweep_is_refused(tmp_path: Path) -> None:
    journal = {"name": "journal", "path": str(tmp_path / "j"), "study": "x"}
    first = opened(tmp_path / "a", storage=journal)
    first.claim()
    second = opened(tmp_path / "b", storage=journal)
    [trial] = second.running()
    assert first.is_ours(trial)
    assert not second.is_ours(trial)
    with pytest.raises(ConfigError, match=r"storage\.study: .*in which seed is 3, not 4"):
        opened(tmp_path / "c", storage=journal, seed=4)
    with pytest.raises(RunFolderError, match="is that of a sweep with another seed"):
        StoredSweep.open(tmp_path / "c", trust=True)
    optuna.create_study(study_name="y", storage=journal_storage(tmp_path / "j")).ask()
    with pytest.raises(ConfigError, match="which palestra did not make"):
        opened(tmp_path / "d", storage=journal | {"study": "y"})


def journal_storage(path: Path) -> Any:
    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))


def test_a_lock_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path).root
    lock = Lock.take(folder, "lock")
    assert lock is not None
    assert Lock.take(folder, "lock") is None
    lock.free()
    assert Lock.take(folder, "lock") is not None


def test_the_best_of_equal_trials_is_the_first_and_failed_ones_do_not_count() -> None:
    def trial(number: int, value: float | None, state: Any) -> Any:
        made = optuna.trial.create_trial(value=value, state=state)
        made.number = number
        return made

    complete, failed = optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.FAIL
    trials = [trial(0, None, failed), trial(1, 2.0, complete), trial(2, 2.0, complete), trial(3, 1.0, complete)]
    assert [best_of(trials, goal).number for goal in ("max", "min")] == [1, 3]  # type: ignore[union-attr]
    assert best_of(trials[:1], "max") is None


# ---- the space -----------------------------------------------------------------------------------------


@given(st.integers(1, 50), st.integers(0, 60), st.integers(1, 7))
def test_listed_integers_are_those_that_may_be_drawn(low: int, steps: int, step: int) -> None:
    high = low + steps * step
    dimension = check({"name": "integer", "low": low, "high": high, "step": step, "log": False}, IntegerConfig)
    assert dimension.stored() == [low + number * step for number in range(steps + 1)]
    distribution = optuna.distributions.IntDistribution(low, high, step=step)
    assert all(distribution._contains(value) for value in dimension.stored())


@given(st.floats(-5, 5), st.integers(1, 40), st.sampled_from([0.1, 0.25, 1.0]))
def test_listed_numbers_end_at_the_ends(low: float, steps: int, step: float) -> None:
    dimension = check({"name": "uniform", "low": low, "high": low + steps * step, "step": step}, UniformConfig)
    assert len(dimension.stored()) == steps + 1
    assert dimension.stored()[-1] == pytest.approx(low + steps * step)


def test_of_very_many_values_one_is_drawn_without_a_list_of_them() -> None:
    dimension = check({"name": "uniform", "low": 0.5, "high": 1.5, "step": 1e-12}, UniformConfig)
    [point] = Space([Base("x", {"a": 1.0}, SweepConfig)], {"a": dimension}).samples(1)
    assert 0.5 <= point["a"] <= 1.5


def test_drawn_points_lie_in_the_space_and_corners_have_every_end() -> None:
    dimensions: dict[str, DimensionConfig] = {
        "a": check({"name": "log", "low": 1e-3, "high": 1.0}, LogConfig),
        "b": check({"name": "integer", "low": 2, "high": 8, "step": 3, "log": False}, IntegerConfig),
    }
    space = Space([Base("x", {"a": 1.0, "b": 2}, SweepConfig)], dimensions)
    drawn = list(space.samples(200))
    assert all(1e-3 <= point["a"] <= 1.0 and point["b"] in (2, 5, 8) for point in drawn)
    assert sum(point["a"] < 0.03 for point in drawn) > 60, "half of them, for a logarithm"
    assert len(space.corners(256)) == 4
    some = space.corners(3)
    assert {point["a"] for point in some} == {1e-3, 1.0}
    assert {point["b"] for point in some} == {2, 8}


# ---- records as they grow --------------------------------------------------------------------------------


def watched(run: Path, of: str = "last", goal: str = "max", start: dict[str, int] | None = None) -> Watched:
    config = read_config(BASE, ["evaluations.0.interval.every=100", "stop.after=1000"])
    return Watched(run, config, check(SWEEP["objective"] | {"of": of, "goal": goal}, ObjectiveConfig), start or {})


def values(seen: Watched) -> dict[int, float]:
    return {step: seen.value_at(step) for step in seen.first}


def test_records_are_read_as_they_come_and_steps_are_those_of_the_interval(tmp_path: Path) -> None:
    file, seen = tmp_path / "records.jsonl", watched(tmp_path)
    seen.look()
    assert (values(seen), seen.latest) == ({}, None)
    whole = evaluation(0, 1.0) + evaluation(128, 5.0) + evaluation(256, 3.0)
    file.write_text(whole[:-20])
    seen.look()
    assert values(seen) == {0: 1.0, 100: 5.0}
    file.write_text(whole)
    seen.look()
    assert values(seen) == {0: 1.0, 100: 5.0, 200: 3.0}
    assert [seen.counts_at(step)["env_steps"] for step in seen.first] == [0, 128, 256]
    assert seen.share == 0.256
    best = watched(tmp_path, "best")
    best.look()
    assert (best.final(), seen.final()) == (5.0, 3.0)
    assert values(best) == {0: 1.0, 100: 5.0, 200: 5.0}
    least = watched(tmp_path, "best", goal="min")
    least.look()
    assert (least.final(), values(least)) == (1.0, {0: 1.0, 100: 1.0, 200: 1.0})


@pytest.mark.parametrize(("of", "final"), [("last", 2.0), ("best", 9.0)])
def test_the_evaluation_at_the_end_counts_at_the_end_alone(of: str, final: float, tmp_path: Path) -> None:
    """It falls into the interval of the one before it; what a pruner hears there must not depend on when it asks."""
    file, seen = tmp_path / "records.jsonl", watched(tmp_path, of)
    whole = [evaluation(128, 1.0), evaluation(256, 4.0), evaluation(290, 9.0), evaluation(299, 2.0)]
    for number in range(1, 5):
        file.write_text("".join(whole[:number]))
        seen.look()
        assert values(seen) == dict([(100, 1.0), (200, 4.0)][: min(number, 2)])
    assert (seen.latest, seen.final()) == (2.0, final)
    assert [seen.counts_at(step)["env_steps"] for step in seen.first] == [128, 256]


def test_what_a_branch_has_of_its_origin_is_not_its_own(tmp_path: Path) -> None:
    """Its evaluation at the start, the best one, is that of the run that it branches off; so is what that counted."""
    seen = watched(tmp_path, "best", start={"env_steps": 512, "opt_steps": 64})
    (tmp_path / "records.jsonl").write_text(evaluation(512, 9.0) + evaluation(640, 5.0) + evaluation(756, 3.0))
    seen.look()
    assert seen.final() == 5.0
    assert values(seen) == {600: 5.0, 700: 5.0}
    assert (seen.counts_at()["env_steps"], seen.counts_at(600)["env_steps"], seen.share) == (244, 128, 0.5)


def test_records_that_were_cut_back_and_come_again_change_nothing(tmp_path: Path) -> None:
    file, seen = tmp_path / "records.jsonl", watched(tmp_path)
    lines = [evaluation(128 * number, float(number)) for number in range(6)]
    file.write_text("".join(lines))
    seen.look()
    before = values(seen)
    file.write_text("".join(lines[:2]))
    seen.look()
    file.write_text("".join(lines[:4]))
    seen.look()
    assert values(seen) == before
    assert (seen.counts_at()["env_steps"], seen.share) == (640, 0.64)
    file.write_text("".join([*lines, evaluation(900, 9.0)]))
    seen.look()
    assert values(seen) == before | {900: 9.0}


def test_a_damaged_line_that_was_cut_off_and_comes_again_whole_counts(tmp_path: Path) -> None:
    file, seen = tmp_path / "records.jsonl", watched(tmp_path, "best")
    first, second, third = (evaluation(128 * number, float(number)) for number in range(3))
    file.write_text(first + second + "[" + third[1:])
    seen.look()
    assert (seen.latest, seen.num_damaged) == (1.0, 1)
    file.write_text(first)
    seen.look()
    file.write_text(first + second + third)
    seen.look()
    assert (seen.latest, seen.num_damaged) == (2.0, 0)


def test_an_evaluation_without_a_value_is_never_the_best(tmp_path: Path) -> None:
    lines = [evaluation(128, 5.0).replace(": 5.0", ": null"), evaluation(256, 4.0), evaluation(384, 3.0)]
    (tmp_path / "records.jsonl").write_text("".join(lines))
    best, least = watched(tmp_path, "best"), watched(tmp_path, "best", goal="min")
    for seen in (best, least):
        seen.look()
        assert math.isnan(seen.value_at(100))
    assert (best.final(), least.final()) == (4.0, 3.0)


def test_of_a_run_that_stops_after_minutes_the_share_is_that_of_its_training(tmp_path: Path) -> None:
    config = read_config(BASE, ["stop={after: 8, unit: minutes}"])
    seen = Watched(tmp_path, config, check(SWEEP["objective"], ObjectiveConfig), {})
    (tmp_path / "records.jsonl").write_text(json.dumps({"kind": "training", "clock": {"train_seconds": 120.0}}) + "\n")
    seen.look()
    assert (seen.minutes, seen.share) == (2.0, 0.25)


def save(run: Path, env_steps: int) -> None:
    """The last checkpoint of a run that has ended."""
    (run / "checkpoints").mkdir()
    counters = {"env_steps": env_steps, "opt_steps": env_steps // 8, "epochs": 0}
    Checkpoints(RunFolder(run), 1, None).save(0, {}, counters, {}, Measure([b""]).then())


DAMAGED = ["[1]", "3", "null", "{", "[" * 10_000, '{"env_steps": "x"}', '{"clock": 3}', '{"kind": "evaluation"}']
DAMAGED += [
    evaluation(512, 9.0).strip().replace(right, wrong)
    for right, wrong in {
        '"main"': '["main"]',
        '{"agent": "agent"}': '{"agent": ["agent"]}',
        '["agent"]': '[["agent"]]',
        ": 9.0": ': "9.0"',
        "512": "1" + "0" * 400,
    }.items()
]


@pytest.mark.parametrize("line", DAMAGED, ids=lambda line: line[:25])
def test_a_damaged_line_costs_that_line_alone(line: str, tmp_path: Path) -> None:
    file, seen = tmp_path / "records.jsonl", watched(tmp_path)
    file.write_text(evaluation(0, 8.5) + line + "\n")
    seen.look()
    assert (seen.latest, seen.num_damaged) == (8.5, 1)
    file.write_text(file.read_text() + evaluation(640, 62.0))
    save(tmp_path, 640)  # a callback has ended the run
    seen.end()
    assert (seen.fault, seen.final(), seen.num_damaged) == (None, 62.0, 1)
    best = watched(tmp_path, "best")
    best.end()
    assert math.isnan(best.final()), "the line may have held the best evaluation"


def test_a_line_without_an_end_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, seen, sizes, read = tmp_path / "records.jsonl", watched(tmp_path), [], os.pread

    def noted(descriptor: int, length: int, offset: int) -> bytes:
        sizes.append(length)
        return read(descriptor, length, offset)

    file.write_text(evaluation(128, 5.0))
    os.truncate(file, 4 * PIECE)
    monkeypatch.setattr(os, "pread", noted)
    seen.look()
    assert (values(seen), max(sizes)) == ({100: 5.0}, PIECE)


def test_without_the_evaluation_at_its_end_a_run_has_no_value(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(evaluation(0, 8.5) + "[1]\n")
    expected = "expected evaluation 'main' at the run's end"
    found = "got the last at opt step 0; 1 of its lines are damaged"
    unsaved = watched(tmp_path)
    unsaved.end()
    assert unsaved.fault == f"{file}: {expected}, {found}"
    save(tmp_path, 640)
    saved = watched(tmp_path)
    saved.end()
    assert saved.fault == f"{file}: {expected} at env step 640, {found}"
    assert math.isnan(saved.final())


@pytest.mark.parametrize(("env_steps", "more"), [(1000, {}), (640, {"ended": "a callback"})])
def test_a_run_that_saves_nothing_ends_with_its_last_record(env_steps: int, more: Any, tmp_path: Path) -> None:
    last = {"kind": "training", "env_steps": env_steps, "opt_steps": env_steps // 8} | more
    (tmp_path / "records.jsonl").write_text(evaluation(0, 8.5) + evaluation(env_steps, 62.0) + json.dumps(last) + "\n")
    seen = watched(tmp_path)
    seen.end()
    assert (seen.fault, seen.final()) == (None, 62.0)
