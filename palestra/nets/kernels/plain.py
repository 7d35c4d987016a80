"""Which networks the kernels of this room compute: plain mlps, of the code that the kernels were written for."""

from torch import nn

from palestra.nets.mlp import MLP
from palestra.runtime.guard import Kernel, find_edit

KERNEL = Kernel(__name__, "mlp", mirrors=("forward",), cost="small networks take several times as long")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_plain(net: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether a network is an `mlp` of layers of these kinds alone, without hooks."""
    if not isinstance(net, MLP) or any(type(layer) not in kinds for layer in net.layers):
        return False
    return not any(getattr(module, hooks) for module in net.modules() for hooks in HOOKS)


def is_edited(net: nn.Module) -> bool:
    """Whether somebody has changed what an `mlp` computes."""
    return find_edit(KERNEL, net) is not None
