"""A bare loop of torch: `python -m benchmarks.models.bare WORK`. What a trainer is compared with."""

from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from benchmarks.models.work import Digits, Epochs, network
from benchmarks.peers.script import Work, answer, versions_of


def train(work: Work) -> dict[str, Any]:
    torch.set_num_threads(work["num_threads"])
    torch.manual_seed(work["seed"])
    net = network(work["hidden"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=work["learning_rate"], fused=True)
    loader = DataLoader(Digits(), work["batch_size"], shuffle=True)
    epochs, losses = Epochs(work), []
    while not epochs.epoch():
        for batch in loader:
            loss = cross_entropy(net(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    assert torch.stack(losses[-10:]).mean() < 0.5, "it does not learn"
    return epochs.result() | {"versions": versions_of("torch")}


if __name__ == "__main__":
    answer(train)
