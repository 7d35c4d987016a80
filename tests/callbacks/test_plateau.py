"""Early stopping and lowering on a plateau: when they act, what they leave behind; a resume changes nothing.

Covers palestra.callbacks.
"""

import io
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from palestra.callbacks.callback import Callback
from palestra.callbacks.plateau import EarlyStoppingConfig, Plateau
from palestra.config import ConfigError, check
from palestra.kinds.games.trainer import Trainer
from palestra.run.branching import extend
from palestra.run.checkpoints import Checkpoints
from palestra.storage.records_file import read_records
from palestra.storage.run_folder import RunFolder

MakeConfig = Callable[..., dict[str, Any]]
RHO = {"name": "evaluation", "evaluation": "main", "pairing": 0, "measure": "rho"}
NEVER_BETTER = {"of": RHO, "goal": "max", "min_delta": 1000.0, "patience": 2}  # but than nothing
STOPPING = {"name": "early_stopping", **NEVER_BETTER}
REDUCING = {"name": "reduce_on_plateau", "player": "host", "key": "learning_rate", "factor": 0.5, **NEVER_BETTER}


@pytest.mark.parametrize(
    ("goal", "min_delta", "values", "acted"),
    [
        ("max", 0.0, [1, 2, 2, 2, 2, 2], [3, 5]),  # equal is not better; it counts anew
        ("max", 0.0, [1, 0, 2, 1, 3, 2], []),
        ("max", 1.0, [1, 2, 3, 3.5, 4, 4.5], [4]),  # 2 improves on 1 by no more than 1, 3 does, 3.5 and 4 do not
        ("min", 0.0, [1, 2, 0, 1, 1], [4]),
        ("min", 0.5, [1, 0.6, 0.4, 0.3, 0.2], [4]),
        ("max", 0.0, [math.nan, math.nan, 1, math.nan, -math.inf], [1, 4]),
        ("max", 0.0, [-5, math.inf, math.inf, 7], [3]),
    ],
)
def test_patience_counts_measurements_without_improvement(
    goal: str, min_delta: float, values: list[float], acted: list[int]
) -> None:
    found: list[int] = []
    seen: list[float] = []

    class Noted(Plateau):
        def on_plateau(self, trainer: Trainer) -> None:
            found.append(len(seen))

    plateau = Noted(check(STOPPING | {"goal": goal, "min_delta": min_delta}, EarlyStoppingConfig))
    for value in values:
        plateau._measure(None, value)  # type: ignore[arg-type]
        again = Noted(plateau.config)
        again.load_state_dict(json.loads(json.dumps(plateau.state_dict())))
        plateau = again
        seen.append(value)
    assert found == acted


def test_early_stopping_ends_the_run_as_complete_and_says_why(make_config: MakeConfig, tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=150)
    config = make_config({"callbacks": [STOPPING], "stop.after": 100, "output.display": "plain"})
    trainer = Trainer(config, run=tmp_path / "run", console=console)
    trainer.fit()
    assert trainer.opt_steps == 16  # the evaluations at 8 and at 16 improve on nothing; the next safe point ends it
    assert trainer.finished
    records = read_records(tmp_path / "run" / "records.jsonl")
    told = records[-1]["ended"]
    assert told.startswith("early stopping: rho of evaluation 'main' has not improved on ")
    assert told.endswith(" in 2 measurements")
    assert [record["opt_steps"] for record in records if record["kind"] == "evaluation"] == [0, 8, 16, 16]
    assert [record["opt_steps"] for record in records if "ended" in record] == [16]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["ended"] == told
    manifest = Checkpoints(RunFolder.open(tmp_path / "run"), 1, None).load("latest")
    assert (manifest.counters["opt_steps"], manifest.state["finished"]) == (16, True)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "run: finished after" in shown
    assert shown.count(told) == 2  # when it was decided, and in the summary
    assert "palestra resume" not in shown

    again = Trainer.load(tmp_path / "run")
    again.fit()
    assert (again.finished, again.opt_steps) == (True, 16)
    with pytest.raises(
        ConfigError,
        match="stop: expected a run that ended by its `stop`, got one that ended early: early stopping: rho",
    ):
        extend(tmp_path / "run", ["stop.after=200"])
    folder = tmp_path / "run" / "checkpoints" / manifest.folder.name
    branch = Trainer.branch(folder, ["stop.after=20"], run=tmp_path / "branch")
    branch.fit()
    assert branch.opt_steps == 20


