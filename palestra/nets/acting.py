"""A network's twin for acting: small batches on a CPU, where starting an operation costs more than the operation."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from palestra.nets.activations import Tanh
from palestra.nets.inputs import flatten_observation
from palestra.nets.mlp import MLP
from palestra.nets.weights import evaluation_twin

LARGEST_PRODUCT = 2**18  # multiplications of one layer; from there on numpy would take threads of its own


def acting_twin(net: nn.Module) -> Callable[[Mapping[str, Tensor]], Tensor]:
    """What a network says in evaluation mode, without gradients, as quickly as possible; observation -> outputs.

    It reads the network's very weights, so it follows every change of them in place and every load of a state dict.
    A plain `mlp` (linear layers, relu or tanh) of float32 on a CPU runs in numpy while batches are small; anything
    else is its `evaluation_twin`. Equal to the network within float rounding; which bits a row gets may depend on the
    number of rows.
    """
    twin = evaluation_twin(net)
    if isinstance(twin, MLP) and all(type(layer) in (nn.Linear, nn.ReLU, Tanh) for layer in twin.layers):
        first = next(twin.parameters())
        if first.device.type == "cpu" and first.dtype == torch.float32:
            return _NumpyMLP(twin)
    return twin


class _NumpyMLP:
    def __init__(self, net: MLP) -> None:
        self.net = net
        self.linears = [layer for layer in net.layers if isinstance(layer, nn.Linear)]
        self.largest_layer = max(linear.weight.numel() for linear in self.linears)
        self.activate: Any = np.tanh if any(isinstance(layer, Tanh) for layer in net.layers) else _relu
        (self.only, space), *others = net.spaces.items()
        self.is_vector = not others and not space.padded and len(space.shape) == 1 and space.dtype == torch.float32
        self.weights: list[tuple[np.ndarray, np.ndarray]] = []
        self.places: list[int] = []

    def __call__(self, observation: Mapping[str, Tensor]) -> Tensor:
        seen = observation[self.only]
        if len(seen) * self.largest_layer > LARGEST_PRODUCT:
            with torch.no_grad():
                return self.net(observation)
        if [linear.weight.data_ptr() for linear in self.linears] != self.places:
            self._find_weights()
        x = (seen if self.is_vector else flatten_observation(observation, self.net.spaces)).numpy()
        *hidden, (weight, bias) = self.weights
        for hidden_weight, hidden_bias in hidden:
            x = np.dot(x, hidden_weight)
            x += hidden_bias
            self.activate(x, out=x)
        x = np.dot(x, weight)
        x += bias
        return torch.from_numpy(x)

    def _find_weights(self) -> None:
        """Views of the weights where they lie now: `flatten_weights` and `to` lay them elsewhere."""
        self.places = [linear.weight.data_ptr() for linear in self.linears]
        self.weights = [(linear.weight.detach().numpy().T, linear.bias.detach().numpy()) for linear in self.linears]


def _relu(x: np.ndarray, out: np.ndarray) -> None:
    np.maximum(x, 0.0, out=out)
