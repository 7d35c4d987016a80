"""A search in generations: its choices beside a plain version of them, its runs beside the commands by hand, kills,
failures, what it keeps on the disk, and what is refused before anything starts."""

import json
import math
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import optuna
import pytest
from conftest import TINY
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import FrozenTrial, TrialState, create_trial

from palestra.config import ConfigError, Failed, check, load_yaml, reading_own, render
from palestra.kinds.games.config import RunConfig
from palestra.run.checkpoints import Checkpoints
from palestra.run.kinds import read_config
from palestra.storage.run_folder import RunFolder
from palestra.sweeps import evolution as evolution_module
from palestra.sweeps import sweep as sweep_module
from palestra.sweeps.config import SweepConfig, read_sweep
from palestra.sweeps.display import SweepDisplay, generation_text, screen_lines
from palestra.sweeps.evolution import Evolution, multiplied, mutated
from palestra.sweeps.outcomes import FAILURE, parent_of, ranked, state_of
from palestra.sweeps.places import Job
from palestra.sweeps.plan import Plan
from palestra.sweeps.search import EvolutionConfig
from palestra.sweeps.space import Base, ChoiceConfig, IntegerConfig, Space, UniformConfig, drawn
from palestra.sweeps.stored import StoredSweep
from palestra.sweeps.sweep import Sweep
from tests.sweeps.made_runs import Over, begin_run, end_run, evaluation
from tests.sweeps.small_runs import ROOT, done, palestra
from tests.sweeps.test_sweep_chaos import kill_a_run

GAMMA, RATE = "players.host.algorithm.gamma", "players.host.algorithm.learning_rate.initial"
MUTATION = {"factors": [0.8, 1.2], "redraw": 0.25}
SEARCH: dict[str, Any] = {
    "name": "evolution",
    "size": 3,
    "generation": {"after": 8, "unit": "opt_steps"},
    "quantile": 0.3,
    "crossover": False,
    "mutation": MUTATION,
}
SWEEP: dict[str, Any] = {
    "seed": 5,
    "base": ["base.yml"],
    "space": {
        "players.host.algorithm.learning_rate.initial": {"name": "log", "low": 1e-3, "high": 1e-1},
        "players.host.algorithm.gamma": {"name": "choice", "values": [0.9, 0.95, 0.99]},
    },
    "constraints": [],
    "seeds": [0],
    "objective": {"evaluation": "main", "pairing": 0, "measure": "rho", "goal": "max", "of": "last"},
    "search": SEARCH,
    "pruning": None,
    "budget": {"trials": 9, "total": None, "minutes": None},
    "max_restarts": 1000,
    "place": {"name": "local", "cores": 1, "cores_per_run": 1, "gpus": [], "runs_per_gpu": 1},
    "storage": {"name": "sqlite"},
}


def write(folder: Path, **changes: Any) -> Path:
    """sweep.yml and base.yml in a folder."""
    base = check(TINY, RunConfig)
    (folder / "base.yml").write_text(render(base, RunConfig))
    file = folder / "sweep.yml"
    file.write_text(render(read_sweep(SWEEP | changes, []), SweepConfig))
    return file


def swept(folder: Path, code: int = 0, **changes: Any) -> list[FrozenTrial]:
    done("sweep", write(folder, **changes), "--run", "s", cwd=folder, code=code)
    return trials_of(folder / "s")


def trials_of(sweep: Path) -> list[FrozenTrial]:
    return ranked(StoredSweep.open(sweep).trials)


def told(sweep: Path) -> list[tuple[Any, ...]]:
    """What does not depend on how often a sweep was killed."""
    return [
        (state_of(trial), trial.params, trial.value, parent_of(trial), trial.user_attrs["values"])
        for trial in trials_of(sweep)
    ]


# ---- choices -------------------------------------------------------------------------------------------------

SPACE: dict[str, Any] = {
    RATE: {"name": "log", "low": 1e-3, "high": 1e-1},
    GAMMA: {"name": "choice", "values": [0.9, 0.95, 0.99]},
    "players.host.algorithm.batch_size": {"name": "integer", "low": 2, "high": 20, "step": 3, "log": False},
    "players.host.algorithm.max_grad_norm": {"name": "uniform", "low": 1.0, "high": 11.0, "step": 0.5},
    "players.host.algorithm.target.tau": {"name": "uniform", "low": 0.05, "high": 0.2, "step": None},
}


def evolution_of(goal: str = "max", allows: Callable[[Any], bool] = lambda point: True, **keys: Any) -> Evolution:
    space = Space([Base("base", TINY, RunConfig)], read_sweep(SWEEP | {"space": SPACE}, []).space)
    return Evolution(check(SEARCH | keys, EvolutionConfig), space, allows, goal, seed=5)


