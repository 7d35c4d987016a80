"""Optimizers by name: ours, those of torch, and the base of a user's own. To register one, add its config to
OptimizerConfig.

Each steps on one vector of weights, and its step may be part of a compiled function. An algorithm sets the learning
rate from its schedule before every opt step. By hand they work as torch's do: `zero_grad`, `loss.backward`, `step`.
"""

import itertools
import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor, nn

from palestra.config import (
    ByName,
    Config,
    ConfigError,
    ConfigErrorItem,
    Fraction,
    LibraryClass,
    NonNegativeFloat,
    PositiveFloat,
    UserConfig,
)
from palestra.config.errors import listed
from palestra.randomness import runs_on_cpu
from palestra.runtime.compiling import njit

SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
STEPS_PER_FLUSH = 16
MOST_STEPS_UNCOUNTED = 10_000  # by hand, without an opt step that anybody counts


class Optimizer(ABC):
    """Steps on a vector of weights, in place (see palestra.nets.weights.flatten_weights). A user's own class derives
    from it and carries its `Config`.

    learning_rate: (), which the caller fills before it steps on a gradient. scheduled: what the schedule gives now, to
    which `follow_schedule` sets it; None: nobody has said. counted: gives the opt steps of its player, where a
    trainer counts them. state: the optimizer's tensors by name, all there from the beginning, which a step changes in
    place. frozen: bool (P,), the weights that a step does not change, nor their entries of the state. factors: float32
    (P,), by which each weight's steps are multiplied (`learning_rate_factors`); None: all are whole. layers: where each
    layer begins and ends in the vector, by name, if norms are recorded; else {}. A subclass fills `state` and
    implements `update`, of tensor operations alone.
    """

    state: dict[str, Tensor]

    def __init__(self, config: Config, weights: Tensor) -> None:
        self.config = config
        self.weights = weights
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
        """Forget the gradients that `backward` has left at the weights."""
        for leaf in self._leaves():
            leaf.grad = None

    def follow_schedule(self) -> None:
        """Set the learning rate to what its schedule gives now."""
        if self.scheduled is None:
            raise RuntimeError("expected an optimizer of a player, whose schedule says the learning rate, got another")
        self.learning_rate.fill_(self.scheduled())

    @torch.no_grad()
    def _step_by_own_gradients(self) -> None:
        """As torch's optimizers: weights without a gradient stay, and so do their entries of the state."""
        whole, gradient = self.weights.grad, torch.zeros_like(self.weights.detach())
        has_gradient, start = torch.zeros_like(self.frozen), 0
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
        """Raise RuntimeError where nobody counts: the learning rate, exploration and the run would stand still."""
        if (now := self.counted()) is None:
            return
        before, num = self._uncounted
        self._uncounted = (now, num + 1 if now == before else 1)
        if self._uncounted[1] > MOST_STEPS_UNCOUNTED:
            raise RuntimeError(
                f"expected after_step(player, metrics) after each opt step, which counts it; got {num:,} steps of an "
                f"optimizer while its player's opt_steps stayed {now:,}"
            )

    def _leaves(self) -> list[Tensor]:
        """Where `backward` leaves gradients: the vector of weights, and the parameters of which it is made."""
        return [self.weights, *getattr(self.weights, "parts", ())]

    # ---- on a gradient --------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, gradient: Tensor | None = None) -> None:
        """Update the weights that are not frozen. gradient: (P,), of all weights; None: that which `backward` has left
        at them, at the learning rate that the schedule gives now. Raises RuntimeError if there is none."""
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
        """Multiply the step that has led from `before` to the weights by `factors`: by 0 and 1 to the bit."""
        if self.factors is not None:
            weights.copy_(torch.lerp(before, weights, self.factors))

    def descend(self, gradient: Tensor, max_norm: float | None, name: str = "grad_norm") -> dict[str, Tensor | float]:
        """Step on a gradient (P,), which is scaled down to `max_norm` if it is longer (None: never), and may be
        overwritten. Gives the norm that it had, by `name`, and those of its layers, where the config asks for them."""
        norms = self.layer_norms(gradient)
        gradient, norm = self.clip(gradient, max_norm)
        self.step(gradient)
        return {name: norm, **norms}

    def clip(self, gradient: Tensor, max_norm: float | None) -> tuple[Tensor, Tensor | float]:
        """`clip` of the gradient (P,), after setting it to 0 for frozen weights."""
        return clip(self._without_frozen(gradient), max_norm)

    @torch.no_grad()
    def layer_norms(self, gradient: Tensor) -> dict[str, Tensor]:
        """Metrics: the norms of each layer's weights and gradient, where the config asks for them. gradient: (P,),
        before `clip`, which may overwrite it."""
        if not self.layers:
            return {}
        vectors = {"weight_norm": self.weights, "grad_norm": self._without_frozen(gradient)}
        return {
            f"{what}/{layer}": torch.linalg.vector_norm(vector[start:stop])
            for what, vector in vectors.items()
            for layer, (start, stop) in self.layers.items()
        }

    def _without_frozen(self, gradient: Tensor) -> Tensor:
        is_masked = self._masks or torch.compiler.is_compiling()
        return gradient.masked_fill(self.frozen, 0.0) if is_masked else gradient

    def freeze(self, mask: Tensor) -> None:
        """Freeze weights until `thaw` gets the same mask object. mask: bool (P,). A weight in several masks is frozen
        until all of them are thawed."""
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


