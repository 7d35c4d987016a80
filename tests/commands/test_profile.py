"""`palestra profile`: the trace is one, the phases stand in it, and bad input is one clear line.

Covers palestra.commands.profiling.
"""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from palestra.cli import app
from palestra.commands.profiling import Profile, profile_config, render_profile
from palestra.runtime.timing import PHASES

MakeConfig = Callable[..., dict[str, Any]]


def config_file(config: dict[str, Any], folder: Path) -> Path:
    path = folder / "tiny.yml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_the_trace_holds_the_phases_as_ranges(make_config: MakeConfig, in_tmp_path: Path) -> None:
    file = config_file(make_config({"stop": {"after": 3, "unit": "opt_steps"}}), in_tmp_path)
    result = CliRunner().invoke(app, ["profile", str(file), "num_worlds=4", "--steps", "10", "--out", "t.json"])
    assert result.exit_code == 0, result.output
    assert {path.name for path in in_tmp_path.iterdir()} == {"tiny.yml", "t.json"}  # no run is left behind
    events = json.loads((in_tmp_path / "t.json").read_text())["traceEvents"]
    ranges = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    # 10 opt steps are 2.5 epochs of two players with 2 each: 3 epochs
    assert {name: ranges.count(f"palestra.{name}") for name in ("play", "update")} == {"play": 6, "update": 24}
    assert ranges.count("palestra.memory") == 6 + 12  # what comes of each roll-out; each batch
    assert {"aten::copy_", "palestra.other"} <= {event["name"] for event in events if "name" in event}
    assert "24 env steps, 12 opt steps in" in result.output
    assert "aten::" in result.output


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_the_phases_are_timed_without_the_profiler(
    num_replicas: int, make_config: MakeConfig, in_tmp_path: Path
) -> None:
    found = profile_config(make_config({"num_replicas": num_replicas}), [], 4, in_tmp_path / "t.json")
    assert not isinstance(found, int)
    assert (found.counts["opt_steps"], found.profiled_opt_steps) == (4, 4)
    assert set(found.seconds) == set(PHASES)
    assert all(found.seconds[phase] > 0.0 for phase in ("play", "memory", "update"))
    assert found.seconds["saving"] == found.seconds["evaluation"] == 0.0
    assert found.operators == sorted(found.operators, key=lambda operator: -operator.self_cpu_time_total)


def test_it_says_what_an_actor_could_gain() -> None:
    """Where play takes three seconds of four, four turns in the time of three; with actors nothing is said."""
    seconds = dict.fromkeys(PHASES, 0.0) | {"play": 3.0, "update": 1.0}
    found = Profile(seconds, {"env_steps": 100, "opt_steps": 10}, [], 10)
    console = Console(width=200, record=True, quiet=False, file=io.StringIO())
    console.print(render_profile(found, 3))
    console.print(render_profile(replace(found, seconds=seconds | {"waiting": 1.0}), 3))
    told = console.export_text()
    assert told.count("An actor (actors.lag=1, execution.actor_processes=1) plays beside the rest: at most 1.33") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--out", "nowhere/t.json"], "--out: nowhere/t.json cannot be written: No such file or directory"),
        (["--out", "."], "--out: . cannot be written: Is a directory"),
        (["--steps", "0"], "greater than or equal to 1"),
        (["players.host.algorithm.gamma=2"], "gamma: expected a discount between 0 and 1, got 2"),
    ],
)
def test_bad_input_is_told_in_one_line(
    arguments: list[str], told: str, make_config: MakeConfig, in_tmp_path: Path
) -> None:
    file = config_file(make_config(), in_tmp_path)
    result = CliRunner().invoke(app, ["profile", str(file), *arguments])
    assert result.exit_code == 2
    assert told in result.output
    assert [path.name for path in in_tmp_path.iterdir()] == ["tiny.yml"]


def test_a_run_that_fails_leaves_no_trace_but_the_one_before(make_config: MakeConfig, in_tmp_path: Path) -> None:
    config = make_config({"players.host.algorithm.learning_rate": {"name": "constant", "value": 1e30}})
    file = config_file(config, in_tmp_path)
    for is_there in (False, True):
        result = CliRunner().invoke(app, ["profile", str(file), "--steps", "1000", "--out", "t.json"])
        assert result.exit_code == 1
        assert "the loss is" in result.output
        assert (in_tmp_path / "t.json").exists() == is_there
        (in_tmp_path / "t.json").write_text("{}")
