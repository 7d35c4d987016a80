"""Every command that a message advises is one that this kind of run accepts: what is advised is carried out."""

import io
import re
import shlex
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import palestra
from palestra import make_trainer
from palestra.callbacks import Callback
from palestra.cli import app
from palestra.config import UserConfig
from palestra.config.own_modules import Source, _untrusted
from palestra.kinds.games.trainer import Trainer
from palestra.recording.recorders import Recorder
from palestra.run.sections import MachineConfig, RunOutputConfig
from palestra.storage.run_folder import RunFolder
from palestra.training.checks import branch_hint, resume_hint
from tests.conftest import TINY
from tests.kinds.games.test_user_nets import Sum
from tests.training.test_training import REGRESSION

Data = dict[str, Any]
CHANGE = "output.keep_last=7"


class Watcher(Callback):
    """A callback that a script of one's own holds."""

    class Config(UserConfig):
        pass


class Own(Trainer):
    """A trainer that no config names."""


class Kept(Recorder):
    """Files nothing."""

    def open(self, run: Any) -> int:
        return 0

    def write(self, number: int, record: Any) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self, end: Any) -> None:
        pass


def plain(config: Data, console: Console) -> Any:
    return Trainer(config, run="run", console=console)


def with_network(config: Data, console: Console) -> Any:
    trainer = Trainer(config, run="run", console=console)
    trainer.set_model("host", Sum(4))
    return trainer


def with_recorder(config: Data, console: Console) -> Any:
    trainer = Trainer(config, run="run", console=console)
    trainer.set_logger(Kept())
    return trainer


def with_own_trainer(config: Data, console: Console) -> Any:
    trainer = Own(config, run="run", console=console)
    trainer.set_model("host", Sum(4))
    trainer.set_logger(Kept())
    return trainer


def of_a_script(config: Data, console: Console) -> Any:
    return Trainer(config | {"callbacks": [{"name": "__main__:Watcher"}]}, run="run", console=console)


def without_evaluations(config: Data, console: Console) -> Any:
    return Trainer(config | {"evaluations": [], "best": None}, run="run", console=console)


def without_checkpoints(config: Data, console: Console) -> Any:
    output = config["output"] | {"save": None}
    return Trainer(config | {"output": output, "best": None}, run="run", console=console)


def without_games(config: Data, console: Console) -> Any:
    Path("regression.py").write_text(REGRESSION)
    rest = {key: config[key] for key in ("seed", "callbacks")}
    for key, section in (("execution", MachineConfig), ("output", RunOutputConfig)):
        rest[key] = {name: config[key][name] for name in section.model_fields}
    trainer = {"name": "regression:Regression", "learning_rate": 0.1}
    config = rest | {"trainer": trainer, "num_rows": 10, "stop": {"after": 55, "unit": "rows"}}
    return make_trainer(config, run="run", console=console)


RESUMED, EVALUATED = "palestra resume run", "palestra evaluate run"
LOADED = "trainer = palestra.Trainer.load('run'"
KINDS: dict[Callable[..., Any], list[str]] = {
    plain: [RESUMED, EVALUATED],
    with_network: [f"in Python: {LOADED}, models={{'host': ...}}); trainer.fit()"],
    with_recorder: [f"in Python: {LOADED}); trainer.set_logger(Kept(...)); trainer.fit()", EVALUATED],
    with_own_trainer: ["in Python: trainer = Own.load('run', models={'host': ...}); trainer.set_logger(Kept(...))"],
    of_a_script: [f"in the script that began it: {LOADED}); trainer.fit()"],
    without_evaluations: [RESUMED, f"{EVALUATED} --pairing host=host,agent=agent"],
    without_checkpoints: [],
    without_games: [RESUMED],
}


@pytest.fixture(autouse=True)
def _script(monkeypatch: pytest.MonkeyPatch, in_tmp_path: Path) -> None:
    Path("script.py").write_text("# of which this process is said to be the run")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(Path("script.py").absolute()), raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "Watcher", Watcher, raising=False)


def next_of(text: str) -> list[str]:
    """The ways that a summary names under Next."""
    lines = text.rpartition("\nNext\n")[2].splitlines()
    return [re.split(r"  +", line.strip(), maxsplit=1)[1] for line in lines if line.strip()]


def carry_out(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what a message advises, as the shell or a script would."""
    way = way.replace("KEY=VALUE", CHANGE)
    where, _, code = way.partition(": ")
    if where.startswith("in "):
        code = code.replace("{'host': ...}", "{'host': Sum(4)}").replace("Kept(...)", "Kept()")
        exec(code, {"palestra": palestra, "Own": Own, "Kept": Kept, "Sum": Sum})
        return
    with monkeypatch.context() as patch:
        patch.delattr(sys.modules["__main__"], "Watcher")  # the shell has it not
        result = CliRunner().invoke(app, shlex.split(way)[1:])
    assert result.exit_code == 0, (way, result.output)


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_is_advised_is_accepted(kind: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    console, config = Console(file=io.StringIO(), width=200), deepcopy(TINY)
    config["output"] |= {"display": "plain", "recorders": []}
    trainer = kind(config, console)
    trainer.fit(9, trainer.config.stop.unit)
    ways = next_of(console.file.getvalue())  # type: ignore[attr-defined]
    assert ways[-1] == "palestra report run"
    if kind not in (without_checkpoints, without_games):  # a page takes seconds; these lack most of what one shows
        ways.pop()
    assert len(ways) == len(KINDS[kind]) + (kind in (without_checkpoints, without_games))
    for way, begins in zip(ways, KINDS[kind], strict=False):
        assert way.startswith(begins)
    hints = [resume_hint(trainer.run.folder), branch_hint(trainer.run.folder)]
    assert (hints == ["nothing was saved"] * 2) == (kind is without_checkpoints)
    hinted = [hint.partition("; to resume: ")[2] or hint.partition("the config: ")[2] for hint in hints]
    on = trainer.run.finished_line(trainer.end_reason).removeprefix("it is finished; ")
    assert (on == "it cannot go on, because nothing was saved") == (kind is without_checkpoints)
    for way in dict.fromkeys([*reversed(ways), *hinted, on.partition("to go on: ")[2]]):
        if way:
            carry_out(way, monkeypatch)


def test_what_the_shell_refuses_of_a_script_is_told_without_a_remedy_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = deepcopy(TINY)
    config["output"] |= {"display": "quiet", "recorders": []}
    of_a_script(config, Console(file=io.StringIO())).fit()
    monkeypatch.delattr(sys.modules["__main__"], "Watcher")
    refused = CliRunner().invoke(app, ["resume", "run"])
    assert refused.exit_code == 2
    line = (
        "callbacks.0.name: expected a name in a module; what stands in a script (__main__) can be used by that script"
    )
    assert refused.stderr.endswith(f"{line} alone, got '__main__:Watcher'\n")
    [told] = _untrusted([Source("__main__", "/bin/palestra", "0" * 64)])
    assert "can be used by that script alone" in told
    assert "--trust" not in told


def test_a_folder_that_is_no_run_is_not_told_to_be_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("run").mkdir()
    assert RunFolder(Path("run")).ways_on().to_resume() is None
