"""Fit runs over data of every sort: rows, scenarios, loaders of one's own; what is wrong with data is one line.

Covers palestra.data.own_loaders, palestra.data.workers.
"""

import csv
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from resuming import Killed, assert_same_bits, at_call, kill, records
from typer.testing import CliRunner

from palestra import make_trainer
from palestra.cli import app
from palestra.config import ConfigError
from palestra.data.reading import DataFailed
from palestra.kinds.data.trainer import FitTrainer
from palestra.storage.records_file import read_records
from palestra.storage.run_folder import RunFolder
from palestra.training.checks import TrainingFailed
from tests.fitted import fit_config
from tests.forked import Forked

MODULE = '''
import hashlib
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from palestra.config import PositiveInt
from palestra.data.own_loaders import LoaderConfig
from palestra.data.sets import UserDataConfig

made = []


class Points(Dataset):
    """Points on either side of a line, each seen with noise."""

    class Config(UserDataConfig):
        pass

    def __init__(self, config=None):
        self.points = torch.randn(40, 2, generator=torch.Generator().manual_seed(1))
        self.files = {"points.txt": hashlib.sha256(Path("points.txt").read_bytes()).hexdigest()}

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        point = self.points[index]
        return {"point": point + 0.05 * torch.randn(2), "label": (point.sum() > 0).long()}


class Counted(Points):
    """Points that write down which item is read."""

    def __getitem__(self, index):
        with open("reads.txt", "a") as file:
            file.write(f"{index}\\n")
        return super().__getitem__(index)


class Classes(Points):
    def __getitem__(self, index):
        return {"x": torch.zeros(3), "label": index // 30 * 5}


class Split(Points):
    """Points of which some are drawn when the set is made."""

    def __init__(self, config):
        super().__init__(config)
        self.points = self.points[torch.randperm(40)[:20]]

    def __len__(self):
        return 20


class Keys(LoaderConfig):
    size: PositiveInt
    """items of a batch"""


def generated(config, epoch):
    made.append(epoch)
    items, size = Points(), config.size
    for start in range(0, 40, size):
        batch = [items[(index * 7 + epoch) % 40] for index in range(start, min(start + size, 40))]
        yield {key: torch.stack([item[key] for item in batch]) for key in batch[0]}


generated.Config = Keys


def torchs():
    return DataLoader(Points(), batch_size=8, shuffle=True)


def workers():
    return DataLoader(Points(), batch_size=8, shuffle=True, num_workers=2)


class Stream:
    """As torchdata's StatefulDataLoader: its state counts the batches that it gave, and says whether it has ended."""

    num, extra = 5, None

    def __init__(self):
        self.given, self.passes, self.has_ended, self.is_loaded, self.items = 0, -1, False, False, Points()

    def __iter__(self):
        if self.has_ended or not self.is_loaded:
            self.given, self.passes, self.has_ended = 0, self.passes + 1, False
        self.is_loaded = False
        while self.given < self.num:
            generator = torch.Generator().manual_seed(100 * self.passes + self.given + 1000)
            items = [self.items[index] for index in torch.randint(40, (8,), generator=generator)]
            self.given += 1
            yield {key: torch.stack([item[key] for item in items]) for key in items[0]}
        self.has_ended = True

    def state_dict(self):
        return {"given": self.given, "passes": self.passes, "has_ended": self.has_ended, "extra": self.extra}

    def load_state_dict(self, state):
        self.given, self.passes, self.has_ended = state["given"], state["passes"], state["has_ended"]
        self.is_loaded = self.passes >= 0


class Hub:
    """As a stream of Hugging Face's datasets: it goes on from a state that was loaded whenever the epoch is that one's.

    As torch's loaders it draws when it begins to read.
    """

    def __init__(self):
        self.epoch, self.given, self.loaded, self.items = 0, 0, None, Points()

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        torch.rand(1)
        goes_on = self.loaded is not None and self.loaded["epoch"] == self.epoch
        self.given = self.loaded["given"] if goes_on else 0
        return self.batches()

    def batches(self):
        while self.given < 5:
            start, self.given = self.given * 8, self.given + 1
            items = [self.items[(index * 7 + self.epoch) % 40] for index in range(start, start + 8)]
            yield {key: torch.stack([item[key] for item in items]) for key in items[0]}

    def state_dict(self):
        return {"given": self.given, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.loaded = state


class OfHub:
    """As torchdata's StatefulDataLoader of such a stream."""

    def __init__(self):
        self.dataset = Hub()
        self.state_dict, self.load_state_dict = self.dataset.state_dict, self.dataset.load_state_dict

    def __iter__(self):
        return Unsized(self.dataset)


class Unsized:
    """As the iterator of a torch DataLoader over a stream, whose length cannot be asked."""

    def __init__(self, dataset):
        self.batches = iter(dataset)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.batches)

    def __len__(self):
        raise TypeError("a stream has no length")


class Odd(Stream):
    extra = {1, 2}


unsteady_calls = []


def unsteady():
    unsteady_calls.append(1)
    for number in range(5):
        point = torch.full((8, 2), float(len(unsteady_calls)))
        yield {"point": point, "label": torch.arange(8) % 2}


def fails():
    yield from list(generated(Keys(loader="loaders:generated", num_batches=None, size=8), 0))[:2]
    raise OSError("the disk is gone")


def short():
    return iter([])


def number():
    return 3
'''


