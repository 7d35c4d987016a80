"""Metrics of a whole set have the values of their formulas, whatever the batches are."""

import math
import sys
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from palestra.config import Config, ConfigError, check
from palestra.models.gradients import TermsError
from palestra.models.metrics import AnyMetricConfig, Metric, SetMetrics, _area, _log_odds
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
    assert found.results().tables == {"confusion_matrix": [[2, 0, 1, 0], [1, 2, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0]]}
    assert found.results().scores == {}
    each = [4 / 6, 4 / 5, 4 / 5]
    weighted = (3 * each[0] + 3 * each[1] + 2 * each[2]) / 8
    for average, expected in (("macro", sum(each) / 3), ("weighted", weighted), ("micro", 6 / 8), ("binary", each[1])):
        assert computed([f1(average)], outputs, LABEL, batch_size).results().scores["f1"] == pytest.approx(expected)


@pytest.mark.parametrize("batch_size", [1, 3, 5])
def test_the_area_counts_pairs(batch_size: int) -> None:
    """Of 3 * 2 pairs 4 are in order and one is a tie."""
    logits = torch.tensor([0.9, 0.4, 0.7, 0.4, 0.2])
    label = torch.tensor([1, 1, 1, 0, 0])
    outputs = torch.stack([torch.zeros(5), logits], dim=1)
    assert computed(["auc"], outputs, label, batch_size).results().scores["auc"] == pytest.approx(5.5 / 6)
    assert math.isnan(computed(["auc"], outputs, torch.ones(5).long(), batch_size).results().scores["auc"])
    several = torch.cat([outputs, torch.full((5, 1), -9.0)], dim=1)
    assert computed(["auc"], several[:, [0, 1, 2]], torch.tensor([1, 1, 1, 0, 2]), 2).results().scores["auc"] > 0.5


def test_the_area_counts_pairs_of_confident_logits_whatever_is_added_to_all() -> None:
    """Their probabilities are 1.0 in float64. Logits that differ by a number that all classes share are a tie."""
    margin = torch.tensor([90.0, 50.0, 80.0, 50.0, 40.0])
    label = torch.tensor([1, 1, 1, 0, 0])
    for shift in (torch.zeros(5), torch.tensor([0.0, 3.0, -7.0, 100.0, 0.125])):
        outputs = torch.stack([shift, shift + margin], dim=1)
        assert computed(["auc"], outputs, label, 5).results().scores["auc"] == pytest.approx(5.5 / 6)
        masked = torch.cat([outputs, torch.full((5, 2), -torch.inf)], dim=1)  # no item is in these classes
        for k in (0, 1):
            assert _area(_log_odds(masked.double(), k), label == k) == pytest.approx(5.5 / 6)
        assert _area(_log_odds(masked.double(), 2), label == 0) == 0.5
        several = torch.cat([outputs, shift[:, None] - 60.0], dim=1).double()
        assert _area(_log_odds(several, 1), label == 1) == pytest.approx(5.5 / 6)


@pytest.mark.parametrize("batch_size", [1, 3, 4])
def test_the_variance_that_is_explained(batch_size: int) -> None:
    label = torch.tensor([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0], [6.0, 5.0]])
    outputs = torch.tensor([[1.0, 5.0], [2.0, 5.0], [2.0, 5.0], [5.0, 5.0]])
    assert computed(["r_squared"], outputs[:, :1], label[:, 0], batch_size).results().scores["r_squared"] == 1 - 2 / 14
    assert computed(["r_squared"], outputs, label, batch_size).results().scores["r_squared"] == (1 - 2 / 14 + 1) / 2


def test_a_metric_of_ones_own() -> None:
    outputs = torch.nn.functional.one_hot(PREDICTED, 3).float()
    found = computed([f"{__name__}:Exact", "confusion_matrix"], outputs, LABEL, 3)
    assert found.results().scores == {"exact": 6.0}
    assert [each.high_for for each in found.results().declared] == [("model",)]


