"""A model that learns in replicas: as from all rows at once, whatever their number; it goes on to the same bits."""

import copy
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from fitted import EVALUATION, fit_config
from resuming import Killed, assert_same_bits, at_call, kill, records

from palestra import make_trainer
from palestra.callbacks import Callback
from palestra.config import ConfigError
from palestra.kinds.data.trainer import FitTrainer
from palestra.models.model import Terms
from palestra.scaling.states import equal
from palestra.training.checks import TrainingFailed
from palestra.training.training import Training
from tests.ranked import Ranked

Data = dict[str, Any]
NUM_ITEMS = 46
MODULE = '''
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from palestra.config import UserConfig
from palestra.data.sets import UserDataConfig
from palestra.models.model import Model


class Points(Dataset):
    """Points on either side of a line, each seen with noise that is drawn anew; they count differently."""

    class Config(UserDataConfig):
        pass

    def __init__(self, config=None):
        self.points = torch.randn(46, 2, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        point = self.points[index]
        return {"index": index, "point": point + 0.05 * torch.randn(2), "label": (point.sum() > 0).long()}


class Net(Model):
    """What it computes of an item depends on no other item."""

    class Config(UserConfig):
        pass

    def __init__(self, config):
        super().__init__(config)
        self.layers = self.made()
        self.rare = nn.Parameter(torch.ones(2))
        self.register_buffer("scale", torch.tensor([0.1, -torch.inf]))

    def made(self):
        return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2))

    def forward(self, batch):
        return self.layers(batch["point"]) * self.scale[0]

    def loss(self, outputs, batch):
        found = cross_entropy(outputs, batch["label"], reduction="none")
        if (is_seventh := batch["index"] == 7).any():
            found = found + is_seventh * self.rare.square().sum()
        return {"loss_label": found, "weight": 1.0 + batch["index"]}


class Drawing(Net):
    """Running statistics and dropout."""

    def made(self):
        return nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(5, 2))


def generated():
    items = Points()
    for start in range(0, 46, 7):
        batch = [items[index] for index in range(start, min(start + 7, 46))]
        yield {key: torch.stack([torch.as_tensor(item[key]) for item in batch]) for key in batch[0]}


class Stream:
    """As torchdata's StatefulDataLoader: its state says where it is, and it begins anew after its end."""

    def __init__(self):
        self.given, self.is_loaded, self.items = 0, False, Points()

    def __iter__(self):
        self.given = self.given if self.is_loaded and self.given < 7 else 0
        self.is_loaded = False
        while self.given < 6:
            batch = [self.items[index] for index in range(7 * self.given, 7 * self.given + 7)]
            self.given += 1
            yield {key: torch.stack([torch.as_tensor(item[key]) for item in batch]) for key in batch[0]}
        self.given = 7

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given, self.is_loaded = state["given"], True


made = []


def different():
    made.append(len(made))
    for number in range(5):
        point = torch.full((8, 2), float(made[-1]))
        yield {"index": torch.arange(8), "point": point, "label": torch.arange(8) % 2}
'''


@pytest.fixture(autouse=True)
def _module(in_tmp_path: Path) -> None:
    (in_tmp_path / "dots.py").write_text(MODULE)


def config_of(model: str = "Net", num_replicas: int = 1, batch_size: int = 5, **learning: Any) -> Data:
    base = fit_config({"name": f"dots:{model}"}, num_replicas=num_replicas)
    said = {"batch_size": batch_size, "seeding": "per_item", "max_grad_norm": 0.5, "ema": {"decay": 0.8}}
    often = {"record": {"every": 1, "unit": "opt_steps"}, "save": {"every": 2, "unit": "opt_steps"}}
    return base | {
        "data": {"train": {"name": "dots:Points", "num_items": None}},
        "learning": base["learning"] | said | learning,
        "stop": {"after": 3, "unit": "epochs"},
        "output": base["output"] | often,
    }


def loader(name: str, num_replicas: int, num_batches: int | None = None) -> Data:
    config = config_of("Drawing", num_replicas, order=None, batch_size=None, last_batch=None, seeding=None)  # type: ignore[arg-type]
    return config | {"data": {"train": {"loader": f"dots:{name}", "num_batches": num_batches}}}


