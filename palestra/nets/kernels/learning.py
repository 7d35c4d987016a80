"""A network's twin for learning on a CPU: forward and backward by hand, where autograd costs more than the layers."""

from collections.abc import Mapping

import numpy as np
from torch import Tensor, nn

from palestra.nets.activations import Tanh
from palestra.nets.inputs import flatten_on_cpu
from palestra.nets.kernels.mlp import Array, backward, backward_to_inputs, forward, room_of
from palestra.nets.mlp import MLP
from palestra.nets.weights import one_vector

NO_ROOM = np.empty(0, np.float32)


def learning_twin(net: nn.Module) -> "MLPTwin | None":
    """What learns for a plain `mlp` (linear layers, all with relu or all with tanh) of float32 on a CPU, whose weights
    lie in one vector (`flatten_weights`) and stay there; None for any other network."""
    if not isinstance(net, MLP) or not all(type(layer) in (nn.Linear, nn.ReLU, Tanh) for layer in net.layers):
        return None
    weights = one_vector(list(net.parameters()))
    return None if weights is None else MLPTwin(net, weights)


class MLPTwin:
    """Forward and backward passes with the network's very weights. Letters: B rows."""

    def __init__(self, net: MLP, weights: Array) -> None:
        self.spaces, self.weights = net.spaces, weights
        linears = [layer for layer in net.layers if isinstance(layer, nn.Linear)]
        self.widths = np.array([linears[0].in_features, *(linear.out_features for linear in linears)])
        self.num_room = room_of(self.widths)
        self.is_tanh = any(isinstance(layer, Tanh) for layer in net.layers)
        self.free = NO_ROOM

    def read(self, observation: Mapping[str, Tensor]) -> Array:
        """What the first layer sees: float32 (B, flat_size)."""
        return flatten_on_cpu(observation, self.spaces)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """The outputs, float32 (B, num_outputs), and the room in which backward passes find the hidden layers."""
        size = len(x) * self.num_room
        room = self.free if len(self.free) == size else np.empty(size, np.float32)
        self.free = NO_ROOM
        return forward(x, self.weights, self.widths, self.is_tanh, room), room

    def outputs(self, x: Array) -> Array:
        """The outputs alone."""
        outputs, room = self.forward(x)
        self.release(room)
        return outputs

    def backward(self, slopes: Array, x: Array, room: Array, gradient: Array, adds: bool) -> None:
        """Write the gradient of the loss by the weights, or add it to what stands there: float32, as long as they.

        slopes: the derivatives of the loss by the outputs, of their shape.
        """
        backward(slopes, x, self.weights, self.widths, self.is_tanh, room, gradient, adds)

    def backward_to_inputs(self, slopes: Array, room: Array) -> Array:
        """The gradient by what `read` gave."""
        return backward_to_inputs(slopes, self.weights, self.widths, self.is_tanh, room)

    def release(self, room: Array) -> None:
        """The next forward pass may use it: fresh memory costs a small network as much as its products."""
        self.free = room
