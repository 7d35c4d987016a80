"""A kind of run that nobody foresaw is taken by every command, or refused in a line: one file is enough."""

import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import TINY_FIT
from resuming import Killed, assert_same_bits, at_call, fit, kill, records
from typer.testing import CliRunner

from palestra import make_trainer
from palestra.cli import app
from palestra.config import ConfigError
from palestra.recording.plots import plot_scores
from palestra.run.kinds import read_config
from palestra.sweeps.pruning import first_step
from palestra.training.training import Training
from tests.forked import run as run_forked

ROUNDS = '''
from dataclasses import asdict
from typing import Any, ClassVar

from palestra.config import Config, NonEmptyStr, PositiveInt, UserConfig
from palestra.evaluation.measures import GameMeasures
from palestra.run.base import EvaluatedRunConfig
from palestra.runtime.intervals import Interval
from palestra.runtime.scores import DeclaredScore
from palestra.training.async_evaluations import make_evaluating
from palestra.training.training import Training


class CountConfig(Config):
    own_scores: ClassVar[Any] = ["total"]
    pairings: ClassVar[Any] = ()

    name: NonEmptyStr
    """by which records name it"""
    interval: Interval | None
    """how often the total is told"""
    at_start: bool
    """whether it is told before the first round"""


class RoundsConfig(EvaluatedRunConfig):
    counters = ("rounds", "opt_steps", "epochs")
    axes = ("rounds",)
    in_words = "a run that counts rounds"
    changeable = ("evaluations",)

    num_rounds: PositiveInt
    """rounds in an epoch"""
    pace: PositiveInt
    """what a round adds to the total"""
    evaluations: list[CountConfig]
    """when the total is told"""

    def measures_of_games(self):
        return {each.name: GameMeasures([], ()) for each in self.evaluations}


class Totals:
    counted = "rounds"

    def __init__(self, trainer):
        self.trainer = trainer
        self.configs = {each.name: each for each in trainer.config.evaluations}

    def num(self, name, is_final):
        return 1

    def pairings(self, name, with_scripted):
        return [{"counter": "counter"}]

    def most_rounds(self, name):
        return None

    def snapshot(self):
        return {"total": self.trainer.total}

    def restore(self, state):
        self.trainer.total = state["total"]

    def play(self, name, num, with_scripted, watch):
        scores = {"total": float(self.trainer.total)}
        players = {"counter": "counter"}
        pair = {"players": players, "learned": ["counter"], "rounds": num, "scores": scores, "intervals": {}}
        declared = [asdict(DeclaredScore("total", "what was counted", "points", ("counter",), (), True))]
        said = {"evaluation": name, "roles": ["counter"], "declared_scores": declared, "counted": "rounds"}
        return said | {"pairs": [pair], "ratings": None}


class Rounds(Training):
    """Counts rounds; its opt steps are the epochs, so that rounds alone tell most moments apart."""

    run_config = RoundsConfig
    rated = ("rounds",)

    class Config(UserConfig):
        pass

    def _build(self):
        self.total = self.round = 0
        self.evaluating = make_evaluating(self.progress, self.checkpoints, Totals(self))

    def _train(self):
        """some rounds"""
        while self.round < self.config.num_rounds:
            self.round += 1
            self.rounds += 1
            self.total += self.config.pace
            self.safe_point()
        self.round = 0
        self.opt_steps += 1

    def _record_fields(self):
        return {"total": self.total}

    def state_dict(self):
        return super().state_dict() | {"total": self.total, "round": self.round}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.total, self.round = state["total"], state["round"]
'''

EVERY: dict[str, Any] = {"every": 4, "unit": "rounds"}


@pytest.fixture
def config(in_tmp_path: Path) -> Iterator[dict[str, Any]]:
    """That of a run of 12 rounds, also in run.yml."""
    (in_tmp_path / "rounds.py").write_text(ROUNDS)
    found = copy.deepcopy({key: TINY_FIT[key] for key in ("seed", "callbacks", "execution", "output")})
    found["execution"] = {key: found["execution"][key] for key in ("device", "num_threads")}
    found["output"] |= {"record": EVERY, "save": EVERY, "mirror": None}
    found |= {"trainer": {"name": "rounds:Rounds"}, "num_rounds": 5, "pace": 2, "evaluators": None}
    found["evaluations"] = [{"name": "main", "interval": EVERY, "at_start": True}]
    found["best"] = {"evaluation": "main", "pairing": None, "measure": "total", "goal": "max"}
    found["stop"] = {"after": 12, "unit": "rounds"}
    (in_tmp_path / "run.yml").write_text(yaml.safe_dump(json.loads(json.dumps(found)), sort_keys=False))
    yield found
    sys.modules.pop("rounds", None)


