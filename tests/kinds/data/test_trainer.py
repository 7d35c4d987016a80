"""A model that learns from data, in the lifecycle of every run: records, kills, workers, commands.

Covers palestra.data.sets, palestra.models.labelled, palestra.run.base, palestra.kinds.data.config,
palestra.kinds.data.judging.
"""

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fitted import EVALUATION, fit_config
from resuming import Killed, ask_to_leave, assert_same_bits, at_call, kill, records
from typer.testing import CliRunner

import palestra
from palestra import make_trainer
from palestra.cli import app
from palestra.config import ConfigError
from palestra.data.reading import DataFailed
from palestra.kinds.data.judging import SetEvaluations
from palestra.kinds.data.trainer import FitTrainer
from palestra.models.learning import LossScale
from palestra.recording import Logger
from palestra.storage.disk import RunFolderError
from palestra.storage.records_file import read_records
from palestra.storage.run_folder import RunFolder
from palestra.training.checks import TrainingFailed
from palestra.training.training import Training
from tests.forked import Forked

MODULE = '''
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from palestra.config import PositiveInt, UserConfig
from palestra.data.sets import UserDataConfig
from palestra.models.model import Model, score


class Points(Dataset):
    """Points on either side of a line, each seen with noise that is drawn anew."""

    class Config(UserDataConfig):
        num: PositiveInt
        """how many"""
        seed: PositiveInt
        """which"""

    def __init__(self, config):
        self.points = torch.randn(config.num, 2, generator=torch.Generator().manual_seed(config.seed))

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        point = self.points[index]
        return {"point": point + 0.05 * torch.randn(2), "label": (point.sum() > 0).long()}


class Net(Model):
    """A layer between, with dropout and running statistics."""

    class Config(UserConfig):
        hidden: PositiveInt
        """units"""

    scores = (score("accuracy", "share of points on the side that is found", "share", better="high"),)

    def __init__(self, config):
        super().__init__(config)
        hidden = self.config.hidden
        self.layers = nn.Sequential(
            nn.Linear(2, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 2)
        )
        # made

    def forward(self, batch):
        return self.layers(batch["point"])

    def loss(self, outputs, batch):
        return {"loss_label": cross_entropy(outputs, batch["label"], reduction="none")}

    def evaluation_step(self, batch):
        return {"accuracy": (self(batch).argmax(dim=1) == batch["label"]).float()}
'''


@pytest.fixture
def config(in_tmp_path: Path) -> dict[str, Any]:
    """Epochs of 5 batches, of which the last one has 6 items."""
    (in_tmp_path / "points.py").write_text(MODULE)
    base = fit_config({"name": "points:Net", "hidden": 8})
    every = {"interval": {"every": 1, "unit": "epochs"}, "at_start": True, "weights": "averaged"}
    learning = {"seeding": "per_item", "num_microbatches": 2, "max_grad_norm": 1.0, "ema": {"decay": 0.8}}
    often = {"record": {"every": 3, "unit": "opt_steps"}, "save": {"every": 4, "unit": "opt_steps"}, "keep_last": 2}
    return base | {
        "data": {
            "train": {"name": "points:Points", "num": 60, "seed": 1, "num_items": 46},
            "test": {"name": "points:Points", "num": 45, "seed": 2, "num_items": None},
        },
        "learning": base["learning"] | learning,
        "evaluations": [EVALUATION | {"batch_size": 7} | every],
        "best": {"evaluation": "test", "pairing": None, "measure": "accuracy", "goal": "max"},
        "stop": {"after": 4, "unit": "epochs"},
        "output": base["output"] | often,
    }


def fit(config: dict[str, Any], run: str) -> FitTrainer:
    trainer = make_trainer(config, run=run)
    trainer.fit()
    return trainer


