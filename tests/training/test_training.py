"""A training without a game: it trains whatever derives from it. And what it must not know.

Covers palestra.training.own_judging.
"""

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from combinations import PPO
from conftest import MakeConfig, MakeRun
from resuming import Killed, assert_same_bits, at_call, fit, kill, records
from typer.testing import CliRunner

import palestra
from palestra import make_trainer
from palestra.cli import app
from palestra.config import ConfigError, load_yaml
from palestra.kinds.games.together import Together
from palestra.kinds.games.trainer import Trainer
from palestra.run.checkpoints import Checkpoints
from palestra.run.sections import MachineConfig, RunOutputConfig
from palestra.storage.disk import RunFolderError
from palestra.storage.records_file import read_records
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import encode
from palestra.training.checks import TrainingFailed
from palestra.training.training import Training
from tests.games.gym_worlds import gym_data

TRAINING = Path(palestra.__file__).parent / "training"

REGRESSION = '''
import torch

from palestra.config import PositiveFloat, PositiveInt, UserConfig
from palestra.recording.aggregates import Aggregates
from palestra.run.base import BaseRunConfig
from palestra.training.training import Training


class RegressionConfig(BaseRunConfig):
    counters = ("rows", *BaseRunConfig.counters)

    num_rows: PositiveInt
    """rows of data"""


class Regression(Training):
    """A linear regression, a row at a time."""

    run_config = RegressionConfig
    rated = ("rows",)

    class Config(UserConfig):
        learning_rate: PositiveFloat
        """step size"""

    def _build(self):
        generator = torch.Generator().manual_seed(self.config.seed)
        self.inputs = torch.randn(self.config.num_rows, 3, generator=generator)
        self.targets = self.inputs @ torch.tensor([1.0, -2.0, 3.0])
        self.weights = torch.zeros(3)
        self.row = 0
        self.errors = Aggregates(self.config.output.statistics)

    def _train(self):
        while self.row < self.config.num_rows:
            error = self.inputs[self.row] @ self.weights - self.targets[self.row]
            self.weights = self.weights - self.config.trainer.learning_rate * error * self.inputs[self.row]
            self.errors.add({"error": error.abs()})
            self.row += 1
            self.rows += 1
            self.opt_steps += 1
            self.epoch_counts["updates"] += 1
            self.safe_point()
        self.row = 0

    def _record_fields(self):
        return self.errors.take()

    def fault(self, with_parameters):
        return None if self.weights.isfinite().all() else "a weight is no finite number"

    def state_dict(self):
        own = {"row": self.row, "weights": self.weights, "errors": self.errors.state_dict()}
        return super().state_dict() | own

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.row, self.weights = state["row"], state["weights"]
        self.errors.load_state_dict(state["errors"], self.device)
'''

JUDGED = (
    """
from palestra.models.model import score
from palestra.training.own_judging import JudgedRunConfig
"""
    + REGRESSION.replace("BaseRunConfig", "JudgedRunConfig")
    .replace(
        "    num_rows",
        """    scores = (score("error", "mean error on new rows", "y", "low"),)

    num_rows""",
    )
    .replace("from palestra.run.base import JudgedRunConfig\n", "")
    + """
    def judge(self, name, num):
        inputs = torch.randn(num, 3, generator=torch.Generator().manual_seed(1))
        return {"error": (inputs @ (self.weights - torch.tensor([1.0, -2.0, 3.0]))).abs().mean()}
"""
)


@pytest.fixture
def config(make_config: Any, in_tmp_path: Path) -> dict[str, Any]:
    (in_tmp_path / "regression.py").write_text(REGRESSION)
    whole = make_config()
    return {
        "seed": 0,
        "trainer": {"name": "regression:Regression", "learning_rate": 0.1},
        "num_rows": 10,
        "stop": {"after": 55, "unit": "rows"},
        "callbacks": [],
        "execution": {key: whole["execution"][key] for key in MachineConfig.model_fields},
        "output": {key: whole["output"][key] for key in RunOutputConfig.model_fields}
        | {"record": {"every": 15, "unit": "rows"}, "save": {"every": 20, "unit": "rows"}, "display": "plain"},
    }