def palestra(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, f"{words}: {result.output}"
    return result.output


@pytest.mark.usefixtures("config")
def test_a_third_kind_of_run_is_trained_killed_extended_and_branched_off(in_tmp_path: Path) -> None:
    assert "train: 12 rounds, as Rounds says: some rounds" in palestra("check", "run.yml")
    palestra("train", "run.yml", "--run", "alone")
    with at_call(Training, "safe_point", 10, kill), pytest.raises(Killed):
        make_trainer("run.yml", run="run").fit()
    palestra("resume", "run")
    assert_same_bits(Path("run"), Path("alone"))
    assert [each["rounds"] for each in records(Path("run")) if each["kind"] == "evaluation"] == [0, 4, 8, 12]
    assert "reproduced to the bit" in palestra("verify", "run", "--from", "beginning")
    palestra("extend", "run", "stop.after=16")
    palestra("branch", "run/checkpoints/latest", "pace=3", "stop.after=20", "--run", "branch")
    assert records(Path("branch"))[-1]["total"] == 16 * 2 + 4 * 3
    assert "as before, got 3" in palestra("extend", "run", "pace=3", code=2)
    told = palestra("branch", "run/checkpoints/latest", "--freeze", "host", code=2)
    assert told == "--freeze: expected none, because the run is a run that counts rounds\n"
    assert "in 0." in palestra("profile", "run.yml", "--steps", "2")
    with pytest.raises(ConfigError, match=r"expected one of 'rounds', 'opt_steps', 'epochs', 'minutes', got"):
        read_config("run.yml", ["stop.unit=env_steps"])


def test_its_runs_are_evaluated_compared_drawn_and_reported(config: dict[str, Any]) -> None:
    fit(Path("run"), config)
    fit(Path("other"), config | {"pace": 3})
    assert "24.000" in palestra("evaluate", "run")
    assert [line.split(": ")[-1] for line in palestra("evaluate", "run", "--watch").splitlines()[:-1]] == [
        f"total {total}" for total in (".000", "8.000", "16.000", "24.000")
    ]
    assert "36.000" in palestra("compare", "run", "other")
    assert "8.000" in palestra("compare", "run", "--checkpoint", "1")  # at another opt step 0 it was 0
    head, *rows = palestra("table", "run").splitlines()
    assert head == "run,seed,rounds,name,value"
    assert "run,0,8,evaluation/main/counter/total,16.0" in rows
    assert "run,0,12,total,24.0" in rows
    palestra("plot", "run", "other", "--out", "fig.svg")
    assert ">rounds<" in Path("fig.svg").read_text()
    assert plot_scores(records(Path("run")), "rounds") is not None
    told = palestra("plot", "run", "--x", "env_steps", code=2)
    assert "--x: expected one of rounds, opt_steps, epochs, got 'env_steps'" in told
    page = Path(palestra("report", "run", "--out", "page.html").strip()).read_text()
    assert "complete" in page
    for word in ("games", "env step", "Sample"):
        assert word not in page.partition("config.yml of run")[0], word


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "export run",
            "expected a run in which players play games or a run in which a model learns from data or a run in which "
            "players talk in words, got RUN",
        ),
        ("predict run train --out a.csv", "expected a run in which a model learns from data, got RUN"),
        ("ask run --board []", "expected a run in which players play games, got RUN"),
        ("play run", "expected a run in which players play games, got RUN"),
        ("compare run --games 3", "--games: expected no such option, because RUN"),
        ("evaluate run --games 3", "--games: expected no such option, because RUN"),
        ("evaluate run --pairing a=b", "--pairing: expected no such option, because RUN"),
        ("evaluate run pace=3", "pace: expected a change of evaluations alone"),
        ("evaluate run evaluations=[]", "evaluations: expected at least one in the run's config, got []"),
    ],
)
def test_what_means_nothing_to_it_is_refused_in_a_line(words: str, told: str, config: dict[str, Any]) -> None:
    fit(Path("run"), config)
    (line,) = palestra(*words.split(), code=2).splitlines()
    assert line.startswith(told.replace("RUN", "run")), line
    if "RUN" in told:
        assert "a run that counts rounds" in line


@pytest.mark.usefixtures("forked_evaluators")
def test_its_counters_are_units_of_all_that_is_due(config: dict[str, Any]) -> None:
    of = {"name": "evaluation", "evaluation": "main", "pairing": None, "measure": "total"}
    stopping = {"name": "early_stopping", "of": of, "goal": "min", "min_delta": 1.0, "patience": 2}
    fit(Path("early"), config | {"callbacks": [stopping]})
    assert records(Path("early"))[-1]["rounds"] == 9
    returns = stopping | {"of": {"name": "training_returns", "role": "host", "interval": EVERY}}
    with pytest.raises(ConfigError, match=r"of\.name: expected 'evaluation', because this is a run that counts rounds"):
        fit(Path("returns"), config | {"callbacks": [returns]})
    fit(Path("alone"), config)
    results = {"after": 3, "unit": "rounds"}
    evaluators = {"num_processes": 1, "results": results, "timeout_s": 60.0, "max_restarts": 1}
    fit(Path("beside"), config | {"evaluators": evaluators})
    evaluated = [[each for each in records(Path(run)) if each["kind"] == "evaluation"] for run in ("alone", "beside")]
    assert evaluated[0] == evaluated[1]
    make_trainer("run.yml", run="pieces").fit(num_steps=3, unit="rounds")
    assert records(Path("pieces")) == records(Path("alone"))[:1]
    assert first_step({"run": read_config("run.yml")}) == {"rounds": 4}


@pytest.mark.usefixtures("config")
def test_a_sweep_over_it_counts_its_rounds(in_tmp_path: Path) -> None:
    def shell(*words: str) -> str:
        command = [sys.executable, "-c", "from palestra.cli import main; main()", *words]
        done = run_forked(command, capture_output=True, text=True, check=False, cwd=in_tmp_path)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    shell("sweep", "run.yml", "pace=1,2", "--at", "1", "--run", "sweep", "--quiet")
    told = palestra("sweep", "sweep", "budget.total={after: 9, unit: env_steps}", code=2)
    assert told == "budget.total.unit: expected one of 'rounds', 'opt_steps', 'epochs', got 'env_steps'\n"
    assert "rounds" in palestra("trials", "sweep").splitlines()[0]
    assert yaml.safe_load(Path("sweep/best.yml").read_text())["pace"] == 2
    palestra("report", "sweep")
    assert "24.000" in palestra("compare", "sweep")