def ended(number: int, point: Any, value: float | None) -> FrozenTrial:
    distributions = {key: optuna.distributions.CategoricalDistribution([each]) for key, each in point.items()}
    state, facts = (TrialState.FAIL, {FAILURE: "no memory"}) if value is None else (TrialState.COMPLETE, {})
    trial = create_trial(state=state, value=value, params=point, distributions=distributions, user_attrs=facts)
    trial.number = number
    return trial


def plain_change(key: str, value: Any, draw: random.Random) -> Any:
    """What the paper calls explore, for the space above: resample or perturb."""
    dimension = read_sweep(SWEEP | {"space": SPACE}, []).space[key]
    if draw.random() < MUTATION["redraw"]:
        return drawn(dimension, draw)
    if key == GAMMA:
        return {
            0.9: lambda: draw.choice([0.95]),
            0.95: lambda: draw.choice([0.9, 0.99]),
            0.99: lambda: draw.choice([0.95]),
        }[value]()
    factor = draw.choice(MUTATION["factors"])
    if key.endswith("batch_size"):
        allowed = list(range(2, 21, 3))
        near = min(allowed, key=lambda each: abs(each - value * factor))
        other = [each for each in allowed if (each > value if factor > 1 else each < value)]
        return near if near != value or not other else (min(other) if factor > 1 else max(other))
    if key.endswith("max_grad_norm"):
        return min(max(round(2 * (value * factor - 1.0)) / 2 + 1.0, 1.0), 11.0)
    low, high = SPACE[key]["low"], SPACE[key]["high"]
    return min(max(value * factor, low), high)


def plain_generation(before: Sequence[FrozenTrial], first: int, crossover: bool, quantile: float) -> list[Any]:
    """Truncation selection as the paper has it: who is among the worst copies one of the best, and explores. With
    crossover, a key comes from either of two. Gives the parent's number and the point of each member."""
    size = len(before)
    best_first = sorted(before, key=lambda trial: (trial.value is None, -(trial.value or 0.0), trial.number))
    top, bottom = best_first[: math.ceil(quantile * size)], best_first[size - math.ceil(quantile * size) :]
    members = []
    for place, member in enumerate(before):
        draw = random.Random(sha256(f"5/{first + place}".encode()).digest())
        if member.value is not None and not any(member is each for each in bottom):
            members.append((member.number, member.params))
            continue
        alive = [each for each in top if each.value is not None]
        parents = draw.sample(alive, min(1 + crossover, len(alive)))
        keys = {key: draw.choice(parents).params[key] for key in SPACE}
        members.append((parents[0].number, {key: plain_change(key, value, draw) for key, value in keys.items()}))
    return members


@pytest.mark.parametrize("crossover", [False, True])
def test_choices_are_those_of_a_plain_version_on_values_at_random(crossover: bool) -> None:
    draw = random.Random(7)
    for size, quantile in [(2, 0.5), (3, 0.25), (4, 0.25), (8, 0.25), (9, 0.3), (20, 0.2)]:
        evolution, trials = evolution_of(size=size, quantile=quantile, crossover=crossover), list[FrozenTrial]()
        for generation in range(4):
            first = generation * size
            found = [evolution.member(rank, trials) for rank in range(first, first + size)]
            if generation:
                expected = plain_generation(trials[first - size :], first, crossover, quantile)
                assert [(each.parents[0].number, each.point) for each in found] == expected
                assert all(parent.value is not None for each in found for parent in each.parents)
            failing = draw.choice([0.2, 0.9])
            values = [None if draw.random() < failing else draw.choice([draw.uniform(-1, 1), 0.5]) for _ in found]
            values[draw.randrange(size)] = -0.5
            trials += [ended(first + n, each.point, values[n]) for n, each in enumerate(found)]


def test_of_the_lowest_values_the_lowest_is_the_best() -> None:
    values = [3.0, 1.0, 2.0, 4.0]
    trials = [ended(n, dict.fromkeys(SPACE, 0), value) for n, value in enumerate(values)]
    for n, trial in enumerate(trials):
        trial.params = evolution_of(size=4).member(n, []).point
    parents = [
        evolution_of("min", size=4, quantile=0.25).member(rank, trials).parents[0].number for rank in range(4, 8)
    ]
    assert parents == [0, 1, 2, 1]


NUMBERS = st.floats(0.01, 100.0)