class AdamConfig(Config):
    name: Literal["adam"]
    """Adam (Kingma & Ba 2015); AdamW (Loshchilov & Hutter 2019) where weight_decay is above 0"""
    beta1: Fraction
    """decay of the mean of gradients"""
    beta2: Fraction
    """decay of the mean of squared gradients"""
    eps: PositiveFloat
    """added to the root of the mean of squared gradients"""
    weight_decay: NonNegativeFloat
    """decoupled weight decay"""

    def build(self, weights: Tensor) -> "Adam":
        return Adam(self, weights)


class Adam(Optimizer):
    """Adam or AdamW. state: num_steps float32 (), mean and mean_square float32 (P,)."""

    config: AdamConfig

    def __init__(self, config: AdamConfig, weights: Tensor) -> None:
        super().__init__(config, weights)
        self.num_steps = torch.zeros((), device=weights.device)
        self.mean, self.mean_square = torch.zeros_like(weights.data), torch.zeros_like(weights.data)
        self.state = {"num_steps": self.num_steps, "mean": self.mean, "mean_square": self.mean_square}

    def update(self, gradient: Tensor) -> None:
        self.num_steps += 1
        if torch.compiler.is_compiling():
            self._plain_update(gradient)
        else:
            self._fused_update(gradient)
        # Both means are read and written once more: of large networks a third of the step's time.
        if self.mean.is_cpu and (torch.compiler.is_compiling() or self.num_steps.item() % STEPS_PER_FLUSH == 0):
            flush_subnormals(self.mean)
            flush_subnormals(self.mean_square)

    def _plain_update(self, gradient: Tensor) -> None:
        config = self.config
        self.mean.lerp_(gradient, 1 - config.beta1)
        self.mean_square.mul_(config.beta2).addcmul_(gradient, gradient, value=1 - config.beta2)
        step_size = self.learning_rate / self._unbiased(config.beta1)
        root = (self.mean_square / self._unbiased(config.beta2)).sqrt()
        if config.weight_decay:
            self.weights.mul_(1 - self.learning_rate * config.weight_decay)
        self.weights.sub_(step_size * self.mean / (root + config.eps))

    def _unbiased(self, beta: float) -> Tensor:
        """1 - beta^num_steps, in a form that is precise for beta near 1."""
        return -torch.expm1(self.num_steps * (math.log(beta) if beta else -math.inf))

    def _fused_update(self, gradient: Tensor) -> None:
        """`_plain_update` by torch's fused kernel, several times faster than the single operations."""
        torch._fused_adamw_(
            [self.weights],
            [gradient],
            [self.mean],
            [self.mean_square],
            [],
            [self.num_steps],
            lr=self.learning_rate,
            beta1=self.config.beta1,
            beta2=self.config.beta2,
            weight_decay=self.config.weight_decay,
            eps=self.config.eps,
            amsgrad=False,
            maximize=False,
        )


class SGDConfig(Config):
    name: Literal["sgd"]
    """stochastic gradient descent"""
    momentum: Fraction
    """share of the last step that is added to the new one"""
    weight_decay: NonNegativeFloat
    """weight decay, added to the gradient"""

    def build(self, weights: Tensor) -> "SGD":
        return SGD(self, weights)


class SGD(Optimizer):
    """Stochastic gradient descent with momentum (Polyak 1964). state: velocity float32 (P,)."""

    config: SGDConfig

    def __init__(self, config: SGDConfig, weights: Tensor) -> None:
        super().__init__(config, weights)
        self.velocity = torch.zeros_like(weights.data)
        self.state = {"velocity": self.velocity}

    def update(self, gradient: Tensor) -> None:
        if self.config.weight_decay:
            gradient = gradient.add(self.weights, alpha=self.config.weight_decay)
        if self.config.momentum:
            gradient = self.velocity.mul_(self.config.momentum).add_(gradient)
            flush_subnormals(self.velocity)
        self.weights.sub_(self.learning_rate * gradient)


def flush_subnormals(state: Tensor) -> None:
    """On a CPU, set numbers smaller than the smallest normal float32 to 0, in place. Means over the gradients of a dead
    unit decay into such numbers and stay there, and a CPU computes many times as long with them."""
    if state.is_cpu:
        torch.hardshrink(state, SMALLEST_NORMAL, out=state)


# ---- those of torch --------------------------------------------------------------------------------------


