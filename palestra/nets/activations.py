"""Activations by name."""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

Activation = Literal["relu", "tanh", "silu", "elu", "gelu"]

FUNCTION_FROM = 8192  # numbers; below, an autograd function of our own costs more than torch's slow tanh


class Tanh(nn.Module):
    """tanh, exact to two units in the last place for float32 on a CPU, where torch's own is several times slower."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x.dtype != torch.float32:
            return torch.tanh(x)
        if torch.compiler.is_compiling():
            e = torch.expm1(2.0 * x.clamp(-10.0, 10.0))  # beyond, float32 knows no number between tanh and 1
            return e / (e + 2.0)
        if not (x.requires_grad and torch.is_grad_enabled()):
            return _numpy_tanh(x)
        return _Tanh.apply(x) if x.numel() >= FUNCTION_FROM else torch.tanh(x)


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = _numpy_tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(gradients[0], y)  # gradient * (1 - y * y), itself differentiable


def _numpy_tanh(x: Tensor) -> Tensor:
    return torch.from_numpy(np.tanh(x.detach().numpy()))


ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": Tanh,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
}
