"""Small runs in which a model learns from data, for tests of what one does with a trained model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from palestra import make_trainer
from palestra.kinds.data.trainer import FitTrainer

MODULE = '''
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from palestra.config import NonNegativeInt, PositiveInt, UserConfig
from palestra.data.sets import UserDataConfig
from palestra.models.model import Model, score


class Points(Dataset):
    """Points on either side of a line."""

    class Config(UserDataConfig):
        num: PositiveInt
        seed: NonNegativeInt

    def __init__(self, config):
        points = torch.randn(config.num, 4, generator=torch.Generator().manual_seed(config.seed))
        self.items = [{"observation": point, "label": (point.sum() > 0).long()} for point in points]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Pair(Model):
    """Two outputs in a tuple; dropout and running statistics in between."""

    class Config(UserConfig):
        hidden: PositiveInt

    def __init__(self, config):
        super().__init__(config)
        hidden = self.config.hidden
        self.layers = nn.Sequential(nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.Dropout(0.5), nn.Linear(hidden, 2))

    def forward(self, batch):
        logits = self.layers(batch["observation"])
        return logits, logits.amax(dim=1)

    def loss(self, outputs, batch):
        return {"loss_label": cross_entropy(outputs[0], batch["label"], reduction="none")}


class Sums(Pair):
    """Numbers in sequences, whose lengths differ from batch to batch."""

    def forward(self, batch):
        return self.layers(batch.mean(dim=1, keepdim=True).expand(-1, 4))

    def loss(self, outputs, batch):
        return {"loss_sum": (outputs[:, 0] - batch.sum(dim=1)).square()}


class Sequences(Points):
    def collate(self, items):
        length = 3 + len(items) % 4
        return torch.stack([item["observation"][:1].expand(length) for item in items])
'''
MLP = {"name": "mlp", "net_arch": [8], "activation": "tanh"}
CLASSIFIER = {"name": "classifier", "net": MLP, "num_classes": 2, "label_smoothing": 0.0, "class_weights": None}
REGRESSOR = {"name": "regressor", "net": MLP, "num_outputs": 1, "loss": "squared", "huber_delta": None}
PAIR = {"name": "fitted_parts:Pair", "hidden": 6}
ADAM = {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}

EVALUATION = {
    "name": "test",
    "data": "test",
    "batch_size": 9,
    "interval": None,
    "at_start": False,
    "weights": "latest",
    "metrics": [],
}


def fit_config(model: dict[str, Any] = CLASSIFIER, **changes: Any) -> dict[str, Any]:
    """A config of two epochs of four batches, with averaged weights. Its module must be written first."""
    return {
        "seed": 3,
        "trainer": {"name": "fit"},
        "model": model,
        "warm_start": None,
        "data": {
            "train": {"name": "fitted_parts:Points", "num": 40, "seed": 1, "num_items": None},
            "test": {"name": "fitted_parts:Points", "num": 25, "seed": 2, "num_items": 23},
        },
        "num_replicas": 1,
        "learning": {
            "order": {"name": "shuffled"},
            "batch_size": 10,
            "last_batch": "keep",
            "seeding": None,
            "num_microbatches": 1,
            "groups": [{"weights": "*", "optimizer": ADAM, "learning_rate": {"name": "constant", "value": 0.02}}],
            "max_grad_norm": None,
            "ema": {"decay": 0.5},
            "precision": "float32",
        },
        "evaluations": [],
        "best": None,
        "evaluators": None,
        "stop": {"after": 2, "unit": "epochs"},
        "callbacks": [],
        "execution": {
            "device": "cpu",
            "num_threads": 1,
            "num_processes": 1,
            "timeout_s": 600.0,
            "max_restarts": 0,
            "loading": {"num_workers": 0, "num_prefetched": 2, "start_method": "fork", "batch_within_s": None},
        },
        "output": {
            "display": "quiet",
            "record": None,
            "statistics": ["mean"],
            "recorders": [],
            "save": {"every": 3, "unit": "opt_steps"},
            "keep_last": 9,
            "keep_every": None,
            "checkpoint_folder": None,
            "stop_within_s": 30.0,
            "mirror": None,
        },
    } | changes


def fitted(run: Path | str, model: dict[str, Any] = CLASSIFIER, **changes: Any) -> FitTrainer:
    """Train such a run in the working directory, from which modules can be imported."""
    Path("fitted_parts.py").write_text(MODULE)
    trainer: FitTrainer = make_trainer(fit_config(model, **changes), run=run)
    trainer.fit()
    return trainer


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """A context whose working directory is a folder, and in which modules there can be imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        yield
