"""The weights of a network as one vector, and a network's twin for acting."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import chain
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

F = TypeVar("F", bound=Callable[..., Any])


def flatten_weights(net: nn.Module) -> nn.Parameter:
    """Lay all parameters of a network in one vector, of which they become views; gives the vector.

    An optimizer steps on the vector in one operation, and clipping or averaging weights is one operation too. Load
    and save the network as ever; move it to its device before.
    """
    parameters = list(net.parameters())
    flat = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in parameters]))
    start = 0
    for parameter in parameters:
        parameter.data = flat.data[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    return flat


def flat_gradient(loss: Tensor, parameters: Sequence[nn.Parameter]) -> Tensor:
    """The gradient of `loss` with respect to the vector of `flatten_weights`, whose parts are `parameters`."""
    gradients = torch.autograd.grad(loss, parameters)
    return torch.cat([gradient.flatten() for gradient in gradients])


def evaluation_twin(net: nn.Module) -> nn.Module:
    """A network of the same weights and buffers (the very tensors), for ever in evaluation mode."""
    shared = {id(tensor): tensor for tensor in chain(net.parameters(), net.buffers())}
    return deepcopy(net, shared).eval()


def compiled(function: F, wanted: bool) -> F:
    """The function under torch.compile, in which torch.autograd.grad may stand; itself where that is not wanted."""
    if not wanted:
        return function
    torch._dynamo.config.trace_autograd_ops = True
    return cast(F, torch.compile(function))
