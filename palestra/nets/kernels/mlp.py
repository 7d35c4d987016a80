"""A plain mlp on a CPU, forward and backward by hand: BLAS and loops, without torch.

Weights lie in one vector, each layer's matrix (out, in) and bias one after another. Sums may be taken in any order, but
NaN and infinity are kept. Letters: B rows.

These loops use little of numpy on purpose: numba takes as long to compile `sum`, `zeros` or `a += np.dot(b, c)` as all
the rest.
"""

from typing import Any

import numpy as np

from palestra.runtime.compiling import inner, njit

Array = np.ndarray[Any, Any]

OPTIONS: Any = {"error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz", "arcp"}}
compiled, _inner = njit(**OPTIONS), inner(**OPTIONS)


@compiled
def evaluate(
    x: Array, weights: Array, moments: Array | None, widths: Array, norms: Array, eps: np.float32, is_tanh: bool
) -> Array:
    """Return the outputs, float32 (B, widths[-1]), of x (B, widths[0]); layers may have batch norms in evaluation mode.

    norms: which layers have a batch norm. moments: the means and variances of one after the other; None if no layer
    has one: then numba compiles no code for them.
    """
    start = at = 0
    for layer in range(len(widths) - 1):
        num_in, num_out = widths[layer], widths[layer + 1]
        weight = weights[start : start + num_in * num_out].reshape(num_out, num_in)
        start += num_in * num_out
        y = np.empty((len(x), num_out), np.float32)
        apply_linear(x, weight, weights[start : start + num_out], y)
        start += num_out
        if moments is not None and norms[layer]:
            factor = weights[start : start + num_out] / np.sqrt(moments[at + num_out : at + 2 * num_out] + eps)
            y = (y - moments[at : at + num_out]) * factor + weights[start + num_out : start + 2 * num_out]
            start += 2 * num_out
            at += 2 * num_out
        if layer < len(widths) - 2:
            apply_activation(y, is_tanh)
        x = y
    return x


@compiled
def forward(x: Array, weights: Array, widths: Array, is_tanh: bool, workspace: Array) -> Array:
    """Return the outputs, float32 (B, widths[-1]), of x (B, widths[0]).

    workspace: B * workspace_size(widths) numbers, to which the outputs of hidden layers are written.
    """
    start = at = 0
    for layer in range(len(widths) - 2):
        num_in, num_out = widths[layer], widths[layer + 1]
        weight = weights[start : start + num_in * num_out].reshape(num_out, num_in)
        start += (num_in + 1) * num_out
        y = workspace[at : at + len(x) * num_out].reshape(len(x), num_out)
        at += y.size
        apply_linear(x, weight, weights[start - num_out : start], y)
        apply_activation(y, is_tanh)
        x = y
    num_in, num_out = widths[-2], widths[-1]
    y = np.empty((len(x), num_out), np.float32)
    weight = weights[start : start + num_in * num_out].reshape(num_out, num_in)
    apply_linear(x, weight, weights[start + weight.size : start + weight.size + num_out], y)
    return y


@compiled
def backward(
    grads: Array, x: Array, weights: Array, widths: Array, is_tanh: bool, workspace: Array, gradient: Array, adds: bool
) -> None:
    """Write the derivatives by the weights into `gradient`, or add them to it.

    grads: those by the outputs, (B, widths[-1]). x, workspace: of the forward pass.
    """
    start, at = len(weights), len(x) * _num_hidden(widths)
    spare = workspace[at:]
    for layer in range(len(widths) - 2, -1, -1):
        num_in, num_out = widths[layer], widths[layer + 1]
        start -= (num_in + 1) * num_out
        below = x
        if layer > 0:
            at -= len(x) * num_in
            below = workspace[at : at + len(x) * num_in].reshape(len(x), num_in)
        of_weight = gradient[start : start + num_in * num_out].reshape(num_out, num_in)
        of_bias = gradient[start + num_in * num_out : start + (num_in + 1) * num_out]
        if adds:
            more = np.empty((num_out, num_in), np.float32)
            np.dot(grads.T, below, more)
            for o in range(num_out):
                for i in range(num_in):
                    of_weight[o, i] += more[o, i]
        else:
            np.dot(grads.T, below, of_weight)
            for o in range(num_out):
                of_bias[o] = 0.0
        for row in range(len(x)):
            for o in range(num_out):
                of_bias[o] += grads[row, o]
        if layer > 0:
            grads = _backward_linear(grads, layer, weights[start : start + num_in * num_out], spare)
            activation_backward(grads, below, is_tanh)


