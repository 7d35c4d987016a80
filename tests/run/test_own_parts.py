"""An optimizer, a schedule, an exploration and a replay buffer of one's own in a run, as the commands meet them.

That they go on to the same bits after a kill: tests/docs/test_examples_resume.py.
"""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

import palestra
from palestra.algorithms.parts.exploration import best_legal
from palestra.cli import app
from palestra.config import ConfigError, UntrustedError
from palestra.config.own_modules import read_trusted
from palestra.schedules import read_schedule

MakeConfig = Callable[..., dict[str, Any]]
PAGE = (Path(__file__).parents[2] / "docs" / "own-parts.md").read_text()
MODULES = {"lion": "class Lion", "warmup": "class Warmup", "tolerant": "class Tolerant", "recent": "class Recent"}
LION = {"name": "lion:Lion", "beta1": 0.9, "beta2": 0.99}
WARMUP = {"name": "warmup:Warmup", "peak": 0.01, "num_steps": 4}
TOLERANT = {"name": "tolerant:Tolerant", "tolerance": WARMUP | {"peak": 1.0}}
RECENT = {"name": "recent:Recent", "capacity": 40, "layout": "whole", "scratch_folder": None, "power": 2.0}


@pytest.fixture
def here(in_tmp_path: Path) -> Iterator[Path]:
    """A folder with the modules of the page, which are forgotten afterwards."""
    for name, part in MODULES.items():
        [code] = [each for each in re.findall(r"```python\n(.*?)```", PAGE, re.S) if part in each]
        (in_tmp_path / f"{name}.py").write_text(code)
    yield in_tmp_path
    forget()


def forget() -> None:
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def config(make_config: MakeConfig, here: Path) -> dict[str, Any]:
    host = {"optimizer": LION, "learning_rate": WARMUP, "exploration": TOLERANT, "replay_buffer": RECENT}
    return make_config({f"players.host.algorithm.{key}": value for key, value in host.items()})


def shell(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.output


def test_they_are_checked_trained_evaluated_branched_and_their_sources_filed(
    config: dict[str, Any], here: Path
) -> None:
    (here / "own.yml").write_text(yaml.safe_dump(config))
    shell("check", "own.yml")
    shell("train", "own.yml", "--run", "run", "--quiet")
    shell("evaluate", "run", "--games", "2")
    key = "players.host.algorithm.learning_rate.peak"
    shell("branch", "run/checkpoints/00000001", f"{key}=0.5", "--run", "branch", "--quiet")
    branch = palestra.Trainer.load("branch")
    assert branch.host_lr_scheduler(3) == 0.5
    assert "mean" in branch.host_optimizer.state_dict()
    assert all(f"{name}:" in (here / "run" / "run.json").read_text() for name in MODULES)


def test_the_schedules_of_one_of_ones_own_are_found_where_they_stand(config: dict[str, Any]) -> None:
    trainer = palestra.Trainer(config)
    assert trainer.players["host"].schedules().keys() == {"learning_rate", "exploration.tolerance"}
    assert trainer.players["host"].rates() == {"learning_rate": 0.01 / 4, "exploration": 1.0 / 4}


def test_one_plays_its_choice_in_training_and_the_best_action_in_evaluations(config: dict[str, Any]) -> None:
    player = palestra.Trainer(config).players["host"]
    q, legal = torch.rand(64, 4), torch.rand(64, 4) > 0.3
    keys = torch.arange(64)
    policies: list[Any] = [player.policy(explore) for explore in (True, False)]
    chosen, best = (policy.choose(q, legal, keys, policy.exploration) for policy in policies)
    assert torch.equal(best, best_legal(q, legal))
    assert not torch.equal(chosen, best)
    is_decided = legal.any(dim=1)
    assert legal[torch.arange(64), chosen][is_decided].all()


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"optimizer": LION | {"beta1": 2.0}}, "optimizer.beta1", "expected a fraction between 0 and 1, got 2.0"),
        ({"optimizer": {"name": "lion:Lion"}}, "optimizer.beta1", "but the key is missing"),
        ({"optimizer": WARMUP}, "optimizer.name", "expected a subclass of palestra.optimizers.optimizer.Optimizer"),
        ({"learning_rate": LION}, "learning_rate.name", "expected a subclass of palestra.schedules.UserSchedule"),
        ({"learning_rate": WARMUP | {"peek": 1}}, "learning_rate.peek", "unknown key; the nearest known key is 'peak'"),
        ({"replay_buffer": LION}, "replay_buffer.name", "expected a subclass of palestra.buffers.replay.ReplayBuffer"),
        ({"replay_buffer": RECENT | {"power": 0.0}}, "replay_buffer.power", "expected a number > 0, got 0.0"),
        ({"replay_buffer": RECENT | {"capacity": 4}}, "replay_buffer.capacity", "expected at least 8"),
        (
            {"exploration": {"name": "tolerant:Tolerent"}},
            "exploration.name",
            "of module 'tolerant' ('Tolerant'), got 'Tolerent'",
        ),
    ],
)
def test_a_key_that_is_wrong_is_named(change: dict[str, Any], path: str, message: str, config: dict[str, Any]) -> None:
    config["players"]["host"]["algorithm"] |= change
    with pytest.raises(ConfigError) as caught:
        palestra.Trainer(config)
    assert any(
        error.path == f"players.host.algorithm.{path}" and message in error.message for error in caught.value.errors
    ), str(caught.value)


