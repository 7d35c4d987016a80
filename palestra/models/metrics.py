"""Metrics that are defined on a whole data set, such as F1 or a confusion matrix, whatever the batches are.

Letters: B items of a batch; N items of the set; K classes; D numbers to predict.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor

from palestra.config import ByName, Config, ConfigError, LibraryClass, UserConfig, cut, failure, load_class, running_own
from palestra.models.gradients import TermsError
from palestra.models.model import score
from palestra.runtime.scores import SEAT, DeclaredScore


class Metric(ABC):
    """Base of metrics. A class of your own derives from it, and may carry its keys as `Config`, a UserConfig.

    score: what the number is, declared by `score`; None: the metric gives a table, or numbers by name.
    """

    Config: ClassVar[type[Config]] = UserConfig
    score: ClassVar[DeclaredScore | None] = None

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def reset(self) -> None:
        """Forget all items, because a set begins."""

    @abstractmethod
    def update(self, outputs: Tensor, label: Tensor) -> None:
        """Take a batch: the entries `outputs` and `label` of what `evaluation_step` gives, (B, ...), on the CPU."""

    @abstractmethod
    def compute(self) -> Any:
        """Return the number of the set; without a `score` a table as a list of rows, or a mapping of numbers."""


class _Collecting(Metric):
    """Keeps outputs and labels of all items, in float64."""

    def reset(self) -> None:
        self.outputs: list[Tensor] = []
        self.labels: list[Tensor] = []

    def update(self, outputs: Tensor, label: Tensor) -> None:
        self.outputs.append(outputs.double())
        self.labels.append(label)

    def collected(self) -> tuple[Tensor, Tensor]:
        return torch.cat(self.outputs), torch.cat(self.labels)


class ConfusionMatrix(Metric):
    """Counts items by their class, a row, and by the class that is predicted, a column."""

    def reset(self) -> None:
        self.counts: Tensor | None = None

    def update(self, outputs: Tensor, label: Tensor) -> None:
        num = require_classes(self.config.name, outputs, label)
        codes = label.long() * num + outputs.argmax(dim=1)
        counts = torch.bincount(codes, minlength=num * num).reshape(num, num)
        self.counts = counts if self.counts is None else self.counts + counts

    def compute(self) -> Any:
        assert self.counts is not None, "a set has items"
        return self.counts.tolist()


class F1(ConfusionMatrix):
    """The harmonic mean of precision and recall, 2 TP / (2 TP + FP + FN) of a class."""

    score = score("f1", "harmonic mean of precision and recall", "share", better="high")

    def compute(self) -> float:
        assert self.counts is not None, "a set has items"
        counts = self.counts.double()
        right, rows, columns = counts.diagonal(), counts.sum(dim=1), counts.sum(dim=0)
        each = 2 * right / (rows + columns).clamp(min=1)
        match self.config.average:
            case "binary":
                return float(each[1])
            case "micro":
                return float(right.sum() / counts.sum())
            case "weighted":
                return float((each * rows).sum() / rows.sum())
            case _:
                return float(each[rows + columns > 0].mean())  # of the classes that occur


class AUC(_Collecting):
    """The area under the receiver operating characteristic; of several classes the mean of each against the others.

    It is the share of pairs of an item in the class and one that is not, in which the former has the higher probability
    (a tie is half a pair). It is nan if all items or none are in a class.
    """

    score = score("auc", "area under the receiver operating characteristic", "share", better="high")

    def update(self, outputs: Tensor, label: Tensor) -> None:
        require_classes(self.config.name, outputs, label)
        super().update(outputs, label)

    def compute(self) -> float:
        outputs, label = self.collected()
        num = outputs.shape[1]
        areas = [_area(_log_odds(outputs, k), label == k) for k in (range(num) if num > 2 else [1])]
        return sum(areas) / len(areas)


def _log_odds(logits: Tensor, k: int) -> Tensor:
    """Return log(p / (1 - p)) of a class, (N,): it ranks as the probability p does, but does not end at 1.

    By differences of logits, so that items tie whose logits are the same but for a number that is added to all.
    """
    others = torch.cat([logits[:, :k], logits[:, k + 1 :]], dim=1)
    return -torch.where(others == -torch.inf, others, others - logits[:, k : k + 1]).logsumexp(dim=1)


def _area(ranked: Tensor, is_in: Tensor) -> float:
    """Return the share of pairs in which the item that is in a class ranks above the other (Mann and Whitney 1947)."""
    _, place, num = ranked.unique(return_inverse=True, return_counts=True)
    below = num.cumsum(0) - num
    ranks = (below + (num + 1) / 2)[place]
    num_in, num_out = int(is_in.sum()), int((~is_in).sum())
    if num_in == 0 or num_out == 0:
        return float("nan")
    return float(ranks[is_in].sum() - num_in * (num_in + 1) / 2) / (num_in * num_out)


class RSquared(_Collecting):
    """The share of the variance of the labels that predictions explain; of several numbers the mean of their shares."""

    score = score("r_squared", "share of the variance of the labels that is explained", "R squared", better="high")

    def compute(self) -> float:
        outputs, label = self.collected()
        predicted, wanted = outputs.reshape(len(outputs), -1), label.double().reshape(len(label), -1)
        if predicted.shape != wanted.shape:
            expected = f"expected outputs and labels of one shape for {self.config.name}"
            raise TermsError(f"{expected}, got {tuple(outputs.shape)} and {tuple(label.shape)}")
        missed = (wanted - predicted).square().sum(dim=0)
        spread = (wanted - wanted.mean(dim=0)).square().sum(dim=0)
        constant = torch.where(missed == 0, 1.0, 0.0)  # of labels that are all the same
        return float(torch.where(spread == 0, constant, 1 - missed / spread).mean())


def require_classes(name: str, outputs: Tensor, label: Tensor) -> int:
    """Return K. Raises TermsError unless outputs are (B, K) and labels whole numbers below K."""
    if outputs.dim() != 2 or outputs.shape[1] < 2 or label.is_floating_point() or label.shape != outputs.shape[:1]:
        got = f"{tuple(outputs.shape)} and {str(label.dtype).removeprefix('torch.')} {tuple(label.shape)}"
        raise TermsError(f"{name}: expected outputs (B, classes) and whole numbers (B,) as labels, got {got}")
    num = outputs.shape[1]
    if bool(((label < 0) | (label >= num)).any()):
        raise TermsError(f"{name}: expected labels from 0 to {num - 1}, got some from {label.min()} to {label.max()}")
    return num


# ---- what a run must say -----------------------------------------------------------------------------


class F1Config(Config):
    usual: ClassVar = {"average": "macro"}

    name: Literal["f1"]
    """the harmonic mean of precision and recall"""
    average: Literal["binary", "macro", "micro", "weighted"]
    """binary: of class 1; macro: mean over the classes that occur; weighted: by their items; micro: over all items"""

    def build(self) -> F1:
        return F1(self)


class AUCConfig(Config):
    name: Literal["auc"]
    """the area under the receiver operating characteristic; of several classes the mean of each against the others"""

    def build(self) -> AUC:
        return AUC(self)


class RSquaredConfig(Config):
    name: Literal["r_squared"]
    """the share of the variance of the labels that is explained"""

    def build(self) -> RSquared:
        return RSquared(self)


class ConfusionMatrixConfig(Config):
    name: Literal["confusion_matrix"]
    """how many items of each class are taken for which class: a table of the record, and no score"""

    def build(self) -> ConfusionMatrix:
        return ConfusionMatrix(self)


class TorchMetricsConfig(LibraryClass):
    """A metric of torchmetrics, which is no dependency of palestra, or one of your own that derives from it."""

    library = "torchmetrics"
    base = "torchmetrics:Metric"

    name: str
    """its path, as torchmetrics.classification:MulticlassCohenKappa"""
    arguments: dict[str, Any]
    """all that it is made with"""

    @classmethod
    def module(cls, name: str) -> Any:
        try:
            return super().module(name)
        except ImportError as error:
            raise ConfigError.at("name", f"{error}; to install it: pip install torchmetrics") from error

    @classmethod
    def parameters(cls, found: Any) -> dict[str, inspect.Parameter]:
        """Return the parameters of the class alone: it decides what it hands to its bases.

        One such as torchmetrics:F1Score makes an object of another class, by the arguments of its `__new__`.
        """
        makes_others = found.__new__ is not object.__new__
        own = inspect.signature(found.__new__ if makes_others else found.__init__).parameters.values()
        kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return {each.name: each for each in own if each.kind in kinds and cls.is_said(each)}

    @model_validator(mode="after")
    def _check_arguments(self) -> Self:
        self.build()
        return self

    @classmethod
    def is_said(cls, parameter: inspect.Parameter) -> bool:
        return parameter.name != "cls" and super().is_said(parameter)

    def build(self) -> Any:
        """Make the metric. Raises ConfigError for arguments that it refuses."""
        arguments, kind = self.called_with(), self.load(self.name)
        for key, parameter in self.parameters(kind).items():
            if "list" in str(parameter.annotation).lower():  # which may be no tuple
                arguments[key] = self.arguments[key]
        with running_own("arguments", f"{self.name!r} fails"):
            return kind(**arguments)


AnyMetricConfig = Annotated[
    F1Config | AUCConfig | RSquaredConfig | ConfusionMatrixConfig | TorchMetricsConfig | UserConfig,
    ByName(user_class=Metric),
]
OURS: dict[str, type[Metric]] = {"f1": F1, "auc": AUC, "r_squared": RSquared, "confusion_matrix": ConfusionMatrix}


def score_of(config: Any) -> DeclaredScore | None:
    """Return the score that the metric of a config declares; None if it declares none.

    One of torchmetrics may give others: only what it computes tells it.
    """
    if isinstance(config, TorchMetricsConfig):
        kind: Any = type(config.build())
        high, low = ((SEAT,), ()) if kind.higher_is_better else ((), (SEAT,))
        is_known = kind.higher_is_better is not None
        return DeclaredScore(kind.__name__, kind.__name__, "", high if is_known else (), low if is_known else (), True)
    kind = OURS[config.name] if config.name in OURS else load_class(config.name, Metric)
    return kind.score


class NotComputed(TermsError):
    """A metric's `compute` raises, which it may do for a part of a set, such as one without any item of some class."""


