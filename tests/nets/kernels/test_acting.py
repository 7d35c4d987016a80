"""Covers palestra.nets.kernels.mlp, palestra.nets.kernels.plain, palestra.nets.weights."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from palestra.games.game import Observation
from palestra.games.spaces import Space
from palestra.nets.kernels.acting import acting_net
from palestra.nets.kernels.mlp import apply_tanh
from palestra.nets.weights import flatten_buffers, flatten_weights, one_vector
from tests.nets.making import build, observe, space

VECTOR = {"seen": space((4,))}
SEVERAL = VECTOR | {"number": space((), torch.int64), "points": space((3, 2), padded=True)}
PLAIN = {"name": "mlp", "net_arch": [64, 32], "activation": "tanh"}


def flat_kernel(data: dict[str, Any]) -> Callable[[Observation], Tensor]:
    net = build(data, VECTOR)
    flatten_weights(net)
    return acting_net(net)


def agree(kernel: Callable[..., Tensor], net: nn.Module, seen: Observation) -> bool:
    was_training = net.training
    with torch.no_grad():
        expected = net.eval()(seen)
    net.train(was_training)
    outputs = kernel(seen)
    return outputs.dtype == expected.dtype and torch.allclose(outputs, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_worlds", [1, 3, 8, 65, 20_000])
@pytest.mark.parametrize("activation", ["relu", "tanh", "silu"])
@pytest.mark.parametrize("net_arch", [[], [5], [64, 64], [64, "b"], [8, "l", "r8"]])
def test_a_twin_says_what_its_network_says(net_arch: list[Any], activation: str, num_worlds: int) -> None:
    net = build({"name": "mlp", "net_arch": net_arch, "activation": activation}, VECTOR)
    assert agree(acting_net(net), net, observe(VECTOR, num_worlds))
    flatten_weights(net)
    assert agree(acting_net(net), net, observe(VECTOR, num_worlds))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("net_arch", [[8, "b"], [8, "b", 5, 6, "b"]])
def test_a_twin_follows_the_statistics_of_batch_norm(net_arch: list[Any], activation: str) -> None:
    net = build({"name": "mlp", "net_arch": net_arch, "activation": activation}, VECTOR)
    flatten_weights(net)
    flatten_buffers(net)
    kernel = acting_net(net)
    assert not isinstance(kernel, nn.Module)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        net.train()(observe(VECTOR, 50))  # moves the statistics
        for parameter in net.parameters():
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
        assert agree(kernel, net, observe(VECTOR, 9))


@pytest.mark.parametrize("spaces", [{"image": space((1, 3, 2), torch.uint8)}, SEVERAL])
def test_a_twin_sees_every_kind_of_observation(spaces: dict[str, Space]) -> None:
    net = build(PLAIN, spaces)
    flatten_weights(net)
    assert agree(acting_net(net), net, observe(spaces, 8))


def test_a_flat_network_sees_pixels_between_0_and_1() -> None:
    net = build({"name": "mlp", "net_arch": [], "activation": "relu"}, {"image": space((1, 3, 2), torch.uint8)})
    flatten_weights(net)
    (layer,) = net.layers  # type: ignore[misc]
    pixels = torch.randint(0, 256, (5, 1, 3, 2), dtype=torch.uint8)
    expected = layer(pixels.flatten(1) / 255.0)  # type: ignore[operator]
    for see in (net, acting_net(net)):
        assert torch.allclose(see({"image": pixels}), expected, atol=1e-6)


def test_networks_of_other_kinds_have_twins_too() -> None:
    net = build({"name": "deep_sets", "point_widths": [8], "head_widths": [8]}, SEVERAL)
    assert agree(acting_net(net), net, observe(SEVERAL, 8))


@pytest.mark.parametrize("flat_before", [True, False])
def test_a_twin_follows_every_change_of_the_weights(flat_before: bool) -> None:
    net = build(PLAIN, VECTOR)
    weights = flatten_weights(net) if flat_before else None
    kernel, seen = acting_net(net), observe(VECTOR, 8)
    before = kernel(seen)
    if weights is None:
        weights = flatten_weights(net)
    optimizer = torch.optim.SGD([weights], lr=0.1)
    weights.grad = torch.ones_like(weights)
    optimizer.step()
    assert not torch.allclose(kernel(seen), before)
    assert agree(kernel, net, seen)
    net.load_state_dict(build(PLAIN, VECTOR).state_dict())
    assert torch.allclose(kernel(seen), before, rtol=1e-5, atol=1e-6)


def test_a_twin_sees_the_flat_weights_themselves() -> None:
    net = build(PLAIN, VECTOR)
    weights = flatten_weights(net)
    found = one_vector(list(net.parameters()))
    assert found is not None
    assert found.ctypes.data == weights.data_ptr()
    assert len(found) == len(weights)
    assert one_vector(list(build(PLAIN, VECTOR).parameters())) is None
    assert one_vector(list(net.parameters())[::-1]) is None


def test_what_a_twin_gave_stays_as_it_was() -> None:
    kernel, seen = flat_kernel(PLAIN), observe(VECTOR, 8)
    first = kernel(seen)
    copy = first.clone()
    kernel({"seen": seen["seen"] + 1.0})
    assert torch.equal(first, copy)


@pytest.mark.parametrize("net_arch", [[], [8]])
def test_a_twin_leaves_what_it_sees_alone(net_arch: list[int]) -> None:
    kernel, seen = flat_kernel(PLAIN | {"net_arch": net_arch}), observe(VECTOR, 8)
    copy = seen["seen"].clone()
    kernel(seen)
    assert torch.equal(seen["seen"], copy)


def test_rows_may_lie_anywhere_in_memory() -> None:
    kernel, seen = flat_kernel(PLAIN), observe(VECTOR, 8)["seen"]
    apart = torch.stack([seen, seen], dim=2)[..., 0]
    assert not apart.is_contiguous()
    assert torch.equal(kernel({"seen": apart}), kernel({"seen": seen}))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_numbers_that_are_none_are_not_hidden(activation: str) -> None:
    seen = observe(VECTOR, 8)
    seen["seen"][3, 1] = torch.nan
    outputs = flat_kernel(PLAIN | {"activation": activation})(seen)
    assert outputs[3].isnan().all()
    assert outputs[:3].isfinite().all()


def test_the_tanh_of_the_kernel_is_exact_to_rounding() -> None:
    tiny = np.logspace(-44, 1, 20_001)
    x = np.concatenate([np.linspace(-12.0, 12.0, 200_001), tiny, -tiny, [0.0, 1e30, -1e30, np.inf]]).astype(np.float32)
    true = np.tanh(x.astype(np.float64))
    numba.njit(lambda x: apply_tanh(x))(x)
    assert (np.abs(x - true) <= 8.0 * np.spacing(np.abs(true).astype(np.float32))).all()


def test_a_twin_gives_no_gradients() -> None:
    kernel = flat_kernel(PLAIN)
    assert not kernel(observe(VECTOR, 1)).requires_grad
    assert not kernel(observe(VECTOR, 5000)).requires_grad
