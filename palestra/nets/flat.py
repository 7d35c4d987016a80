"""FlatNet: a network as a function of one vector of weights, computed by the fastest implementation available."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from palestra.games.spaces import Space
from palestra.nets.inputs import flat_size
from palestra.nets.kernels.acting import ActingNet, acting_net
from palestra.nets.kernels.learning import LearningNet, Pass, learning_net
from palestra.nets.weights import evaluation_view, flat_gradient, flatten_buffers, flatten_weights, move
from palestra.runtime.guard import kernel_property


class FlatNet:
    """A network whose weights lie in one vector; it maps an observation to outputs (B, K).

    An nn.ModuleList of several networks of one kind, with the same observation, gives (networks, B, K).

    weights: float32 (P,), a parameter. buffers: one vector per dtype. Compiled code takes these vectors as arguments
    and not every parameter, because each argument of a graph takes time at each call. In other code the kernels of
    palestra.nets.kernels compute plain mlps and networks of sets on a CPU. by_hand: whether they also compute
    gradients.
    """

    def __init__(self, net: nn.Module, by_hand: bool) -> None:
        self.net, self.by_hand = net, by_hand
        self.original: FlatNet | None = None  # of a view
        self.several = isinstance(net, nn.ModuleList)
        self.weights: Tensor = flatten_weights(net)
        self.buffers = flatten_buffers(net)
        self.nets = list(net.children()) if self.several else [net]
        self.parameters = list(net.parameters())  # listing them takes as long as a small layer
        self.layouts = self._layouts()

    def renew(self) -> None:
        """Copy the networks of a view again, for somebody may have put hooks or other layers into them."""
        if self.original is not None:
            self.nets = [evaluation_view(net) for net in self.original.nets[: len(self.nets)]]

    @kernel_property
    def acting_nets(self) -> list[ActingNet] | None:
        """Kernels that compute the outputs without gradients, one per network; None if a network has none."""
        nets = [net for net in map(acting_net, self.nets) if isinstance(net, ActingNet)]
        return nets if len(nets) == len(self.nets) else None

    @kernel_property
    def learning_nets(self) -> list[LearningNet] | None:
        """Kernels for forward and backward passes, one per network; None without `by_hand`, or if one has none."""
        nets = [net for net in map(learning_net, self.nets) if net is not None]
        return nets if self.by_hand and len(nets) == len(self.nets) else None

    def evaluation_view(self) -> "FlatNet":
        """Return a FlatNet with the same weights and buffers that always stays in evaluation mode.

        Gradients flow into the observation alone, not into the weights.
        """
        view = FlatNet.__new__(FlatNet)
        names = ("net", "by_hand", "several", "weights", "buffers", "nets", "parameters", "layouts")
        vars(view).update({name: vars(self)[name] for name in names}, original=self)
        view.renew()
        return view

    def first(self) -> "FlatNet":
        """Return the evaluation view of the first of several networks."""
        view = self.evaluation_view()
        view.several, view.nets, view.layouts = False, view.nets[:1], view.layouts[:1]
        return view

    def __call__(self, observation: Mapping[str, Tensor]) -> Tensor:
        if torch.compiler.is_compiling():
            parts = [self._parts(layout) for layout in self.layouts]
            outputs = [functional_call(net, part, (observation,)) for net, part in zip(self.nets, parts, strict=True)]
        elif not torch.is_grad_enabled():
            nets = self.acting_nets or self.nets
            if not self.several:
                return nets[0](observation)  # at once, for players act by it
            outputs = [net(observation) for net in nets]
        elif self.learning_nets is not None:
            entries = tuple(observation), *observation.values()
            outputs = list(_ByHand.apply(self._weights(), self.learning_nets, *entries))
        else:
            outputs = [net(observation) for net in self.nets]
        return torch.stack(outputs) if self.several else outputs[0]

    def _weights(self) -> Tensor:
        return self.weights if self.original is None else self.weights.detach()

    def _layouts(self) -> list[list[tuple[str, int, int, torch.Size]]]:
        """Return for each network its parameters and buffers: name, number of the vector, start in it, and shape."""
        places = {vector.dtype: place for place, vector in enumerate(self.buffers, start=1)}
        return [
            [(name, 0, int(each.storage_offset()), each.shape) for name, each in net.named_parameters()]
            + [(name, places[each.dtype], int(each.storage_offset()), each.shape) for name, each in net.named_buffers()]
            for net in self.nets
        ]

    def _parts(self, layout: list[tuple[str, int, int, torch.Size]]) -> dict[str, Tensor]:
        """Return the parameters and buffers of one network by name, as views of the vectors."""
        vectors = [self._weights(), *self.buffers]
        return {name: vectors[place][start : start + shape.numel()].view(shape) for name, place, start, shape in layout}

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient of a loss on the outputs by the vector of weights: (P,)."""
        if torch.compiler.is_compiling() or self.learning_nets is not None:
            return torch.autograd.grad(loss, self.weights)[0]
        return flat_gradient(loss, self.parameters)

    @torch.no_grad()
    def follow(self, other: "FlatNet", share: float) -> None:
        """Move weights and buffers (such as batch norm's) a share of the way to those of networks of the same kind."""
        move([self.weights, *self.buffers], [other.weights, *other.buffers], share)


class _ByHand(torch.autograd.Function):
    """Makes networks that have kernels one operation of autograd, on their weights and an observation's entries."""

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, nets: list[LearningNet], names: tuple[str, ...], *entries: Tensor
    ) -> tuple[Tensor, ...]:
        x = nets[0].read({name: entry.detach() for name, entry in zip(names, entries, strict=True)})
        ctx.passed, ctx.names, ctx.shapes = Pass(nets, [x] * len(nets)), names, [entry.shape for entry in entries]
        return tuple(map(torch.from_numpy, ctx.passed.outputs))

    @staticmethod
    def backward(ctx: Any, *output_grads: Tensor) -> tuple[Tensor | None, ...]:
        passed: Pass = ctx.passed
        arrays = [grads.contiguous().numpy() for grads in output_grads]
        asks, _, _, *of_entries = ctx.needs_input_grad
        gradient: Tensor | None = None
        by_entry: list[Tensor | None] = [None] * len(of_entries)
        if asks:
            gradient = torch.empty(sum(len(net.weights) for net in passed.nets))
            passed.backward(arrays, gradient.numpy())
        if any(of_entries):
            by_entry = _by_entries(ctx, passed.nets[0].spaces, passed.backward_to_inputs(arrays), of_entries)
        passed.release()
        del ctx.passed  # a second backward pass would find another's numbers there
        return gradient, None, None, *by_entry


def _by_entries(ctx: Any, spaces: dict[str, Space], by_x: Any, needed: list[bool]) -> list[Tensor | None]:
    """Split the gradient by the networks' input into those by the entries of an observation that need one."""
    starts, start = {}, 0
    for name, space in spaces.items():
        starts[name] = start
        start += flat_size({name: space})
    return [
        torch.from_numpy(by_x[:, starts[name] : starts[name] + shape[1:].numel()]).reshape(shape) if is_needed else None
        for name, shape, is_needed in zip(ctx.names, ctx.shapes, needed, strict=True)
    ]