class TorchOptimizerConfig(LibraryClass):
    library = "torch.optim"
    base = "torch.optim:Optimizer"
    classes = (
        *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"),
        "SGD",
    )
    not_said: ClassVar[dict[str, str]] = {
        "params": "the run gives it the weights",
        "lr": "the key learning_rate sets it, a schedule",
        **dict.fromkeys(("foreach", "fused", "capturable", "differentiable"), "it changes nothing of what is computed"),
    }

    name: str
    """torch's optimizer of that name: ASGD, Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, NAdam, RAdam, RMSprop,
    Rprop, SGD"""
    arguments: dict[str, Any]
    """all that torch's class is called with, but lr, which the schedule of the learning rate sets before every step,
    and what only says how a step is computed (foreach, fused, capturable, differentiable)"""

    @model_validator(mode="after")
    def _check_arguments(self) -> Self:
        self.called_with()
        try:
            self.torch_optimizer(nn.Parameter(torch.zeros(2)))
        except (TypeError, ValueError, RuntimeError) as error:
            message = f"expected those of {self.name}, but it raises: {error}"
            raise ConfigError.at("arguments", message) from error
        return self

    def torch_optimizer(self, weights: nn.Parameter) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = self.load(self.name)([weights], **self.called_with())
        return made

    def build(self, weights: Tensor) -> "TorchOptimizer":
        return TorchOptimizer(self, weights)


class TorchOptimizer(Optimizer):
    """An optimizer of torch.optim. It keeps its own state, some of which begins with the first step.

    learning_rate: float64, on the CPU, where torch's class wants it. A compiled function calls the step as one
    operation (`_step_by_torch`), because the compiler knows no state that is yet to begin.
    """

    config: TorchOptimizerConfig

    def __init__(self, config: TorchOptimizerConfig, weights: Tensor) -> None:
        super().__init__(config, weights)
        self.learning_rate = torch.zeros((), dtype=torch.float64)
        self.parameter = nn.Parameter(weights.detach())
        self.optimizer = config.torch_optimizer(self.parameter)
        self.number = next(_numbers)
        _by_number[self.number] = self

    @torch.no_grad()
    def step(self, gradient: Tensor | None = None) -> None:
        """As in Optimizer; the gradient may be overwritten."""
        if gradient is None:
            self._step_by_own_gradients()
        elif torch.compiler.is_compiling():
            _step_by_torch(self.weights, gradient, self.learning_rate, self.number)
        else:
            self.step_on(self.weights, gradient)

    def step_on(self, weights: Tensor, gradient: Tensor) -> None:
        """`step`, on what holds the weights now. Frozen weights and their gradient count as 0."""
        self.parameter.data = weights.detach()
        vectors = [self.parameter.data, *self._state_vectors()] if self._masks else []
        before = [vector.clone() for vector in vectors]
        if self._masks:
            vectors[0].masked_fill_(self.frozen, 0.0)  # state that begins now begins without them
            gradient = gradient.masked_fill(self.frozen, 0.0)
        whole = self.parameter.data if self.factors is None else self.parameter.data.clone()
        self.update(gradient)
        self._scale_step(self.parameter.data, whole)
        for vector, old in zip(vectors, before, strict=True):
            vector.copy_(torch.where(self.frozen, old, vector))

    def update(self, gradient: Tensor) -> None:
        self.parameter.grad = gradient
        self.optimizer.param_groups[0]["lr"] = self.learning_rate.item()
        self.optimizer.step()
        self.parameter.grad = None
        for vector in self._state_vectors():
            flush_subnormals(vector)

    def _state_vectors(self) -> list[Tensor]:
        """The state of every weight, as far as it has begun."""
        values = self.optimizer.state[self.parameter].values()
        return [each for each in values if isinstance(each, Tensor) and each.shape == self.weights.shape]

    def state_dict(self) -> dict[str, Any]:
        return dict(self.optimizer.state[self.parameter])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        own = {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": {0: own}})


_numbers = itertools.count()
_by_number: weakref.WeakValueDictionary[int, TorchOptimizer] = weakref.WeakValueDictionary()


@torch.library.custom_op("palestra::step_by_torch", mutates_args=("weights", "gradient"))
def _step_by_torch(weights: Tensor, gradient: Tensor, learning_rate: Tensor, number: int) -> None:
    """The step of the TorchOptimizer of that number, in a compiled function."""
    _by_number[number].step_on(weights, gradient)


def learning_rate_factors(factors: Mapping[str, float], parameters: Mapping[str, Tensor]) -> Tensor | None:
    """The `factors` of an optimizer that steps on these parameters, which lie one after the other in its vector; None
    if there are none.

    factors: by pattern; * stands for anything in a name. Raises ConfigError for patterns that match no parameter and
    those that match one which another matches too, with paths that begin with the pattern.
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
    if faults:
        raise ConfigError(faults)
    by_name = {name: factors[pattern] for pattern, names in matches.items() for name in names}
    parts = [torch.full((each.numel(),), by_name.get(name, 1.0)) for name, each in parameters.items()]
    return torch.cat(parts).to(next(iter(parameters.values())).device)


OptimizerConfig = Annotated[
    AdamConfig | SGDConfig | TorchOptimizerConfig | UserConfig,
    ByName(user_class=Optimizer),
]


def clip(gradient: Tensor, max_norm: float | None) -> tuple[Tensor, Tensor | float]:
    """The gradient (P,), scaled down to norm `max_norm` if its norm is larger (None: never), and the norm that it had.
    May overwrite its argument. (Pascanu et al. 2013, algorithm 1)"""
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
