"""A network's twin for acting: small batches on a CPU, where starting an operation of torch costs more than the
operation."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn

from palestra.nets.activations import Tanh
from palestra.nets.inputs import flatten_on_cpu
from palestra.nets.mlp import MLP
from palestra.nets.weights import evaluation_twin

Array = np.ndarray[Any, Any]

LETTERS: dict[type[nn.Module], str] = {nn.Linear: "L", nn.BatchNorm1d: "B", nn.ReLU: "r", Tanh: "t"}
NO_MOMENTS = np.empty(0, dtype=np.float32)
LARGEST_PRODUCT = 2**20  # multiplications of one layer; beyond, torch is soon as fast, and may use several threads


def acting_twin(net: nn.Module) -> Callable[[Mapping[str, Tensor]], Tensor]:
    """What a network says in evaluation mode, without gradients, as quickly as possible; observation -> outputs.

    It reads the network's very weights, so it follows every change of them in place and every load of a state dict. A
    plain `mlp` (linear layers, each perhaps with a batch norm; relu or tanh) on a CPU whose float32 weights lie in one
    vector (`flatten_weights`), and the statistics in another (`flatten_buffers`), runs in one kernel while batches are
    small; anything else is its `evaluation_twin`. Equal to the network within float rounding; which bits a row gets may
    depend on the number of rows.
    """
    twin = evaluation_twin(net)
    if isinstance(twin, MLP):
        letters = "".join(LETTERS.get(type(layer), "?") for layer in twin.layers)
        if re.fullmatch(r"(LB?r)*L|(LB?t)*L", letters):
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
        layers = list(net.layers)
        self.norms = np.array([isinstance(after, nn.BatchNorm1d) for after in (*layers[1:], None)])[
            [isinstance(layer, nn.Linear) for layer in layers]
        ]
        self.eps = np.float32(next((layer.eps for layer in layers if isinstance(layer, nn.BatchNorm1d)), 0.0))
        self.parameters = list(net.parameters())
        self.statistics = [buffer for buffer in net.buffers() if buffer.is_floating_point()]
        self.find_places = [tensor.data_ptr for tensor in (*self.parameters, *self.statistics)]
        self.places: list[int] = []
        self.weights: Array | None = None

    def __call__(self, observation: Mapping[str, Tensor]) -> Tensor:
        places = [find_place() for find_place in self.find_places]
        if places != self.places:  # `flatten_weights` and `to` lay weights elsewhere
            self.places, self.weights = places, _one_vector(self.parameters)
            self.moments = _one_vector(self.statistics) if self.statistics else NO_MOMENTS
        seen = observation[self.entry]
        if self.weights is None or self.moments is None or len(seen) * self.largest_layer > LARGEST_PRODUCT:
            with torch.no_grad():
                return self.net(observation)
        x = seen.contiguous().numpy() if self.sees_vector else flatten_on_cpu(observation, self.net.spaces)
        return torch.from_numpy(_run(x, self.weights, self.moments, self.widths, self.norms, self.eps, self.is_tanh))


def _one_vector(parameters: Sequence[Tensor]) -> Array | None:
    """The vector that float32 tensors on a CPU are consecutive views of, if they are."""
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
def _run(
    x: Array, weights: Array, moments: Array, widths: Array, norms: Array, eps: np.float32, is_tanh: bool
) -> Array:
    """The outputs of linear layers with an activation between them: float32 (B, widths[-1]) of x (B, widths[0]).

    norms: which layers have a batch norm; moments: the means and variances of one after the other.
    """
    start = at = 0
    for layer in range(len(widths) - 1):
        num_in, num_out = widths[layer], widths[layer + 1]
        weight = weights[start : start + num_in * num_out].reshape(num_out, num_in)
        start += num_in * num_out
        y = np.empty((len(x), num_out), np.float32)
        _apply_linear(x, weight, weights[start : start + num_out], y)
        start += num_out
        if norms[layer]:
            factor = weights[start : start + num_out] / np.sqrt(moments[at + num_out : at + 2 * num_out] + eps)
            y = (y - moments[at : at + num_out]) * factor + weights[start + num_out : start + 2 * num_out]
            start += 2 * num_out
            at += 2 * num_out
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