@given(st.data())
def test_no_value_leaves_its_dimension(data: st.DataObject) -> None:
    draw = random.Random(data.draw(st.integers(0, 2**32)))
    low, width = data.draw(st.floats(-50.0, 50.0)), data.draw(st.floats(0.1, 50.0))
    start, num, step = data.draw(st.integers(-40, 40)), data.draw(st.integers(0, 30)), data.draw(st.integers(1, 7))
    dimensions: list[Any] = [
        {"name": "uniform", "low": low, "high": low + width, "step": None},
        {"name": "uniform", "low": low, "high": low + num * 0.1, "step": 0.1},
        {"name": "log", "low": (bottom := data.draw(NUMBERS)), "high": bottom * (1 + width)},
        {"name": "integer", "low": start, "high": start + num * step, "step": step, "log": False},
        {"name": "integer", "low": abs(start) + 1, "high": abs(start) + 1 + num, "step": 1, "log": True},
        {"name": "choice", "values": ["a", 2, None, [3]][: data.draw(st.integers(1, 4))]},
    ]
    mutation = {"factors": data.draw(st.lists(NUMBERS, min_size=1)), "redraw": data.draw(st.floats(0, 1))}
    search = check(SEARCH | {"mutation": mutation}, EvolutionConfig)
    for dimension in read_sweep(
        SWEEP | {"space": {str(n): each for n, each in enumerate(dimensions)}}, []
    ).space.values():
        value = drawn(dimension, draw)
        for _ in range(20):
            before, value = value, mutated(value, dimension, search.mutation, draw)
            if isinstance(dimension, ChoiceConfig):
                assert value in dimension.stored()
                continue
            assert dimension.low <= value <= dimension.high
            if isinstance(dimension, IntegerConfig):
                assert type(value) is int
                assert (value - dimension.low) % dimension.step == 0
            if isinstance(dimension, UniformConfig) and dimension.step is not None:
                assert (value - dimension.low) / dimension.step == pytest.approx(round((value - dimension.low) / 0.1))
            assert before is not None


def test_an_integer_moves_by_a_step_at_least_and_stays_at_its_bounds() -> None:
    plain = IntegerConfig(name="integer", low=-3, high=9, step=1, log=False)
    wide = IntegerConfig(name="integer", low=0, high=40, step=4, log=False)
    assert [multiplied(n, 1.1, plain) for n in (-3, -2, 0, 2, 9)] == [-3, -3, 1, 3, 9]
    assert [multiplied(n, 0.9, plain) for n in (-3, -2, 0, 2, 9)] == [-2, -1, -1, 1, 8]
    assert [multiplied(n, 1.1, wide) for n in (0, 4, 20, 40)] == [4, 8, 24, 40]
    assert multiplied(4, 1.0, wide) == 4


def test_members_that_violate_a_constraint_are_drawn_again_and_after_a_thousand_draws_the_sweep_fails() -> None:
    asked: list[Any] = []

    def every_third(point: Any) -> bool:
        asked.append(point)
        return len(asked) % 3 == 0

    evolution = evolution_of(allows=every_third)
    points = [evolution.member(rank, []).point for rank in range(3)]
    assert points == asked[2::3]
    assert len(asked) == 9
    evolution = evolution_of(allows=lambda point: False)
    with pytest.raises(Failed, match=r"^constraints: none of 1,000 draws fulfils them for member 1 of generation 0;"):
        evolution.member(1, [])


def test_a_generation_waits_for_the_one_before_and_needs_somebody_who_has_succeeded() -> None:
    evolution, point = evolution_of(), {GAMMA: 0.9}
    over = [ended(0, point, 1.0), ended(1, point, None), ended(2, point, 2.0)]
    running = create_trial(state=TrialState.RUNNING)
    assert all(evolution.may_begin(rank, over[:rank]) for rank in range(4))
    assert not evolution.may_begin(3, [*over[:2], running])
    assert not evolution.may_begin(3, [over[1]] * 3)
    assert evolution.may_begin(4, [*over, running])


# ---- runs ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def population(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with s, three generations of three members that learn in a moment."""
    folder = tmp_path_factory.mktemp("population")
    output = done("sweep", write(folder), "--run", "s", cwd=folder)
    assert "s: 9 trials in 3 generations of 3, each with 1 seed" in output
    (folder / "output").write_text(output)
    return folder


def state(run: Path) -> dict[str, Any]:
    """The state of a run at its last checkpoint, and its rows."""
    loaded = Checkpoints(RunFolder(run), 1, None).load("latest")
    rows = {name: [(s.start, s.stop, s.stored.sha256) for s in each.segments] for name, each in loaded.buffers.items()}
    return {"state": (loaded.folder / "state.json").read_bytes(), "rows": rows} | {
        path.name: path.read_bytes() for path in loaded.folder.glob("tensors.*")
    }


def records(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "clock"} for line in lines]


