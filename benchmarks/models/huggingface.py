"""Hugging Face's Trainer: `python -m benchmarks.models.huggingface WORK`. It logs and saves as palestra does."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainerCallback, TrainingArguments

from benchmarks.models.work import Digits, Epochs, network
from benchmarks.peers.script import Work, answer, versions_of


class Net(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layers = network(hidden)

    def forward(self, image: Tensor, labels: Tensor) -> dict[str, Tensor]:
        outputs = self.layers(image)
        return {"loss": cross_entropy(outputs, labels), "logits": outputs}


class Watch(TrainerCallback):
    def __init__(self, epochs: Epochs) -> None:
        self.epochs = epochs

    def on_epoch_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        control.should_training_stop = self.epochs.epoch()


def train(work: Work) -> dict[str, Any]:
    torch.set_num_threads(work["num_threads"])
    epochs = Epochs(work)
    arguments = TrainingArguments(
        output_dir="run",
        per_device_train_batch_size=work["batch_size"],
        num_train_epochs=10**6,
        learning_rate=work["learning_rate"],
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        optim="adamw_torch_fused",
        logging_steps=work["record_every"],
        save_strategy="no",
        report_to=[],
        seed=work["seed"],
        use_cpu=True,
        remove_unused_columns=False,
    )
    net, data = Net(work["hidden"]), Digits()
    Trainer(net, arguments, train_dataset=data, callbacks=[Watch(epochs)]).train()
    assert net(data.images, data.labels)["loss"] < 0.5, "it does not learn"
    return epochs.result() | {"versions": versions_of("torch", "transformers")}


if __name__ == "__main__":
    answer(train)
