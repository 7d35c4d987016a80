"""Evaluations that a program asks for between two `fit`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeConfig
from fitted import EVALUATION, MODULE, fit_config, working_in
from resuming import records

from palestra import make_trainer
from palestra.recording.recorders import without_clock
from tests.text.runs import FIXED, PLAYER, SUPERVISED, text_run

EVALUATORS = {"num_processes": 1, "results": {"after": 3, "unit": "opt_steps"}, "timeout_s": 120.0, "max_restarts": 1}
PLAIN = {"stop.after": 12, "evaluations.0.interval.every": 100}
TEXT = text_run("nip", {"prover": FIXED, "verifier": PLAYER | {"algorithm": SUPERVISED}})

RUNS: dict[str, Callable[[MakeConfig], Any]] = {
    "players in games": lambda make_config: make_config(PLAIN),
    "with evaluators": lambda make_config: make_config(PLAIN | {"evaluators": EVALUATORS}),
    "replicas": lambda make_config: make_config(PLAIN | {"num_replicas": 2}),
    "a model": lambda make_config: fit_config(evaluations=[EVALUATION]),
    "players in words": lambda make_config: TEXT,
}


@pytest.mark.usefixtures("forked_evaluators")
@pytest.mark.parametrize("name", RUNS)
def test_an_evaluation_between_two_fits_is_returned_and_recorded_for_good(
    name: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    with working_in(tmp_path):
        Path("fitted_parts.py").write_text(MODULE)
        config = RUNS[name](make_config)
        evaluation = config["evaluations"][0]["name"]
        make_trainer(config, run="plain").fit()
        trainer = make_trainer(config, run="run")
        with pytest.raises(RuntimeError, match=r"^evaluate: expected a run that fit\(\) has begun here"):
            trainer.evaluate([evaluation])
        trainer.fit(2, "opt_steps")
        before, state = records(Path("run")), trainer.state_dict()["counters"]
        with pytest.raises(ValueError, match=rf"^evaluate: expected names of evaluations \({evaluation}\), got 'x'$"):
            trainer.evaluate(["x"])
        found = trainer.evaluate([evaluation])
        assert [each["evaluation"] for each in found] == [evaluation]
        assert records(Path("run")) == [*before, *map(without_clock, found)]
        assert trainer.state_dict()["counters"] == state
        trainer = type(trainer).load("run")  # another process goes on, and has the record
        trainer.fit()
        after = trainer.evaluate([evaluation])  # also of a run that is over
        everything = [*map(without_clock, [*found, *after])]
        assert [record for record in records(Path("run")) if record not in everything] == [
            record for record in records(Path("plain")) if record not in everything
        ]
        assert [record for record in everything if record not in records(Path("run"))] == []
