"""The modes of networks: training and evaluation, in which dropout and batch norm compute otherwise."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(nets: Iterable[nn.Module]) -> Iterator[None]:
    """Switch networks to evaluation mode inside the block; each module in them returns to the mode that it had."""
    nets = list(nets)
    modes = [(module, module.training) for net in nets for module in net.modules()]
    for net in nets:
        net.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def in_evaluation(net: nn.Module) -> list[str]:
    """Return the paths of a network's modules that are in evaluation mode; "" is the network itself."""
    return [path for path, module in net.named_modules() if not module.training]


def set_in_evaluation(net: nn.Module, paths: Iterable[str]) -> None:
    """Set the modules of these paths to evaluation mode, and all others to training mode."""
    paths = set(paths)
    for path, module in net.named_modules():
        module.training = path not in paths