class SetResults(NamedTuple):
    """What the metrics of a set have found: their scores, declared and by name, and their tables by name."""

    declared: list[DeclaredScore]
    scores: dict[str, float]
    tables: dict[str, list[Any]]


class SetMetrics:
    """The metrics of an evaluation, while a set is judged."""

    def __init__(self, configs: Any) -> None:
        self.metrics = [(config, score_of(config), config.build()) for config in configs]
        for _, _, metric in self.metrics:
            metric.reset()

    def add(self, numbers: Any) -> None:
        """Add a batch. numbers: what `evaluation_step` gives. Raises TermsError if it lacks what metrics take."""
        if not self.metrics:
            return
        if not {"outputs", "label"} <= numbers.keys():
            expected = "expected 'outputs' and 'label' from evaluation_step, which metrics take"
            raise TermsError(f"{expected}, got {', '.join(numbers)}")
        outputs, label = (numbers[name].detach().cpu() for name in ("outputs", "label"))
        for config, _, metric in self.metrics:
            try:
                metric.update(outputs, label)
            except TermsError:
                raise
            except Exception as error:
                raise TermsError(f"{config.name} fails: {failure(error)}") from error

    def results(self) -> SetResults:
        """Return what the metrics have found.

        Raises TermsError for what is no number, no table, or named twice, NotComputed for what a metric raises.
        """
        found = SetResults([], {}, {})
        for config, declared, metric in self.metrics:
            value, name = _computed(config.name, metric), config.name.rpartition(":")[2]
            is_library = isinstance(config, TorchMetricsConfig)
            is_open = is_library or declared is None  # so that the value itself says what it is
            entries = [(declared, value)]
            if is_open and isinstance(value, Mapping):
                plain = declared or DeclaredScore("", name, "", (), (), True)
                entries = [(replace(plain, name=str(key)), each) for key, each in value.items()]
            elif is_open and (table := _table(value)) and (len(table) == len(table[0]) or not is_library):
                is_first = is_library and "confusion_matrix" not in found.tables
                found.tables["confusion_matrix" if is_first else name] = table
                continue
            for said, each in entries:
                if said is None or (number := _number(each)) is None:
                    kinds = ("numbers by name", "a square matrix" if is_library else "a table of rows")
                    expected = ["a number"] * (declared is not None) + [*kinds] * is_open
                    raise TermsError(f"{config.name}: expected {' or '.join(expected)} from compute, got {_told(each)}")
                if said.name in found.scores:
                    raise TermsError(f"{config.name}: expected other names than those of scores, got {said.name!r}")
                found.declared.append(said)
                found.scores[said.name] = number
        return found


def _computed(name: str, metric: Any) -> Any:
    try:
        return metric.compute()
    except TermsError:
        raise
    except Exception as error:
        raise NotComputed(f"{name} fails: {failure(error)}") from error


def _array(value: Any) -> Any:
    """Return a value as an array of numbers; None if it is none."""
    try:
        found = np.asarray(value.tolist() if isinstance(value, Tensor) else value)
    except ValueError:
        return None
    return found if found.dtype.kind in "biuf" else None


def _number(value: Any) -> float | None:
    found = _array(value)
    return float(found.item()) if found is not None and found.size == 1 else None


def _table(value: Any) -> list[list[Any]] | None:
    found = _array(value)
    return found.tolist() if found is not None and found.ndim == 2 and found.size else None


def _told(value: Any) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) and value.dim() else f"{cut(repr(value))}"