def small_fit(train: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A classifier of two classes that learns from a set in two epochs. changes: sections, or keys of them."""
    config = fit_config(data={"train": train})
    config["learning"] |= {"batch_size": 8, "seeding": "per_item", "ema": None}
    config["output"] |= {"record": {"every": 3, "unit": "opt_steps"}, "save": {"every": 4, "unit": "opt_steps"}}
    for key, value in changes.items():
        config[key] = config[key] | value if isinstance(config[key], dict) else value
    return config


@pytest.fixture(autouse=True)
def _module(in_tmp_path: Path) -> None:
    Path("loaders.py").write_text(MODULE)
    Path("points.txt").write_text("1")


def loader(name: str, num_batches: int | None = None, **more: Any) -> dict[str, Any]:
    config = small_fit({"loader": f"loaders:{name}", "num_batches": num_batches, **more})
    config["learning"] |= {"order": None, "batch_size": None, "last_batch": None, "seeding": None}
    return config


def fit(config: dict[str, Any], run: str) -> FitTrainer:
    trainer = make_trainer(config, run=run)
    trainer.fit()
    return trainer


LOADERS: dict[str, dict[str, Any]] = {
    "a generator": loader("generated", size=7),
    "a generator, in part": loader("generated", num_batches=4, size=7),
    "torch's": loader("torchs"),
    "torch's with workers": loader("workers"),
    "with state": loader("Stream"),
    "a stream": loader("Stream", num_batches=3),
    "of Hugging Face's sort": loader("Hub"),
    "a stream of Hugging Face's sort": loader("OfHub", num_batches=3),
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_run_with_a_loader_goes_on_to_the_same_bits(name: str) -> None:
    config = LOADERS[name] | {"stop": {"after": 3, "unit": "epochs"}}
    whole = fit(config, "whole")
    size = 7 if "generator" in name else 8
    batches = {"a generator": 6, "a generator, in part": 4}.get(name, 3 if "a stream" in name else 5)
    items = 3 * (min(batches * size, 40) if batches > 4 else batches * size)
    assert (whole.opt_steps, whole.items, whole.epochs) == (3 * batches, items, 3)
    cut = make_trainer(config, run="cut")
    cut.fit(num_steps=batches, unit="opt_steps")  # at the end of an epoch
    cut.fit(num_steps=2, unit="opt_steps")
    with pytest.raises(Killed), at_call(FitTrainer, "train_step", 1, kill):
        FitTrainer.load("cut").fit()
    FitTrainer.load("cut").fit()
    assert_same_bits(Path("cut"), Path("whole"))
    assert not [each for each in records(Path("cut")) if "notes" in each]


def test_a_loader_that_gives_other_batches_is_told_in_the_records() -> None:
    config = loader("unsteady")
    with pytest.raises(Killed), at_call(FitTrainer, "train_step", 6, kill):
        fit(config, "run")
    FitTrainer.load("run").fit()
    [note] = [each["notes"]["warning"] for each in read_records(Path("run/records.jsonl")) if "notes" in each]
    assert "data.train: the loader gave other batches before batch 4 of epoch 0 than it gave at first; equal" in str(
        note
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"loader": "loaders:none"}, r"data.train.loader: expected a function of module 'loaders' \(.*\), got 'none'"),
        ({"loader": "loaders:number"}, "data.train.loader: expected an iterable of batches from .*, got int"),
        ({"loader": "loaders:generated"}, "data.train.size: expected an integer >= 1, but the key is missing"),
        ({"loader": "loaders:short"}, "data.train: expected a batch from the loader, got none"),
        ({"loader": 3}, "data.train.loader: expected a function of your own as 'package.module:function', got the int"),
        ({"num_items": 3}, "data.train.num_items: unknown key"),
    ],
)
def test_a_loader_that_cannot_be_used_is_told(changes: dict[str, Any], told: str) -> None:
    config = loader("torchs")
    config["data"]["train"] |= changes
    with pytest.raises(ConfigError, match=f"^{told}"):
        make_trainer(config, run="run")
    assert not Path("run").exists()


def test_keys_that_mean_nothing_with_a_loader_are_told() -> None:
    config = small_fit({"loader": "loaders:torchs", "num_batches": None})
    config["data"]["test"] = config["data"]["train"]
    with pytest.raises(ConfigError) as told:
        make_trainer(config, run="run")
    assert [(each.path, each.message[:13]) for each in told.value.errors] == [
        ("learning.order", "expected null"),
        ("learning.batch_size", "expected null"),
        ("learning.last_batch", "expected null"),
        ("learning.seeding", "expected null"),
        ("data.test", "expected a da"),
    ]
    config = small_fit({"name": "loaders:Points", "num_items": None})
    config["learning"]["batch_size"] = None
    with pytest.raises(ConfigError, match=r"^learning.batch_size: expected a value, because data.train is a data set"):
        make_trainer(config, run="run")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            loader("fails"),
            r"data.train: the loader fails: OSError: the disk is gone; the run waited for batch 2 of epoch 0",
        ),
        (
            loader("torchs", num_batches=9),
            r"data.train: expected 9 batches in an epoch \(num_batches\) from the loader, got 5; batch 5 of epoch 0",
        ),
        (
            loader("Odd"),
            r"data.train: the state_dict of the loader cannot be stored: /extra: expected tensors, .*, got set",
        ),
    ],
)
def test_a_loader_that_fails_is_told_in_a_line(config: dict[str, Any], told: str) -> None:
    with pytest.raises(TrainingFailed, match=f"^{told}"):
        fit(config, "run")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resume_reads_one_batch_again_at_most_and_what_is_prefetched(num_workers: int) -> None:
    config = small_fit({"name": "loaders:Counted", "num_items": None}, stop={"after": 3})
    config["execution"]["loading"]["num_workers"] = num_workers
    with pytest.raises(Killed), at_call(FitTrainer, "train_step", 10, kill):  # in the second epoch; 8 was saved
        fit(config, "run")
    Path("reads.txt").unlink()
    trainer, first = FitTrainer.load("run"), len(read_items())  # the item whose shapes the network has
    counts: list[int] = []
    with at_call(FitTrainer, "train_step", 1, lambda *_: counts.append(len(read_items()))):
        trainer.fit()
    prefetched = 2 * num_workers * 8
    assert first == 1
    assert counts[0] <= first + 8 + prefetched  # although the epoch is far on
    assert len(read_items()) == first + 3 * 40 - 8 * 8  # each item that was not learned from is read once


def read_items() -> list[str]:
    return Path("reads.txt").read_text().split()


def test_what_a_set_draws_when_it_is_made_follows_from_the_seed() -> None:
    split = {"name": "loaders:Split", "num_items": None}
    config = small_fit(split)
    config["data"]["other"] = split
    first, again = make_trainer(config, run="run"), make_trainer(config, run="again")
    sets = [*first.data.values(), *again.data.values()]
    assert all(torch.equal(each.points, sets[0].points) for each in sets)
    assert not torch.equal(make_trainer(config | {"seed": 4}, run="other").data["train"].points, sets[0].points)


def test_a_label_that_is_no_class_is_told_with_its_item() -> None:
    told = r"data.train: item 3\d has the label 5; expected 0 to 1 \(model.num_classes is 2\); batch \d of epoch 0"
    with pytest.raises(TrainingFailed, match=f"^{told}"):
        fit(small_fit({"name": "loaders:Classes", "num_items": None}), "run")
    Path("data.csv").write_text("x,y\n1,a\n2,b\n3,c\n")
    train = {"name": "rows", "file": "data.csv", "label": "y", "label_kind": "class", "sees": ["x"], "categorical": []}
    train |= {"images": [], "held_out": None, "part": "train", "standardize": False, "num_items": None}
    with pytest.raises(ConfigError, match=r"^data.train: item 2 has the label 2; expected 0 to 1"):
        make_trainer(small_fit(train), run="other")
    Path("data.csv").write_text("x,y\n1,a\n2,b\n3,b\n")
    config = small_fit(train)
    config["data"]["unlabelled"] = train | {"label": None}  # to be predicted
    make_trainer(config, run="other")


def test_a_run_is_refused_once_a_file_of_its_data_has_changed() -> None:
    evaluation = {"name": "own", "data": "train", "batch_size": 9, "interval": None, "at_start": False}
    points = {"name": "loaders:Points", "num_items": None}
    fit(small_fit(points, evaluations=[evaluation | {"weights": "latest", "metrics": []}]), "run")
    Path("points.txt").write_text("2")
    told = "data.train: expected 'points.txt' as it was when the run began (SHA-256 6b86b273ff34...), got another"
    for words in (
        ["extend", "run", "stop.after=4"],
        ["resume", "run"],
        ["branch", "run/checkpoints/latest", "seed=4"],
        ["evaluate", "run"],
        ["predict", "run", "train", "--out", "out.csv"],
    ):
        result = CliRunner().invoke(app, words)
        assert (result.exit_code, told in result.output.replace("\n", "")) == (2, True), f"{words}: {result.output}"
    Path("points.txt").write_text("1")
    assert CliRunner().invoke(app, ["resume", "run"]).exit_code == 0


def test_a_classifier_learns_the_rows_of_a_file() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(300, 2, generator=generator).tolist()
    with open("data.csv", "w", newline="") as file:
        rows = [[x, 100 * y, "ab"[int(x + y > 0)]] for x, y in points]
        csv.writer(file).writerows([["x", "y", "side"], *rows])
    train = {"name": "rows", "file": "data.csv", "label": "side", "label_kind": "class", "sees": ["x", "y"]}
    train |= {
        "categorical": [],
        "images": [],
        "held_out": {"name": "fraction", "fraction": 0.3, "seed": 0},
        "part": "train",
    }
    train |= {"standardize": True, "num_items": None}
    assert last_accuracy(train, train | {"part": "held_out"}, batch_size=16, epochs=8) >= 0.95
    with pytest.raises(ConfigError, match=r"^data.train.label: expected whole numbers or texts"):
        make_trainer(small_fit(train | {"label": "x", "sees": ["y"]}), run="other")


@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_every_shipped_set_is_read_by_workers_that_start_in_any_way(start_method: str) -> None:
    Path("data.csv").write_text("\n".join(["x,w,y", *(f"{x},{'ab'[x % 2]},{x % 2}" for x in range(12))]))
    rewards = {"right": 1.0, "wrong": -1.0, "out_of_time": -1.0, "go_on": 0.0, "prover": 1.0, "shared": False}
    file = {"name": "rows", "file": "data.csv", "label": "y", "categorical": ["w"], "images": [], "standardize": True}
    rows = file | {"label_kind": "class", "sees": ["x", "w"], "held_out": None, "part": "all", "num_items": None}
    held_out = {"name": "fraction", "fraction": 0.5, "seed": 0}
    scenario = file | {"sees": {"verifier": ["x", "w"]}, "num_tokens": 2, "held_out": held_out, "balanced": True}
    drawn = {"name": "scenario", "protocol": {"name": "solo_verifier", "rewards": rewards}, "scenario": scenario}
    for train in (rows, drawn | {"role": "verifier", "held_out": False, "num_items": 12}):
        losses = []
        for num_workers in (0, 1):
            config = small_fit(train, stop={"after": 1, "unit": "opt_steps"})
            config["execution"]["loading"] |= {"num_workers": num_workers, "start_method": start_method}
            trainer = fit(config, f"run-{train['name']}-{num_workers}")
            losses.append(float(trainer.step_terms["loss"]))
        assert losses[0] == losses[1]


def test_a_set_that_cannot_be_sent_to_workers_is_told_before_the_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_fit({"name": "loaders:Points", "num_items": None})
    config["execution"]["loading"] |= {"num_workers": 1, "start_method": "spawn"}
    trainer = make_trainer(config, run="run")
    trainer.data["train"].key = lambda: 1
    told = "^data.train: workers cannot start with execution.loading.start_method 'spawn': .*lambda"
    with pytest.raises(ConfigError, match=told):
        trainer.require_ready()


WHOLE = """
import torch
from palestra.models.model import Model
from loaders import Points as Own

class Points(Own):
    def collate(self, items):
        batch = {name: torch.stack([each[name] for each in items]) for name in ("point", "label")}
        return {"scale": torch.arange(1.0, 9.0), "deep": [{"shift": torch.ones(2)}], **batch}

class Line(Model):
    def __init__(self, config):
        super().__init__(config)
        self.net = torch.nn.Linear(2, 1)

    def forward(self, batch):
        assert batch["scale"].tolist() == list(range(1, 9))
        return self.net(batch["point"] * batch["scale"][-2:] + batch["deep"][0]["shift"]).squeeze(1)

    def loss(self, outputs, batch):
        return {"loss_line": (outputs - batch["label"]).square()}

class Says(Line):
    per_item = ("point", "label")
"""


@pytest.mark.parametrize("model", ["Line", "Says"])
def test_what_belongs_to_no_item_is_never_cut_and_counts_none(model: str) -> None:
    """It comes first in the batch, and has as many rows as the batch or as a piece has items."""
    Path("whole.py").write_text(WHOLE)
    weights = []
    for num_microbatches in (1, 4):
        config = small_fit({"name": "whole:Points", "num_items": 30}, stop={"after": 1, "unit": "epochs"})
        evaluation = {"name": "own", "data": "train", "batch_size": 9, "interval": None, "at_start": False}
        config["evaluations"] = [evaluation | {"weights": "latest", "metrics": []}]
        config["model"] = {"name": f"whole:{model}"}
        config["learning"] |= {"batch_size": 8, "num_microbatches": num_microbatches}
        trainer = fit(config, f"run-{num_microbatches}")
        weights.append(trainer.model.net.weight.detach().clone())
    torch.testing.assert_close(*weights)


def test_a_solo_verifier_comes_to_the_enumerated_accuracy_of_witness() -> None:
    rewards = {"right": 1.0, "wrong": -1.0, "out_of_time": -1.0, "go_on": 0.0, "prover": 1.0, "shared": False}
    train = {"name": "scenario", "protocol": {"name": "solo_verifier", "rewards": rewards}, "role": "verifier"}
    train |= {"scenario": {"name": "witness", "num_bits": 8, "num_seen": 2}, "held_out": False, "num_items": 6000}
    assert last_accuracy(
        train, train | {"held_out": True, "num_items": 8000}, batch_size=100, epochs=3
    ) == pytest.approx(0.876, abs=0.02)


def last_accuracy(train: dict[str, Any], test: dict[str, Any], batch_size: int, epochs: int) -> float:
    evaluation = {"name": "test", "data": "test", "batch_size": 500, "interval": None, "at_start": False}
    config = small_fit(train, evaluations=[evaluation | {"weights": "latest", "metrics": []}], stop={"after": epochs})
    config["data"]["test"], config["learning"]["batch_size"] = test, batch_size
    fit(config, "run")
    [*_, last] = [each for each in read_records(Path("run/records.jsonl")) if each["kind"] == "evaluation"]
    accuracy: float = last["pairs"][0]["scores"]["accuracy"]
    return accuracy


def kill_workers(*args: Any) -> None:
    for each in multiprocessing.active_children():
        os.kill(each.pid or 0, signal.SIGKILL)
    time.sleep(0.2)  # in which torch's handler would raise


@pytest.mark.parametrize("train", [{"name": "loaders:Points", "num_items": None}, LOADERS["torch's with workers"]])
def test_a_worker_that_is_killed_while_the_model_computes_is_told_at_the_next_batch(train: dict[str, Any]) -> None:
    config = small_fit(train) if "name" in train else train
    config["execution"]["loading"]["num_workers"] = 2
    trainer = make_trainer(config, run="run")

    with (
        at_call(FitTrainer, "train_step", 2, kill_workers),
        pytest.raises(TrainingFailed, match=r"^data.train: ") as told,
    ):
        trainer.fit()
    assert "killed by signal: Killed" in str(told.value)
    assert str(told.value).count("\n") == 0
    assert trainer.opt_steps == 2
    FitTrainer.load("run").fit()


def test_workers_of_a_loader_of_ones_own_end_with_a_run_that_is_killed() -> None:
    """Forked ones hold its lock."""
    Path("run.yml").write_text(yaml.safe_dump(loader("workers") | {"stop": {"after": 1e6, "unit": "epochs"}}))
    with Forked([sys.executable, "-m", "palestra", "train", "run.yml", "--run", "run"]) as process:
        while not Path("run/checkpoints/00000001").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    folder, end_s = RunFolder.open(Path("run")), time.monotonic() + 3.0  # torch's own workers look every 5 s
    while folder.is_in_use():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_a_worker_that_is_killed_in_an_evaluation_is_told() -> None:
    evaluation = {"name": "own", "data": "train", "batch_size": 4, "interval": None, "at_start": False}
    points = {"name": "loaders:Points", "num_items": None}
    config = small_fit(points, evaluations=[evaluation | {"weights": "latest", "metrics": []}])
    config["execution"]["loading"]["num_workers"] = 1
    trainer = make_trainer(config, run="run")
    killing = at_call(type(trainer.model), "evaluation_step", 2, kill_workers)
    with killing, pytest.raises(DataFailed, match=r"^data.train: .*killed by signal"):
        trainer.judging.play("own", 40, False, lambda *_: None)