@compiled
def backward_to_inputs(grads: Array, weights: Array, widths: Array, is_tanh: bool, workspace: Array) -> Array:
    """Return the derivatives by the input: (B, widths[0])."""
    num, start, at = len(grads), len(weights), len(grads) * _num_hidden(widths)
    spare = workspace[at:]
    for layer in range(len(widths) - 2, 0, -1):
        num_in, num_out = widths[layer], widths[layer + 1]
        start -= (num_in + 1) * num_out
        grads = _backward_linear(grads, layer, weights[start : start + num_in * num_out], spare)
        at -= num * num_in
        activation_backward(grads, workspace[at : at + num * num_in].reshape(num, num_in), is_tanh)
    return np.dot(grads, weights[: widths[0] * widths[1]].reshape(widths[1], widths[0]))


@_inner
def _num_hidden(widths: Array) -> int:
    """Return how many numbers all hidden layers put out for a row."""
    num = 0
    for layer in range(1, len(widths) - 1):
        num += widths[layer]
    return num


@compiled
def workspace_size(widths: Array) -> int:
    """Return how many numbers per row the passes need: hidden outputs, and twice the gradients of the widest layer."""
    widest = 0
    for layer in range(1, len(widths) - 1):
        widest = max(widest, widths[layer])
    return _num_hidden(widths) + 2 * widest


@_inner
def _backward_linear(grads: Array, layer: int, weight: Array, spare: Array) -> Array:
    """Return grads @ weight, written to the two halves of `spare` in turns."""
    num, num_out = grads.shape
    num_in = len(weight) // num_out
    start = layer % 2 * (len(spare) // 2)
    below = spare[start : start + num * num_in].reshape(num, num_in)
    np.dot(grads, weight.reshape(num_out, num_in), below)
    return below


@_inner
def apply_linear(x: Array, weight: Array, bias: Array, out: Array) -> None:
    """Write x @ weight.T + bias to `out`."""
    np.dot(x, weight.T, out)
    for row in range(len(x)):
        for o in range(len(bias)):
            out[row, o] += bias[o]


@_inner
def apply_activation(y: Array, is_tanh: bool) -> None:
    """Apply tanh or relu, in place."""
    if is_tanh:
        apply_tanh(y.reshape(-1))
    else:
        flat = y.reshape(-1)
        for k in range(len(flat)):
            flat[k] = max(flat[k], np.float32(0.0))


@_inner
def activation_backward(grads: Array, y: Array, is_tanh: bool) -> None:
    """Turn the gradient by an activation's output, y, into that by its input, in place."""
    flat, values = grads.reshape(-1), y.reshape(-1)
    if is_tanh:
        for k in range(len(flat)):
            flat[k] *= np.float32(1.0) - values[k] * values[k]
    else:
        for k in range(len(flat)):
            flat[k] = flat[k] if values[k] > 0.0 else np.float32(0.0)


@_inner
def apply_tanh(x: Array) -> None:
    """Apply tanh, as x * P(x^2) / Q(x^2), in place.

    The polynomials have the least relative error up to |x| = 9, beyond which tanh is 1 in float32. With rounding, the
    error is at most 8 units in the last place.
    """
    for k in range(len(x)):
        c = min(max(x[k], np.float32(-9.0)), np.float32(9.0))
        s = c * c
        p = np.float32(2.060900164479541e-05) + s * np.float32(1.3354553687560505e-08)
        p = np.float32(0.1338102144452402) + s * (np.float32(0.0034955831522203978) + s * p)
        p = np.float32(0.9999999794640397) + s * p
        q = np.float32(0.0003285626721907372) + s * np.float32(7.776513251472592e-07)
        q = np.float32(0.4671433703974681) + s * (np.float32(0.02587696324283363) + s * q)
        q = np.float32(1.0) + s * q
        x[k] = c * p / q
