"""Arithmetic that reads the same on tensors and, in a numba kernel, on the numbers of one world.

Rules written with it are stated once. In PyTorch they work on whole batches; compiled by numba they are the body of a
loop over worlds. Every operation rounds by itself in both, so on a CPU both give the same bits.
"""

import math
from typing import Any

import numpy as np
import torch
from numba.extending import overload, register_jitable
from torch import Tensor

Number = Any  # float64: a tensor (B,); in a kernel one number
Flag = Any  # bool, likewise

# A loop that calls a function is not vectorized; Python calls the functions themselves, without a wrapper.
INLINED: Any = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
jitable = register_jitable(**INLINED)

# pi in two parts: n * PI_HIGH is exact for |n| < 2**20
PI_HIGH = math.floor(math.pi * 2.0**31) * 2.0**-31
PI_LOW = (math.pi - PI_HIGH) + 1.2246467991473532e-16
SIN = [(-1) ** k / math.factorial(2 * k + 1) for k in range(11)]
COS = [(-1) ** k / math.factorial(2 * k) for k in range(12)]
S3, S5, S7, S9, S11, S13, S15, S17, S19, S21 = SIN[1:]
C2, C4, C6, C8, C10, C12, C14, C16, C18, C20, C22 = COS[1:]


def where(mask: Tensor, yes: Any, no: Any) -> Tensor:
    """Choose `yes` where the mask holds, else `no`. Not both are plain numbers, unless float32 holds them exactly."""
    return torch.where(mask, yes, no)


@overload(where, strict=False, jit_options=INLINED)
def _where(mask: Any, yes: Any, no: Any) -> Any:
    return lambda mask, yes, no: yes if mask else no


def floor(x: Tensor) -> Tensor:
    """Return the largest integer up to x, as a float."""
    return torch.floor(x)


@overload(floor, strict=False, jit_options=INLINED)
def _floor(x: Any) -> Any:
    return lambda x: np.floor(x)


def sin_cos(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute sine and cosine, within 4e-16 for |x| < 3e6, and on a CPU to the bit as the kernels do."""
    return _series(x) if x.device.type == "cpu" else (torch.sin(x), torch.cos(x))


@overload(sin_cos, strict=False, jit_options=INLINED)
def _sin_cos(x: Any) -> Any:
    return lambda x: _series(x)


@jitable
def _series(x: Number) -> tuple[Number, Number]:
    """Sum Taylor's series around the nearest multiple of pi, without a branch or call: loops over it are vectorized."""
    n = floor(x * (1.0 / math.pi) + 0.5)
    sign = 1.0 - 2.0 * (n - 2.0 * floor(0.5 * n))
    r = (x - n * PI_HIGH) - n * PI_LOW
    q = r * r
    sin = S3 + q * (S5 + q * (S7 + q * (S9 + q * (S11 + q * (S13 + q * (S15 + q * (S17 + q * (S19 + q * S21))))))))
    cos = C4 + q * (C6 + q * (C8 + q * (C10 + q * (C12 + q * (C14 + q * (C16 + q * (C18 + q * (C20 + q * C22))))))))
    return sign * (r + r * q * sin), sign * (1.0 + q * (C2 + q * cos))


@jitable
def clip(x: Number, low: float, high: float) -> Number:
    """Limit x to the range from low to high."""
    raised = where(x < low, low, x)
    return where(raised > high, high, raised)


@jitable
def wrap(angle: Number) -> Number:
    """Return the same angle between -pi and pi."""
    return angle - (2.0 * math.pi) * floor((angle + math.pi) * (0.5 / math.pi))
