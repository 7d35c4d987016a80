"""Kernels that compute the outputs of plain mlps and networks of sets on a CPU.

There, calling an operation of torch often takes longer than the operation itself.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from palestra.nets.activations import Tanh
from palestra.nets.deep_sets import DeepSets
from palestra.nets.inputs import flatten_on_cpu
from palestra.nets.kernels import mlp, set_nets
from palestra.nets.kernels.mlp import Array
from palestra.nets.kernels.plain import is_plain, set_net_layout, widths_of
from palestra.nets.mlp import MLP
from palestra.nets.weights import evaluation_view, one_vector


def acting_net(net: nn.Module) -> Callable[[Mapping[str, Tensor]], Tensor]:
    """Return a function from an observation to a network's outputs in evaluation mode, without gradients.

    One kernel computes a plain `mlp` (linear layers, each perhaps with a batch norm; relu or tanh), `deep_sets` or
    `newton_sets` on a CPU whose float32 weights lie in one vector (`flatten_weights`), and its statistics in another
    (`flatten_buffers`). It reads the network's own weights, so it follows every change of them in place and every load
    of a state dict. It equals the network within float rounding; the bits of a row may depend on the number of rows.
    For any other network the function is its `evaluation_view`.
    """
    view = evaluation_view(net)
    if is_plain(view, r"(LB?r)*L|(LB?t)*L"):
        norms = [layer for layer in view.layers if isinstance(layer, nn.BatchNorm1d)]
        if len({layer.eps for layer in norms}) <= 1:
            return _acting_mlp(view)
    if (layout := set_net_layout(view)) is not None:
        return ActingNet(cast(DeepSets, view), set_nets.evaluate, layout)
    return view


class ActingNet:
    """A network computed by one kernel; see `acting_net`.

    kernel: a function from the input, the weights, the statistics (None if there are none) and `shape` to the outputs.
    """

    def __init__(self, net: MLP | DeepSets, kernel: Callable[..., Any], *shape: Any) -> None:
        self.net, self.kernel, self.shape = net, kernel, shape
        self.parameters = list(net.parameters())
        self.statistics = [buffer for buffer in net.buffers() if buffer.is_floating_point()]
        self.first = [tensor.data_ptr for tensor in (*self.parameters[:1], *self.statistics[:1])]
        self.places: list[int] = []
        self.weights: Array | None = None
        self.moments: Array | None = None

    def __call__(self, observation: Mapping[str, Tensor]) -> Tensor:
        arguments = self.arguments(observation)
        if arguments is None:
            with torch.no_grad():
                return self.net(observation)
        return torch.from_numpy(self.kernel(*arguments))

    def arguments(self, observation: Mapping[str, Tensor]) -> Any:
        """The arguments of the kernel, or None if the weights do not lie in one vector, as it needs them."""
        places = [place() for place in self.first]
        if places != self.places:  # `flatten_weights` and `to` have moved all of them
            self.places, self.weights = places, one_vector(self.parameters)
            self.moments = one_vector(self.statistics) if self.statistics else None
        if self.weights is None or (self.statistics and self.moments is None):
            return None
        return flatten_on_cpu(observation, self.net.spaces), self.weights, self.moments, *self.shape


def _acting_mlp(net: MLP) -> ActingNet:
    layers = list(net.layers)
    has_norm = [isinstance(after, nn.BatchNorm1d) for after in (*layers[1:], None)]
    norms = np.array(has_norm)[[isinstance(layer, nn.Linear) for layer in layers]]
    eps = np.float32(next((layer.eps for layer in layers if isinstance(layer, nn.BatchNorm1d)), 0.0))
    is_tanh = any(isinstance(layer, Tanh) for layer in layers)
    return ActingNet(net, mlp.evaluate, widths_of(layers), norms, eps, is_tanh)