def test_a_model_learns_and_is_judged_in_every_epoch(config: dict[str, Any]) -> None:
    trainer = fit(config | {"stop": {"after": 12, "unit": "epochs"}}, "run")
    assert (trainer.opt_steps, trainer.items, trainer.epochs) == (60, 12 * 46, 12)
    found = read_records(Path("run/records.jsonl"))
    scores = [each["pairs"][0]["scores"]["accuracy"] for each in found if each["kind"] == "evaluation"]
    assert len(scores) == 13
    assert scores[-1] >= 0.9
    training = [each for each in found if each["kind"] == "training"]
    assert training[0]["players"]["model"].keys() == {"learning_rate", "loss_label", "loss", "grad_norm"}
    assert training[-1]["clock"].keys() == {"train_seconds", "opt_steps_per_s", "items_per_s", "time"}
    assert int(Path("run/checkpoints/best").read_text()) > 0


class Hooked(FitTrainer):
    """Notes which hooks are called, and how many evaluations were recorded before each of them."""

    def _build(self) -> None:
        self.called: list[str] = []
        super()._build()

    def before_train(self) -> None:
        self.called.append("before_train")
        super().before_train()

    def before_epoch(self) -> None:
        super().before_epoch()
        self.called.append("before_epoch")

    def before_step(self) -> None:
        super().before_step()
        self.called.append("before_step")

    def train_step(self, batch: Any, index: int) -> Any:
        self.called.append(f"train_step {index}")
        return super().train_step(batch, index)

    def after_step(self) -> None:
        super().after_step()
        self.called.append(f"after_step {'loss' in self.step_terms}")

    def after_evaluation(self, record: Any) -> None:
        super().after_evaluation(record)
        self.called.append("evaluation")

    def after_save(self, checkpoint: Path) -> None:
        super().after_save(checkpoint)
        self.called.append("save")

    def after_epoch(self) -> None:
        super().after_epoch()
        self.called.append("after_epoch")

    def after_train(self) -> None:
        super().after_train()
        self.called.append("after_train")


