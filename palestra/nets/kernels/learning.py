"""Plain mlps for learning on a CPU: forward and backward by hand, where autograd costs more than the layers.

Letters: B rows, K outputs.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor, nn

from palestra.nets.activations import Tanh
from palestra.nets.inputs import flatten_on_cpu
from palestra.nets.kernels.mlp import Array, backward, backward_to_inputs, forward, workspace_size
from palestra.nets.kernels.plain import is_edited, is_plain
from palestra.nets.mlp import MLP
from palestra.nets.weights import one_vector

NO_WORKSPACE = np.empty(0, np.float32)


def learning_mlp(net: nn.Module) -> "LearningMLP | None":
    """What learns for a plain `mlp` (linear layers, all with relu or all with tanh) of float32 on a CPU, whose weights
    lie in one vector (`flatten_weights`) and stay there; None for any other network, and where the code of `mlp` was
    edited."""
    if not is_plain(net, nn.Linear, nn.ReLU, Tanh) or is_edited(net):
        return None
    assert isinstance(net, MLP)
    weights = one_vector(list(net.parameters()))
    return None if weights is None else LearningMLP(net, weights)


class LearningMLP:
    """Forward and backward passes with the network's very weights."""

    def __init__(self, net: MLP, weights: Array) -> None:
        self.spaces, self.weights = net.spaces, weights
        linears = [layer for layer in net.layers if isinstance(layer, nn.Linear)]
        self.widths = np.array([linears[0].in_features, *(linear.out_features for linear in linears)])
        self.workspace_size = workspace_size(self.widths)
        self.is_tanh = any(isinstance(layer, Tanh) for layer in net.layers)
        self.free = NO_WORKSPACE

    def read(self, observation: Mapping[str, Tensor]) -> Array:
        """What the first layer sees: float32 (B, flat_size)."""
        return flatten_on_cpu(observation, self.spaces)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """The outputs, float32 (B, K), and the workspace in which backward passes find the hidden layers."""
        size = len(x) * self.workspace_size
        workspace = self.free if len(self.free) == size else np.empty(size, np.float32)
        self.free = NO_WORKSPACE
        return forward(x, self.weights, self.widths, self.is_tanh, workspace), workspace

    def outputs(self, x: Array) -> Array:
        """The outputs alone."""
        outputs, workspace = self.forward(x)
        self.release(workspace)
        return outputs

    def backward(self, output_grads: Array, x: Array, workspace: Array, gradient: Array, adds: bool) -> None:
        """Write the gradient of the loss by the weights, or add it to what stands there: float32, as long as they.

        output_grads: the derivatives of the loss by the outputs, of their shape.
        """
        backward(output_grads, x, self.weights, self.widths, self.is_tanh, workspace, gradient, adds)

    def backward_to_inputs(self, output_grads: Array, workspace: Array) -> Array:
        """The gradient by what `read` gave."""
        return backward_to_inputs(output_grads, self.weights, self.widths, self.is_tanh, workspace)

    def release(self, workspace: Array) -> None:
        """The next forward pass may use it: fresh memory costs a small network as much as its products."""
        self.free = workspace


class Pass:
    """A pass of the same rows through one network or several, forward at once and then backward: what every kernel of
    an algorithm does around its own derivatives by the outputs.

    x: what the networks see, float32 (B, flat_size). outputs: of each network, float32 (B, K).
    """

    def __init__(self, mlps: Sequence[LearningMLP], x: Array) -> None:
        self.mlps, self.x = mlps, x
        passed = [mlp.forward(x) for mlp in mlps]
        self.outputs = [outputs for outputs, _ in passed]
        self.workspaces = [workspace for _, workspace in passed]

    def backward(self, output_grads: Sequence[Array], gradient: Array, adds: bool = False) -> None:
        """Write the gradient by the weights of all networks, one after the other, into `gradient`, or add it to what
        stands there. output_grads: by the outputs of each network, (B, K)."""
        start = 0
        for mlp, grads, workspace in zip(self.mlps, output_grads, self.workspaces, strict=True):
            stop = start + len(mlp.weights)
            mlp.backward(grads, self.x, workspace, gradient[start:stop], adds)
            start = stop

    def backward_to_inputs(self, output_grads: Sequence[Array]) -> Array:
        """The gradient by x, the sum over the networks: float32 (B, flat_size)."""
        passes = zip(self.mlps, output_grads, self.workspaces, strict=True)
        first, *others = (mlp.backward_to_inputs(grads, workspace) for mlp, grads, workspace in passes)
        for more in others:
            first += more
        return first

    def release(self) -> None:
        """Call when no backward pass follows: the next pass writes where this one has its hidden layers."""
        for mlp, workspace in zip(self.mlps, self.workspaces, strict=True):
            mlp.release(workspace)
