"""palestra: `python -m benchmarks.models.ours WORK`. Display and records are as users have them."""

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

import palestra
from benchmarks.models.work import Digits, Epochs, network
from benchmarks.peers.script import Done, Work, answer, versions_of
from palestra.callbacks import Callback
from palestra.config import PositiveInt, UserConfig
from palestra.data.sets import UserDataConfig
from palestra.models.model import Model, Terms


class Images(Digits):
    class Config(UserDataConfig):
        pass


class Net(Model):
    class Config(UserConfig):
        hidden: PositiveInt

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.layers = network(self.config.hidden)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        outputs: Tensor = self.layers(batch["image"])
        return outputs

    def loss(self, outputs: Tensor, batch: dict[str, Tensor]) -> Terms:
        return {"loss_digit": cross_entropy(outputs, batch["label"], reduction="none")}


class Watch(Callback):
    """Times the epochs, and sees what memory and how many open files they take."""

    def __init__(self, epochs: Epochs) -> None:
        self.epochs = epochs
        self.used: list[tuple[int, int]] = []

    def after_epoch(self, training: Any) -> None:
        memory = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 2**20
        self.used.append((memory, len(os.listdir("/proc/self/fd"))))
        if self.epochs.epoch():
            raise Done


def config_of(work: Work) -> dict[str, Any]:
    """The whole config; work: what differs from `fit` at its plainest."""
    adam = {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
    rate = {"name": "constant", "value": work["learning_rate"]}
    return {
        "seed": work["seed"],
        "trainer": {"name": "fit"},
        "model": {"name": "benchmarks.models.ours:Net", "hidden": work["hidden"]},
        "warm_start": None,
        "data": {"train": {"name": "benchmarks.models.ours:Images", "num_items": None}},
        "num_replicas": 1,
        "learning": {
            "order": {"name": "shuffled"},
            "batch_size": work["batch_size"],
            "last_batch": "keep",
            "seeding": work.get("seeding"),
            "num_microbatches": 1,
            "groups": [{"weights": "*", "optimizer": adam, "learning_rate": rate}],
            "max_grad_norm": None,
            "ema": work.get("ema"),
            "precision": "float32",
        },
        "evaluations": [],
        "best": None,
        "evaluators": None,
        "stop": {"after": 10**9, "unit": "opt_steps"},
        "callbacks": [],
        "execution": {
            "device": "cpu",
            "num_threads": work["num_threads"],
            "num_processes": 1,
            "timeout_s": 600.0,
            "max_restarts": 0,
            "loading": {
                "num_workers": work.get("num_workers", 0),
                "num_prefetched": 2,
                "start_method": "fork",
                "batch_within_s": None,
            },
        },
        "output": {
            "display": "plain",
            "record": {"every": work["record_every"], "unit": "opt_steps"},
            "statistics": ["mean"],
            "recorders": [],
            "save": work.get("save"),
            "keep_last": 2,
            "keep_every": None,
            "checkpoint_folder": None,
            "stop_within_s": 30.0,
            "mirror": None,
        },
    }


def train(work: Work) -> dict[str, Any]:
    watch = Watch(Epochs(work))
    trainer = palestra.make_trainer(config_of(work), callbacks=[watch])
    with suppress(Done):
        trainer.fit()
    early, last = watch.used[:11][-1], watch.used[-1]
    used = {name: [early[place], last[place]] for place, name in enumerate(("mib", "files"))}
    return watch.epochs.result() | {"versions": versions_of("torch"), "used": used}


if __name__ == "__main__":
    answer(train)