def test_a_run_says_that_it_has_more_workers_than_processors(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config["execution"]["loading"]["num_workers"] = 1000
    trainer, told = make_trainer(config), list[str]()
    monkeypatch.setattr(trainer.run.display, "warn", told.append)
    trainer.choose_kernels()
    assert [line.partition(": ")[0] for line in told] == ["execution.loading.num_workers"]


def test_metrics_are_tried_before_there_is_a_folder(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config["evaluations"][0]["metrics"] = [{"name": "r_squared"}, {"name": "confusion_matrix"}]
    trainer = make_trainer(config, run="run")
    told = "expected 'outputs' and 'label' from evaluation_step, which metrics take, got accuracy; tried on the first"
    with pytest.raises(ConfigError, match=rf"^evaluations.0.metrics: {told} batch of data.test$"):
        trainer.fit()
    right = {"accuracy": torch.ones(7), "outputs": torch.ones(7, 2), "label": torch.ones(7).long()}
    monkeypatch.setattr(trainer.model, "evaluation_step", lambda batch: right)
    told = r"expected outputs and labels of one shape for r_squared, got \(7, 2\) and \(7,\)"
    with pytest.raises(ConfigError, match=f"^evaluations.0.metrics: {told}; tried on the first batch of data.test$"):
        trainer.fit()
    assert not Path("run").exists()
    monkeypatch.setattr("palestra.models.metrics.RSquared.update", lambda self, outputs, label: None)
    monkeypatch.setattr("palestra.models.metrics.RSquared.compute", lambda self: [[1.0, 2.0]])
    with pytest.raises(ConfigError, match=r"r_squared: expected a number from compute, got \[\[1.0, 2.0\]\]"):
        trainer.fit()
    monkeypatch.setattr("palestra.models.metrics.RSquared.compute", lambda self: [][0])
    trainer.require_ready()  # for the first batch may be one of which nothing can be computed


def test_hooks_are_called_in_their_order(config: dict[str, Any]) -> None:
    config |= {"stop": {"after": 2, "unit": "epochs"}, "best": None}
    config["data"]["train"]["num_items"] = 20
    config["output"]["save"] = {"every": 1, "unit": "epochs"}
    config["evaluations"][0]["at_start"] = False
    trainer = Hooked(config, run="run")
    trainer.fit(max_steps=1)
    step = ["before_step", "train_step {}", "after_step True"]
    first, second = ([word.format(number) for word in step] for number in range(2))
    assert trainer.called == ["before_train", "save", "before_epoch", *first, "save", "after_train"]
    trainer.called.clear()
    trainer.fit()
    epoch = [*second, "evaluation", "after_epoch", "save"]
    assert trainer.called == ["before_train", *epoch, "before_epoch", *first, *epoch, "after_train"]


def test_an_epoch_without_anything_due_has_its_hook(config: dict[str, Any]) -> None:
    config |= {"evaluations": [], "best": None, "stop": {"after": 11, "unit": "opt_steps"}}
    config["output"] |= {"save": None, "record": None}
    trainer = Hooked(config, run="run")
    trainer.fit()
    assert [word for word in trainer.called if "epoch" in word] == ["before_epoch", "after_epoch"] * 2 + [
        "before_epoch"
    ]


def test_an_epoch_whose_evaluation_is_interrupted_ends_when_the_run_goes_on(config: dict[str, Any]) -> None:
    config["evaluations"][0]["at_start"] = False
    trainer = Hooked(config, run="run")
    with at_call(SetEvaluations, "play", 1, lambda judging, *_: ask_to_leave(judging.trainer)):
        trainer.fit()
    assert (trainer.epochs, trainer.called.count("evaluation"), trainer.called.count("after_epoch")) == (1, 0, 0)
    resumed = Hooked.load("run")
    resumed.fit(max_steps=6)
    assert resumed.called[:3] == ["before_train", "evaluation", "after_epoch"]


def test_the_named_callbacks_know_the_model_as_a_player(config: dict[str, Any]) -> None:
    measure = {"name": "evaluation", "evaluation": "test", "pairing": None, "measure": "accuracy"}
    plateau = {"of": measure, "goal": "max", "min_delta": 2.0, "patience": 1}
    later = {"after": 2, "unit": "opt_steps"}
    halved = {"name": "constant", "value": 0.01}
    key = {"player": "model", "key": "groups.0.learning_rate"}
    config["callbacks"] = [
        {"name": "freeze", "player": "model", "net": "model", "weights": ["layers.0.*"], "num_opt_steps": 3},
        {"name": "change_schedule", **key, "at": later, "schedule": halved},
        {"name": "reduce_on_plateau", **key, "factor": 0.1, **plateau},
        {"name": "early_stopping", **plateau, "patience": 3},
    ]
    config["output"]["record"] = {"every": 1, "unit": "opt_steps"}
    config["execution"]["loading"]["num_workers"] = 0
    alone = fit(config, "alone")
    assert (alone.opt_steps, alone.epochs) == (15, 3)  # the evaluation of the third epoch ends the run at once
    assert "early stopping: accuracy of evaluation 'test' has not improved" in str(alone.end_reason)
    found = [each for each in read_records(Path("alone/records.jsonl")) if each["kind"] == "training"]
    rates = {each["opt_steps"]: each["players"]["model"]["learning_rate"] for each in found[:-1]}
    expected = [0.02] * 2 + [0.01] * 3 + [0.001] * 5 + [0.0001] * 5
    assert list(rates.values()) == pytest.approx(expected)
    cut = make_trainer(config, run="cut")
    before = [parameter.detach().clone() for parameter in cut.model.parameters()]
    cut.fit(max_steps=3)
    assert [torch.equal(*each) for each in zip(before, cut.model.parameters(), strict=True)] == [True] * 2 + [False] * 4
    for number in (2, 6):
        with at_call(Training, "safe_point", number, kill), pytest.raises(Killed):
            FitTrainer.load("cut").fit()
    FitTrainer.load("cut").fit()
    assert_same_bits(Path("cut"), Path("alone"))
    config["callbacks"] = [config["callbacks"][0] | {"net": "policy"}]
    with pytest.raises(ConfigError, match=r"callbacks.0.net: expected a network of 'model' that learns \('model'\)"):
        fit(config, "other")


MLP = {"name": "mlp", "net_arch": [16], "activation": "relu"}


@pytest.mark.parametrize(
    "model",
    [
        {"name": "classifier", "num_classes": 2, "label_smoothing": 0.05, "class_weights": [1.0, 2.0]},
        {"name": "regressor", "num_outputs": 1, "loss": "huber", "huber_delta": 0.5},
    ],
)
def test_the_shipped_models_learn_labels(config: dict[str, Any], model: dict[str, Any]) -> None:
    measure, goal = ("accuracy", "max") if model["name"] == "classifier" else ("absolute_error", "min")
    of_set = "auc" if measure == "accuracy" else "r_squared"
    names = ["auc", "confusion_matrix"] if measure == "accuracy" else ["r_squared"]
    config["evaluations"][0]["metrics"] = [{"name": name} for name in names]
    config["best"] |= {"measure": of_set, "goal": "max"}
    config |= {"model": model | {"net": MLP}, "stop": {"after": 12, "unit": "epochs"}}
    trainer = fit(config, "run")
    found = [each for each in read_records(Path("run/records.jsonl")) if each["kind"] == "evaluation"]
    first, last = (each["pairs"][0]["scores"][measure] for each in (found[0], found[-1]))
    assert last >= 0.9 if goal == "max" else last < first / 2
    assert trainer.finished
    pair = found[-1]["pairs"][0]
    assert pair["scores"][of_set] > 0.75
    assert of_set not in pair["intervals"]
    assert [each["name"] for each in found[-1]["declared_scores"]][-1] == of_set
    matrix = pair["tables"].get("confusion_matrix", [])
    assert sum(map(sum, matrix)) == (45 if measure == "accuracy" else 0)
    extremes = pair["extremes"]
    assert extremes["score"] == "loss"
    num_wrong = round((1 - last) * 45) if measure == "accuracy" else 45
    assert len({item for item, _ in extremes["worst"]}) == min(num_wrong, 8)
    assert len(extremes["best"]) == 8
    numbers = [number for which in ("worst", "best") for _, number in extremes[which][:: -1 if which == "best" else 1]]
    assert numbers == sorted(numbers, reverse=True)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_that_is_killed_goes_on_to_the_same_bits_with_any_number_of_workers(
    config: dict[str, Any], num_workers: int
) -> None:
    fit(config, "alone")
    config["execution"]["loading"]["num_workers"] = num_workers
    with at_call(Training, "safe_point", 3, kill), pytest.raises(Killed):
        fit(config, "run")
    with at_call(Training, "safe_point", 9, kill), pytest.raises(Killed):
        FitTrainer.load("run").fit()
    reads = []
    trainer = FitTrainer.load("run")
    before, original = trainer.opt_steps, type(trainer.loader.reader).__getitem__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(trainer.loader.reader), "__getitem__", lambda self, key: (reads.append(key), original(self, key))[1]
        )
        trainer.fit()
    if not num_workers:
        learned = [key for key in reads if len(key.items) in (10, 6)]
        assert len(learned) == len(set(learned))  # no batch is read twice
    assert before == 0
    if not num_workers:
        assert_same_bits(Path("run"), Path("alone"))
    assert records(Path("run")) == records(Path("alone"))
    states = [Path(run, "checkpoints", "latest").read_text().strip() for run in ("run", "alone")]
    one, other = (Path(run, "checkpoints", name) for run, name in zip(("run", "alone"), states, strict=True))
    assert (one / "tensors.safetensors").read_bytes() == (other / "tensors.safetensors").read_bytes()


def test_workers_end_with_a_run_that_is_killed(config: dict[str, Any]) -> None:
    """Else they would hold its lock, and a resume would have to wait."""
    config["execution"]["loading"]["num_workers"] = 2
    config["stop"]["after"] = 100_000
    Path("run.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    with Forked([sys.executable, "-m", "palestra", "train", "run.yml", "--run", "run"]) as process:
        while not Path("run/checkpoints/00000003").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    folder, end_s = RunFolder.open(Path("run")), time.monotonic() + 3.0  # torch's own workers look every 5 s
    while folder.is_in_use():
        assert time.monotonic() < end_s
        time.sleep(0.02)


ROW_T = """
from palestra import FitTrainer as Trainer, Logger
{model}
trainer = Trainer(config)
model = Model(model_config)
logger = Logger(logg_config)
trainer.set_model(model)
trainer.set_logger(logger)
trainer.fit(max_steps=7)
"""


def names_of_row_t(config: dict[str, Any]) -> dict[str, Any]:
    logg_config = {"name": "csv"}
    return {"config": config | {"model": None}, "model_config": {"hidden": 8}, "logg_config": logg_config}


def test_a_model_of_ones_own_becomes_part_of_the_config(config: dict[str, Any]) -> None:
    config["execution"]["loading"]["num_workers"] = 0
    names = names_of_row_t(config)
    torch.manual_seed(8)
    exec(ROW_T.format(model="from points import Net as Model"), names)
    trainer = names["trainer"]
    assert (trainer.opt_steps, trainer.finished) == (7, False)
    run = trainer.run.folder.path
    assert Path(run, "csv", "training.csv").exists()
    written = yaml.safe_load(Path(run, "config.yml").read_text())
    assert written["model"] == {"name": "points:Net", "hidden": 8}
    assert written["output"]["recorders"] == [{"name": "csv"}]
    for words in (["verify", str(run), "--from", "beginning"], ["resume", str(run)]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, f"{words}: {result.output}"
    torch.manual_seed(8)
    import points  # type: ignore[import-not-found]

    whole = FitTrainer(config | {"model": None, "output": written["output"]}, run="whole")
    whole.set_model(points.Net({"hidden": 8}))
    with at_call(Training, "save", 1, kill), pytest.raises(Killed):  # before checkpoint 0
        whole.fit()
    whole = FitTrainer.load("whole")
    whole.fit(max_steps=3)
    whole.fit(max_steps=3)
    assert whole.opt_steps == 3
    whole.fit()
    assert_same_bits(Path("whole"), run)


def test_a_model_of_a_script_can_only_be_resumed_from_python(config: dict[str, Any]) -> None:
    names = names_of_row_t(config)
    exec(ROW_T.format(model=MODULE.replace("class Net", "class Model")), names)
    trainer = names["trainer"]
    run = str(trainer.run.folder.path)
    assert yaml.safe_load(Path(run, "config.yml").read_text())["model"] is None
    for words in (["resume", run], ["verify", run], ["branch", f"{run}/checkpoints/latest", "stop.after=9"]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code in (1, 2)
        assert "with the same objects: trainer = palestra.Trainer.load('" in result.output, words
        assert f"{run}', models={{'model': ...}}); trainer.fit()" in result.output, words
        assert "Traceback" not in result.output
    model = names["Model"]({"hidden": 8})
    FitTrainer.load(run, models={"model": model}).fit(max_steps=9)
    loaded = FitTrainer.load(run)
    loaded.set_model(model)
    loaded.fit()
    assert (loaded.opt_steps, loaded.finished) == (20, True)
    branch = FitTrainer.branch(f"{run}/checkpoints/latest", ["stop.after=5"], models=model)
    branch.fit()
    assert branch.epochs == 5
    assert float(loaded.evaluating.best.value) > 0.3  # type: ignore[union-attr]
    with pytest.raises(RunFolderError, match=r"load_player, load_model and Trainer\.branch take `models`, too"):
        palestra.load_model(run)
    with pytest.raises(ValueError, match=r"^models: expected a palestra\.Model, as set_model got it, got 7$"):
        palestra.load_model(run, models=7)  # type: ignore[arg-type]
    trained = loaded.model.state_dict()
    for given in (model, {"model": model}):
        found = palestra.load_model(run, models=given).model
        assert found is not model
        assert all(torch.equal(value, trained[name]) for name, value in found.state_dict().items())


def test_what_is_no_model_of_the_run_is_told(config: dict[str, Any]) -> None:
    Path("run.yml").write_text(yaml.safe_dump(config | {"model": None}, sort_keys=False))
    result = CliRunner().invoke(app, ["train", "run.yml"])
    assert result.exit_code == 2
    assert result.output.count("\n") == 1
    assert "model: expected a model by name, or a class of your own as package.module:Class" in result.output
    result = CliRunner().invoke(app, ["check", "run.yml"])
    assert result.exit_code == 0
    assert "model: only a program can train this, which hands a model over by" in result.output
    import points

    named, unnamed = FitTrainer(config), FitTrainer(config | {"model": None})
    with pytest.raises(ValueError, match=r"^set_model: expected `model: null` in the config, got 'points:Net'$"):
        named.set_model(points.Net({"hidden": 8}))
    with pytest.raises(TypeError, match=r"^set_model: expected an object of a class that derives from palestra.Model"):
        unnamed.set_model(torch.nn.Linear(1, 1))  # type: ignore[arg-type]
    config["best"]["measure"] = "f1"
    with pytest.raises(ConfigError, match=r"^best.measure: expected one of 'accuracy', "):
        FitTrainer(config | {"model": None}).set_model(points.Net({"hidden": 8}))
    frozen = points.Net({"hidden": 8}).requires_grad_(False)
    for replicas in (1, 2):
        trainer = FitTrainer(config | {"model": None, "best": None, "num_replicas": replicas})
        with pytest.raises(ConfigError, match="learning"):
            trainer.set_model(frozen)
        assert (trainer.config.model, hasattr(trainer, "model"), trainer.lockstep.handed_over) == (None, False, {})
        trainer.set_model(points.Net({"hidden": 8}))
    with pytest.raises(ConfigError, match=r"^hidden: expected an integer >= 1, got 0$"):
        points.Net({"hidden": 0})
    with pytest.raises(ValueError, match=r"^max_steps: expected a positive number, got 0$"):
        named.fit(max_steps=0)
    with pytest.raises(ConfigError, match=r"^Logger.name: expected one of .*'csv'.*, got 'cvs'; did you mean 'csv'"):
        Logger({"name": "cvs"})


def test_every_command_of_a_run_knows_a_model(config: dict[str, Any]) -> None:
    Path("run.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    for words, told in (
        (
            ["check", "run.yml"],
            "train: 4 epochs, in each epoch the model learns from data.train, in batches of 10 items",
        ),
        (["train", "run.yml", "--run", "run"], ""),
        (["verify", "run"], "reproduced to the bit"),
        (["extend", "run", "stop.after=5"], ""),
        (["branch", "run/checkpoints/latest", "--run", "other", "stop.after=6", "learning.max_grad_norm=null"], ""),
        (["report", "run", "other"], "report.html"),
        (["table", "run"], "evaluation/test/model/accuracy"),
    ):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, f"{words}: {result.output}"
        assert told in result.output, words
    assert [FitTrainer.load(run).config.stop.after for run in ("run", "other")] == [5, 6]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"data.train": None}, r"data.train: expected a mapping with `name`"),
        ({"data.train.num_items": 61}, "data.train.num_items: expected at most 60, as the set has, got 61"),
        (
            {"evaluations.0.data": "valid"},
            r"evaluations.0.data: expected a data set, not a loader, of this file \(train, test\), got 'valid'; a new",
        ),
        ({"learning.ema": None}, "evaluations.0.weights: expected 'latest', because learning.ema is null"),
        ({"best.measure": "acuracy"}, "best.measure: expected one of 'accuracy', .*did you mean 'accuracy'"),
        ({"learning.groups.0.weights": "first.*"}, r"learning.groups.0.weights: expected weights among .*, got 'first"),
        ({"best.measure": "auc"}, "best.measure: expected one of 'accuracy', or a function"),
        (
            {"evaluations.0.metrics": [{"name": "auc"}, {"name": "auc"}]},
            "evaluations.0.metrics: expected other names than those of the model's scores, each once",
        ),
        ({"num_worlds": 4}, "num_worlds: unknown key: trainer fit learns from data, and has no games"),
        (
            {"execution.kernel": "numba"},
            "execution.kernel: unknown key: trainer fit learns from data, and has no games",
        ),
        ({"output.info": []}, "output.info: unknown key: trainer fit learns from data, and has no games"),
        ({"learning.precision": "float16"}, "learning.precision: expected float32 or bfloat16, because execution.dev"),
        (
            {"learning.last_batch": "drop", "learning.batch_size": 47},
            "learning.last_batch: expected 'keep', because the 46 items of data.train make no whole batch",
        ),
        ({"stop.unit": "env_steps"}, "stop.unit: expected one of 'opt_steps', 'items', 'epochs', 'minutes', got"),
    ],
)
def test_what_does_not_fit_is_told_with_its_key(config: dict[str, Any], changes: dict[str, Any], told: str) -> None:
    for path, value in changes.items():
        *above, last = path.split(".")
        part: Any = config
        for key in above:
            part = part[int(key) if key.isdigit() else key]
        part[last] = value
    with pytest.raises(ConfigError, match=told):
        make_trainer(config, run="run")
    assert not Path("run").exists()


