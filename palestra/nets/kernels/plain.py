"""Finds the networks that the kernels of this room compute: plain mlps and networks of sets, with unedited code."""

import re
from collections.abc import Iterable
from itertools import chain
from math import prod
from typing import TypeGuard

import numpy as np
import torch
from torch import nn

from palestra.nets.activations import Tanh
from palestra.nets.deep_sets import DeepSets, NewtonSets
from palestra.nets.inputs import flat_size
from palestra.nets.kernels.set_nets import Array, Layout
from palestra.nets.mlp import MLP
from palestra.runtime.guard import Kernel, find_edit, find_other_call

# What they cost: python -m benchmarks.kernels, rows P2, P4 and O1
KERNEL = Kernel(
    __name__,
    "mlp",
    mirrors=("forward",),
    cost="torch computes mlps, and trainings in CartPole-v1 take 2 to 3 times as long",
)
SETS = Kernel(
    __name__, "sets", mirrors=("forward",), cost="torch computes sets, and dqn-polyhedra takes 1.5 times as long"
)
LETTERS: dict[type[nn.Module], str] = {nn.Linear: "L", nn.BatchNorm1d: "B", nn.ReLU: "r", Tanh: "t"}


def layers_of(*parts: nn.Module) -> list[nn.Module]:
    """Return the layers of torch's own nn.Sequential, and of those inside it, in the order in which they are called."""
    layers: list[nn.Module] = []
    for part in parts:
        layers += layers_of(*part) if type(part) is nn.Sequential else [part]
    return layers


def letters_of(layers: Iterable[nn.Module]) -> str:
    """Return a letter per layer, ? for one of another kind."""
    return "".join(LETTERS.get(type(layer), "?") for layer in layers)


def is_plain(net: nn.Module, letters: str) -> TypeGuard[MLP]:
    """Return whether a network is an unedited `mlp` of such layers, with no weights and no statistics but theirs.

    letters: a regular expression of the layers' letters.
    """
    if not isinstance(net, MLP):
        return False
    layers = layers_of(net.layers)
    return bool(re.fullmatch(letters, letters_of(layers))) and _holds_those_of(net, layers) and edit_of(net) is None


def _holds_those_of(net: nn.Module, layers: Iterable[nn.Module]) -> bool:
    """Return whether a network's weights and statistics are exactly those of the layers, in their order."""
    weighted = [layer for layer in layers if isinstance(layer, nn.Linear | nn.BatchNorm1d)]
    norms = [layer for layer in weighted if isinstance(layer, nn.BatchNorm1d)]
    own = [(layer.weight, layer.bias) for layer in weighted] + [(norm.running_mean, norm.running_var) for norm in norms]
    found = [*net.parameters(), *(buffer for buffer in net.buffers() if buffer.is_floating_point())]
    return list(map(id, found)) == list(map(id, chain.from_iterable(own)))


def edit_of(net: nn.Module) -> str | None:
    """Say how the code of an `mlp` or a network of sets was edited; None if it was not, or for other networks."""
    if isinstance(net, DeepSets):
        edit, layers = find_edit(SETS, net), layers_of(net.point_layers, net.head, net.output)
    elif isinstance(net, MLP):
        edit, layers = find_edit(KERNEL, net), layers_of(net.layers)
    else:
        return None
    if edit is not None or not all(isinstance(layer, (*LETTERS, nn.Sequential)) for layer in layers):
        return edit
    others = [f"{type(layer).__name__} is another layer" for layer in layers if type(layer) not in LETTERS]
    if not re.fullmatch("(Lr)*L|(Lt)*L|.*B.*", letters_of(layers)):
        others.append(f"{type(net).__name__} has other layers than a config gives it")
    return next((edit for edit in (*others, *map(find_other_call, net.modules())) if edit is not None), None)


def edits_of(nets: Iterable[nn.Module]) -> list[str]:
    """Return a line for every edit of an `mlp` or a network of sets in these networks, with what it costs."""
    inner = [module for net in nets for module in net.modules()]
    costs = [(edit, SETS.cost if isinstance(net, DeepSets) else KERNEL.cost) for net in inner if (edit := edit_of(net))]
    return [f"{edit}: {cost}" for edit, cost in dict.fromkeys(costs)]


def set_net_layout(net: nn.Module) -> Layout | None:
    """Return the layout of an unedited `deep_sets` or `newton_sets`, for the kernels; None for any other network."""
    if not isinstance(net, DeepSets) or edit_of(net) is not None:
        return None
    coordinates = getattr(net.coordinates, "__func__", None)
    point_layers, head_layers = layers_of(net.point_layers), layers_of(net.head, net.output)
    letters = letters_of(point_layers), letters_of(head_layers)
    is_plain = re.fullmatch("(Lr)+", letters[0]) and re.fullmatch("(Lr)*L", letters[1])
    is_whole = _holds_those_of(net, [*point_layers, *head_layers])
    is_float = net.spaces[net.set_name].dtype == torch.float32
    if coordinates not in (DeepSets.coordinates, NewtonSets.coordinates) or not (is_plain and is_whole and is_float):
        return None
    columns, start = {}, 0
    for name, space in net.spaces.items():
        columns[name] = range(start, start := start + flat_size({name: space}))
    num_places, *shape = net.spaces[net.set_name].shape
    rest = [column for name in net.rest for column in columns[name]]
    return Layout(
        start=columns[net.set_name].start,
        num_places=num_places,
        dimension=prod(shape),
        rest=np.array(rest, np.int64),
        is_newton=coordinates is NewtonSets.coordinates,
        point_widths=widths_of(point_layers),
        head_widths=widths_of(head_layers),
    )


def widths_of(layers: Iterable[nn.Module]) -> Array:
    """Return the inputs of the first linear layer, and the outputs of each."""
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    return np.array([linears[0].in_features, *(linear.out_features for linear in linears)])
