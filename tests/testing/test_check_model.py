"""`check_model` passes models that keep the promises of Model, and names the method of one that does not.

Covers palestra.testing.models, palestra.testing.tryout.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from palestra import Model
from palestra.config import ConfigError
from palestra.models.model import score
from palestra.testing import check_model

DRAWN = torch.Generator().manual_seed(0)
ITEMS = [{"x": torch.randn(3, generator=DRAWN), "label": torch.tensor(number % 2)} for number in range(9)]


class Sound(Model):
    scores = (score("accuracy", "share of items whose class is found", "share", better="high"),)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))

    def forward(self, batch: Any) -> Tensor:
        outputs: Tensor = self.layers(batch["x"])
        return outputs

    def loss(self, outputs: Tensor, batch: Any) -> dict[str, Tensor]:
        return {"loss_label": cross_entropy(outputs, batch["label"], reduction="none")}

    def evaluation_step(self, batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (self(batch).argmax(dim=1) == batch["label"]).float()}

    def select_action(self, observation: Any, legal: Tensor) -> Tensor:
        return self(observation).masked_fill(~legal, -torch.inf).argmax(dim=1)


class Mean(Sound):
    def loss(self, outputs: Tensor, batch: Any) -> dict[str, Tensor]:
        return {"loss_label": cross_entropy(outputs, batch["label"])}


class Centred(Sound):
    def loss(self, outputs: Tensor, batch: Any) -> dict[str, Tensor]:
        return super().loss(outputs - outputs.mean(dim=0), batch)


class Ranked(Sound):
    def evaluation_step(self, batch: Any) -> dict[str, Tensor]:
        return {"accuracy": torch.arange(len(batch["x"])) / 9}


class Silent(Sound):
    def evaluation_step(self, batch: Any) -> dict[str, Tensor]:
        return {}


class Noisy(Sound):
    def forward(self, batch: Any) -> Tensor:
        return super().forward(batch) + 0.1 * torch.randn(len(batch["x"]), 2)


class Writing(Sound):
    def loss(self, outputs: Tensor, batch: Any) -> dict[str, Tensor]:
        batch["x"].data.add_(1.0)
        return super().loss(outputs, batch)


class Illegal(Sound):
    def select_action(self, observation: Any, legal: Tensor) -> Tensor:
        return torch.zeros(len(legal), dtype=torch.int64)


def test_a_sound_model_passes() -> None:
    check_model(Sound, {}, ITEMS)
    check_model(Mean, {}, ITEMS)


@pytest.mark.parametrize(
    ("cls", "told"),
    [
        (Centred, r"^Centred.loss: expected the same gradient in one piece and in 3"),
        (Ranked, r"^Ranked.evaluation_step: expected the same score 'accuracy' of an item alone and in a batch"),
        (Silent, r"^Silent.evaluation_step: raises TermsError: expected the declared score 'accuracy'"),
        (Noisy, r"^Noisy.loss: expected the same gradient of the same batch in evaluation mode"),
        (Writing, r"Writing.loss: expected the batch to stay as it is"),
        (Illegal, r"^Illegal.select_action: expected legal actions, got \[0, 0"),
    ],
)
def test_a_fault_is_told_with_its_method(cls: type[Model], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check_model(cls, {}, [{name: value.clone() for name, value in item.items()} for item in ITEMS])