def test_a_replay_buffer_of_ones_own_draws_by_its_own_rule(config: dict[str, Any]) -> None:
    buffer = palestra.Trainer(config).host_replay_buffer
    rows = torch.arange(100)  # the last 40 are held
    for part in rows.split(25):
        buffer.add({"row": part}, torch.ones(25, dtype=torch.bool))
    ages = 99 - buffer.sample(4000)["row"]
    assert ages.min() == 0
    assert ages.max() == 39
    assert (ages < 10).double().mean() == pytest.approx(0.5, abs=0.03)  # a quarter of the rows is half of the batch


def test_who_types_one_in_an_override_of_a_branch_trusts_it(
    make_config: MakeConfig, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "state"))
    palestra.Trainer(make_config(), run=here / "run").fit()
    checkpoint, warmup = "run/checkpoints/00000001", "{name: warmup:Warmup, peak: 0.5, num_steps: 4}"
    shell("branch", checkpoint, f"players.host.algorithm.learning_rate={warmup}", "--run", "branch", "--quiet")
    assert {source.module for source in read_trusted()} == {"warmup"}
    forget()
    assert palestra.Trainer.load("branch").host_lr_scheduler(3) == 0.5


def test_an_override_of_a_branch_trusts_nothing_that_the_run_names(
    config: dict[str, Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    palestra.Trainer(config, run=here / "run").fit()
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "state"))
    forget()
    schedule = "players.agent.algorithm.learning_rate={name: warmup:Warmup, peak: 0.5, num_steps: 4}"
    refused = shell("branch", "run/checkpoints/00000001", schedule, "--run", "branch", code=2)
    assert "module 'lion'" in refused
    assert read_trusted() == set()
    assert not sys.modules.keys() & set(MODULES)
    shell("branch", "run/checkpoints/00000001", schedule, "--run", "branch", "--trust", "--quiet")


def test_a_stored_run_imports_none_of_them_before_it_is_trusted(config: dict[str, Any], here: Path) -> None:
    palestra.Trainer(config, run=here / "run").fit()
    forget()
    with (here / "warmup.py").open("a") as file:
        file.write("\nimported = True\n")
    (here / "warmup.py").chmod(0o666)  # so that somebody else may have written this
    with pytest.raises(UntrustedError, match="'warmup'"):
        palestra.load_player(here / "run", "host")
    assert "warmup" not in sys.modules
    assert palestra.load_player(here / "run", "host", trust=True).opt_steps > 0


def test_the_state_of_a_changed_schedule_imports_no_module_that_is_not_trusted(here: Path) -> None:
    with pytest.raises(UntrustedError, match="'warmup'"):
        read_schedule(WARMUP)
    assert "warmup" not in sys.modules


def test_a_schedule_is_scaled_by_what_it_names_and_comes_back_from_its_state(config: dict[str, Any]) -> None:
    schedule = palestra.Trainer(config).host_lr_scheduler
    again = read_schedule(schedule.scaled(0.5).state_dict())
    assert [again(step) for step in range(9)] == [0.5 * schedule(step) for step in range(9)]


def test_a_callback_refuses_a_schedule_that_it_cannot_scale(config: dict[str, Any], here: Path) -> None:
    code = (here / "warmup.py").read_text()
    (here / "warmup.py").write_text(code.replace('    in_proportion = ("peak",)\n', ""))
    forget()
    measure = {"name": "training_returns", "role": "host", "interval": {"every": 4, "unit": "env_steps"}}
    plateau = {"name": "reduce_on_plateau", "player": "host", "key": "learning_rate", "factor": 0.5, "of": measure}
    config["callbacks"] = [plateau | {"goal": "max", "min_delta": 0.0, "patience": 1}]
    with pytest.raises(ConfigError, match=r"callbacks\.0\.key: expected `in_proportion` in 'warmup:Warmup'"):
        palestra.Trainer(config).fit()