def test_an_override_of_a_game_is_told_as_a_key_of_a_file_is(config: dict[str, Any]) -> None:
    for key in ("game", "num_worlds", "players.agent", "output.info", "execution.kernel"):
        with pytest.raises(ConfigError, match=rf"^{key}: no such key: trainer fit learns from data, and has no games$"):
            make_trainer(config, overrides=[f"{key}=1"])


def test_an_item_that_cannot_be_read_ends_the_run_in_a_line(config: dict[str, Any]) -> None:
    drawing = "self.points[index] + (torch.randn(2) if index == 7 else 0)"
    Path("drawing.py").write_text(MODULE.replace("self.points[index]", drawing).replace(" + 0.05 * torch.randn(2)", ""))
    config["learning"]["seeding"], config["data"]["train"]["name"] = None, "drawing:Points"
    config["data"]["test"]["name"] = "drawing:Points"
    with pytest.raises(TrainingFailed, match=r"^data.t.*: item 7 draws random numbers; expected none, because") as told:
        fit(config, "run")
    assert isinstance(told.value.__cause__, DataFailed)


@pytest.mark.parametrize(
    ("name", "before", "after", "told"),
    [
        (
            "item",
            "self.points[index]",
            "self.points[1 // index]",
            "data.train: item 0 cannot be read: ZeroDivisionError",
        ),
        ("init", "hidden = self.config.hidden", "hidden = 1 // 0", r"model: 'init:Net' fails: Zero.*\(init.py, line"),
        ("held", "# made", "self.requires_grad_(False)", "learning.groups: expected weights that learn .* in Net, got"),
        ("none", "return len(self.points)", "return 0", "data.train.name: expected items in 'none:Points', got none"),
    ],
)
def test_what_is_known_before_the_folder_is_told_before(
    config: dict[str, Any], name: str, before: str, after: str, told: str
) -> None:
    assert before in MODULE
    Path(f"{name}.py").write_text(MODULE.replace(before, after))
    config["data"]["train"]["name"], config["model"]["name"] = f"{name}:Points", f"{name}:Net"
    with pytest.raises(ConfigError, match=f"^{told}"):
        fit(config, "run")
    assert not Path("run").exists()


