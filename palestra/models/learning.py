"""How the weights of a model learn: groups with an optimizer each, clipping, precision, and an average of the weights.

Letters: P weights of a vector.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from palestra.config import Config, ConfigError, ConfigErrorItem, InBranch, NonEmptyStr, PositiveFloat, PositiveInt
from palestra.config.errors import listed
from palestra.data.order import AnyOrderConfig
from palestra.models.gradients import find_gradient
from palestra.models.model import Model, Terms
from palestra.optimizers import Optimizer, OptimizerConfig
from palestra.schedules import Schedule, ScheduleConfig

# ---- what a run must say -----------------------------------------------------------------------------


class GroupConfig(Config):
    """Weights that learn alike."""

    usual: ClassVar = {"weights": "*", "learning_rate": {"name": "constant", "value": 0.001}}

    weights: NonEmptyStr
    """which weights, by their names in the model; * stands for anything"""
    optimizer: OptimizerConfig
    """how they step"""
    learning_rate: ScheduleConfig
    """the length of steps, a function of opt steps"""


class EMAConfig(Config):
    """An exponential moving average of the weights."""

    decay: Annotated[float, Field(ge=0, lt=1)]
    """share of the average that stays at each opt step"""


class LearningConfig(Config):
    """How a model learns from its items."""

    usual: ClassVar = {
        "batch_size": 64,
        "last_batch": "keep",
        "seeding": "per_item",
        "num_microbatches": 1,
        "max_grad_norm": None,
        "ema": None,
        "precision": "float32",
    }

    order: Annotated[AnyOrderConfig, InBranch.FIXED]
    """in which order an epoch reads the items of data.train"""
    batch_size: Annotated[PositiveInt, InBranch.FIXED]
    """items of an opt step"""
    last_batch: Annotated[Literal["keep", "drop"], InBranch.FIXED]
    """what becomes of the last batch of an epoch where it is smaller"""
    seeding: Annotated[Literal["per_item"] | None, InBranch.FIXED]
    """per_item: the generators of Python, NumPy and PyTorch are seeded by seed, epoch and item before an item is read;
    null: nothing is seeded, and an item that draws random numbers is an error"""
    num_microbatches: PositiveInt
    """in how many pieces the gradient of a batch is computed, one after the other; it changes rounding alone"""
    groups: Annotated[list[GroupConfig], Field(min_length=1), InBranch.SAME_PART]
    """the weights that learn, by pattern; each is in exactly one group"""
    max_grad_norm: PositiveFloat | None
    """the gradient of all weights is scaled down to this norm if it is longer; null: never"""
    ema: Annotated[EMAConfig | None, InBranch.SAME_PART]
    """an average of the weights beside them, with which evaluations and exports may go; null: none"""
    precision: Literal["float32", "bfloat16"]
    """of the model's computations; weights and gradients stay in their own"""


# ---- groups of weights -------------------------------------------------------------------------------


