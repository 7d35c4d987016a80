"""Which class trains a run: the one that its file names, or one that was given from Python, and then said so.

Covers palestra.training, palestra.training.opening.
"""

import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml
from resuming import Killed, assert_same_bits, at_call, kill
from typer.testing import CliRunner

import palestra
from palestra import make_trainer
from palestra.cli import app
from palestra.config import ConfigError, validation
from palestra.config.own_modules import read_trusted
from palestra.kinds.games.trainer import Trainer
from palestra.run.kinds import kind_named, read_config
from palestra.storage.disk import RunFolderError

MakeConfig = Callable[..., dict[str, Any]]
ALTERNATING = Path(__file__).parents[2] / "docs" / "examples" / "alternating.py"
NAMED = {"name": "own_trainer:Alternating", "num_turns": 3}


@pytest.fixture
def own(in_tmp_path: Path) -> Path:
    shutil.copy(ALTERNATING, in_tmp_path / "own_trainer.py")
    return in_tmp_path


def shell(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


# ---- a file that names it --------------------------------------------------------------------------------


def test_a_trainer_of_ones_own_that_is_killed_goes_on_from_the_shell(make_config: MakeConfig, own: Path) -> None:
    """Stopped in the middle of the turns of one player, who takes the rest of them."""
    config = make_config({"trainer": NAMED, "stop": {"after": 40, "unit": "opt_steps"}})
    Path("run.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    alone = make_trainer(config, run="alone")
    alone.fit()
    assert type(alone).__name__ == "Alternating"
    opt_steps = [alone.players[name].opt_steps for name in ("host", "agent")]
    assert sum(opt_steps) == 40
    assert max(opt_steps) - min(opt_steps) <= 6  # three turns of two opt steps each
    with at_call(Trainer, "safe_point", 29, kill), pytest.raises(Killed):
        make_trainer("run.yml", run="run").fit()
    assert shell("resume", "run")[0] == 0
    assert_same_bits(Path("run"), Path("alone"))
    assert shell("verify", "run", "--from", "beginning")[0] == 0
    facts = json.loads(Path("run/run.json").read_text())
    assert list(facts["user_classes"]) == ["own_trainer:Alternating"]
    assert facts["trainer_in_python"] is None


def test_every_command_builds_the_class_that_the_file_names(make_config: MakeConfig, own: Path) -> None:
    config = make_config({"trainer": NAMED, "stop": {"after": 12, "unit": "opt_steps"}})
    Path("run.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    made: list[str] = []

    def note(trainer: Trainer, *_: Any) -> None:
        made.append(type(trainer).__name__)

    commands = [
        ["check", "run.yml"],
        ["train", "run.yml", "--run", "run"],
        ["extend", "run", "stop.after=14"],
        ["resume", "run"],
        ["branch", "run/checkpoints/latest", "stop.after=16", "--run", "branch"],
        ["profile", "run.yml", "--steps", "2"],
    ]
    for command in commands:
        made.clear()
        with at_call(Trainer, "require_ready", 1, note):
            code, output = shell(*command)
        assert code == 0, f"{command}: {output}"
        assert made == ["Alternating"], command
    assert isinstance(Trainer.load("run"), type(make_trainer("run.yml")))
    assert type(Trainer.load("run")).__name__ == "Alternating"


def test_a_class_that_the_file_does_not_name_is_refused(make_config: MakeConfig, own: Path) -> None:
    message = r"^trainer\.name: expected a trainer that {} is derived from, got 'own_trainer:Alternating'; palestra"
    for cls in (Trainer, palestra.DQNTrainer):
        with pytest.raises(ConfigError, match=message.format(cls.__name__)):
            cls(make_config({"trainer": NAMED}))


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        (..., r"^trainer: expected a mapping with `name`, one of 'in_turn', 'together', or a class of your own as"),
        (
            {"name": "in_trun"},
            r"^trainer\.name: expected one of 'in_turn', .*, got 'in_trun'; did you mean 'in_turn'\?$",
        ),
        ({"name": "in_turn", "num_turns": 3}, r"^trainer\.num_turns: unknown key"),
        (
            {"name": "own_trainer:Alternating"},
            r"^trainer\.num_turns: expected an integer >= 1, but the key is missing$",
        ),
        ({"name": "own_trainer:Nobody"}, r"^trainer\.name: expected a class of module 'own_trainer' .*, got 'Nobody'$"),
        ({"name": "own_trainer:PositiveInt"}, r"^trainer\.name: expected a class of module .*, got 'PositiveInt'$"),
        ({"name": "own_trainer:UserConfig"}, r"^trainer\.name: expected a subclass of palestra\..*:UserConfig'$"),
    ],
)
def test_a_trainer_that_cannot_be_is_told(trainer: Any, expected: str, make_config: MakeConfig, own: Path) -> None:
    with pytest.raises(ConfigError, match=expected):
        make_trainer(make_config({"trainer": trainer}))


def test_a_branch_cannot_change_the_trainer_but_its_keys(make_config: MakeConfig, own: Path) -> None:
    config = make_config({"trainer": NAMED, "stop": {"after": 12, "unit": "opt_steps"}})
    make_trainer(config, run="run").fit()
    code, output = shell("branch", "run/checkpoints/latest", "trainer={name: in_turn}")
    expected = "trainer.name: expected 'own_trainer:Alternating', on which the state in run/checkpoints/"
    assert (code, output.startswith(expected), "got 'in_turn'" in output) == (2, True, True)
    changes = ["trainer.num_turns=1", "stop.after=20"]
    branched = Trainer.branch(Path("run/checkpoints/latest"), changes, run="branch")
    branched.fit()
    assert branched.config.trainer.num_turns == 1  # type: ignore[union-attr]


def test_what_the_trainer_keeps_lies_in_the_checkpoint(make_config: MakeConfig, own: Path) -> None:
    given, other = (make_trainer(make_config({"trainer": NAMED})) for _ in range(2))
    given.extra_state = {"num_taken": 2, "names": ["a", None], "scores": {"host": 0.5}}
    other.load_state_dict(given.state_dict())
    assert other.extra_state == given.extra_state


def test_make_trainer_builds_the_stock_trainer(make_config: MakeConfig) -> None:
    assert type(make_trainer(make_config())) is Trainer
    assert palestra.make_trainer is make_trainer
    assert kind_named("in_turn").trainers()["in_turn"][0] is Trainer


def test_only_players_that_learn_take_turns(make_config: MakeConfig) -> None:
    trainer = Trainer(make_config({"players.agent": {"scripted": "random"}}))
    with pytest.raises(ValueError, match="expected a player that learns, got 'agent'"):
        trainer.give_turn(trainer.players["agent"])


def test_the_document_says_what_a_training_logic_may_use(make_config: MakeConfig) -> None:
    page = (Path(__file__).parents[2] / "docs" / "own-trainer.md").read_text()
    tables = re.findall(r"\| name \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", page)
    assert len(tables) == 2
    rows = [row for table in tables for row in table.splitlines()]
    names = {name for row in rows for name in re.findall(r"`([\w.]+)", row.split("|")[1])}
    trainer = Trainer(make_config())
    player = trainer.players["host"]
    for name in names:  # raises AttributeError
        attrgetter(name.removeprefix("player."))(player if name.startswith("player.") else trainer)
    in_docstring = re.findall(r"`(\w+)`", (inspect.getdoc(Trainer) or "").partition("`_train` may use: ")[2])
    assert {name.partition(".")[0] for name in names if not name.startswith("player.")} <= set(in_docstring)


def test_a_config_that_was_checked_is_taken_as_it_is_and_its_modules_are_trusted(
    make_config: MakeConfig, own: Path
) -> None:
    (own / "own_trainer.py").rename("checked_trainer.py")
    config = read_config(make_config({"trainer": NAMED | {"name": "checked_trainer:Alternating"}}))
    assert "checked_trainer" not in {source.module for source in read_trusted()}
    assert make_trainer(config).config is config
    assert "checked_trainer" in {source.module for source in read_trusted()}


def test_a_run_from_a_path_reads_its_file_once(make_config: MakeConfig, own: Path) -> None:
    Path("run.yml").write_text(yaml.safe_dump(make_config(), sort_keys=False))
    with at_call(validation, "load_yaml", 0, kill) as calls:
        palestra.DQNTrainer("run.yml")
    assert len(calls) == 1


def test_a_name_of_palestra_imports_the_one_module_that_holds_it() -> None:
    told = "import sys, palestra; palestra.ConfigError; print('palestra.kinds.games.config' in sys.modules)"
    called = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, timeout=60)
    assert called.stdout == "False\n", called.stderr