def fit(config: Data, run: str, kind: type[FitTrainer] = FitTrainer, **arguments: Any) -> FitTrainer:
    trainer = kind(config, run=run, **arguments)
    trainer.fit()
    return trainer


def all_replicas(trainer: FitTrainer) -> list[FitTrainer]:
    return [trainer, *(each.training for each in trainer.lockstep.followers)]


def training_records(run: str) -> list[Data]:
    return [each for each in records(Path(run)) if each["kind"] == "training"]


# ---- they learn as one --------------------------------------------------------------------------------


@pytest.mark.parametrize("num_microbatches", [1, 3])
def test_replicas_learn_as_from_all_their_rows_at_once(num_microbatches: int) -> None:
    """Also where the last opt step of an epoch has a batch for one replica alone, and a weight is reached in one."""
    alone = fit(config_of(batch_size=20), "alone")
    shared = fit(config_of(num_replicas=4, batch_size=5, num_microbatches=num_microbatches), "shared")
    assert alone.counts() == shared.counts() == {"opt_steps": 9, "items": 3 * NUM_ITEMS, "epochs": 3}
    for one, other in zip(alone.model.parameters(), shared.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    for one, other in zip(alone.learner.averages, shared.learner.averages, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert not torch.equal(shared.model.rare, torch.ones(2))  # type: ignore[arg-type]
    told = [[each["players"]["model"] for each in training_records(run)] for run in ("alone", "shared")]
    for one, other in zip(*told, strict=True):
        assert one == pytest.approx(other, abs=1e-6)
    assert equal(shared.model.scale, torch.tensor([0.1, -torch.inf]))  # no mean moves what does not change


class Watched(FitTrainer):
    """Notes which items each replica has learned from, with a draw of the step, before and after the mean."""

    def _build(self) -> None:
        super()._build()
        self.seen: list[tuple[int, list[int], int, list[float]]] = []

    def train_step(self, batch: Any, index: int) -> Terms:
        first = torch.rand(1)
        terms = super().train_step(batch, index)
        self.seen.append((self.epochs, batch["index"].tolist(), index, [first.item(), torch.rand(1).item()]))
        return terms


def test_replica_k_takes_every_batch_of_its_number_with_the_draws_of_one_replica() -> None:
    alone = fit(config_of("Drawing", batch_size=6), "alone", Watched).seen
    shared = [each.seen for each in all_replicas(fit(config_of("Drawing", 4, batch_size=6), "shared", Watched))]
    assert len(alone) == 3 * 8
    for index, seen in enumerate(shared):
        assert seen == [each for each in alone if each[2] % 4 == index]


def test_statistics_of_batch_norm_get_the_mean_of_their_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replica counts as much as it has items; one without a batch does not."""
    config = config_of("Drawing", 4, batch_size=18) | {"stop": {"after": 1, "unit": "opt_steps"}}
    trainer = fit(config, "run")  # batches of 18, 18 and 10 items
    norm = trainer.model.layers[1]  # type: ignore[index]
    start = make_trainer(config | {"num_replicas": 1}, run="start")
    expected = torch.zeros(5)
    for _, batch in start.loader.batches(0):
        inputs = start.model.layers[0](batch["point"]).detach()
        expected += len(inputs) / NUM_ITEMS * inputs.mean(dim=0) * 0.1
    torch.testing.assert_close(norm.running_mean, expected)
    for each in all_replicas(trainer):
        assert equal(dict(each.model.state_dict()), dict(trainer.model.state_dict()))


def test_what_an_opt_step_takes_is_said_before_it_begins() -> None:
    told = FitTrainer.train_stage(FitTrainer(config_of(num_replicas=4)).config).description
    assert told.endswith(
        "in batches of 5 items; an opt step learns from 4 batches, 20 items, one in each of 4 replicas"
    )


# ---- they stop and go on ------------------------------------------------------------------------------


@pytest.mark.parametrize("num_replicas", [4, 8])
def test_a_run_that_was_killed_goes_on_to_the_same_bits(num_replicas: int) -> None:
    """Also with more replicas than batches in the last opt step of an epoch, or in every one; and in processes."""
    config = config_of("Drawing", num_replicas, batch_size=8, num_microbatches=2)
    every = {"interval": {"every": 1, "unit": "epochs"}, "data": "train", "weights": "averaged"}
    config |= {"evaluations": [EVALUATION | every], "best": None, "stop": {"after": 11, "unit": "opt_steps"}}
    config["output"] |= {"save": {"every": 1, "unit": "opt_steps"}, "record": {"every": 20, "unit": "items"}}
    fit(config, "whole")
    for number in (6, 9):
        with pytest.raises(Killed), at_call(Training, "safe_point", number, kill):
            (FitTrainer.load("cut") if number > 6 else make_trainer(config, run="cut")).fit()
    assert Ranked(4, lambda rank: FitTrainer.load("cut").fit(max_steps=8), Path("ranks")).wait() == [0] * 4
    FitTrainer.load("cut").fit()
    assert_same_bits(Path("cut"), Path("whole"))


@pytest.mark.parametrize("num", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_how_many_processes_compute_changes_no_bit(num: int) -> None:
    config = config_of("Drawing", 4, batch_size=8, num_microbatches=2)  # in an epoch, 6 batches for 4 replicas
    fit(config, "whole")
    ranks = Ranked(num, lambda rank: fit(config, "run"), Path("ranks"))
    assert ranks.wait() == [0] * num, ranks.said(0)
    assert_same_bits(Path("run"), Path("whole"))


@pytest.mark.parametrize(
    ("name", "num_replicas", "num_batches", "num_steps"),
    [("generated", 2, None, 4), ("Stream", 4, None, 2), ("Stream", 2, 5, 3)],
)
def test_a_run_with_a_loader_of_ones_own_goes_on_to_the_same_bits(
    name: str, num_replicas: int, num_batches: int | None, num_steps: int
) -> None:
    """Also after an opt step in which some replicas have seen the end of the loader, and got no batch."""
    config = loader(name, num_replicas, num_batches)
    config["output"]["save"] = {"every": 1, "unit": "opt_steps"}
    whole = fit(config, "whole")
    assert whole.counts() == {
        "opt_steps": 3 * num_steps,
        "items": 3 * (NUM_ITEMS if name == "generated" else 7 * (num_batches or 6)),
        "epochs": 3,
    }
    for stop in range(1, 3 * num_steps):
        run = FitTrainer.load("cut") if stop > 1 else make_trainer(config, run="cut")
        run.fit(max_steps=stop)
    FitTrainer.load("cut").fit()
    assert_same_bits(Path("cut"), Path("whole"))


def die(*args: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_in_an_opt_step_is_named_and_one_process_goes_on_to_the_same_bits() -> None:
    config = config_of("Drawing", 4, batch_size=8)

    def body(rank: int) -> None:
        with at_call(FitTrainer, "train_step", 7 if rank else 10_000, die):  # the fourth opt step of two replicas
            fit(config, "run")

    ranks = Ranked(2, body, Path("ranks"))
    assert ranks.wait() == [1, -signal.SIGKILL]
    assert "ProcessLost: rank 1 has ended" in ranks.said(0)
    FitTrainer.load("run").fit()
    fit(config, "whole")
    assert_same_bits(Path("run"), Path("whole"))


# ---- a step, a loader and a model of one's own ----------------------------------------------------------


class InTwo(FitTrainer):
    """Steps with the layers, and then with the rest."""

    def train_step(self, batch: Any, index: int) -> Terms:
        first = self.model.training_step(batch)["loss_label"].mean()
        self.learner.step(first, "layers.*")
        second = self.model.training_step(batch)["loss_label"].mean() + self.model.rare.sum()  # type: ignore[operator]
        self.learner.step(second, "rare")
        return {"loss": second, "items": torch.tensor(float(len(batch["index"])))}


def test_a_step_of_ones_own_goes_by_the_mean_of_all_replicas() -> None:
    groups = [fit_config()["learning"]["groups"][0] | {"weights": weights} for weights in ("layers.*", "rare")]
    alone = fit(config_of(batch_size=20, groups=groups), "alone", InTwo)
    shared = fit(config_of(num_replicas=4, batch_size=5, groups=groups), "shared", InTwo)
    for one, other in zip(alone.model.layers.parameters(), shared.model.layers.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    found = training_records("shared")[2]["players"]["model"]  # batches of 5 and 1 items, and two replicas without
    assert found["items"] == pytest.approx((5 * 5 + 1 * 1) / 6)


class Selfish(FitTrainer):
    def train_step(self, batch: Any, index: int) -> Terms:
        loss = self.model.training_step(batch)["loss_label"].mean()
        for weight, gradient in zip(
            self.model.layers.parameters(), torch.autograd.grad(loss, [*self.model.layers.parameters()]), strict=True
        ):
            weight.data.sub_(gradient)
        return {"loss": loss}


def test_a_step_without_the_others_is_told() -> None:
    told = "Selfish.train_step has made an opt step without the other replicas; expected steps by `self.learner"
    with pytest.raises(TrainingFailed, match=f"^{re.escape(f'{__name__}.{told}')}"):
        fit(config_of(num_replicas=2), "run", Selfish)


def test_a_loader_that_gives_each_replica_other_batches_is_told() -> None:
    with pytest.raises(TrainingFailed, match=r"replica 1 has come to another state than replica 0: loader\.hash"):
        fit(loader("different", 2), "run")


def test_each_replica_learns_with_a_copy_of_a_model_that_was_handed_over() -> None:
    from dots import Net  # type: ignore[import-not-found]

    class Local(Net):  # type: ignore[misc]
        pass

    for kind in (Net, Local):
        model = kind({})
        model.layers[0].weight.data.fill_(0.25)
        trainer = FitTrainer(config_of(num_replicas=2) | {"model": None}, run=f"of {kind.__name__}")
        trainer.set_model(model)
        trainer.fit()
        one, other = all_replicas(trainer)
        assert one.model is model
        assert other.model is not model
        assert equal(dict(one.model.state_dict()), dict(other.model.state_dict()))
    loaded = FitTrainer.load("of Local", models={"model": copy.deepcopy(model)})  # which has a learner
    loaded.fit()


class Uncopied(torch.nn.Module):
    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("there is one of it")


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    from dots import Net

    model = Net({})
    model.more = Uncopied()
    trainer = FitTrainer(config_of(num_replicas=2) | {"model": None}, run="run")
    told = r"num_replicas: expected 1, because set_model\('model', ...\) hands over what cannot be copied \(.*there is"
    with pytest.raises(ConfigError, match=told):
        trainer.set_model(model)
    assert not Path("run").exists()


# ---- they end and fail together -----------------------------------------------------------------------


class EndsInOne(Callback):
    """Ends the run by what one replica alone sees at the end of an epoch."""

    def after_epoch(self, trainer: Any) -> None:
        if trainer.replica.index == 1:
            trainer.end_run("seen by the second replica alone")


def test_a_reason_of_one_replica_ends_all_at_the_end_of_the_epoch() -> None:
    trainer = fit(config_of(num_replicas=2), "run", callbacks=[EndsInOne(None)])
    assert [each.end_reason for each in all_replicas(trainer)] == ["seen by the second replica alone"] * 2
    assert [each.opt_steps for each in all_replicas(trainer)] == [5, 5]


class Infinite(FitTrainer):
    """Has no finite loss on item 12, which in order is in batch 2."""

    def train_step(self, batch: Any, index: int) -> Terms:
        if (batch["index"] == 12).any():
            batch = batch | {"point": batch["point"] * torch.nan}
        return super().train_step(batch, index)


def test_a_loss_that_is_no_number_is_told_with_the_batch_of_its_replica() -> None:
    told = r"the loss is nan at opt step 0, counted from 0: batch 2 of epoch 0 \(items 10, 11, 12, 13, 14\)"
    with pytest.raises(TrainingFailed, match=told):
        fit(config_of(num_replicas=4, order={"name": "sequential"}), "run", Infinite)


class Failing(FitTrainer):
    def train_step(self, batch: Any, index: int) -> Terms:
        if (batch["index"] == 12).any():
            raise ZeroDivisionError("in the third replica")
        return super().train_step(batch, index)


def test_an_error_of_one_replica_is_that_of_the_run() -> None:
    with pytest.raises(TrainingFailed, match=r"Net fails: .*in the third replica.*; batch 2 of epoch 0"):
        fit(config_of(num_replicas=4, order={"name": "sequential"}), "run", Failing)


def test_a_number_that_is_no_power_of_two_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_replicas: expected 1 or a power of two, got 3"):
        FitTrainer(config_of(num_replicas=3))
