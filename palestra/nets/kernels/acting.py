"""Plain mlps for acting on a CPU, where starting an operation of torch costs more than many an operation."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from palestra.nets.activations import Tanh
from palestra.nets.inputs import flatten_on_cpu
from palestra.nets.kernels.mlp import Array, evaluate
from palestra.nets.kernels.plain import is_edited, is_plain
from palestra.nets.mlp import MLP
from palestra.nets.weights import evaluation_twin, one_vector

LETTERS: dict[type[nn.Module], str] = {nn.Linear: "L", nn.BatchNorm1d: "B", nn.ReLU: "r", Tanh: "t"}


def acting_net(net: nn.Module) -> Callable[[Mapping[str, Tensor]], Tensor]:
    """What a network says in evaluation mode, without gradients, as quickly as possible; observation -> outputs.

    It reads the network's very weights, so it follows every change of them in place and every load of a state dict. A
    plain `mlp` (linear layers, each perhaps with a batch norm; relu or tanh) on a CPU whose float32 weights lie in one
    vector (`flatten_weights`), and the statistics in another (`flatten_buffers`), runs in one kernel; anything else is
    its `evaluation_twin`. Equal to the network within float rounding; which bits a row gets may
    depend on the number of rows.
    """
    twin = evaluation_twin(net)
    if is_plain(twin, *LETTERS) and not is_edited(twin):
        assert isinstance(twin, MLP)
        letters = "".join(LETTERS[type(layer)] for layer in twin.layers)
        if re.fullmatch(r"(LB?r)*L|(LB?t)*L", letters):
            return ActingMLP(twin)
    return twin


class ActingMLP:
    """A plain `mlp` in one kernel; see `acting_net`."""

    def __init__(self, net: MLP) -> None:
        self.net = net
        linears = [layer for layer in net.layers if isinstance(layer, nn.Linear)]
        self.widths = np.array([linears[0].in_features, *(linear.out_features for linear in linears)])
        self.is_tanh = any(isinstance(layer, Tanh) for layer in net.layers)
        layers = list(net.layers)
        self.norms = np.array([isinstance(after, nn.BatchNorm1d) for after in (*layers[1:], None)])[
            [isinstance(layer, nn.Linear) for layer in layers]
        ]
        self.eps = np.float32(next((layer.eps for layer in layers if isinstance(layer, nn.BatchNorm1d)), 0.0))
        self.parameters = list(net.parameters())
        self.statistics = [buffer for buffer in net.buffers() if buffer.is_floating_point()]
        self.first = [tensor.data_ptr for tensor in (*self.parameters[:1], *self.statistics[:1])]
        self.places: list[int] = []
        self.weights: Array | None = None

    def __call__(self, observation: Mapping[str, Tensor]) -> Tensor:
        arguments = self.arguments(observation)
        if arguments is None:
            with torch.no_grad():
                return self.net(observation)
        return torch.from_numpy(evaluate(*arguments))

    def arguments(self, observation: Mapping[str, Tensor]) -> Any:
        """What `evaluate` takes to give the outputs, or None where the weights lie elsewhere than it needs them."""
        places = [place() for place in self.first]
        if places != self.places:  # `flatten_weights` and `to` lay all of them elsewhere
            self.places, self.weights = places, one_vector(self.parameters)
            self.moments = one_vector(self.statistics) if self.statistics else None
        if self.weights is None or (self.statistics and self.moments is None):
            return None
        x = flatten_on_cpu(observation, self.net.spaces)
        return x, self.weights, self.moments, self.widths, self.norms, self.eps, self.is_tanh