def test_the_traceback_of_an_item_is_in_failure_txt(config: dict[str, Any]) -> None:
    broken = "self.points[index // (index != 7)]"
    Path("no_seventh.py").write_text(MODULE.replace("self.points[index]", broken))
    config["data"]["train"]["name"] = "no_seventh:Points"
    told = r"^data.train: item 7 cannot be read: ZeroDivisionError: .*; batch \d of epoch 0"
    with pytest.raises(TrainingFailed, match=told):
        fit(config, "run")
    assert broken in Path("run/failure.txt").read_text()


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            'return self.layers(batch["point"])',
            'return self.layers(batch["point"][:, :1])',
            r"^Net fails: RuntimeError: mat1 and mat2 shapes .* \(broken_net.py, line \d+\); batch 0 of "
            r"epoch 0 \(items \d+, .*\); ",
        ),
        (
            'reduction="none")}',
            'reduction="none") / (batch["point"][:, 0] < 0.4)}',
            r"^the loss is (inf|nan) at opt step 0, counted from 0: batch 0 of epoch 0 \(items .*; a resumed run would",
        ),
        (
            '"loss_label"',
            '"label"',
            r"^expected at least one term named loss_\*, .* got label; batch 0 of epoch 0 \(it",
        ),
        (
            '{"accuracy": (self',
            '{"right": (self',
            r"^expected the declared score 'accuracy' from evaluation_step, got "
            r"right; evaluation test, batch 0 of epoch 0 \(items 0, 1",
        ),
        (
            ".float()}",
            ".float()[3:]}",
            r"^expected one number per item, \(7,\), as the score 'accuracy', got \(4,\); eval",
        ),
        (
            ".float()}",
            '.float(), "weight": torch.ones(7, 1)}',
            r"^expected one number per item, \(7,\), as the entry 'weight' of evaluation_step, got \(7, 1\); eval",
        ),
    ],
)
def test_a_model_that_fails_is_told_with_batch_and_items(
    config: dict[str, Any], before: str, after: str, told: str
) -> None:
    assert before in MODULE
    Path("broken_net.py").write_text(MODULE.replace(before, after))
    sys.modules.pop("broken_net", None)
    config["model"]["name"] = "broken_net:Net"
    config["evaluations"][0]["at_start"] = "evaluation_step" in told or "score" in told
    with pytest.raises(TrainingFailed, match=told):
        fit(config, "run")
    assert Path("run/failure.txt").exists() == ("the loss is" not in told)


