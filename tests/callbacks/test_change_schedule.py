"""Schedules that change while a run trains.

Covers palestra.callbacks.callback.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from palestra.callbacks.callback import Callback
from palestra.config import ConfigError, load_yaml
from palestra.kinds.games.trainer import Trainer
from palestra.players.player import Metrics, Player
from palestra.run.branching import extend
from palestra.schedules import (
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    InverseSchedule,
    Knot,
    LinearSchedule,
    PiecewiseSchedule,
    Schedule,
    read_schedule,
)

MakeConfig = Callable[..., dict[str, Any]]
CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize(
    "schedule",
    [
        ConstantSchedule(name="constant", value=0.3),
        LinearSchedule(name="linear", initial=1.0, final=0.1, num_steps=10),
        ExponentialSchedule(name="exponential", initial=1.0, final=0.1, rate=0.9),
        InverseSchedule(name="inverse", initial=0.5, rate=2.0),
        CosineSchedule(name="cosine", initial=1.0, final=0.1, num_steps=10),
        PiecewiseSchedule(name="piecewise", knots=[Knot(step=2, value=1.0), Knot(step=7, value=3.0)]),
    ],
    ids=lambda schedule: schedule.name,
)
def test_a_scaled_schedule_is_a_factor_times_it_at_every_step(schedule: Schedule) -> None:
    scaled = schedule.scaled(0.25)
    assert type(scaled) is type(schedule)
    assert [scaled(step) for step in range(20)] == pytest.approx([0.25 * schedule(step) for step in range(20)])
    assert read_schedule(scaled.state_dict()) == scaled


class Rates(Callback):
    def __init__(self) -> None:
        super().__init__(None)
        self.seen: list[float] = []

    def after_step(self, trainer: Trainer, player: Player, metrics: Metrics) -> None:
        if player.name == "host":
            self.seen.append(float(player.optimizers["q"].learning_rate))
            assert player.rates()["learning_rate"] == player.lr_schedule(player.opt_steps)  # type: ignore[misc]


def change(**values: Any) -> dict[str, Any]:
    rising = {"name": "linear", "initial": 0.5, "final": 1.5, "num_steps": 10}
    at = {"after": 6, "unit": "opt_steps"}
    start = {"name": "change_schedule", "player": "host", "key": "learning_rate", "at": at, "schedule": rising}
    return start | values


def test_a_schedule_changes_at_its_moment_and_stays_changed_after_a_resume(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    constant = {"name": "constant", "value": 0.25}
    changes = {
        "players.agent": {"scripted": "random"},
        "callbacks": [change()],
        "players.host.algorithm.learning_rate": constant,
    }
    whole: list[float] = [0.25] * 6 + [1.1, 1.2, 1.3, 1.4]
    states = []
    for stops in ([10], [7, 10]):
        run = tmp_path / str(len(stops))
        seen: list[float] = []
        for number, stop in enumerate(stops):
            rates = Rates()
            if number:
                extend(run, [f"stop.after={stop}"])
                trainer = Trainer.load(run, callbacks=[rates])
            else:
                trainer = Trainer(make_config(changes | {"stop.after": stop}), run=run, callbacks=[rates])
            trainer.fit()
            seen += rates.seen
        assert seen == pytest.approx(whole)
        states.append([p.detach() for p in trainer.host_net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    assert trainer.host_lr_scheduler == LinearSchedule(name="linear", initial=0.5, final=1.5, num_steps=10)
    assert trainer.config.players["host"].algorithm.learning_rate.value == 0.25  # type: ignore[union-attr]


def test_a_schedule_that_has_been_replaced_since_does_not_come_back_with_a_resume(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """Two changes of one schedule, the later one named first: what is done stays done."""
    later = change(at={"after": 6, "unit": "opt_steps"}, schedule={"name": "constant", "value": 0.75})
    earlier = change(at={"after": 4, "unit": "opt_steps"}, schedule={"name": "constant", "value": 0.5})
    changes = {"callbacks": [later, earlier], "players.agent": {"scripted": "random"}, "stop.after": 7}
    Trainer(make_config(changes), run=tmp_path / "run", callbacks=[Rates()]).fit()
    extend(tmp_path / "run", ["stop.after=9"])
    rates = Rates()
    Trainer.load(tmp_path / "run", callbacks=[rates]).fit()
    assert rates.seen == [0.75, 0.75]


def test_a_branch_begins_with_the_schedules_of_its_config(make_config: MakeConfig, tmp_path: Path) -> None:
    late = change(at={"after": 24, "unit": "opt_steps"})
    trainer = Trainer(make_config({"callbacks": [late], "stop.after": 26}), run=tmp_path / "run")
    trainer.fit()
    assert trainer.host_lr_scheduler.name == "linear"
    key = "players.host.algorithm.learning_rate"
    overrides = [f"{key}={{name: constant, value: 0.125}}", "stop.after=30", "callbacks.0.at.after=100"]
    checkpoints = sorted((tmp_path / "run" / "checkpoints").glob("0*"))
    branch = Trainer.branch(checkpoints[-1], overrides, run=tmp_path / "branch")
    branch.fit()
    assert branch.host_lr_scheduler == ConstantSchedule(name="constant", value=0.125)
    assert float(branch.host_optimizer.learning_rate) == 0.125


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("dqn-cartpole", {"learning_rate", "exploration.epsilon"}),
        ("ppo-cartpole", {"learning_rate", "entropy_coefficient", "objective.epsilon"}),
        ("sac-pendulum", {"policy_learning_rate", "critic_learning_rate", "entropy_coefficient.learning_rate"}),
        ("td3-pendulum", {"policy_learning_rate", "critic_learning_rate", "exploration.std"}),
    ],
)
def test_every_schedule_of_every_algorithm_can_change_and_rules_at_once(file: str, expected: set[str]) -> None:
    config = load_yaml(CONFIGS / f"{file}.yml") | {"num_worlds": 8}
    config["players"]["agent"]["algorithm"] |= {"rollout_length": 128} if file.startswith("ppo") else {}
    player = Trainer(config).players["agent"]
    assert set(player.schedules()) == expected
    for number, key in enumerate(expected):
        player.change_schedule(key, ConstantSchedule(name="constant", value=0.5 + number))
        assert player.schedules()[key](0) == 0.5 + number
    assert player.lr_schedule in player.schedules().values()
    if player.er_schedule is not None:
        assert player.er_schedule in player.schedules().values()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"player": "nobody"},
            "callbacks.0.player: expected the name of a player that learns: host, agent; got 'nobody'",
        ),
        (
            {"key": "gamma"},
            "callbacks.0.key: expected a schedule of 'host' that can change (learning_rate, exploration.epsilon",
        ),
        (
            {"schedule": {"name": "constant", "value": -1.0}},
            "callbacks.0.schedule.value: expected a number >= 0, got -1",
        ),
    ],
)
def test_what_cannot_change_is_told_before_there_is_a_run(
    changes: dict[str, Any], told: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        Trainer(make_config({"callbacks": [change(**changes)]}), run=tmp_path / "run").fit()
    assert str(error.value).startswith(told)
    assert not (tmp_path / "run").exists()