class Vector:
    """Weights of one group and one type as one vector, of which they are views; so is their gradient.

    A weight keeps its memory format, such as channels_last.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        first = self.parameters[0]
        size = sum(each.numel() for each in self.parameters)
        self.weights = nn.Parameter(torch.empty(size, dtype=first.dtype, device=first.device), requires_grad=False)
        self.gradient = torch.zeros_like(self.weights.data)
        self._gradients = self._views(self.gradient)
        for parameter, view in zip(self.parameters, self._views(self.weights.data), strict=True):
            parameter.data = view.copy_(parameter.data)

    def _views(self, vector: Tensor) -> list[Tensor]:
        starts = itertools.accumulate((each.numel() for each in self.parameters), initial=0)
        return [
            vector.as_strided(each.size(), each.stride() if _is_dense(each) else _contiguous(each), start)
            for each, start in zip(self.parameters, starts, strict=False)
        ]

    def take(self, gradient: Sequence[Tensor | None]) -> None:
        """Keep a gradient, one tensor per weight; None counts as 0."""
        for view, each in zip(self._gradients, gradient, strict=True):
            if each is None:
                view.zero_()
            else:
                view.copy_(each)


def _is_dense(tensor: Tensor) -> bool:
    """Tell whether a tensor fills its memory without gaps or overlaps, in whatever order of its axes."""
    ordered = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    expected = 1
    for stride, size in ordered:
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _contiguous(tensor: Tensor) -> tuple[int, ...]:
    return torch.empty(tensor.shape, device="meta").stride()


class Group(NamedTuple):
    """A group of weights: its schedule, and a vector with an optimizer for each type of its weights."""

    learning_rate: Schedule
    vectors: list[tuple[Vector, Optimizer]]


def groups_of(model: nn.Module, configs: Sequence[GroupConfig]) -> dict[str, int]:
    """Return the number of the group of each weight that learns, by its name; a tied weight goes by its first name.

    Raises ConfigError, with paths below the list of groups, for a pattern that matches no weight, and for a weight in
    no group or in several.
    """
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    matches = [[name for name in names if fnmatchcase(name, config.weights)] for config in configs]
    faults = [
        ConfigErrorItem(f"{place}.weights", f"expected weights among {listed(names)}, got {config.weights!r}")
        for place, config in enumerate(configs)
        if not matches[place]
    ]
    found: dict[str, int] = {}
    for name in names:
        places = [place for place, matched in enumerate(matches) if name in matched]
        if len(places) != 1:
            in_groups = f"{len(places)} ({', '.join(configs[place].weights for place in places)})" if places else "none"
            faults.append(ConfigErrorItem("", f"expected the weight {name!r} in one group, got it in {in_groups}"))
        else:
            found[name] = places[0]
    ConfigError.require_none(faults)
    return found


# ---- an opt step -------------------------------------------------------------------------------------


class Learner:
    """Makes the opt steps of a model.

    A weight with `requires_grad=False` is left alone; tied weights count once.
    """

    def __init__(self, model: Model, config: LearningConfig) -> None:
        self.model, self.config = model, config
        parameters = dict(model.named_parameters())
        group_of = groups_of(model, config.groups)
        self.groups: list[Group] = []
        for place, each in enumerate(config.groups):
            own = [parameters[name] for name, number in group_of.items() if number == place]
            kinds = dict.fromkeys((weight.dtype, weight.device) for weight in own)
            vectors = [Vector([w for w in own if (w.dtype, w.device) == kind]) for kind in kinds]
            self.groups.append(
                Group(each.learning_rate, [(vector, each.optimizer.build(vector.weights)) for vector in vectors])
            )
        self.vectors = [vector for group in self.groups for vector, _ in group.vectors]
        self.weights = [weight for vector in self.vectors for weight in vector.parameters]
        self.averages = [vector.weights.detach().clone() for vector in self.vectors] if config.ema else []
        self.device = self.weights[0].device

    def context(self) -> AbstractContextManager[Any]:
        """Return the context of a forward pass, which sets its precision."""
        if self.config.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.config.precision))

    def opt_step(self, batch: Any, number: int) -> Terms:
        """Learn from a batch, and return the means of the terms of its loss, with `loss` and `grad_norm`.

        number: of the opt step, from 0, by which schedules go. Raises TermsError.
        """
        gradient, metrics = find_gradient(self.model, batch, self.config.num_microbatches, self.weights, self.context)
        start = 0
        for vector in self.vectors:
            vector.take(gradient[start : start + len(vector.parameters)])
            start += len(vector.parameters)
        metrics["grad_norm"] = self._clip()
        for group in self.groups:
            for vector, optimizer in group.vectors:
                optimizer.learning_rate.fill_(group.learning_rate(number))
                optimizer.step(vector.gradient)
        if self.config.ema is not None:
            for average, vector in zip(self.averages, self.vectors, strict=True):
                average.lerp_(vector.weights.detach(), 1.0 - self.config.ema.decay)
        return metrics

    @torch.no_grad()
    def _clip(self) -> Tensor:
        """Scale the gradient of all weights down to `max_grad_norm`; returns the norm that it had."""
        gradients = [vector.gradient for vector in self.vectors]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each).float() for each in gradients]))
        if self.config.max_grad_norm is not None:
            factor = (self.config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
            for each in gradients:
                each.mul_(factor)
        return norm

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """A context in which the model has the averages of its weights, where there are averages."""
        held = [vector.weights.detach().clone() for vector in self.vectors] if self.averages else []
        for vector, average in zip(self.vectors, self.averages, strict=False):
            vector.weights.data.copy_(average)
        try:
            yield
        finally:
            for vector, weights in zip(self.vectors, held, strict=False):
                vector.weights.data.copy_(weights)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of optimizers and averages; the weights are the model's."""
        optimizers = [[optimizer.state_dict() for _, optimizer in group.vectors] for group in self.groups]
        return {"optimizers": optimizers, "averages": list(self.averages)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        for group, states in zip(self.groups, state["optimizers"], strict=True):
            for (_, optimizer), own in zip(group.vectors, states, strict=True):
                optimizer.load_state_dict(own)
        for average, value in zip(self.averages, state["averages"], strict=True):
            average.copy_(value)
