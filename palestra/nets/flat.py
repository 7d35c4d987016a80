"""Networks as a function of one vector of weights, called in the quickest way that there is."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from palestra.nets.inputs import flat_size
from palestra.nets.kernels.acting import QuickMLP, acting_twin
from palestra.nets.kernels.learning import MLPTwin, learning_twin
from palestra.nets.weights import evaluation_twin, flat_gradient, flatten_buffers, flatten_weights


class FlatNet:
    """A network, its weights laid in one vector: observation -> outputs (B, K). Several of one kind that see the same,
    in an nn.ModuleList, give (networks, B, K).

    weights: float32 (P,), a parameter. buffers: a vector per type. Compiled code is given these vectors and not every
    parameter, for each argument of a graph costs time at each call. Elsewhere plain mlps on a CPU are computed by hand
    (acting.py, learning.py).
    """

    def __init__(self, net: nn.Module) -> None:
        self.net, self.is_fixed = net, False
        self.weights: Tensor = flatten_weights(net)
        self.buffers = flatten_buffers(net)
        self._prepare()

    def _prepare(self) -> None:
        self.several = isinstance(self.net, nn.ModuleList)
        self.nets = list(self.net.children()) if self.several else [self.net]
        self.parameters = list(self.net.parameters())  # asking a module each time costs as much as a small layer
        self.layouts = self._layouts()
        quick = [twin for twin in map(acting_twin, self.nets) if isinstance(twin, QuickMLP)]
        self.quick = quick if len(quick) == len(self.nets) else None
        twins = [twin for twin in map(learning_twin, self.nets) if twin is not None]
        self.by_hand = twins if len(twins) == len(self.nets) else None

    def evaluation_twin(self) -> "FlatNet":
        """The same weights and buffers, for ever in evaluation mode. Gradients are to be asked for by what it sees
        alone."""
        return self._twin(evaluation_twin(self.net))

    def first(self) -> "FlatNet":
        """The evaluation twin of the first of several networks."""
        return self._twin(evaluation_twin(self.nets[0]))

    def _twin(self, net: nn.Module) -> "FlatNet":
        twin = FlatNet.__new__(FlatNet)
        twin.net, twin.weights, twin.buffers, twin.is_fixed = net, self.weights, self.buffers, True
        twin._prepare()
        return twin

    def __call__(self, observation: Mapping[str, Tensor]) -> Tensor:
        if torch.compiler.is_compiling():
            parts = [self._parts(layout) for layout in self.layouts]
            outputs = [functional_call(net, part, (observation,)) for net, part in zip(self.nets, parts, strict=True)]
        elif not torch.is_grad_enabled():
            outputs = [net(observation) for net in (self.quick or self.nets)]
        elif self.by_hand is not None:
            outputs = list(_ByHand.apply(self._weights(), self.by_hand, tuple(observation), *observation.values()))
        else:
            outputs = [net(observation) for net in self.nets]
        return torch.stack(outputs) if self.several else outputs[0]

    def _weights(self) -> Tensor:
        return self.weights.detach() if self.is_fixed else self.weights

    def _layouts(self) -> list[list[tuple[str, int, int, torch.Size]]]:
        """For each network its parameters and buffers: name, which vector, where they start there, shape."""
        vectors = [self.weights, *self.buffers]
        starts = [0] * len(vectors)
        layouts = []
        for net in self.nets:
            layout = []
            for place, vector in enumerate(vectors):
                named = net.named_buffers() if place else net.named_parameters()
                for name, tensor in named:
                    if tensor.dtype == vector.dtype:
                        layout.append((name, place, starts[place], tensor.shape))
                        starts[place] += tensor.numel()
            layouts.append(layout)
        return layouts

    def _parts(self, layout: list[tuple[str, int, int, torch.Size]]) -> dict[str, Tensor]:
        """The vectors as the parameters and buffers of one network, by name."""
        vectors = [self._weights(), *self.buffers]
        return {name: vectors[place][start : start + shape.numel()].view(shape) for name, place, start, shape in layout}

    def gradient(self, loss: Tensor) -> Tensor:
        """The gradient of a loss, made of the outputs, by the vector of weights: (P,)."""
        if torch.compiler.is_compiling() or self.by_hand is not None:
            return torch.autograd.grad(loss, self.weights)[0]
        return flat_gradient(loss, self.parameters)

    @torch.no_grad()
    def follow(self, other: "FlatNet", share: float) -> None:
        """Move a share of the way to other networks of the same kind: weights and batch norm's statistics alike."""
        self.weights.lerp_(other.weights, share)
        for old, new in zip(self.buffers, other.buffers, strict=True):
            old.lerp_(new, share) if old.is_floating_point() else old.copy_(new)


class _ByHand(torch.autograd.Function):
    """For autograd, plain mlps are one operation on the vector of their weights and the entries of an observation."""

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, twins: list[MLPTwin], names: tuple[str, ...], *entries: Tensor
    ) -> tuple[Tensor, ...]:
        x = twins[0].read({name: entry.detach() for name, entry in zip(names, entries, strict=True)})
        passed = [twin.forward(x) for twin in twins]
        ctx.twins, ctx.names, ctx.x, ctx.rooms = twins, names, x, [room for _, room in passed]
        ctx.shapes = [entry.shape for entry in entries]
        return tuple(torch.from_numpy(outputs) for outputs, _ in passed)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        arrays = [slope.contiguous().numpy() for slope in slopes]
        asks, _, _, *of_entries = ctx.needs_input_grad
        gradient: Tensor | None = None
        by_entry: list[Tensor | None] = [None] * len(of_entries)
        if asks:
            gradient, start = torch.empty(sum(len(twin.weights) for twin in ctx.twins)), 0
            for twin, room, array in zip(ctx.twins, ctx.rooms, arrays, strict=True):
                part = gradient.numpy()[start : start + len(twin.weights)]
                twin.backward(array, ctx.x, room, part, adds=False)
                start += len(part)
        if any(of_entries):
            by_x = sum(
                twin.backward_to_inputs(array, room)
                for twin, room, array in zip(ctx.twins, ctx.rooms, arrays, strict=True)
            )
            by_entry = _by_entries(ctx, by_x, of_entries)
        for twin, room in zip(ctx.twins, ctx.rooms, strict=True):
            twin.release(room)
        del ctx.rooms  # a second backward pass would find another's numbers there
        return gradient, None, None, *by_entry


def _by_entries(ctx: Any, by_x: Any, needed: list[bool]) -> list[Tensor | None]:
    """From the gradient by what networks see to those by the entries of an observation that need one."""
    starts, start = {}, 0
    for name, space in ctx.twins[0].spaces.items():
        starts[name] = start
        start += flat_size({name: space})
    return [
        torch.from_numpy(by_x[:, starts[name] : starts[name] + shape[1:].numel()]).reshape(shape) if is_needed else None
        for name, shape, is_needed in zip(ctx.names, ctx.shapes, needed, strict=True)
    ]