class LeavesAt(Callback):
    """As a signal that comes at an opt step."""

    def __init__(self, opt_steps: int | None) -> None:
        super().__init__(None)
        self.opt_steps = opt_steps

    def before_train(self, trainer: Trainer) -> None:
        if self.opt_steps is None:
            self.opt_steps = -1

    def after_step(self, trainer: Trainer, player: Any, metrics: Any) -> None:
        if trainer.opt_steps == self.opt_steps:
            trainer.run.signals.received = 15


TRAINING = {
    "name": "early_stopping",
    "of": {"name": "training_returns", "role": "host", "interval": {"every": 16, "unit": "env_steps"}},
    "goal": "max",
    "min_delta": 1000.0,
    "patience": 4,
}


@pytest.mark.parametrize("callback", [STOPPING, REDUCING | {"patience": 1}, TRAINING], ids=lambda c: c["name"])
@pytest.mark.parametrize("leaves", [3, 8, 9, 16])
def test_a_resume_anywhere_changes_no_bit(
    callback: dict[str, Any], leaves: int, make_config: MakeConfig, tmp_path: Path
) -> None:
    config, ends = make_config({"callbacks": [callback], "stop.after": 30}), []
    for number, leaving in enumerate(([-1], [leaves, -1])):
        run = tmp_path / str(number)
        for opt_steps in leaving:
            spy = LeavesAt(opt_steps)
            is_new = opt_steps == leaving[0]
            trainer = Trainer(config, run=run, callbacks=[spy]) if is_new else Trainer.load(run, callbacks=[spy])
            trainer.fit()
        records = [{k: v for k, v in r.items() if k != "clock"} for r in read_records(run / "records.jsonl")]
        ends.append((records, trainer.end_reason, [*trainer.host_net.parameters()], trainer.host_lr_scheduler))
    (records, reason, weights, schedule), (others, other_reason, other_weights, other_schedule) = ends
    assert records == others
    assert reason == other_reason
    assert (reason is None) == (callback["name"] == "reduce_on_plateau")
    assert all(torch.equal(a, b) for a, b in zip(weights, other_weights, strict=True))
    assert schedule == other_schedule


def test_training_returns_can_end_a_run(make_config: MakeConfig, tmp_path: Path) -> None:
    trainer = Trainer(make_config({"callbacks": [TRAINING], "stop.after": 1000}), run=tmp_path / "run")
    trainer.fit()
    assert trainer.end_reason is not None
    assert trainer.end_reason.startswith("early stopping: the training returns of 'host' have not improved on ")
    assert trainer.opt_steps < 100


def test_a_schedule_is_lowered_at_every_plateau(make_config: MakeConfig, tmp_path: Path) -> None:
    constant = {"name": "constant", "value": 0.01}
    changes = {"players.host.algorithm.learning_rate": constant, "callbacks": [REDUCING], "stop.after": 40}
    rates: dict[int, float] = {}

    class Rates(Callback):
        def after_evaluation(self, trainer: Trainer, record: Mapping[str, Any]) -> None:
            rates[trainer.opt_steps] = float(trainer.host_optimizer.learning_rate)

    Trainer(make_config(changes), run=tmp_path / "run", callbacks=[Rates(None)]).fit()
    rate = 0.01  # evaluated at 0, where nothing is better; 8 and 16 are a plateau, 24 and 32 the next
    assert rates == pytest.approx({0: rate, 8: rate, 16: rate, 24: rate / 2, 32: rate / 2, 40: rate / 4})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"of": RHO | {"evaluation": "x"}}, "callbacks.0.of.evaluation: expected one of main, got 'x'"),
        (
            {"of": RHO | {"pairing": 9}},
            "callbacks.0.of.pairing: expected a pairing with a player that learns (0, 1), got 9",
        ),
        (
            {"of": RHO | {"measure": "return/x"}},
            "callbacks.0.of.measure: expected one of 'rho', 'return/host', 'return/agent', 'length', 'won/host',",
        ),
        (
            {"of": TRAINING["of"] | {"role": "x"}},  # type: ignore[operator]
            "callbacks.0.of.role: expected one of host, agent, got 'x'",
        ),
        ({"patience": 0}, "callbacks.0.patience: expected an integer >= 1, got 0"),
        ({"goal": "up"}, "callbacks.0.goal: expected one of 'max', 'min', got 'up'"),
    ],
)
def test_what_cannot_be_measured_is_told_before_there_is_a_run(
    changes: dict[str, Any], told: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        Trainer(make_config({"callbacks": [STOPPING | changes]}), run=tmp_path / "run").fit()
    assert str(error.value).startswith(told)
    assert not (tmp_path / "run").exists()