def test_a_run_in_which_no_loss_scale_helps_ends_in_a_line(config: dict[str, Any]) -> None:
    trainer = make_trainer(config)
    trainer.learner.scale = LossScale(trainer.device)
    assert trainer.fault(True) is None
    for _ in range(31):
        trainer.learner.scale.update(has_overflowed=True)
    assert trainer.fault(True) == "gradients are no finite numbers with any loss scale down to 3e-05"


def test_tied_and_frozen_weights_are_saved_and_loaded(config: dict[str, Any]) -> None:
    own = "\n        self.layers[0].bias.requires_grad_(False)\n        self.again = self.layers[0]"
    Path("tied.py").write_text(MODULE.replace("Linear(hidden, 2)\n        )", f"Linear(hidden, 2)\n        ){own}"))
    config["model"]["name"] = "tied:Net"
    config["execution"]["loading"]["num_workers"] = 0
    whole, cut = fit(config, "whole"), make_trainer(config, run="cut")
    cut.fit(num_steps=7, unit="opt_steps")
    resumed = FitTrainer.load("cut")
    resumed.fit()
    assert resumed.model.again is resumed.model.layers[0]
    assert_same_bits(Path("cut"), Path("whole"))
    assert torch.equal(whole.model.again.weight, resumed.model.layers[0].weight)
