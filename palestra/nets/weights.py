"""The weights of a network as one vector, a network's view for acting, and its modes: training and evaluation."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors

F = TypeVar("F", bound=Callable[..., Any])


def flatten_weights(net: nn.Module) -> nn.Parameter:
    """Lay all parameters of a network in one vector, of which they become views, and return the vector.

    An optimizer steps on the vector in one operation, and clipping or averaging weights is one operation too. The
    network can be loaded and saved as before; move it to its device first. The vector lists the parameters as its
    attribute `parts`.
    """
    vector: Any = nn.Parameter(_laid_out(list(net.parameters())))
    vector.parts = list(net.parameters())
    return cast(nn.Parameter, vector)


def _laid_out(tensors: Sequence[Tensor]) -> Tensor:
    """Copy tensors into one vector, of which they become views."""
    vector = torch.cat([tensor.detach().flatten() for tensor in tensors])
    for tensor, part in zip(tensors, vector.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.data = part.view_as(tensor)
    return vector


def layers_of(weights: Tensor, nets: Mapping[str, nn.Module]) -> dict[str, tuple[int, int]]:
    """Return where the parameters of each layer begin and end in a vector of `flatten_weights`, by name.

    A name is as q.layers.0. Networks whose parameters lie in another vector are left out.
    """
    layers: dict[str, tuple[int, int]] = {}
    storage = weights.untyped_storage().data_ptr()
    for net_name, net in nets.items():
        for name, parameter in net.named_parameters():
            if parameter.untyped_storage().data_ptr() == storage:
                layer = f"{net_name}.{name}".rpartition(".")[0]
                start = int(parameter.storage_offset())
                layers[layer] = (layers.get(layer, (start,))[0], start + parameter.numel())
    return layers


def output_weights(net: nn.Module) -> list[str]:
    """Name the weights that make a network's outputs; all others are its body.

    They are those of the linear layer that was registered last; for an nn.ModuleList, those of each of its networks. A
    module with a method of this name gives them itself, and may also name weights that other outputs would have.
    """
    own: Callable[[], list[str]] | None = getattr(net, "output_weights", None)
    if own is not None:
        return own()
    if isinstance(net, nn.ModuleList):
        return [f"{place}.{name}" for place, each in net.named_children() for name in output_weights(each)]
    layers = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    return [".".join(filter(None, (layers[-1], name))) for name in ("weight", "bias")] if layers else []


def body_of_another(net: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state for a network that has its own output weights, and the body of another network.

    weights: the state of that network. Raises ValueError, which names the first weight in which the bodies differ.
    """
    own, outputs = net.state_dict(), set(output_weights(net))
    for name in dict.fromkeys([*own, *weights]):
        here, there = (f"of shape {tuple(state[name].shape)}" if name in state else "" for state in (own, weights))
        if name not in outputs and here != there:
            expected = f"a body with {name} {here}" if here else f"a body without {name}"
            raise ValueError(f"expected {expected}, got {f'it {there}' if there else 'one without it'}")
    return {name: value if name in outputs else weights[name] for name, value in own.items()}


def flatten_buffers(net: nn.Module) -> list[Tensor]:
    """Lay the buffers of a network (batch norm's statistics) in one vector per type, of which they become views."""
    dtypes = dict.fromkeys(buffer.dtype for buffer in net.buffers())
    return [_laid_out([buffer for buffer in net.buffers() if buffer.dtype == dtype]) for dtype in dtypes]


def move(tensors: Iterable[Tensor], others: Iterable[Tensor], share: float) -> None:
    """Move tensors a share of the way to others, in place; numbers that are not floats become those of the others."""
    for old, new in zip(tensors, others, strict=True):
        old.lerp_(new, share) if old.is_floating_point() else old.copy_(new)


def one_vector(tensors: Sequence[Tensor]) -> np.ndarray[Any, Any] | None:
    """Return the vector of which float32 tensors on a CPU are consecutive views; None if they are not."""
    first, end = tensors[0].detach(), tensors[0].data_ptr()
    for tensor in tensors:
        shares = tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        plain = tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.is_contiguous()
        if not (shares and plain and tensor.data_ptr() == end):
            return None
        end += 4 * tensor.numel()
    return first.as_strided((sum(tensor.numel() for tensor in tensors),), (1,)).numpy()


def flat_gradient(loss: Tensor, parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return the gradient of `loss` by the vector of `flatten_weights`, whose views are `parameters`."""
    return _flatten_dense_tensors(torch.autograd.grad(loss, parameters))


def without_gradient(loss: Tensor, weights: Mapping[str, Tensor]) -> list[str]:
    """Name the weights on which a loss does not depend."""
    if not loss.requires_grad:
        return list(weights)
    gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    return [name for name, gradient in zip(weights, gradients, strict=True) if gradient is None]


def evaluation_view(net: nn.Module) -> nn.Module:
    """Copy a network; the copy shares its weights and buffers (the same tensors), and is in evaluation mode."""
    return deepcopy(net, {id(tensor): tensor for tensor in chain(net.parameters(), net.buffers())}).eval()


def compiled(function: F, wanted: bool) -> F:
    """Compile a function by torch.compile, if that is `wanted`; it may call torch.autograd.grad.

    Every call checks the shapes of the arguments and the modes of modules, and compiles anew if they have changed.
    Everything else that the function reaches through objects is as it was at the first call, except for the values of
    tensors.
    """
    if not wanted:
        return function
    torch._dynamo.config.trace_autograd_ops = True
    options: dict[str, Any] = {"guard_filter_fn": _may_change}
    if not torch.cuda.is_available():  # a small function spends more time between its kernels than in them
        options["cpp_wrapper"] = True

    def call(*arguments: Any) -> Any:
        return function(*arguments)

    # Compiled code belongs to a code object, so each function needs its own. dynamic=False: sizes that torch takes for
    # variable make a call take twice as long.
    own = FunctionType(call.__code__.replace(), call.__globals__, closure=call.__closure__)
    return cast(F, torch.compile(own, dynamic=False, options=options))


def _may_change(guards: Sequence[Any]) -> list[bool]:
    """Choose which assumptions of a compiled function every call checks: there are hundreds about the modules."""
    names = [guard.name for guard in guards]
    return [not name or name.startswith("arguments") or name.endswith(".training") for name in names]


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
