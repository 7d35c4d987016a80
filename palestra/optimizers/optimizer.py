"""The base of all optimizers: a step on one vector of weights."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palestra.config import Config, ConfigError, ConfigErrorItem
from palestra.config.errors import listed
from palestra.randomness import runs_on_cpu
from palestra.runtime.compiling import njit

SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
MOST_STEPS_UNCOUNTED = 10_000  # by hand, without an opt step that anybody counts


class Optimizer(ABC):
    """Steps on a vector of weights, in place (see palestra.nets.weights.flatten_weights).

    A user's own class derives from it and carries its `Config`.

    learning_rate: (), which the caller fills before it steps on a gradient. scheduled: gives the schedule's present
    value, to which `follow_schedule` sets the learning rate; None if there is no schedule. counted: gives the opt steps
    of the optimizer's player; None if no trainer counts them. state: the optimizer's tensors by name, all there from
    the beginning, which a step changes in place. frozen: bool (P,), the weights that a step changes neither themselves
    nor in the state. factors: float32 (P,), by which each weight's steps are multiplied (`learning_rate_factors`);
    None: by 1. layers: where each layer begins and ends in the vector, by name, if norms are recorded; else {}. A
    subclass fills `state` and implements `update`, of tensor operations alone.
    """

    state: dict[str, Tensor]

    def __init__(self, config: Config, weights: Tensor) -> None:
        self.config, self.weights = config, weights
        self.learning_rate = torch.zeros((), device=weights.device)
        self.scheduled: Callable[[], float] | None = None
        self.counted: Callable[[], int | None] = lambda: None
        self._uncounted: tuple[int, int] = (0, 0)  # the player's opt steps, and steps by hand since these were counted
        self.frozen = torch.zeros(weights.shape, dtype=torch.bool, device=weights.device)
        self._masks: list[Tensor] = []
        self.factors: Tensor | None = None
        self.layers: dict[str, tuple[int, int]] = {}

    @abstractmethod
    def update(self, gradient: Tensor) -> None:
        """Change all weights in place. gradient: of their shape."""

    # ---- by hand, as those of torch -------------------------------------------------------------------------

    def zero_grad(self) -> None:
        """Forget the gradients that `backward` has left at the vector of weights and the parameters that lie in it."""
        for leaf in (self.weights, *getattr(self.weights, "parts", ())):
            leaf.grad = None

    def follow_schedule(self) -> None:
        """Set the learning rate to what its schedule gives now."""
        if self.scheduled is None:
            raise RuntimeError("expected an optimizer of a player, whose schedule says the learning rate, got another")
        self.learning_rate.fill_(self.scheduled())

    @torch.no_grad()
    def _step_by_own_gradients(self) -> None:
        """Step on the weights' own gradients, as torch's optimizers do; weights without one keep value and state."""
        whole = self.weights.grad
        gradient = torch.zeros_like(self.weights.detach())
        has_gradient = torch.zeros_like(self.frozen)
        start = 0
        for part in getattr(self.weights, "parts", ()):
            own = slice(start, start + part.numel())
            if part.grad is not None:
                gradient[own], has_gradient[own] = part.grad.flatten(), True
            start += part.numel()
        if whole is not None:  # of a network that is one operation on the vector
            gradient, has_gradient = gradient + whole, torch.ones_like(has_gradient)
        if not bool(has_gradient.any()):
            raise RuntimeError("expected gradients of the weights (loss.backward() before step()), got none")
        self._require_counted()
        self.follow_schedule()
        mask = ~has_gradient
        self.freeze(mask)
        try:
            self.step(gradient)
        finally:
            self.thaw(mask)

    def _require_counted(self) -> None:
        """Raise RuntimeError if nobody counts opt steps: the learning rate, exploration and the run would not move."""
        if (now := self.counted()) is None:
            return
        before, num = self._uncounted
        self._uncounted = (now, num + 1 if now == before else 1)
        if self._uncounted[1] > MOST_STEPS_UNCOUNTED:
            raise RuntimeError(
                f"expected after_step(player, metrics) after each opt step, which counts it; got {num:,} steps of an "
                f"optimizer while its player's opt_steps stayed {now:,}"
            )

    # ---- on a gradient --------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, gradient: Tensor | None = None) -> None:
        """Update the weights that are not frozen.

        gradient: (P,), of all weights. None: the gradients that `backward` has left at the weights, at the schedule's
        present learning rate; raises RuntimeError if there are none.
        """
        if gradient is None:
            self._step_by_own_gradients()
            return
        is_masked = self._masks or torch.compiler.is_compiling()  # compiled code must handle masks that are set later
        if not is_masked and self.factors is None:
            self.update(gradient)
            return
        vectors = [self.weights]
        if is_masked:
            vectors += [value for value in self.state.values() if value.shape == self.weights.shape]
        before = [vector.clone() for vector in vectors]
        self.update(gradient)
        self._scale_step(self.weights, before[0])
        if not is_masked:
            return
        for vector, old in zip(vectors, before, strict=True):
            vector.copy_(torch.where(self.frozen, old, vector))

    def _scale_step(self, weights: Tensor, before: Tensor) -> None:
        """Multiply the step from `before` to the weights by `factors`; factors of 0 and 1 are exact to the bit."""
        if self.factors is not None:
            weights.copy_(torch.lerp(before, weights, self.factors))

    def descend(self, gradient: Tensor, max_norm: float | None, name: str = "grad_norm") -> dict[str, Tensor | float]:
        """Scale a gradient (P,) down to `max_norm` if it is longer (None: never), and step on it.

        The gradient may be overwritten. Returns the norm that it had, by `name`, and those of its layers if the config
        asks for them.
        """
        norms = self.layer_norms(gradient)
        gradient, norm = self.clip(gradient, max_norm)
        self.step(gradient)
        return {name: norm, **norms}

    def clip(self, gradient: Tensor, max_norm: float | None) -> tuple[Tensor, Tensor | float]:
        """Set the gradient (P,) to 0 for frozen weights, and `clip` it."""
        return clip(self.without_frozen(gradient), max_norm)

    @torch.no_grad()
    def layer_norms(self, gradient: Tensor) -> dict[str, Tensor]:
        """Return metrics: the norms of each layer's weights and gradient, if the config asks for them.

        gradient: (P,), before `clip`, which may overwrite it.
        """
        if not self.layers:
            return {}
        vectors = {"weight_norm": self.weights, "grad_norm": self.without_frozen(gradient)}
        return {
            f"{what}/{layer}": torch.linalg.vector_norm(vector[start:stop])
            for what, vector in vectors.items()
            for layer, (start, stop) in self.layers.items()
        }

    def without_frozen(self, gradient: Tensor) -> Tensor:
        """Return the gradient (P,) with 0 for frozen weights."""
        is_masked = self._masks or torch.compiler.is_compiling()
        return gradient.masked_fill(self.frozen, 0.0) if is_masked else gradient

    def freeze(self, mask: Tensor) -> None:
        """Freeze weights until `thaw` gets the same mask object.

        mask: bool (P,). A weight in several masks is frozen until all of them are thawed.
        """
        self._masks.append(mask)
        self.frozen.copy_(torch.stack(self._masks).any(dim=0))

    def thaw(self, mask: Tensor) -> None:
        """Undo `freeze` of the same mask object."""
        self._masks = [other for other in self._masks if other is not mask]
        self.frozen.copy_(torch.stack([torch.zeros_like(self.frozen), *self._masks]).any(dim=0))

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in self.state.items():
            value.copy_(state[name])


def flush_subnormals(state: Tensor) -> None:
    """On a CPU, set numbers smaller than the smallest normal float32 to 0, in place.

    Means over the gradients of a dead unit decay into such numbers and stay there, and a CPU computes many times as
    long with them.
    """
    if state.is_cpu:
        torch.hardshrink(state, SMALLEST_NORMAL, out=state)


def learning_rate_factors(factors: Mapping[str, float], parameters: Mapping[str, Tensor]) -> Tensor | None:
    """Return the `factors` of an optimizer whose vector holds these parameters one after the other; None if none are.

    factors: by pattern; * stands for anything in a name. Raises ConfigError, at a path that is the pattern, for
    patterns that match no parameter, and for those that match one which another pattern matches too.
    """
    if not factors:
        return None
    matches = {pattern: [name for name in parameters if fnmatchcase(name, pattern)] for pattern in factors}
    faults = []
    for place, (pattern, names) in enumerate(matches.items()):
        if not names:
            faults.append(ConfigErrorItem(pattern, f"expected weights among {listed(parameters)}, got {pattern!r}"))
        for other in list(matches)[:place]:
            if twice := [name for name in names if name in matches[other]]:
                message = f"expected one factor for {twice[0]}, got two, by {other!r} and {pattern!r}"
                faults.append(ConfigErrorItem(pattern, message))
    ConfigError.require_none(faults)
    by_name = {name: factors[pattern] for pattern, names in matches.items() for name in names}
    parts = [torch.full((each.numel(),), by_name.get(name, 1.0)) for name, each in parameters.items()]
    return torch.cat(parts).to(next(iter(parameters.values())).device)


def clip(gradient: Tensor, max_norm: float | None) -> tuple[Tensor, Tensor | float]:
    """Scale a gradient (P,) down to norm `max_norm` if it is longer (None: never); return it and the norm that it had.

    May overwrite its argument. (Pascanu et al. 2013, algorithm 1)
    """
    if runs_on_cpu(gradient):
        return gradient, float(_clip(gradient.numpy(), math.inf if max_norm is None else max_norm))
    norm = torch.linalg.vector_norm(gradient)
    if max_norm is not None:
        gradient = gradient * (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return gradient, norm


@njit(error_model="numpy", fastmath={"contract", "reassoc"})
def _clip(gradient: np.ndarray[Any, Any], max_norm: float) -> Any:
    """Scale the gradient in place, and return the norm that it had."""
    square = np.float32(0.0)
    for i in range(len(gradient)):
        square += gradient[i] * gradient[i]
    norm = np.sqrt(square)
    factor = np.float32(max_norm / (norm + 1e-6))
    if not factor >= 1.0:  # also if the norm is nan: then the gradient becomes nan, as in torch
        for i in range(len(gradient)):
            gradient[i] *= factor
    return norm