class Kept(Metric):
    """A metric of one's own without a score, whose result is what a test wants."""

    result: ClassVar[Any] = None

    def reset(self) -> None:
        pass

    def update(self, outputs: Tensor, label: Tensor) -> None:
        if self.result is OSError:
            raise self.result("the disk is gone")

    def compute(self) -> Any:
        return self.result


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torchmetrics that has one metric."""
    module = ModuleType("torchmetrics")
    module.Metric = module.Kept = type("Metric", (), {})  # type: ignore[attr-defined]
    made = {**vars(Kept), "higher_is_better": True, "__init__": lambda self: None}
    module.Kept = type("Kept", (module.Metric,), {k: v for k, v in made.items() if k != "__dict__"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchmetrics", module)


OURS: Any = f"{__name__}:Kept"
THEIRS = {"name": "torchmetrics:Kept", "arguments": {}}
SQUARE = torch.tensor([[2, 1], [0, 3]])


@pytest.mark.parametrize(
    ("name", "result", "scores", "tables"),
    [
        (THEIRS, torch.tensor(0.5), {"Kept": 0.5}, {}),
        (THEIRS, {"low": torch.tensor(0.5), "high": 2}, {"low": 0.5, "high": 2.0}, {}),
        (THEIRS, SQUARE, {}, {"confusion_matrix": SQUARE.tolist()}),  # where the report shows ours
        (OURS, {"low": 0.5}, {"low": 0.5}, {}),
        (OURS, [[1, 2, 3]], {}, {"Kept": [[1, 2, 3]]}),
    ],
)
def test_a_metric_gives_a_number_numbers_by_name_or_a_table(
    name: Any, result: Any, scores: Any, tables: Any, library: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (Kept, sys.modules["torchmetrics"].Kept):
        monkeypatch.setattr(kind, "result", result)
    found = computed([name], torch.ones(3, 2), torch.ones(3).long(), 3).results()
    assert (found.scores, found.tables) == (scores, tables)
    assert [(each.name, each.high_for) for each in found.declared] == [
        (each, ("model",) if name is THEIRS else ()) for each in scores
    ]


OF_LIBRARY = "expected a number or numbers by name or a square matrix from compute, got a tensor"


@pytest.mark.parametrize(
    ("name", "result", "told"),
    [
        (THEIRS, torch.ones(3), f"{OF_LIBRARY} (3,)"),
        (THEIRS, torch.ones(2, 3), OF_LIBRARY),
        (THEIRS, {"each": torch.ones(3)}, OF_LIBRARY),
        (OURS, 3, "expected numbers by name or a table of rows from compute, got 3"),
        (OURS, "text", "expected numbers by name or a table of rows from compute, got 'text'"),
        (OURS, None, "expected numbers by name or a table of rows from compute, got None"),
        (OURS, {"f1": 1.0}, "expected other names than those of scores, got 'f1'"),
        (OURS, OSError, "fails: OSError: the disk is gone (test_metrics.py, line "),
    ],
)  # fmt: skip
def test_what_is_neither_is_told_with_the_metric(
    name: Any, result: Any, told: str, library: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (Kept, sys.modules["torchmetrics"].Kept):
        monkeypatch.setattr(kind, "result", result)
    with pytest.raises(TermsError) as raised:
        computed([f1("macro"), name], torch.ones(3, 2), torch.ones(3).long(), 3).results()
    path = name if isinstance(name, str) else name["name"]
    assert str(raised.value).startswith(f"{path}: {told}" if not told.startswith("fails") else f"{path} {told}")


class Theirs:
    """As torchmetrics' own: a list may be no tuple; arguments may be refused; one class makes objects of another."""

    higher_is_better = True

    def __init__(self, thresholds: list[float] | None) -> None:
        if isinstance(thresholds, tuple) or thresholds == []:
            raise ValueError("no thresholds")

    def reset(self) -> None: ...
    def update(self, outputs: Tensor, label: Tensor) -> None: ...
    def compute(self) -> float:
        return 0.5


class Maker(Theirs):
    higher_is_better = None  # type: ignore[assignment]

    def __new__(cls, task: str, thresholds: list[float] | None) -> Any:
        return Theirs(thresholds)


def test_classes_of_the_library_are_made_as_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("torchmetrics")
    vars(module).update(Metric=Theirs, Theirs=Theirs, Maker=Maker)
    monkeypatch.setitem(sys.modules, "torchmetrics", module)
    for arguments in ({"name": "Theirs"}, {"name": "Maker", "task": "binary"}):
        said = {"thresholds": [0.1, 0.5], **arguments}
        name = f"torchmetrics:{said.pop('name')}"
        found = computed([{"name": name, "arguments": said}], torch.ones(3, 2), torch.ones(3).long(), 3).results()
        assert [(each.name, each.high_for) for each in found.declared] == [("Theirs", ("model",))]
        with pytest.raises(ConfigError, match=f"^metrics.0.arguments: '{name}' fails: ValueError: no thresholds"):
            check({"metrics": [{"name": name, "arguments": {**said, "thresholds": []}}]}, Held)


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
        computed(names, outputs, label, 3).results()
    with pytest.raises(TermsError, match=r"expected 'outputs' and 'label' from evaluation_step, .* got accuracy$"):
        SetMetrics(check({"metrics": [{"name": "auc"}]}, Held).metrics).add({"accuracy": torch.ones(3)})
