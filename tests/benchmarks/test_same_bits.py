"""The comparison of two commits tells what differs, and never says that nothing does where nothing was compared."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.measuring import ROOT
from benchmarks.same_bits import Side, compare, difference
from benchmarks.same_bits_side import all_runs, config_of, is_learned
from tests.forked import run as run_forked

OLD = {"/players/a/nets/q/weight": torch.tensor([1.0, 2.0]), "/players/a/optimizers/q/mean": torch.tensor(0.5)}


def changed(name: str, value: Tensor) -> dict[str, Tensor]:
    return OLD | {name: value}


def test_equal_tensors_are_the_same() -> None:
    assert difference(OLD, {name: tensor.clone() for name, tensor in OLD.items()}) is None


def test_one_bit_of_one_number_is_told_with_its_size() -> None:
    more = torch.nextafter(torch.tensor([1.0, 2.0]), torch.tensor(3.0))
    assert difference(OLD, changed("/players/a/nets/q/weight", more)) == (
        "1 of 2 tensors, by up to 2.38e-07 (/players/a/nets/q/weight)"
    )


@pytest.mark.parametrize(("old", "new"), [(0.0, -0.0), (float("nan"), 1.0)])
def test_numbers_that_compare_oddly_are_compared_by_their_bits(old: float, new: float) -> None:
    one, other = {"a": torch.tensor(old)}, {"a": torch.tensor(new)}
    assert difference(one, other) is not None
    assert difference(one, {"a": torch.tensor(old)}) is None


def test_a_tensor_that_was_renamed_is_compared_with_what_it_became() -> None:
    renamed = {name.replace("/q/", "/online/"): tensor for name, tensor in OLD.items()}
    assert difference(OLD, renamed) is None
    renamed["/players/a/optimizers/online/mean"] = torch.tensor(0.25)
    assert "1 of 2 tensors" in str(difference(OLD, renamed))


@pytest.mark.parametrize(
    "new",
    [
        {"/players/a/nets/q/weight": torch.tensor([1.0, 2.0])},
        changed("/players/a/nets/q/bias", torch.tensor(0.0)),
        changed("/players/a/nets/q/weight", torch.tensor([1.0, 2.0, 3.0])),
        changed("/players/a/optimizers/q/mean", torch.tensor(0.5, dtype=torch.float64)),
    ],
    ids=["lost", "added", "another shape", "another type"],
)
def test_other_tensors_are_no_equal_ones(new: dict[str, Tensor]) -> None:
    assert "other tensors" in str(difference(OLD, new))


def test_networks_and_optimizers_are_what_a_player_has_learned() -> None:
    assert is_learned("/players/host/nets/q/layers.0.weight")
    assert is_learned("/players/host/optimizers/q/mean")
    assert not is_learned("/worlds/host/keys")
    assert not is_learned("/game/reward/mean")


def test_all_shipped_configs_and_all_algorithms_take_part() -> None:
    runs = {run["name"]: run for run in all_runs(ROOT)}
    assert {path.stem for path in (ROOT / "configs").glob("*.yml")} <= runs.keys()
    from combinations import LEARNERS

    assert {run["algorithm"] for run in runs.values() if "algorithm" in run} == set(LEARNERS)
    assert config_of(ROOT, runs["dqn-cartpole"])["stop"] == {"after": 300, "unit": "opt_steps"}
    acrobot = config_of(ROOT, runs["ppo-acrobot"])["stop"]
    assert acrobot["after"] == 515, "two roll-outs of 4 passes over 64 minibatches, and 3 opt steps of a third"


def test_a_pattern_that_no_run_has_is_a_failure() -> None:
    command = [sys.executable, "-m", "benchmarks.same_bits", ".", "palestra", "--only", "no such run"]
    result = run_forked(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1
    assert "0 of 0 runs" in result.stdout


@pytest.mark.slow
def test_a_changed_loss_is_told_and_an_equal_tree_is_the_same(tmp_path: Path) -> None:
    names = ["palestra", "configs", "tests"]
    for side in ("equal", "other"):
        for name in names:
            shutil.copytree(ROOT / name, tmp_path / side / name, ignore=shutil.ignore_patterns("__pycache__"))
    schedules = tmp_path / "other" / "palestra" / "schedules.py"
    linear = "self.initial + (self.final - self.initial)"
    schedules.write_text(schedules.read_text().replace(linear, f"1.0000001 * {linear}"))
    old, equal, other = (
        Side(str(tree), tree, tmp_path / f"results-{number}", tmp_path / f"numba-{number}")
        for number, tree in enumerate([ROOT, tmp_path / "equal", tmp_path / "other"])
    )
    runs = [next(run for run in old.runs() if run["name"].startswith("td3: gymnasium"))]
    assert list(compare(old, equal, runs).values()) == ["same"]
    assert "differs: " in next(iter(compare(old, other, runs).values()))
