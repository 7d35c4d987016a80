"""Metrics of a whole set have the values of their formulas, whatever the batches are."""

import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from palestra.config import Config, ConfigError, check
from palestra.models.gradients import TermsError
from palestra.models.metrics import AnyMetricConfig, Metric, SetMetrics
from palestra.models.model import score


class Held(Config):
    metrics: list[AnyMetricConfig]
    """some"""


class Exact(Metric):
    """A metric of one's own: how many items are predicted exactly."""

    score = score("exact", "items that are predicted exactly", "items", better="high")

    def reset(self) -> None:
        self.num = 0

    def update(self, outputs: Tensor, label: Tensor) -> None:
        self.num += int((outputs.argmax(dim=1) == label).sum())

    def compute(self) -> int:
        return self.num


def computed(names: list[Any], outputs: Tensor, label: Tensor, batch_size: int) -> SetMetrics:
    said = [name if isinstance(name, dict) else {"name": name} for name in names]
    metrics = SetMetrics(check({"metrics": said}, Held).metrics)
    for rows, wanted in zip(outputs.split(batch_size), label.split(batch_size), strict=True):
        metrics.add({"outputs": rows, "label": wanted, "accuracy": torch.ones(len(rows))})
    return metrics


def f1(average: str) -> dict[str, str]:
    return {"name": "f1", "average": average}


PREDICTED = torch.tensor([0, 0, 1, 2, 2, 2, 1, 0])
LABEL = torch.tensor([0, 1, 1, 2, 2, 0, 1, 0])


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_classes_are_counted(batch_size: int) -> None:
    """Of class 0 two of three are found and one is wrong; of 1 two of three and none; of 2 two of two and one."""
    outputs = torch.nn.functional.one_hot(PREDICTED, 4).float()  # a fourth class does not occur
    found = computed(["confusion_matrix"], outputs, LABEL, batch_size)
    assert found.tables() == {"confusion_matrix": [[2, 0, 1, 0], [1, 2, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0]]}
    assert found.scores() == {}
    each = [4 / 6, 4 / 5, 4 / 5]
    weighted = (3 * each[0] + 3 * each[1] + 2 * each[2]) / 8
    for average, expected in (("macro", sum(each) / 3), ("weighted", weighted), ("micro", 6 / 8), ("binary", each[1])):
        assert computed([f1(average)], outputs, LABEL, batch_size).scores()["f1"] == pytest.approx(expected)


@pytest.mark.parametrize("batch_size", [1, 3, 5])
def test_the_area_counts_pairs(batch_size: int) -> None:
    """Of 3 * 2 pairs 4 are in order and one is a tie."""
    logits = torch.tensor([0.9, 0.4, 0.7, 0.4, 0.2])
    label = torch.tensor([1, 1, 1, 0, 0])
    outputs = torch.stack([torch.zeros(5), logits], dim=1)
    assert computed(["auc"], outputs, label, batch_size).scores()["auc"] == pytest.approx(5.5 / 6)
    assert math.isnan(computed(["auc"], outputs, torch.ones(5).long(), batch_size).scores()["auc"])
    several = torch.cat([outputs, torch.full((5, 1), -9.0)], dim=1)
    assert computed(["auc"], several[:, [0, 1, 2]], torch.tensor([1, 1, 1, 0, 2]), 2).scores()["auc"] > 0.5


@pytest.mark.parametrize("batch_size", [1, 3, 4])
def test_the_variance_that_is_explained(batch_size: int) -> None:
    label = torch.tensor([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0], [6.0, 5.0]])
    outputs = torch.tensor([[1.0, 5.0], [2.0, 5.0], [2.0, 5.0], [5.0, 5.0]])
    assert computed(["r_squared"], outputs[:, :1], label[:, 0], batch_size).scores()["r_squared"] == 1 - 2 / 14
    assert computed(["r_squared"], outputs, label, batch_size).scores()["r_squared"] == (1 - 2 / 14 + 1) / 2


def test_a_metric_of_ones_own() -> None:
    outputs = torch.nn.functional.one_hot(PREDICTED, 3).float()
    found = computed([f"{__name__}:Exact", "confusion_matrix"], outputs, LABEL, 3)
    assert found.scores() == {"exact": 6.0}
    assert [each.high_for for each in found.declared()] == [("model",)]


def test_a_library_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    said = {"name": "torchmetrics.classification:MulticlassCohenKappa", "arguments": {"num_classes": 3}}
    with pytest.raises(
        ConfigError, match=r"^metrics.0.name: .*torchmetrics.*; to install it: pip install torchmetrics"
    ):
        check({"metrics": [said]}, Held)


@pytest.mark.parametrize(
    ("names", "outputs", "label", "told"),
    [
        (
            ["auc"],
            torch.ones(3, 1),
            torch.ones(3).long(),
            r"^auc: expected outputs \(B, classes\) and whole",
        ),
        ([f1("macro")], torch.ones(3, 2), torch.ones(3), r"got \(3, 2\) and float32 \(3,\)$"),
        ([f1("macro")], torch.ones(3, 2), torch.tensor([0, 2, 1]), "expected labels from 0 to 1, got some from 0 to 2"),
        (["r_squared"], torch.ones(3, 2), torch.ones(3), "expected outputs and labels of one shape for r_squared, got"),
    ],
)
def test_what_a_metric_cannot_take_is_told(names: list[Any], outputs: Tensor, label: Tensor, told: str) -> None:
    with pytest.raises(TermsError, match=told):
        computed(names, outputs, label, 3).scores()
    with pytest.raises(TermsError, match=r"expected 'outputs' and 'label' from evaluation_step, .* got accuracy$"):
        SetMetrics(check({"metrics": [{"name": "auc"}]}, Held).metrics).add({"accuracy": torch.ones(3)})
