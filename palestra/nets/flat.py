"""A network as a function of one vector of weights, called in the quickest way that there is."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from palestra.nets.acting import acting_twin
from palestra.nets.learning import MLPTwin, learning_twin
from palestra.nets.weights import evaluation_twin, flat_gradient, flatten_buffers, flatten_weights


class FlatNet:
    """A network, its weights laid in one vector: observation -> outputs.

    weights: float32 (P,), a parameter. buffers: a vector per type. Compiled code is given these vectors and not every
    parameter, for each argument of a graph costs time at each call. Elsewhere a plain mlp on a CPU is computed by hand
    (acting.py, learning.py).
    """

    def __init__(self, net: nn.Module) -> None:
        self.net, self.weights, self.buffers = net, flatten_weights(net), flatten_buffers(net)
        self._prepare()

    def _prepare(self) -> None:
        net = self.net
        self.parameters = list(net.parameters())  # asking a module each time costs as much as a small layer
        named: list[list[tuple[str, Tensor]]] = [list(net.named_parameters())]
        named += [[(n, b) for n, b in net.named_buffers() if b.dtype == vector.dtype] for vector in self.buffers]
        self.layouts = [[(name, part.shape, part.numel()) for name, part in parts] for parts in named]
        quick = acting_twin(net)
        self.quick = None if isinstance(quick, nn.Module) else quick
        self.by_hand = learning_twin(net, torch.zeros_like(self.weights.data))

    def evaluation_twin(self) -> "FlatNet":
        """The same weights and buffers, for ever in evaluation mode."""
        twin = FlatNet.__new__(FlatNet)
        twin.net, twin.weights, twin.buffers = evaluation_twin(self.net), self.weights, self.buffers
        twin._prepare()
        return twin

    def __call__(self, observation: Mapping[str, Tensor]) -> Tensor:
        if torch.compiler.is_compiling():
            return functional_call(self.net, self._parts(), (observation,))
        if not torch.is_grad_enabled():
            return self.net(observation) if self.quick is None else self.quick(observation)
        if self.by_hand is not None:
            return _ByHand.apply(self.weights, self.by_hand, observation)
        return self.net(observation)

    def _parts(self) -> dict[str, Tensor]:
        """The vectors as the network's parameters and buffers, by name."""
        parts: dict[str, Tensor] = {}
        for vector, layout in zip([self.weights, *self.buffers], self.layouts, strict=True):
            views = vector.split([size for _, _, size in layout])
            parts |= {name: view.view(shape) for view, (name, shape, _) in zip(views, layout, strict=True)}
        return parts

    def gradient(self, loss: Tensor) -> Tensor:
        """The gradient of a loss, made of the outputs of the last call, by the vector of weights: (P,)."""
        if torch.compiler.is_compiling() or self.by_hand is not None:
            return torch.autograd.grad(loss, self.weights)[0]
        return flat_gradient(loss, self.parameters)

    @torch.no_grad()
    def follow(self, other: "FlatNet", share: float) -> None:
        """Move a share of the way to another network of the same kind: weights and batch norm's statistics alike."""
        self.weights.lerp_(other.weights, share)
        for old, new in zip(self.buffers, other.buffers, strict=True):
            old.lerp_(new, share) if old.is_floating_point() else old.copy_(new)


class _ByHand(torch.autograd.Function):
    """For autograd, the layers of a plain mlp are one operation on the vector of weights."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, twin: MLPTwin, observation: Mapping[str, Tensor]) -> Tensor:
        ctx.twin = twin
        return torch.from_numpy(twin.forward(observation))

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        ctx.twin.gradient.zero_()
        ctx.twin.backward(slopes[0].contiguous().numpy())
        return ctx.twin.gradient.clone(), None, None
