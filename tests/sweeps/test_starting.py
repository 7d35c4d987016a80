"""`palestra config sweep`: the sweeps that it prints are complete, and pass every check of a sweep."""

import re
from pathlib import Path

import pytest

from palestra.config import ConfigError, load_yaml, render
from palestra.run.kinds import read_config
from palestra.run.shipped import shipped_configs
from palestra.sweeps import plan
from palestra.sweeps.config import SweepConfig, is_sweep, read_sweep
from palestra.sweeps.plan import Plan, read_bases, starting_sweep
from palestra.sweeps.space import dimensions
from tests.sweeps.small_runs import ROOT


@pytest.mark.parametrize("name", shipped_configs())
def test_a_sweep_of_every_shipped_config_passes_all_checks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MOST_CORNERS", 2)  # whoever prints a sweep has all of them checked
    sweep = starting_sweep([name])
    assert read_sweep(load_yaml(render(sweep, SweepConfig)), []) == sweep
    assert any(key.split(".")[-2].endswith("learning_rate") for key in sweep.space)
    Plan(sweep, read_bases(sweep.base, Path()))


def test_the_space_is_around_the_values_of_the_base() -> None:
    sweep = starting_sweep(["ppo-cartpole", "budget.trials=7"])
    assert sweep.budget.trials == 7
    assert sweep.space["players.agent.algorithm.learning_rate.initial"].model_dump() == {
        "name": "log",
        "low": 0.0002,
        "high": 0.02,
    }
    assert 0.98 in sweep.space["players.agent.algorithm.gamma"].stored()
    assert sweep.pruning is not None
    assert sweep.pruning.model_dump()["min_resource"] == 20000


OWN_SCHEDULE = """
from palestra.config import PositiveFloat, PositiveInt
from palestra.schedules import UserSchedule


class Halving(UserSchedule):
    start: PositiveFloat
    after: PositiveInt

    def __call__(self, step):
        return self.start / 2 ** (step // self.after)


class Scaled(Halving):
    in_proportion = ("start",)
"""
HALVING = "{name: 'own_schedules:Halving', start: 0.01, after: 9}"


@pytest.mark.parametrize(
    ("schedule", "keys"),
    [
        (HALVING, ["start"]),
        (HALVING.replace("Halving", "Scaled"), ["start"]),
        (
            "{name: piecewise, knots: [{step: 0, value: 0.01}, {step: 9, value: 0.01}]}",
            ["knots.0.value", "knots.1.value"],
        ),
        ("{name: warm_up_cosine, peak: 0.01, final: 0.0, num_warm_up_steps: 9, num_steps: 99}", ["peak"]),
    ],
)
def test_the_space_is_around_the_levels_of_any_schedule(
    schedule: str, keys: list[str], in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(in_tmp_path))
    Path("own_schedules.py").write_text(OWN_SCHEDULE)
    base = read_config("ppo-cartpole", [f"learning_rate={schedule}"])
    found = {key: item for key, item in dimensions(base, is_grid=False) if "learning_rate" in key}
    assert [key.partition("learning_rate.")[2] for key in found] == keys
    assert {(item["low"], item["high"]) for item in found.values()} == {(0.001, 0.1)}


def test_several_configs_are_compared_and_wrong_ones_are_named_together() -> None:
    sweep = starting_sweep(["ppo-cartpole", "dqn-cartpole"])
    assert sweep.base == ["ppo-cartpole", "dqn-cartpole"]
    assert sweep.pruning is None, "their evaluations come by steps of different units"
    with pytest.raises(ConfigError) as raised:
        starting_sweep(["ppo-cartpol", "nowhere.yml"])
    assert [item.path for item in raised.value.errors] == ["base.0", "base.1: nowhere.yml"]
    assert "did you mean ppo-cartpole?" in raised.value.errors[0].message


def test_a_base_that_is_a_sweep_or_does_not_exist_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "base.sweep.yml").write_text("base: [ppo-cartpole]\nseeds: [0]\n")
    with pytest.raises(ConfigError) as raised:
        read_bases(["base.sweep.yml", "sub/x.yml"], tmp_path)
    assert str(raised.value).splitlines() == [
        "base.0: expected the config of a run, got a sweep, base.sweep.yml",
        f"base.1: {tmp_path}/sub/x.yml: there is no such file in {tmp_path}/sub; "
        f"paths in base count from the folder of the sweep's file, {tmp_path}",
    ]


def test_a_sweep_is_known_by_any_of_its_keys_and_no_other_config_is_taken_for_one(tmp_path: Path) -> None:
    data = starting_sweep(["ppo-cartpole"]).model_dump()
    del data["space"]
    assert is_sweep(data)
    with pytest.raises(ConfigError) as raised:
        read_sweep(data, [])
    assert re.fullmatch("space: .* the key is missing", str(raised.value))
    others = [*ROOT.glob("configs/**/*.yml"), *ROOT.glob("docs/examples/*.yml")]
    assert [file for file in others if is_sweep(load_yaml(file))] == []


@pytest.mark.parametrize(
    ("override", "keys"),
    [
        ("search.name=grid", {}),
        ("search.name=random", {}),
        ("search.name=tpe", {"startup_trials": 10, "multivariate": True}),
        ("pruning.name=median", {"num_seeds": 1, "startup_trials": 5, "warmup_steps": 20000}),
        ("pruning.name=wilcoxon", {"p_threshold": 0.1, "startup_seeds": 2}),
        ("pruning.name=successive_halving", {"min_resource": 20000}),
        ("storage.name=journal", {"path": None}),
    ],
)
def test_a_name_brings_the_usual_keys(override: str, keys: dict[str, object]) -> None:
    sweep = starting_sweep(["ppo-cartpole", override])
    section, name = override.removesuffix(override[override.index(".") :]), override.partition("=")[2]
    found = getattr(sweep, section).model_dump()
    assert found["name"] == name
    assert keys.items() <= found.items()
    Plan(sweep, read_bases(sweep.base, Path()))
