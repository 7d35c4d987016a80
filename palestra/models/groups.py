"""Groups of weights that learn alike: their config, and the vectors in which an optimizer steps on them.

Letters: P weights of a vector.
"""

import itertools
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from palestra.config import Config, ConfigError, ConfigErrorItem, InBranch, NonEmptyStr
from palestra.config.errors import listed
from palestra.optimizers import Optimizer, OptimizerConfig
from palestra.schedules import Schedule, ScheduleConfig


class GroupConfig(Config):
    """Weights that learn alike."""

    usual: ClassVar = {"weights": "*", "learning_rate": {"name": "constant", "value": 0.001}}

    weights: Annotated[NonEmptyStr | Annotated[list[NonEmptyStr], Field(min_length=1)], InBranch.FIXED]
    """which weights, by their names in the model, or a list of such; * stands for anything"""
    optimizer: OptimizerConfig
    """how they step"""
    learning_rate: ScheduleConfig
    """the length of steps, a function of opt steps"""

    def patterns(self) -> list[str]:
        """Return the patterns of its weights."""
        return [self.weights] if isinstance(self.weights, str) else self.weights

    def matches(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.patterns())


HALVES = (torch.bfloat16, torch.float16)  # in which most steps are too small to change a weight


class Vector:
    """Weights of one group and one type as one vector, of which they are views; so is their gradient.

    A weight keeps its memory format, such as channels_last. held: the vector of which the model's weights are views.
    weights: what the optimizer moves: the same, or for weights of 16 bits a copy in float32, of which they are the
    rounded values.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        first = self.parameters[0]
        self.held = torch.empty(sum(each.numel() for each in self.parameters), dtype=first.dtype, device=first.device)
        self.unreached: list[bool] = []
        for parameter, view in zip(self.parameters, self._views(self.held), strict=True):
            parameter.data = view.copy_(parameter.data)
        self.is_rounded = first.dtype in HALVES
        self.weights = nn.Parameter(self.held.float() if self.is_rounded else self.held, requires_grad=False)
        self.gradient = torch.zeros_like(self.weights.data)
        self._gradients = self._views(self.gradient)

    def take_up(self) -> None:
        """Take up weights that something else has changed in the model."""
        if self.is_rounded:
            is_kept = self.weights.to(self.held.dtype) == self.held
            self.weights.copy_(torch.where(is_kept, self.weights, self.held.float()))

    def hand_over(self) -> None:
        """Give the model the weights, rounded."""
        if self.is_rounded:
            self.held.copy_(self.weights)

    def _views(self, vector: Tensor) -> list[Tensor]:
        starts = itertools.accumulate((each.numel() for each in self.parameters), initial=0)
        return [
            vector.as_strided(each.size(), each.stride() if _is_dense(each) else _contiguous(each), start)
            for each, start in zip(self.parameters, starts, strict=False)
        ]

    def take(self, gradient: Sequence[Tensor | None]) -> None:
        """Keep a gradient, one tensor per weight; None, of a weight that no term reaches, counts as 0.

        unreached: whether each weight is such a one.
        """
        for view, each in zip(self._gradients, gradient, strict=True):
            if each is None:
                view.zero_()
            else:
                view.copy_(each.to_dense() if each.layout is torch.sparse_coo else each)  # of nn.Embedding(sparse=True)
        self.unreached = [each is None for each in gradient]

    def mask(self, are_in: Sequence[bool]) -> Tensor:
        """Return a mask of whole weights: bool (P,). are_in: whether each is in it."""
        parts = [torch.full((each.numel(),), is_in) for each, is_in in zip(self.parameters, are_in, strict=True)]
        return torch.cat(parts).to(self.weights.device)


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
    """A group of weights: its patterns, its schedule, and a vector with an optimizer for each type of its weights."""

    weights: str | list[str]
    learning_rate: Schedule
    vectors: list[tuple[Vector, Optimizer]]


def groups_of(model: nn.Module, configs: Sequence[GroupConfig]) -> dict[str, int]:
    """Return the number of the group of each weight that learns, by its name; a tied weight goes by its first name.

    Raises ConfigError, with paths below the list of groups, for a pattern that matches no weight, and for a weight in
    no group or in several.
    """
    if not (names := [name for name, parameter in model.named_parameters() if parameter.requires_grad]):
        raise ConfigError.at("", f"expected weights that learn (requires_grad) in {type(model).__name__}, got none")
    parameters = dict(model.named_parameters())
    kinds = {name: "complex" if parameters[name].is_complex() else parameters[name].layout for name in names}
    ConfigError.require_none(
        ConfigErrorItem("", f"expected real numbers in dense memory as weights, got {name!r}, which is {kind}")
        for name, kind in kinds.items()
        if kind is not torch.strided
    )
    faults = [
        ConfigErrorItem(f"{place}.weights", f"expected weights among {listed(names)}, got {pattern!r}")
        for place, config in enumerate(configs)
        for pattern in config.patterns()
        if not any(fnmatchcase(name, pattern) for name in names)
    ]
    ConfigError.require_none(faults)
    places = {name: [at for at, config in enumerate(configs) if config.matches(name)] for name in names}
    for name, found in places.items():
        if len(found) != 1:
            got = f"{len(found)} ({', '.join(' '.join(configs[at].patterns()) for at in found)})" if found else "none"
            faults.append(ConfigErrorItem("", f"expected the weight {name!r} in one group, got it in {got}"))
    ConfigError.require_none(faults)
    return {name: place for name, (place,) in places.items()}
