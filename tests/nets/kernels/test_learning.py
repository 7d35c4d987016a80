"""The kernel of an mlp for learning: the outputs and gradients of autograd."""

from typing import Any

import numpy as np
import pytest
import torch

from palestra.config import Config, check
from palestra.games.spaces import Space
from palestra.nets import NetConfig, make_net
from palestra.nets.kernels.learning import learning_net
from palestra.nets.weights import flat_gradient, flatten_weights

SPACES = {
    "place": Space((3, 2), torch.float32, padded=False),
    "speed": Space((1,), torch.float32, padded=False),
}


class Holder(Config):
    net: NetConfig


def mlp(net_arch: list[Any], activation: str) -> torch.nn.Module:
    data = {"net": {"name": "mlp", "net_arch": net_arch, "activation": activation}}
    return make_net(check(data, Holder).net, SPACES, 4, key=1)


def observation(num: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(num, *space.shape, generator=generator) for name, space in SPACES.items()}


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("net_arch", [[], [16], [32, 24], [24, 32, 8]])
@pytest.mark.parametrize("num", [1, 37, 1000])
def test_outputs_and_gradients_are_those_of_autograd(net_arch: list[Any], activation: str, num: int) -> None:
    net = mlp(net_arch, activation)
    flatten_weights(net)
    parameters = list(net.parameters())
    kernel = learning_net(net)
    assert kernel is not None
    gradient, expected = np.full(sum(p.numel() for p in parameters), np.nan, np.float32), torch.zeros(())
    for seed in range(2):  # the first is written, the second added
        seen, slope = observation(num, seed), torch.randn(num, 4)
        x = torch.from_numpy(kernel.read(seen)).requires_grad_()
        outputs, (told, room) = net.layers(x), kernel.forward(x.detach().numpy())
        assert torch.allclose(torch.from_numpy(told), outputs, atol=1e-5)
        kernel.backward(slope.numpy(), x.detach().numpy(), room, gradient, adds=seed > 0)
        by_x = kernel.backward_to_inputs(slope.numpy(), room)
        kernel.release(room)
        loss = (outputs * slope).sum()
        wanted = torch.autograd.grad(loss, x, retain_graph=True)[0]
        assert torch.allclose(torch.from_numpy(by_x), wanted, atol=1e-5)
        expected = expected + flat_gradient(loss, parameters)
    assert torch.allclose(torch.from_numpy(gradient), expected, rtol=1e-4, atol=1e-4 * num**0.5)


def test_weights_changed_in_place_are_seen() -> None:
    net = mlp([16], "tanh")
    weights = flatten_weights(net)
    kernel = learning_net(net)
    assert kernel is not None
    with torch.no_grad():
        weights.mul_(0.5)
    seen = observation(5, 0)
    assert torch.allclose(torch.from_numpy(kernel.outputs(kernel.read(seen))), net(seen), atol=1e-6)
    net.load_state_dict(mlp([16], "tanh").state_dict())
    assert torch.allclose(torch.from_numpy(kernel.outputs(kernel.read(seen))), net(seen), atol=1e-6)


def test_passes_that_overlap_do_not_disturb_each_other() -> None:
    net = mlp([16, 8], "relu")
    flatten_weights(net)
    kernel = learning_net(net)
    assert kernel is not None
    x, slope = (np.random.default_rng(seed).normal(size=(6, n)).astype(np.float32) for seed, n in ((0, 7), (1, 4)))
    alone, together = np.empty_like(kernel.weights), np.empty_like(kernel.weights)
    _, room = kernel.forward(x)
    kernel.backward(slope, x, room, alone, adds=False)
    kernel.release(room)
    _, room = kernel.forward(x)
    kernel.forward(x + 1.0)
    kernel.backward(slope, x, room, together, adds=False)
    assert np.array_equal(alone, together)


@pytest.mark.parametrize(
    ("net_arch", "activation"), [([8, "b"], "relu"), (["r8"], "tanh"), ([8], "silu"), ([8, "l"], "tanh")]
)
def test_other_networks_have_no_such_twin(net_arch: list[Any], activation: str) -> None:
    net = mlp(net_arch, activation)
    flatten_weights(net)
    assert learning_net(net) is None
    assert learning_net(mlp([8], "relu")) is None, "its weights lie apart"
    double = mlp([8], "relu").double()
    flatten_weights(double)
    assert learning_net(double) is None