def test_a_members_run_is_to_the_bit_what_the_commands_give_by_hand(population: Path, tmp_path: Path) -> None:
    trials = trials_of(population / "s")
    child = next(t for t in trials[6:] if trials[parent_of(t)].params != t.params)
    line = [trials[number] for number in reversed(list(numbers_back(child, trials)))]
    latest = None
    for step, trial in enumerate(line, 1):
        keys = [f"{key}={value}" for key, value in trial.params.items()]
        end = [f"stop.after={8 * step}", "--run", f"by-hand-{step}", "--quiet"]
        if latest is None:
            done("train", population / "base.yml", *keys, *end, cwd=tmp_path)
        else:
            done("branch", latest, *keys, *end, cwd=tmp_path)
        latest = f"by-hand-{step}/checkpoints/latest"
    ours, by_hand = population / f"s/trials/{child.number:04d}/seed-0", tmp_path / "by-hand-3"
    assert len(line) == 3
    assert state(ours) == state(by_hand)
    assert records(ours) == records(by_hand)
    assert load_yaml(ours / "config.yml") == load_yaml(by_hand / "config.yml")
    assert load_yaml(ours / "config.yml") == load_yaml(ours.parent / "config.yml")


def numbers_back(trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> Iterator[int]:
    number: int | None = trial.number
    while number is not None:
        yield number
        number = parent_of(trials[number])


def test_who_goes_on_and_who_becomes_a_child_of_whom_is_in_the_study(population: Path) -> None:
    trials = trials_of(population / "s")
    for generation in (1, 2):
        before, after = trials[3 * generation - 3 : 3 * generation], trials[3 * generation : 3 * generation + 3]
        order = sorted(before, key=lambda trial: (-(trial.value or 0.0), trial.number))
        for place, member in enumerate(after):
            is_child = before[place] is order[-1]
            assert parent_of(member) == (order[0] if is_child else before[place]).number
            assert is_child or member.params == before[place].params
            assert member.user_attrs["counts"]["opt_steps"] == 8


def test_what_a_population_tells(population: Path) -> None:
    trials = trials_of(population / "s")
    best = max(trials, key=lambda trial: (trial.value or 0.0, -trial.number))
    output = (population / "output").read_text()
    assert output.splitlines()[-1] == f"its run: s/trials/{best.number:04d}/seed-0"
    table = done("trials", "s", "--csv", "t.csv", cwd=population)
    assert table.splitlines()[0].split()[:3] == ["trial", "state", "parent"]
    rows = [line.split(",")[:3] for line in (population / "t.csv").read_text().splitlines()]
    assert rows[0] == ["trial", "state", "parent"]
    assert {row[0]: row[2] for row in rows[1:]} == {
        str(t.number): "" if parent_of(t) is None else str(parent_of(t)) for t in trials
    }
    text, line = (population / "s/best.yml").read_text(), [str(n) for n in numbers_back(best, trials)]
    comment = f"# The keys of trial {line[0]}, which branches off {', '.join(line[1:])}.\n"
    assert text.startswith(comment) == (len(line) > 1)
    assert load_yaml(population / "s/best.yml") == load_yaml(population / f"s/trials/{best.number:04d}/config.yml")
    done("report", "s", cwd=population)
    page = (population / "s/report.html").read_text()
    assert f"From where trial {best.number}, the best one, comes." in page
    again = done("resume", "s", "--retry-failed", cwd=population)
    assert "no trial has failed" in again


def files(run: Path, pattern: str) -> int:
    return len([path for path in run.rglob(pattern) if path.is_file()])


def test_two_generations_keep_their_rows_and_what_came_before_the_checkpoint_of_its_value(population: Path) -> None:
    for trial in trials_of(population / "s"):
        run = population / f"s/trials/{trial.number:04d}/seed-0"
        is_spared = trial.number < 3
        checkpoints = Checkpoints(RunFolder(run), 1, None)
        loaded = checkpoints.load("latest")
        assert (loaded.buffers == {}) == is_spared
        assert (checkpoints.numbers() == [checkpoints.latest()]) == is_spared
        assert checkpoints.latest() == (checkpoints.best() if is_spared else checkpoints.latest())
        assert loaded.state["has_replay_rows"] is not is_spared
        assert loaded.counters["opt_steps"] == 8 * (trial.number // 3 + 1)
        assert [each["kind"] for each in records(run)].count("evaluation") == 2
    done("evaluate", "s/trials/0000/seed-0", cwd=population)


def test_without_a_quantile_members_are_uncut_runs_also_with_two_seeds(tmp_path: Path) -> None:
    search = SEARCH | {"size": 2, "quantile": 0.0}
    trials = swept(tmp_path, search=search, seeds=[0, 4], budget=SWEEP["budget"] | {"trials": 4})
    assert [parent_of(trial) for trial in trials] == [None, None, 0, 1]
    assert [len(trial.user_attrs["values"]) for trial in trials] == [2] * 4
    for seed in (0, 4):
        whole = f"whole-{seed}"
        done(
            "train",
            "s/trials/0001/config.yml",
            "stop.after=16",
            f"seed={seed}",
            "--run",
            whole,
            "--quiet",
            cwd=tmp_path,
        )
        uncut, member = state(tmp_path / whole), state(tmp_path / f"s/trials/0003/seed-{seed}")
        scores = [json.loads(each.pop("state"))["evaluating"].pop("best_score") for each in (uncut, member)]
        assert len(scores) == 2
        assert uncut == member


def test_the_value_of_a_branch_leaves_out_the_evaluation_at_its_start(tmp_path: Path) -> None:
    objective = SWEEP["objective"] | {"of": "best", "goal": "min"}
    search = SEARCH | {"size": 1, "quantile": 0.0}
    trials = swept(tmp_path, search=search, objective=objective, budget=SWEEP["budget"] | {"trials": 3})
    for trial in trials:
        found = [
            each for each in records(tmp_path / f"s/trials/{trial.number:04d}/seed-0") if each["kind"] == "evaluation"
        ]
        values = [each["pairs"][0]["scores"]["rho"] for each in found]
        assert len(values) == 2
        assert trial.value == (min(values) if trial.number == 0 else values[1])
    found = records(tmp_path / "s/trials/0000/seed-0")
    values = {each["opt_steps"]: each["pairs"][0]["scores"]["rho"] for each in found if each["kind"] == "evaluation"}
    checkpoints = Checkpoints(RunFolder(tmp_path / "s/trials/0000/seed-0"), 1, None)
    assert checkpoints.load("latest").counters["opt_steps"] == min(values, key=lambda step: (values[step], step))
    assert checkpoints.numbers() == [checkpoints.latest()]


# ---- kills and failures ----------------------------------------------------------------------------------------


def test_a_population_killed_at_random_ends_as_one_that_was_not(population: Path, tmp_path: Path) -> None:
    draw, file, killed = random.Random(3), write(tmp_path), tmp_path / "killed"
    num_kills = 0
    for _ in range(6):
        process = palestra("sweep", file, "--run", "killed", cwd=tmp_path)
        try:
            process.wait(draw.uniform(0.5, 2.5))
            break
        except subprocess.TimeoutExpired:
            process.send_signal(draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
            process.communicate(timeout=60)
            num_kills += 1
    done("sweep", file, "--run", "killed", cwd=tmp_path)
    assert num_kills
    assert told(killed) == told(population / "s")
    assert (killed / "best.yml").read_bytes() == (population / "s/best.yml").read_bytes()


class Place:
    """Where runs take no time: their value is their discount. failing: the trials whose runs fail for now. started: the
    commands, each with its run and, of a branch, the run that it comes from. overshoot: env steps beyond `stop`."""

    num_runs = 2

    def __init__(self, failing: Sequence[str]) -> None:
        self.failing, self.started, self.overshoot = failing, list[tuple[str, ...]](), 0

    def start(self, arguments: Sequence[str], log: Path) -> Job:
        paths = [Path(each) for each in arguments if "seed-" in each]
        run = paths[-1]
        self.started.append((arguments[0], *(re.findall(r"\d{4}/seed-\d", str(path))[0] for path in paths)))
        config = run.parent / "config.yml"
        if arguments[0] != "resume":
            begin_run(run, config, int(run.name.removeprefix("seed-")))
        if run.parent.name in self.failing:
            (run / "records.jsonl").write_text(evaluation(1, 0.0))
            log.write_text("No space left on device\n")
            return Over(1)
        found = load_yaml(config)
        end_run(run, int(found["stop"]["after"]) + self.overshoot, found["players"]["agent"]["algorithm"]["gamma"])
        return Over(0)


class Told(SweepDisplay):
    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def ended(self, line: str) -> None:
        pass

    def note(self, line: str) -> None:
        self.notes.append(line)


CARTPOLE = SWEEP | {
    "space": {"gamma": {"name": "uniform", "low": 0.5, "high": 0.99, "step": None}},
    "objective": SWEEP["objective"] | {"measure": "return/agent"},
    "search": SEARCH | {"size": 4, "quantile": 0.25, "generation": {"after": 1000, "unit": "env_steps"}},
    "budget": {"trials": 8, "total": None, "minutes": None},
    "storage": {"name": "journal", "path": None, "study": "sweep"},  # sooner made and written than a database
}


@pytest.fixture
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "POLL_S", 0.0)
    monkeypatch.setattr(sweep_module, "LOOK_S", 0.0)


def sweep_of(path: Path, failing: Sequence[str] = (), **changes: Any) -> Sweep:
    """A sweep in a folder, or that which lies there, whose runs take no time."""
    if path.exists():
        sweep = Sweep.open(path, [f"{key}={value}" for key, value in changes.items()], Told(), trust=False)
    else:
        config = read_sweep(CARTPOLE | changes, [])
        sweep = Sweep.create(path, config, {"base": read_config(ROOT / "configs/ppo-cartpole.yml")}, Told())
    sweep.place = Place(failing)
    return sweep


def worked(path: Path, failing: Sequence[str] = (), **changes: Any) -> Sweep:
    sweep = sweep_of(path, failing, **changes)
    sweep.work()
    return sweep


pytestmark = pytest.mark.usefixtures("in_no_time")


def test_who_fails_is_the_worst_and_nobody_branches_off_it(tmp_path: Path) -> None:
    for name, failing in (("one", ["0002"]), ("two", ["0001", "0002"])):
        sweep = worked(tmp_path / name, failing)
        trials = sweep.study.ranked()
        alive = [trial for trial in trials[:4] if trial.value is not None]
        best = max(alive, key=lambda trial: trial.value or 0.0)
        for place, member in enumerate(trials[4:]):
            parent = parent_of(member)
            assert parent == (trials[place] if trials[place] in alive else best).number
            assert ("branch", f"{parent:04d}/seed-0", f"{member.number:04d}/seed-0") in sweep.place.started
        assert [state_of(trial) for trial in trials[4:]] == ["succeeded"] * 4


def test_a_failed_member_is_retried_until_the_next_generation_begins(tmp_path: Path) -> None:
    worked(tmp_path / "whole")
    sweep = worked(tmp_path / "s", ["0001"], budget=CARTPOLE["budget"] | {"trials": 4})
    again = sweep_of(tmp_path / "s")
    assert [trial.number for trial in again.failed()] == [1]
    assert again.retry_failed() == 1
    again.work()
    later = worked(tmp_path / "s", **{"budget.trials": 8})
    found, expected = later.study.ranked(), trials_of(tmp_path / "whole")
    assert [(trial.params, trial.value) for trial in found] == [(trial.params, trial.value) for trial in expected]
    ranks = {trial.number: rank for rank, trial in enumerate(found)}
    assert [ranks.get(parent_of(t)) for t in found] == [parent_of(t) for t in expected]
    assert sweep.place.started[0] == ("train", "0000/seed-0")

    late = worked(tmp_path / "late", ["0001"])
    with pytest.raises(ConfigError, match=r"^--retry-failed: expected trials of the newest generation, got 1, after"):
        late.retry_failed()
    assert late.failed() == []
    late = worked(tmp_path / "both", ["0001", "0006"])
    again = sweep_of(tmp_path / "both")
    assert again.retry_failed() == 1
    again.work()
    assert again.display.notes[0].startswith("--retry-failed: expected trials of the newest generation, got 1,")
    assert [state_of(trial) for trial in again.study.ranked()].count("failed") == 1


def test_if_nobody_succeeds_the_next_generation_does_not_begin(tmp_path: Path) -> None:
    sweep = worked(tmp_path / "s", [f"000{n}" for n in range(4)])
    assert len(sweep.study.trials()) == 4
    assert sweep.display.notes == [
        "the sweep ends before its budget is used up: the search lets no further trial begin"
    ]
    again = sweep_of(tmp_path / "s")
    assert again.retry_failed() == 4
    again.work()
    assert [state_of(trial) for trial in again.study.trials()] == ["succeeded"] * 8


def test_without_a_quantile_nobody_takes_the_place_of_who_fails(tmp_path: Path) -> None:
    sweep = worked(tmp_path / "s", ["0001"], search=CARTPOLE["search"] | {"quantile": 0.0})
    assert [state_of(trial) for trial in sweep.study.ranked()].count("failed") == 2
    assert sweep.study.trial(5).user_attrs[FAILURE] == "it branches off trial 1, which is failed"


def test_a_budget_ends_a_sweep_after_whole_generations(tmp_path: Path) -> None:
    budget = {"trials": None, "total": {"after": 4500, "unit": "env_steps"}, "minutes": None}
    sweep = worked(tmp_path / "s", budget=budget)
    assert len(sweep.study.trials()) == 8, "each member counts what it has trained itself"
    assert sweep.progress().count == 8000
    assert generation_text(sweep.progress()) == "generation 2"
    frame = screen_lines(worked(tmp_path / "t").progress(), 0.0, datetime(2030, 1, 1), 100, 30)
    assert any("generation 2 of 2" in "".join(piece.text for piece in line) for line in frame)


def test_a_sweep_fails_whose_constraints_no_draw_fulfils_and_nothing_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(evolution_module, "MOST_DRAWS", 1)
        with pytest.raises(Failed, match=r"^constraints: none of 1 draws fulfils them for member \d of generation 0"):
            worked(tmp_path / "s", constraints=["gamma > 0.9"])
    trials = worked(tmp_path / "s").study.ranked()
    assert [state_of(trial) for trial in trials] == ["succeeded"] * 8
    assert all(gamma > 0.9 for trial in trials for gamma in trial.params.values())


def test_a_member_that_has_nothing_to_train_says_so(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "s")
    sweep.place.overshoot = 1000
    sweep.work()
    [*_, last] = sweep.study.ranked()
    assert last.user_attrs[FAILURE] == (
        "stop.after: expected more, for seed-0 of the trial from which it branches off has come to 2,000 env_steps, "
        "beyond its own `stop`; let members train longer, got 2,000"
    )


def test_two_folders_may_not_share_a_population(tmp_path: Path) -> None:
    storage = {"name": "journal", "path": str(tmp_path / "shared.journal"), "study": "both"}
    worked(tmp_path / "a", storage=storage)
    with pytest.raises(ConfigError, match=r"^storage\.study: expected trials of this folder alone"):
        sweep_of(tmp_path / "b", storage=storage)


OWN = """
import optuna
from palestra.config import UserConfig
from palestra.sweeps.search import Search


class Chain(Search):
    Config = UserConfig

    def sampler(self, seed):
        return optuna.samplers.RandomSampler(seed=seed)

    def parent(self, trial, trials):
        rank = next(rank for rank, each in enumerate(trials) if each.number == trial.number)
        return trials[rank - 2] if rank > 1 else None

    def may_begin(self, rank, trials):
        return rank < 2 or trials[rank - 2].state.is_finished() and rank < 5


class Odd(Chain):
    def parent(self, trial, trials):
        return "the best"


class Raising(Chain):
    def parent(self, trial, trials):
        return trials[99]
"""


def test_a_search_of_ones_own_names_parents_and_says_who_may_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chains.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    space = {"gamma": CARTPOLE["space"]["gamma"], "stop.after": {"name": "choice", "values": [100, 200]}}
    with reading_own():
        sweep = worked(tmp_path / "s", search={"name": "chains:Chain"}, space=space)
    trials = sweep.study.ranked()
    assert [parent_of(trial) for trial in trials] == [None, None, 0, 1, 2]
    stops = [load_yaml(tmp_path / f"s/trials/{n:04d}/config.yml")["stop"]["after"] for n in range(5)]
    own = [trial.params["stop.after"] for trial in trials]
    assert stops == [own[0], own[1], own[0] + own[2], own[1] + own[3], own[0] + own[2] + own[4]]
    assert sweep.display.notes == [
        "the sweep ends before its budget is used up: the search lets no further trial begin"
    ]
    for name, why in (
        ("Odd", "expected an earlier trial, or None, as the parent of trial 0"),
        ("Raising", "IndexError"),
    ):
        with reading_own():
            sweep = worked(
                tmp_path / name, search={"name": f"chains:{name}"}, budget=CARTPOLE["budget"] | {"trials": 1}
            )
        [trial] = sweep.study.trials()
        assert trial.user_attrs[FAILURE].startswith("search: ")
        assert why in trial.user_attrs[FAILURE]


# ---- before anything starts ------------------------------------------------------------------------------------


def test_a_first_file_is_complete_and_a_dry_run_says_what_it_costs(tmp_path: Path) -> None:
    text = done("config", "sweep", "dqn-polyhedra", "search.name=evolution", "search.size=4", cwd=tmp_path)
    found = load_yaml(text)
    assert found["search"]["mutation"] == {"factors": [0.8, 1.2], "redraw": 0.25}
    assert (found["budget"]["trials"], found["pruning"], found["seeds"]) == (80, None, [0])
    file = write(tmp_path)
    lines = done("sweep", file, "--dry-run", cwd=tmp_path).splitlines()
    assert "9 trials in 3 generations of 3, each with 1 seed; 1 run at a time" in lines
    assert {"9 runs", "72 opt steps"} <= set(lines)
    start = r"a run of base takes about \S+ for a generation: \S+ to start and to evaluate, \S+ to train"
    assert any(re.fullmatch(start, line) for line in lines)


def of_base(**changes: Any) -> Any:
    data = json.loads(json.dumps(TINY))
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = data
        for key in parents:
            place = place[key]
        place[last] = value
    return check(data, RunConfig)


NETS = [{"name": "mlp", "net_arch": [8, "b"], "activation": name} for name in ("relu", "tanh")]

MIRROR = {"url": "file:///tmp/mirror", "options": {}, "attempts": 1, "first_wait_s": 0.1, "end_wait_s": 1.0}
OPTIMIZERS = [
    {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
    {"name": "sgd", "momentum": 0.9, "weight_decay": 0.0},
]


@pytest.mark.parametrize(
    ("changes", "base", "message"),
    [
        (
            {"space": {"num_worlds": {"name": "choice", "values": [8, 16]}}},
            {},
            "space.num_worlds: expected a key that a branch may change",
        ),
        (
            {"space": {"players.host.algorithm.net": {"name": "choice", "values": NETS}}},
            {},
            "space.players.host.algorithm.net: .*, got choice, which changes players.host.algorithm.net.activation",
        ),
        (
            {"space": {"players.host.algorithm.optimizer": {"name": "choice", "values": OPTIMIZERS}}},
            {},
            "space.players.host.algorithm.optimizer: .*, got choice, which changes .*optimizer.name",
        ),
        (
            {"space": {"stop.after": {"name": "integer", "low": 8, "high": 9, "step": 1, "log": False}}},
            {},
            "space.stop.after: expected no dimension, because search.generation says how long",
        ),
        (
            {"space": {"seed": {"name": "choice", "values": [8, 9]}}},
            {},
            "space.seed: expected no dimension, because seeds lists the seeds",
        ),
        (
            {"pruning": {"name": "median", "num_seeds": 1, "startup_trials": 1, "warmup_steps": 0}},
            {},
            "pruning: expected null with search 'evolution'",
        ),
        (
            {"search": SEARCH | {"generation": {"after": 1, "unit": "minutes"}}},
            {},
            "search.generation.unit: expected one of .*, got 'minutes'",
        ),
        (
            {"search": SEARCH | {"generation": {"after": 1, "unit": "tokens"}}},
            {},
            "search.generation.unit: expected one of 'env_steps', 'opt_steps', .*, got 'tokens'",
        ),
        (
            {"budget": SWEEP["budget"] | {"trials": 8}},
            {},
            "budget.trials: expected a multiple of search.size = 3, got 8",
        ),
        ({"search": SEARCH | {"quantile": 0.6}}, {}, "search.quantile: expected .* 0.5.*, got 0.6"),
        ({"search": SEARCH | {"size": 1}}, {}, "search.quantile: expected 0 with size 1"),
        (
            {"search": SEARCH | {"mutation": MUTATION | {"factors": []}}},
            {},
            "search.mutation.factors: expected a list of length >= 1",
        ),
        ({}, {"output__save": None}, "base.0: output.save: expected an interval in base, .*, got null"),
        (
            {},
            {"output__replay_in_checkpoints": "none"},
            "base.0: output.replay_in_checkpoints: expected all in base, .*, got none",
        ),
        ({}, {"output__mirror": MIRROR}, "base: expected output.mirror: null, .*, got file:///tmp/mirror$"),
        ({}, {"output__replay_in_checkpoints": "resumable"}, "base.0: output.replay_in_checkpoints: .*, got resumable"),
    ],
)
def test_what_cannot_work_is_one_line(changes: Any, base: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}") as caught:
        Plan(read_sweep(SWEEP | changes, []), {"base": of_base(**base)})
    assert len(str(caught.value).splitlines()) == 1


def test_several_bases_are_refused() -> None:
    bases = {"a": of_base(), "b": of_base(seed=1)}
    with pytest.raises(ConfigError, match=r"^base: expected one config with search 'evolution', .*, got a, b$"):
        Plan(read_sweep(SWEEP | {"base": ["a.yml", "b.yml"]}, []), bases)


# ---- thirty kills ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("crossover", [False, True])
def test_a_population_killed_thirty_times_equals_one_that_was_not(cores: int, crossover: bool, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "place": SWEEP["place"] | {"cores": cores},
        "search": SEARCH | {"size": 4, "crossover": crossover, "generation": {"after": 64, "unit": "opt_steps"}},
        "seeds": [0, 1],
        "budget": SWEEP["budget"] | {"trials": 24},
        "storage": {"name": "journal", "path": None, "study": "sweep"},
    }
    file = write(tmp_path, **changes)
    done("sweep", file, "--run", "whole", cwd=tmp_path)
    seed = random.randrange(10**6)
    print("seed of the kills:", seed)
    draw, killed, num_kills = random.Random(seed), tmp_path / "killed", 0
    while num_kills < 30:
        workers = [palestra("sweep", file, "--run", "killed", cwd=tmp_path) for _ in range(draw.randint(1, 2))]
        time.sleep(draw.uniform(0.3, 3.0))
        if all(worker.poll() is not None for worker in workers):
            break
        if draw.random() < 0.5:
            kill_a_run(killed, draw)
        for worker in workers:
            worker.send_signal(draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
            worker.communicate(timeout=60)
            num_kills += 1
    print("kills before it was done:", num_kills)
    assert num_kills >= 5, "the sweep ended too early to prove anything"
    done("sweep", file, "--run", "killed", cwd=tmp_path)
    assert told(killed) == told(tmp_path / "whole")
    assert (killed / "best.yml").read_bytes() == (tmp_path / "whole/best.yml").read_bytes()