# ---- a class from Python -----------------------------------------------------------------------------------


def test_a_class_given_in_python_goes_on_in_python_alone(make_config: MakeConfig, in_tmp_path: Path) -> None:
    class HostFirst(Trainer):
        """The host learns in two epochs of three."""

        def _train(self) -> None:
            self.give_turn(self.players["agent" if self.epochs % 3 == 2 else "host"])

    config = make_config({"stop": {"after": 16, "unit": "opt_steps"}})
    HostFirst(config, run="alone").fit()
    with at_call(Trainer, "safe_point", 15, kill), pytest.raises(Killed):
        HostFirst(config, run="run").fit()
    name = f"{__name__}:{HostFirst.__qualname__}"
    assert json.loads(Path("run/run.json").read_text())["trainer_in_python"] == name
    commands = [
        ["resume", "run"],
        ["extend", "run", "stop.after=20"],
        ["branch", "run/checkpoints/latest"],
        ["verify", "run"],
    ]
    for command in commands:
        code, output = shell(*command)
        assert code == 2, output
        [line] = output.strip().splitlines()
        assert "HostFirst" in line
        assert "which its config does not name; it can go on from Python alone: trainer = HostFirst.load('" in line
        assert line.endswith("run'); trainer.fit()")
    assert "after: 16" in Path("run/config.yml").read_text()  # extend has changed nothing
    with pytest.raises(RunFolderError, match="it can go on from Python alone"):
        Trainer.load("run")
    HostFirst.load("run").fit()
    assert_same_bits(Path("run"), Path("alone"))
    assert palestra.load_player("run", "host").opt_steps > 8


