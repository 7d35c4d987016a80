"""Which networks the kernels of this room compute: plain mlps and networks of sets, of the code that the kernels were
written for."""

import re
from collections.abc import Iterable
from math import prod

import numpy as np
import torch
from torch import nn

from palestra.nets.deep_sets import DeepSets
from palestra.nets.inputs import flat_size
from palestra.nets.kernels.set_nets import Array, Layout
from palestra.nets.mlp import MLP
from palestra.nets.newton_sets import NewtonSets
from palestra.runtime.guard import Kernel, find_edit

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
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_plain(net: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether a network is an `mlp` of layers of these kinds alone, without hooks."""
    return isinstance(net, MLP) and all(type(layer) in kinds for layer in net.layers) and not has_hooks(net)


def has_hooks(net: nn.Module) -> bool:
    return any(getattr(module, hooks) for module in net.modules() for hooks in HOOKS)


def is_edited(net: nn.Module) -> bool:
    """Whether somebody has changed what an `mlp` computes."""
    return find_edit(KERNEL, net) is not None


def set_net_layout(net: nn.Module) -> Layout | None:
    """The layout of an unedited `deep_sets` or `newton_sets`, for the kernels; None for any other network."""
    if not isinstance(net, DeepSets) or has_hooks(net) or find_edit(SETS, net) is not None:
        return None
    coordinates = getattr(net.coordinates, "__func__", None)
    point_layers, head_layers = (
        [*layers.modules()] for layers in (net.point_layers, nn.Sequential(net.head, net.output))
    )
    is_plain = _kinds(point_layers, "(Lr)+") and _kinds(head_layers, "(Lr)*L")
    is_float = net.spaces[net.set_name].dtype == torch.float32
    if coordinates not in (DeepSets.coordinates, NewtonSets.coordinates) or not (is_plain and is_float):
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


def _kinds(modules: list[nn.Module], pattern: str) -> bool:
    letters = {nn.Linear: "L", nn.ReLU: "r", nn.Sequential: ""}
    return bool(re.fullmatch(pattern, "".join(letters.get(type(module), "?") for module in modules)))


def widths_of(layers: Iterable[nn.Module]) -> Array:
    """Of the linear layers: what goes in, and what each puts out."""
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    return np.array([linears[0].in_features, *(linear.out_features for linear in linears)])