def test_a_training_without_games_counts_and_records_what_it_declares(config: dict[str, Any]) -> None:
    trainer = make_trainer(config, run="run")
    trainer.fit()
    assert (trainer.rows, trainer.opt_steps, trainer.epochs) == (55, 55, 5)
    records = read_records(Path("run") / "records.jsonl")
    assert [record["rows"] for record in records] == [15, 30, 45, 55]
    assert records[-1]["error"] < records[0]["error"] / 5
    assert "env_steps" not in records[-1]
    assert records[-1]["clock"].keys() == {"train_seconds", "rows_per_s", "time"}
    numbers = Checkpoints(RunFolder.open(Path("run")), 1, None).numbers()
    assert len(numbers) == 4


def test_a_training_without_games_that_is_killed_goes_on_from_the_shell(config: dict[str, Any]) -> None:
    make_trainer(config, run="alone").fit()
    Path("run.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    with at_call(Training, "safe_point", 37, kill), pytest.raises(Killed):
        make_trainer("run.yml", run="run").fit()
    result = CliRunner().invoke(app, ["resume", "run"])
    assert result.exit_code == 0, result.output
    assert_same_bits(Path("run"), Path("alone"))
    result = CliRunner().invoke(app, ["verify", "run"])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(app, ["evaluate", "run"])
    assert (result.exit_code, result.output) == (2, "run: expected a run with evaluations, got one without\n")


def test_a_training_of_ones_own_that_judges_has_a_best_checkpoint_is_evaluated_and_swept(
    config: dict[str, Any],
) -> None:
    Path("judged.py").write_text(JUDGED)
    config["trainer"]["name"] = "judged:Regression"
    main = {"name": "main", "interval": {"every": 10, "unit": "rows"}, "at_start": True, "num_items": 50}
    config["evaluations"] = [main | {"final_num_items": 80}]
    config["best"] = {"evaluation": "main", "pairing": None, "measure": "error", "goal": "min"}
    config["evaluators"] = None
    Path("run.yml").write_text(yaml.safe_dump(config, sort_keys=False))

    def palestra_(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, f"{result.output}{result.exception!r}"
        return result.output

    make_trainer("run.yml", run="alone").fit()
    judged = [each for each in read_records(Path("alone") / "records.jsonl") if each["kind"] == "evaluation"]
    errors = [each["pairs"][0]["scores"]["error"] for each in judged]
    assert [each["rows"] for each in judged] == [0, 10, 20, 30, 40, 50, 55]
    assert errors[-1] < 0.3 < 3.0 < errors[0]
    best = Checkpoints(RunFolder.open(Path("alone")), 1, None).load("best").state
    assert best["row"] + 10 * best["counters"]["epochs"] == judged[errors.index(min(errors))]["rows"]

    with at_call(Training, "safe_point", 37, kill), pytest.raises(Killed):
        make_trainer("run.yml", run="run").fit()
    palestra_("resume", "run")
    assert_same_bits(Path("run"), Path("alone"))
    told = json.loads(json.dumps(errors[-1]))
    palestra_("evaluate", "run")
    [file] = Path("run", "evaluations").glob("main*.json")
    assert json.loads(file.read_text())["pairs"][0]["scores"]["error"] == told
    assert "main" in palestra_("evaluate", "run", "--checkpoint", "best")
    assert "error" in palestra_("table", "run")
    assert "error" in palestra_("compare", "run", "alone")
    palestra_("report", "run")

    palestra_("sweep", "run.yml", "trainer.learning_rate=0.001,0.1", "--seeds", "0", "--run", "sweep")
    assert load_yaml(Path("sweep", "best.yml"))["trainer"]["learning_rate"] == 0.1


@pytest.mark.usefixtures("forked_evaluators")
def test_other_processes_judge_as_the_training_itself(config: dict[str, Any]) -> None:
    Path("judged_beside.py").write_text(JUDGED)
    config["trainer"]["name"] = "judged_beside:Regression"
    main = {"name": "main", "interval": {"every": 10, "unit": "rows"}, "at_start": True, "num_items": 50}
    config |= {"evaluations": [main | {"final_num_items": 80}], "best": None}
    beside = {"num_processes": 1, "results": {"after": 5, "unit": "rows"}, "timeout_s": 120.0, "max_restarts": 1}
    found = []
    for run, evaluators in (("alone", None), ("beside", beside)):
        make_trainer(config | {"evaluators": evaluators}, run=run).fit()
        judged = [each for each in read_records(Path(run) / "records.jsonl") if each["kind"] == "evaluation"]
        found.append({each["rows"]: each["pairs"] for each in judged})
    assert len(found[0]) == 7
    assert found[0] == found[1]


def test_scores_of_a_judge_that_are_not_as_declared_end_the_run_in_one_line(config: dict[str, Any]) -> None:
    Path("misjudged.py").write_text(JUDGED.replace('{"error"', '{"errors"'))
    config["trainer"]["name"] = "misjudged:Regression"
    config |= {"evaluations": [], "best": None, "evaluators": None}
    main = {"name": "main", "interval": None, "at_start": True, "num_items": 5, "final_num_items": 8}
    with pytest.raises(
        TrainingFailed, match=r"Regression\.judge: expected a mapping with a number for error, got {'er"
    ):
        make_trainer(config | {"evaluations": [main]}).fit()


def test_a_training_without_games_is_checked_and_described(config: dict[str, Any]) -> None:
    Path("run.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    result = CliRunner().invoke(app, ["check", "run.yml"])
    assert (result.exit_code, result.output.splitlines()) == (
        0,
        [
            "run.yml: complete and consistent",
            "train: 55 rows, by Regression",
            "test: the final evaluations, if there are any",
        ],
    )
    result = CliRunner().invoke(app, ["check", "run.yml", f"output.checkpoint_folder={__file__}/is/a/file"])
    assert result.exit_code == 0
    assert "only this machine lacks, so that train refuses it here: output.checkpoint_folder: " in result.output


def test_a_kind_of_run_says_which_units_there_are(config: dict[str, Any]) -> None:
    config["stop"]["unit"] = "env_steps"
    message = r"stop\.unit: expected one of 'rows', 'opt_steps', 'epochs', 'minutes', got 'env_steps'"
    with pytest.raises(ConfigError, match=message):
        make_trainer(config)


def test_a_key_that_the_kind_of_run_does_not_have_is_told(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"num_worlds: unknown key"):
        make_trainer(config | {"num_worlds": 4})


def test_a_callback_of_players_is_refused_where_nobody_plays(config: dict[str, Any]) -> None:
    freeze = {"name": "freeze", "player": "agent", "net": "q", "weights": ["*"], "num_opt_steps": None}
    trainer = make_trainer(config | {"callbacks": [freeze]})
    with pytest.raises(
        ConfigError, match=r"callbacks\.0\.name: expected a run in which players or a model learn, got a run in"
    ):
        trainer.fit()


# ---- parts of a run, and another end -------------------------------------------------------------------

GYMNASIUM: dict[str, Any] = {
    "game": gym_data(id="tests.gym_probes:Walk-v0", observation={"normalize": {"eps": 1e-8}, "clip": 5.0}),
    "roles": {"agent": "host"},
    "players.agent": ...,
    "evaluations.0.pairings": [{"agent": "host"}],
    "best": {"evaluation": "main", "pairing": 0, "measure": "return/agent", "goal": "max"},
}
EVALUATORS = {"num_processes": 1, "results": {"after": 3, "unit": "opt_steps"}, "timeout_s": 120.0, "max_restarts": 1}


@pytest.mark.usefixtures("forked_evaluators")
@pytest.mark.parametrize("changes", [{}, GYMNASIUM, {"evaluators": EVALUATORS}])
def test_a_run_that_is_trained_piece_by_piece_ends_in_the_bits_of_one_piece(
    changes: dict[str, Any], make_config: MakeConfig, tmp_path: Path, uninterrupted_run: MakeRun
) -> None:
    uninterrupted = uninterrupted_run(make_config(changes))
    trainer = Trainer(make_config(changes), run=tmp_path / "run")
    reached = []
    while not trainer.finished:
        trainer.fit(num_steps=7, unit="opt_steps")
        reached.append(trainer.opt_steps)
    assert reached == [7, 14, 21, 24]
    assert_same_bits(tmp_path / "run", uninterrupted)


def test_a_fit_of_some_steps_is_saved_and_another_process_goes_on(
    make_config: MakeConfig, tmp_path: Path, uninterrupted_run: MakeRun
) -> None:
    uninterrupted = uninterrupted_run(make_config())
    Trainer(make_config(), run=tmp_path / "run").fit(num_steps=5, unit="opt_steps")
    loaded = Trainer.load(tmp_path / "run")
    with at_call(Training, "safe_point", 4, kill), pytest.raises(Killed):  # of the 6 steps, 3 are lost
        loaded.fit(num_steps=6, unit="opt_steps")
    loaded = Trainer.load(tmp_path / "run")
    loaded.fit(num_steps=6, unit="opt_steps")
    assert (loaded.opt_steps, loaded.finished) == (11, False)
    loaded.fit()
    assert loaded.finished
    assert_same_bits(tmp_path / "run", uninterrupted)


def test_a_fit_of_some_steps_takes_each_unit_and_says_what_is_none(make_config: MakeConfig, tmp_path: Path) -> None:
    trainer = Trainer(make_config(), run=tmp_path / "run")
    trainer.fit(num_steps=1, unit="epochs")
    assert trainer.epochs == 1
    before = trainer.env_steps
    trainer.fit(num_steps=9, unit="env_steps")
    assert trainer.env_steps - before == 16  # two rounds of 8 worlds
    steps = trainer.opt_steps
    trainer.fit(num_steps=1e-9, unit="minutes")
    assert (trainer.opt_steps, trainer.finished) == (steps, False)
    units = "unit: expected one of 'env_steps', 'opt_steps', 'epochs', 'minutes'"
    for num_steps, unit, message in (
        (0, "epochs", "num_steps: expected a positive number, got 0"),
        (None, "epochs", "num_steps: expected a positive number, got None"),
        (True, "epochs", "num_steps: expected a positive number, got True"),
        (5, "steps", f"{units}, got 'steps'"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            trainer.fit(num_steps, unit)
    assert trainer.opt_steps == steps
    trainer.fit(1)
    assert trainer.opt_steps == steps + 1
    trainer.fit(max_steps=steps + 2)
    assert trainer.opt_steps == steps + 2


def state_of(trainer: Trainer) -> tuple[Any, dict[str, torch.Tensor]]:
    """Without what decides the best checkpoint."""
    tensors: dict[str, torch.Tensor] = {}
    state = {key: value for key, value in trainer.state_dict().items() if key != "evaluating"}
    return encode(state, "", tensors), tensors


@pytest.mark.parametrize("changes", [{}, GYMNASIUM, {"players.host.algorithm": PPO}])
def test_a_copy_learns_what_its_original_learns_and_touches_it_not(
    changes: dict[str, Any], make_config: MakeConfig, tmp_path: Path
) -> None:
    trainer = Trainer(make_config(changes), run=tmp_path / "run")
    with pytest.raises(RuntimeError, match=r"^copy: expected a run with a checkpoint, got one that has none"):
        trainer.copy()
    trainer.fit(num_steps=10, unit="opt_steps")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    copy = trainer.copy(tmp_path / "copy")
    copy.fit(num_steps=7, unit="opt_steps")
    assert 17 <= copy.opt_steps < 24
    assert {path: path.read_bytes() for path in before} == before
    copy.fit()
    trainer.fit()
    state, other = state_of(trainer), state_of(copy)
    assert state[0] == other[0]
    assert state[1].keys() == other[1].keys()
    assert all(torch.equal(tensor, other[1][name]) for name, tensor in state[1].items())
    assert any("players" in name for name in state[1])
    mine, theirs = (
        [record for record in records(tmp_path / name) if record["opt_steps"] > 18] for name in ("run", "copy")
    )
    assert mine
    assert mine == theirs
    with pytest.raises(RunFolderError, match="exists already"):
        trainer.copy(tmp_path / "copy").fit()


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_trainer_that_is_extended_learns_what_an_extended_run_learns(
    is_loaded: bool, make_config: MakeConfig, in_tmp_path: Path
) -> None:
    Trainer(make_config(), run="run").fit()
    result = CliRunner().invoke(app, ["extend", "run", "stop.after=40"])
    assert result.exit_code == 0, result.output
    trainer = Trainer(make_config(), run="here")
    trainer.fit()
    if is_loaded:
        trainer = Trainer.load("here")
    trainer.extend(["stop.after=40"])
    with at_call(Training, "safe_point", 9, kill), pytest.raises(Killed):
        trainer.fit()
    fit(Path("here"))
    assert_same_bits(Path("here"), Path("run"))
    noted = [json.loads((Path(name) / "changes.jsonl").read_text()) for name in ("here", "run")]
    assert noted[0] == noted[1]


def test_a_trainer_is_extended_once_it_has_begun_and_beyond_where_it_is(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    trainer = Trainer(make_config({"output.save": None}), run=tmp_path / "run")
    with pytest.raises(RuntimeError, match=r"^extend: expected a run that has begun, got one without a folder"):
        trainer.extend(["stop.after=40"])
    trainer.fit(num_steps=9, unit="opt_steps")
    trainer.extend(["stop.after=12"])
    trainer.fit()
    assert (trainer.opt_steps, trainer.finished) == (12, True)
    with pytest.raises(ConfigError, match=r"stop\.after: expected more than the 12 opt_steps that the run has reached"):
        trainer.extend(["stop.after=10"])
    with pytest.raises(ConfigError, match=r"seed: expected 0, as before, got 1"):
        trainer.extend(["seed=1"])
    assert trainer.finished
    assert trainer.config.seed == 0


def test_a_finished_trainer_says_how_it_goes_on(
    make_config: MakeConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trainer = Trainer(make_config({"output.display": "plain"}), run=tmp_path / "run")
    trainer.fit()
    capfd.readouterr()
    trainer.fit(num_steps=5, unit="opt_steps")
    assert trainer.opt_steps == 24
    assert "it is finished; to go on: palestra extend" in capfd.readouterr().out.replace("\n", "")


def test_a_training_knows_no_game_player_or_roll_out() -> None:
    for name in ("training", "opening"):
        tree = ast.parse((TRAINING / f"{name}.py").read_text())
        modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        rooms = {module.split(".")[1] for module in modules if module.startswith("palestra.")}
        assert not rooms & {"games", "players", "rollouts", "algorithms", "evaluation", "nets"}, name


def test_the_docstring_lists_what_a_training_may_override() -> None:
    """All that Trainer and Together do override is among it."""
    document = inspect.getdoc(Training) or ""
    listed = set(re.findall(r"`(\w+)`", document.partition("Must be implemented: ")[2].partition("May be set: ")[0]))
    assert all(callable(getattr(Training, name)) for name in listed)
    methods = {name for name, value in vars(Training).items() if callable(value) or isinstance(value, classmethod)}
    assert {*vars(Trainer), *vars(Together)} & methods - {"__init__", "run_config", "stored"} <= listed


def test_files_of_the_room_are_read_from_top_to_bottom() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in TRAINING.glob("*.py")}
    assert lengths
    whole = lengths.pop("training.py")  # the whole life of a training, with all that an own one may override
    assert whole <= 860
    assert {name: length for name, length in lengths.items() if length > 570} == {}


def test_a_run_whose_folder_was_refused_begins_with_the_next_fit(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(make_config({"stop.after": 2, "evaluations": [], "best": None}), run=tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(
            RunFolder, "write_facts", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
        with pytest.raises(RunFolderError, match="No space left"):
            trainer.fit()
    trainer.fit()
    assert trainer.finished
