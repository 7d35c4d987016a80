"""The optimizers of torch.optim, named by their path."""

import itertools
import weakref
from typing import Any, ClassVar, Self, cast

import torch
from pydantic import model_validator
from torch import Tensor, nn

from palestra.config import ConfigError, LibraryClass
from palestra.optimizers.optimizer import Optimizer, flush_subnormals


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
            raise ConfigError.at("arguments", f"expected those of {self.name}, but it raises: {error}") from error
        return self

    def torch_optimizer(self, weights: nn.Parameter) -> torch.optim.Optimizer:
        return cast(torch.optim.Optimizer, self.load(self.name)([weights], **self.called_with()))

    def build(self, weights: Tensor) -> "TorchOptimizer":
        return TorchOptimizer(self, weights)


class TorchOptimizer(Optimizer):
    """An optimizer of torch.optim. It keeps its own state, some of which begins with the first step.

    learning_rate: float64, on the CPU, where torch's class wants it. A compiled function calls the step as one
    operation (`_step_by_torch`), because the compiler cannot handle state that begins only later.
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
        """Update the weights that are not frozen, as Optimizer.step does; the gradient may be overwritten."""
        if gradient is None:
            self._step_by_own_gradients()
        elif torch.compiler.is_compiling():
            _step_by_torch(self.weights, gradient, self.learning_rate, self.number)
        else:
            self.step_on(self.weights, gradient)

    def step_on(self, weights: Tensor, gradient: Tensor) -> None:
        """Step on the tensor that holds the weights now. Frozen weights and their gradient count as 0."""
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
        """Return those tensors of the state, as far as it has begun, that have an entry for every weight."""
        values = self.optimizer.state[self.parameter].values()
        return [each for each in values if isinstance(each, Tensor) and each.shape == self.weights.shape]

    def state_dict(self) -> dict[str, Any]:
        return dict(self.optimizer.state[self.parameter])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave. What only this config keeps, as a branch with a momentum, begins anew."""
        own = {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}
        if own:
            weights = nn.Parameter(torch.zeros_like(self.parameter))
            begun, weights.grad = self.config.torch_optimizer(weights), torch.zeros_like(weights)
            begun.step()
            own = begun.state[weights] | own
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": {0: own}})


_numbers = itertools.count()
_by_number: weakref.WeakValueDictionary[int, TorchOptimizer] = weakref.WeakValueDictionary()


@torch.library.custom_op("palestra::step_by_torch", mutates_args=("weights", "gradient"))
def _step_by_torch(weights: Tensor, gradient: Tensor, learning_rate: Tensor, number: int) -> None:
    """Let the TorchOptimizer of that number step, in a compiled function."""
    _by_number[number].step_on(weights, gradient)
