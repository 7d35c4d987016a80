"""Forward and backward passes by hand of plain mlps and networks of sets on a CPU, where autograd takes too long.

Letters: B rows, K outputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from palestra.games.spaces import Space
from palestra.nets.activations import Tanh
from palestra.nets.deep_sets import DeepSets
from palestra.nets.inputs import flatten_on_cpu
from palestra.nets.kernels import mlp, set_nets
from palestra.nets.kernels.mlp import Array
from palestra.nets.kernels.plain import is_plain, set_net_layout, widths_of
from palestra.nets.mlp import MLP
from palestra.nets.weights import one_vector

NO_WORKSPACE = np.empty(0, np.float32)


def learning_net(net: nn.Module) -> "LearningNet | None":
    """Return the kernels for a network; None if there are none, if its code was edited, or a weight has no gradient.

    There are kernels for a plain `mlp` (linear layers, all with relu or all with tanh), `deep_sets` or `newton_sets` of
    float32 on a CPU, whose weights lie in one vector (`flatten_weights`) and stay there.
    """
    layout = set_net_layout(net)
    if layout is None and not is_plain(net, "(Lr)*L|(Lt)*L"):
        return None
    weights = one_vector(list(net.parameters()))
    if weights is None or not all(parameter.requires_grad for parameter in net.parameters()):
        return None
    if layout is not None:
        return LearningSets(cast(DeepSets, net).spaces, weights, layout)
    return LearningMLP(cast(MLP, net), weights)


class LearningNet(ABC):
    """Forward and backward passes of a network, by its own weights, not by a copy."""

    def __init__(self, spaces: dict[str, Space], weights: Array) -> None:
        self.spaces, self.weights = spaces, weights

    def read(self, observation: Mapping[str, Tensor]) -> Array:
        """Return an observation as the input of `forward`: float32 (B, flat_size)."""
        return flatten_on_cpu(observation, self.spaces)

    @abstractmethod
    def forward(self, x: Array) -> tuple[Array, Any]:
        """Return the outputs, float32 (B, K), and the workspace with the activations that backward passes need."""

    def outputs(self, x: Array) -> Array:
        """Return the outputs alone."""
        outputs, workspace = self.forward(x)
        self.release(workspace)
        return outputs

    @abstractmethod
    def backward(self, output_grads: Array, x: Array, workspace: Any, gradient: Array, adds: bool) -> None:
        """Write the gradient of the loss by the weights to `gradient`, float32 (P,), or add it to what it holds.

        output_grads: the derivatives of the loss by the outputs, of their shape.
        """

    @abstractmethod
    def backward_to_inputs(self, output_grads: Array, workspace: Any) -> Array:
        """Return the gradient by the input (see `read`): float32 (B, flat_size)."""

    def release(self, workspace: Any) -> None:  # noqa: B027 (a network may have nothing to use again)
        """Give the workspace to the next forward pass: for a small network, a new one takes as long as its products."""


class LearningMLP(LearningNet):
    """A plain `mlp`."""

    def __init__(self, net: MLP, weights: Array) -> None:
        super().__init__(net.spaces, weights)
        self.widths = widths_of(net.layers)
        self.workspace_size = mlp.workspace_size(self.widths)
        self.is_tanh = any(isinstance(layer, Tanh) for layer in net.layers)
        self.free = NO_WORKSPACE

    def forward(self, x: Array) -> tuple[Array, Array]:
        size = len(x) * self.workspace_size
        workspace = self.free[:size] if len(self.free) >= size else np.empty(size, np.float32)
        self.free = NO_WORKSPACE
        return mlp.forward(x, self.weights, self.widths, self.is_tanh, workspace), workspace

    def backward(self, output_grads: Array, x: Array, workspace: Array, gradient: Array, adds: bool) -> None:
        mlp.backward(output_grads, x, self.weights, self.widths, self.is_tanh, workspace, gradient, adds)

    def backward_to_inputs(self, output_grads: Array, workspace: Array) -> Array:
        return mlp.backward_to_inputs(output_grads, self.weights, self.widths, self.is_tanh, workspace)

    def release(self, workspace: Array) -> None:
        self.free = workspace if workspace.base is None else workspace.base  # all of it, for a larger batch


class LearningSets(LearningNet):
    """A plain network of sets."""

    def __init__(self, spaces: dict[str, Space], weights: Array, layout: set_nets.Layout) -> None:
        super().__init__(spaces, weights)
        self.layout = layout

    def forward(self, x: Array) -> tuple[Array, set_nets.Hidden]:
        return cast(tuple[Array, set_nets.Hidden], set_nets.forward(x, self.weights, self.layout))

    def backward(self, output_grads: Array, x: Array, workspace: Any, gradient: Array, adds: bool) -> None:
        set_nets.backward(output_grads, self.weights, self.layout, workspace, gradient, adds)

    def backward_to_inputs(self, output_grads: Array, workspace: Any) -> Array:
        return set_nets.backward_to_inputs(output_grads, self.weights, self.layout, workspace)


class Pass:
    """A pass of the same rows through one or several networks.

    It runs forward when it is made; the kernel of an algorithm then computes the derivatives by the outputs, and calls
    `backward` with them.

    inputs: of each network, float32 (B, flat_size). outputs: of each network, float32 (B, K).
    """

    def __init__(self, nets: Sequence[LearningNet], inputs: Sequence[Array]) -> None:
        self.nets, self.inputs = nets, inputs
        passed = [net.forward(x) for net, x in zip(nets, inputs, strict=True)]
        self.outputs = [outputs for outputs, _ in passed]
        self.workspaces = [workspace for _, workspace in passed]

    def backward(self, output_grads: Sequence[Array], gradient: Array, adds: bool = False) -> None:
        """Write the gradient by the weights of all networks to `gradient`, or add it to what it holds.

        output_grads: the derivatives of the loss by the outputs of each network, float32 (B, K).
        """
        start = 0
        for net, x, grads, workspace in zip(self.nets, self.inputs, output_grads, self.workspaces, strict=True):
            stop = start + len(net.weights)
            net.backward(grads, x, workspace, gradient[start:stop], adds)
            start = stop

    def backward_to_inputs(self, output_grads: Sequence[Array]) -> Array:
        """Return the gradient by the input that all networks share: float32 (B, flat_size)."""
        passes = zip(self.nets, output_grads, self.workspaces, strict=True)
        first, *others = (net.backward_to_inputs(grads, workspace) for net, grads, workspace in passes)
        for more in others:
            first += more
        return first

    def release(self) -> None:
        """Let the next pass overwrite the activations of this one; call it after the last backward pass."""
        for net, workspace in zip(self.nets, self.workspaces, strict=True):
            net.release(workspace)
