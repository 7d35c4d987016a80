"""Classes of the user's own: a name in them that nothing would use, and what is told of an error in their code."""

import json
import sys
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY_FIT
from typer.testing import CliRunner

from palestra import Callback, FitTrainer, Model
from palestra.algorithms.losses.loss import OnPolicyLoss
from palestra.cli import app
from palestra.config import ConfigError, failure, load_class
from palestra.config.own_classes import names_of_ours, require_used
from palestra.runtime.console import VisibleConsole

MakeConfig = Callable[..., dict[str, Any]]


def method(self: Any) -> None:
    """Stand for any method."""


@pytest.mark.parametrize(
    ("base", "name", "value", "meant"),
    [
        (OnPolicyLoss, "befor_turn", method, "before_turn"),
        (OnPolicyLoss, "head", ("policy",), "heads"),
        (Model, "predct", method, "predict"),
        (Model, "validation_step", method, "evaluation_step"),
        (Callback, "load_statedict", method, "load_state_dict"),
    ],
)
def test_a_name_that_looks_like_one_of_the_base_and_is_none_is_told(
    base: type, name: str, value: Any, meant: str
) -> None:
    own = type("Own", (base,), {name: value})
    with pytest.raises(ConfigError, match=f"got '{name}' of Own, which nothing uses; did you mean '{meant}'\\?$"):
        require_used(own, names_of_ours(base))
    require_used(type("Both", (own,), {meant: value}), names_of_ours(base))  # it is not what was meant


class Helping(Callback):
    """Has methods for itself, and for others, that look like those of the base."""

    def before_lunch(self) -> None: ...

    def after_lunch(self) -> None: ...

    def state_dicts(self) -> list[Any]:
        return []

    @property
    def states(self) -> list[Any]:
        return self.state_dicts()

    @torch.no_grad()
    def after_epoch(self, training: Any) -> None:
        self.before_lunch()


def serve(helping: Helping) -> None:
    helping.after_lunch()


class Misspelt(Model):
    """Has a method that nothing would call."""

    def predicts(self, batch: Any) -> Any: ...


def test_a_name_that_the_class_itself_uses_is_no_mistake() -> None:
    assert load_class(f"{__name__}:Helping", Callback) is Helping


def test_a_class_with_such_a_name_is_refused_from_a_file_and_from_python() -> None:
    with pytest.raises(ConfigError, match=r"^model.name: expected .*'predicts' of Misspelt"):
        FitTrainer(TINY_FIT | {"model": {"name": f"{__name__}:Misspelt"}})
    trainer, model = FitTrainer(TINY_FIT | {"model": None}), Misspelt({})
    with pytest.raises(ConfigError, match=r"^model: expected .*'predicts' of Misspelt"):
        trainer.set_model(model)


class Rolling(Callback):
    """Has a hook that only players have, and one that all have."""

    def after_roll_out(self, training: Any, player: Any, by_role: Any) -> None: ...

    def after_step(self, training: Any, player: Any, metrics: Any) -> None: ...


def test_a_hook_that_a_kind_of_run_never_calls_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = TINY_FIT | {"output": TINY_FIT["output"] | {"display": "plain"}}
    FitTrainer(config, run=tmp_path / "run", callbacks=[Rolling(None)], console=VisibleConsole(soft_wrap=True)).fit()
    (told,) = [line for line in capsys.readouterr().out.splitlines() if "is never called" in line]
    assert "Rolling.after_roll_out is never called, because this is a run in which a model learns from data" in told


# ---- an error in the user's own code -----------------------------------------------------------------------

RAISES = """
from pathlib import Path
from palestra import Callback
from palestra.config import UserConfig

class Counts(Callback):
    class Config(UserConfig):
        pass

    def __init__(self, config):
        super().__init__(config)
        self.num = 0

    def after_epoch(self, training):
        self.num += 1
        training.note("num", self.num)
        if self.num == 4 and not Path("mended").exists():
            self.look_up([])

    def look_up(self, found):
        return found[0]

    def state_dict(self):
        return {"num": self.num}

    def load_state_dict(self, state):
        self.num = state["num"]
"""


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def records(run: Path) -> list[dict[str, Any]]:
    found = map(json.loads, (run / "records.jsonl").read_text().splitlines())
    return [{key: value for key, value in each.items() if key != "clock"} for each in found]


def test_who_errs_sees_their_own_frames_and_goes_on_to_the_same_bits(
    in_tmp_path: Path, make_config: MakeConfig
) -> None:
    Path("counts.py").write_text(RAISES)
    Path("config.yml").write_text(json.dumps(make_config({"callbacks": [{"name": "counts:Counts"}]})))
    raised = invoke("train", "config.yml", "--run", "run", "--quiet")
    assert raised.exit_code == 1
    head, *frames, told = raised.stderr.splitlines()
    assert head == "in your own code (most recent call last):"
    assert [line.split(", ")[2] for line in frames if line.startswith("  File")] == ["in after_epoch", "in look_up"]
    says = "counts:Counts.after_epoch raises IndexError: list index out of range (counts.py, line 21); the last "
    assert told.startswith(says + "checkpoint is 000000")
    assert told.endswith("; to resume: palestra resume run; its traceback: run/failure.txt")
    assert "palestra/training/training.py" in Path("run/failure.txt").read_text()
    Path("mended").touch()
    assert invoke("resume", "run", "--quiet").exit_code == 0
    assert invoke("train", "config.yml", "--run", "whole", "--quiet").exit_code == 0
    assert records(Path("run")) == records(Path("whole"))


def test_a_failure_names_the_users_line_and_not_one_of_a_library() -> None:
    with pytest.raises(ValueError, match="IPv6") as caught:
        urllib.parse.urlsplit("http://[")
    assert failure(caught.value).endswith(f"(test_own_classes.py, line {sys._getframe().f_lineno - 1})")
    with pytest.raises(ValueError, match="low >= high") as caught:
        np.random.default_rng(0).integers(5, 1)  # is written in Cython, whose frames name files that are not there
    assert failure(caught.value).endswith(f"(test_own_classes.py, line {sys._getframe().f_lineno - 1})")