def test_a_class_from_python_does_not_take_over_a_run_of_the_named_one(make_config: MakeConfig, tmp_path: Path) -> None:
    class Mine(Trainer):
        pass

    Trainer(make_config({"stop": {"after": 8, "unit": "opt_steps"}}), run=tmp_path / "run").fit()
    expected = r"expected palestra\.Trainer\.load or palestra\.Trainer\.branch, because its config names the trainer"
    with pytest.raises(
        RunFolderError, match=rf"{expected} 'in_turn', got those of tests\.training\.test_naming:.*Mine$"
    ):
        Mine.load(tmp_path / "run")
    assert type(palestra.DQNTrainer.load(tmp_path / "run")) is palestra.DQNTrainer


# ---- older runs, and the module as a command ---------------------------------------------------------------


def test_an_older_run_is_refused_in_one_line(make_config: MakeConfig, in_tmp_path: Path) -> None:
    Trainer(make_config({"stop": {"after": 4, "unit": "opt_steps"}}), run="run").fit()
    facts = json.loads(Path("run/run.json").read_text())
    del facts["format"], facts["trainer_in_python"]
    Path("run/run.json").write_text(json.dumps(facts))
    config = Path("run/config.yml").read_text()
    assert "trainer:" in config
    Path("run/config.yml").write_text("\n".join(line for line in config.splitlines() if "trainer" not in line))
    for command in (["resume", "run"], ["evaluate", "run"], ["verify", "run"], ["branch", "run/checkpoints/latest"]):
        code, output = shell(*command)
        [line] = output.strip().splitlines()
        assert code == 2
        assert line.endswith(
            f"run is a run of format 0, written by palestra {facts['versions']['palestra']}; this palestra reads "
            "format 2: use the version that wrote it"
        )


def test_palestra_is_a_module_that_can_be_run() -> None:
    called = subprocess.run([sys.executable, "-m", "palestra", "--help"], capture_output=True, text=True, timeout=60)
    assert called.returncode == 0
    assert "resume" in called.stdout
