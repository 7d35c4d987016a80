"""A network's twin for learning on a CPU: forward and backward by hand, where autograd costs more than the layers."""

from collections.abc import Callable, Mapping

import numba
import numpy as np
import torch
from torch import Tensor, nn

from palestra.nets.activations import Tanh
from palestra.nets.inputs import flatten_on_cpu
from palestra.nets.mlp import MLP

LARGEST_PRODUCT = 2**18  # multiplications; beyond, numpy would take threads of its own, and torch those that it may


def learning_twin(net: nn.Module, gradient: Tensor) -> "MLPTwin | None":
    """What learns for a plain `mlp` (linear layers, relu or tanh) of float32 on a CPU; None for any other network.

    gradient: float32, as long as the network's parameters laid one after another; backward passes add to it. The twin
    reads the network's very weights, which must stay where they are (see `flatten_weights`).
    """
    if not isinstance(net, MLP) or not all(type(layer) in (nn.Linear, nn.ReLU, Tanh) for layer in net.layers):
        return None
    weights = list(net.parameters())
    if any(weight.device.type != "cpu" or weight.dtype != torch.float32 for weight in weights):
        return None
    return MLPTwin(net, gradient)


class MLPTwin:
    """Forward and backward passes in turn: a backward pass belongs to the last forward pass."""

    def __init__(self, net: MLP, gradient: Tensor) -> None:
        self.spaces, self.gradient = net.spaces, gradient
        linears = [layer for layer in net.layers if isinstance(layer, nn.Linear)]
        self.weights = [(linear.weight.detach().numpy(), linear.bias.detach().numpy()) for linear in linears]
        sizes = [part.size for layer in self.weights for part in layer]
        parts = [part.numpy() for part in gradient.split(sizes)]
        self.gradients = [
            (of_weight.reshape(weight.shape), of_bias)
            for (weight, _), of_weight, of_bias in zip(self.weights, parts[::2], parts[1::2], strict=True)
        ]
        is_tanh = any(isinstance(layer, Tanh) for layer in net.layers)
        self.activate: Callable[..., object] = np.tanh if is_tanh else _relu
        self.bend = _bend_tanh if is_tanh else _bend_relu
        self.inputs: list[np.ndarray] = []

    def forward(self, observation: Mapping[str, Tensor]) -> np.ndarray:
        """The outputs, float32 (B, num_outputs)."""
        x = flatten_on_cpu(observation, self.spaces)
        self.inputs = [x]
        *hidden, (last_weight, last_bias) = self.weights
        for weight, bias in hidden:
            x = _product(x, weight.T)
            _add(x, bias)
            self.activate(x, out=x)
            self.inputs.append(x)
        x = _product(x, last_weight.T)
        _add(x, last_bias)
        return x

    def backward(self, slopes: np.ndarray) -> None:
        """Add the gradient of the loss. slopes: its derivatives by the outputs of the last forward pass, of their
        shape."""
        ones = np.ones(len(slopes), dtype=np.float32)
        for layer in reversed(range(len(self.weights))):
            x, (of_weight, of_bias) = self.inputs[layer], self.gradients[layer]
            of_weight += _product(slopes.T, x)
            of_bias += np.dot(ones, slopes)
            if layer:
                slopes = _product(slopes, self.weights[layer][0])
                self.bend(slopes, x)


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.size * b.shape[1] <= LARGEST_PRODUCT:
        return np.dot(a, b)
    return torch.mm(torch.from_numpy(a), torch.from_numpy(b)).numpy()


def _relu(x: np.ndarray, out: np.ndarray) -> None:
    np.maximum(x, 0.0, out=out)


@numba.njit(cache=True, nogil=True)
def _add(x: np.ndarray, bias: np.ndarray) -> None:
    for row in range(x.shape[0]):
        for column in range(x.shape[1]):
            x[row, column] += bias[column]


@numba.njit(cache=True, nogil=True)
def _bend_tanh(slopes: np.ndarray, y: np.ndarray) -> None:
    """From slopes by y = tanh(x) to slopes by x, in place."""
    flat, values = slopes.reshape(-1), y.reshape(-1)
    for place in range(len(flat)):
        flat[place] *= np.float32(1.0) - values[place] * values[place]


@numba.njit(cache=True, nogil=True)
def _bend_relu(slopes: np.ndarray, y: np.ndarray) -> None:
    """From slopes by y = max(x, 0) to slopes by x, in place."""
    flat, values = slopes.reshape(-1), y.reshape(-1)
    for place in range(len(flat)):
        flat[place] = flat[place] if values[place] > 0.0 else np.float32(0.0)
