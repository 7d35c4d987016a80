"""skorch: `python -m benchmarks.models.skorch WORK`. Its printed log and its history are as by default."""

from contextlib import suppress
from typing import Any

import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from torch import nn

from benchmarks.models.work import Digits, Epochs, network
from benchmarks.peers.script import Done, Work, answer, versions_of


class Watch(Callback):
    def __init__(self, epochs: Epochs) -> None:
        self.epochs = epochs

    def on_epoch_end(self, net: Any, **named: Any) -> None:
        if self.epochs.epoch():
            raise Done


def train(work: Work) -> dict[str, Any]:
    torch.set_num_threads(work["num_threads"])
    torch.manual_seed(work["seed"])
    epochs, data = Epochs(work), Digits()
    net = NeuralNetClassifier(
        network(work["hidden"]),
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.AdamW,
        optimizer__fused=True,
        lr=work["learning_rate"],
        batch_size=work["batch_size"],
        max_epochs=10**9,
        iterator_train__shuffle=True,
        train_split=None,
        callbacks=[Watch(epochs)],
    )
    with suppress(Done):
        net.fit(data.images.numpy(), data.labels.numpy())
    assert net.history[-1, "train_loss"] < 0.5, "it does not learn"
    return epochs.result() | {"versions": versions_of("torch", "skorch")}


if __name__ == "__main__":
    answer(train)
