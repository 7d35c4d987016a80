"""A network's twin for acting: small batches on a CPU, where starting an operation of torch costs more than the
operation."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn

from palestra.nets.activations import Tanh
from palestra.nets.inputs import flatten_observation
from palestra.nets.mlp import MLP
from palestra.nets.weights import evaluation_twin

Array = np.ndarray[Any, Any]

LARGEST_PRODUCT = 2**20  # multiplications of one layer; beyond, torch is soon as fast, and may use several threads


def acting_twin(net: nn.Module) -> Callable[[Mapping[str, Tensor]], Tensor]:
    """What a network says in evaluation mode, without gradients, as quickly as possible; observation -> outputs.

    It reads the network's very weights, so it follows every change of them in place and every load of a state dict. A
    plain `mlp` (linear layers, relu or tanh) on a CPU whose float32 weights lie in one vector (`flatten_weights`) runs
    in one kernel while batches are small; anything else is its `evaluation_twin`. Equal to the network within float
    rounding; which bits a row gets may depend on the number of rows.
    """
    twin = evaluation_twin(net)
    if isinstance(twin, MLP) and all(type(layer) in (nn.Linear, nn.ReLU, Tanh) for layer in twin.layers):
        return _QuickMLP(twin)
    return twin


class _QuickMLP:
    def __init__(self, net: MLP) -> None:
        self.net = net
        linears = [layer for layer in net.layers if isinstance(layer, nn.Linear)]
        self.widths = np.array([linears[0].in_features, *(linear.out_features for linear in linears)])
        self.largest_layer = max(linear.weight.numel() for linear in linears)
        self.is_tanh = any(isinstance(layer, Tanh) for layer in net.layers)
        (self.entry, space), *others = net.spaces.items()
        self.sees_vector = not others and not space.padded and len(space.shape) == 1 and space.dtype == torch.float32
        self.parameters = list(net.parameters())
        self.find_places = [parameter.data_ptr for parameter in self.parameters]
        self.places: list[int] = []
        self.weights: Array | None = None

    def __call__(self, observation: Mapping[str, Tensor]) -> Tensor:
        places = [find_place() for find_place in self.find_places]
        if places != self.places:  # `flatten_weights` and `to` lay weights elsewhere
            self.places, self.weights = places, _one_vector(self.parameters)
        seen = observation[self.entry]
        if self.weights is None or len(seen) * self.largest_layer > LARGEST_PRODUCT:
            with torch.no_grad():
                return self.net(observation)
        x = seen.contiguous() if self.sees_vector else flatten_observation(observation, self.net.spaces)
        return torch.from_numpy(_run(x.numpy(), self.weights, self.widths, self.is_tanh))


def _one_vector(parameters: list[nn.Parameter]) -> Array | None:
    """The vector that float32 parameters on a CPU are consecutive views of, if they are."""
    first, end = parameters[0].detach(), parameters[0].data_ptr()
    for parameter in parameters:
        shares = parameter.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        plain = parameter.device.type == "cpu" and parameter.dtype == torch.float32 and parameter.is_contiguous()
        if not (shares and plain and parameter.data_ptr() == end):
            return None
        end += 4 * parameter.numel()
    return first.as_strided((sum(parameter.numel() for parameter in parameters),), (1,)).numpy()


# ---- the kernel: sums may be taken in any order, but NaN and infinity are kept -----------------------

_compiled = njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"})


@_compiled
def _run(x: Array, weights: Array, widths: Array, is_tanh: bool) -> Array:
    """The outputs of linear layers with an activation between them: float32 (B, widths[-1]) of x (B, widths[0])."""
    start = 0
    for layer in range(len(widths) - 1):
        num_in, num_out = widths[layer], widths[layer + 1]
        weight = weights[start : start + num_in * num_out].reshape(num_out, num_in)
        start += num_in * num_out
        y = np.empty((len(x), num_out), np.float32)
        _apply_linear(x, weight, weights[start : start + num_out], y)
        start += num_out
        if layer < len(widths) - 2:
            if is_tanh:
                _apply_tanh(y.reshape(-1))
            else:
                _apply_relu(y.reshape(-1))
        x = y
    return x


@_compiled
def _apply_linear(x: Array, weight: Array, bias: Array, out: Array) -> None:
    """x @ weight.T + bias, four rows at a time, so that every weight is fetched once for four; the last ones may be the
    same."""
    last = len(x) - 1
    for row in range(0, len(x), 4):
        row_1, row_2, row_3 = min(row + 1, last), min(row + 2, last), min(row + 3, last)
        x_0, x_1, x_2, x_3 = x[row], x[row_1], x[row_2], x[row_3]
        for o in range(len(weight)):
            w = weight[o]
            y_0 = y_1 = y_2 = y_3 = np.float32(0.0)
            for i in range(len(w)):
                y_0 += w[i] * x_0[i]
                y_1 += w[i] * x_1[i]
                y_2 += w[i] * x_2[i]
                y_3 += w[i] * x_3[i]
            b = bias[o]
            out[row, o], out[row_1, o], out[row_2, o], out[row_3, o] = y_0 + b, y_1 + b, y_2 + b, y_3 + b


@_compiled
def _apply_relu(x: Array) -> None:
    for k in range(len(x)):
        x[k] = max(x[k], np.float32(0.0))


@_compiled
def _apply_tanh(x: Array) -> None:
    """x * P(x^2) / Q(x^2): the least relative error up to |x| = 9, beyond which tanh is 1 in float32; with the rounding
    of float32 at most 8 units in the last place."""
    for k in range(len(x)):
        c = min(max(x[k], np.float32(-9.0)), np.float32(9.0))
        s = c * c
        p = np.float32(2.060900164479541e-05) + s * np.float32(1.3354553687560505e-08)
        p = np.float32(0.1338102144452402) + s * (np.float32(0.0034955831522203978) + s * p)
        p = np.float32(0.9999999794640397) + s * p
        q = np.float32(0.0003285626721907372) + s * np.float32(7.776513251472592e-07)
        q = np.float32(0.4671433703974681) + s * (np.float32(0.02587696324283363) + s * q)
        q = np.float32(1.0) + s * q
        x[k] = c * p / q
