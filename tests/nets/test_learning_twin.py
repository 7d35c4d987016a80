"""The twin of an mlp for learning: the outputs and gradients of autograd."""

from typing import Any

import pytest
import torch

from palestra.config import Config, check
from palestra.games.spaces import Space
from palestra.nets import NetConfig, make_net
from palestra.nets.learning import learning_twin
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
@pytest.mark.parametrize("net_arch", [[], [16], [32, 24]])
@pytest.mark.parametrize("num", [1, 37, 1000])
def test_outputs_and_gradients_are_those_of_autograd(net_arch: list[Any], activation: str, num: int) -> None:
    net = mlp(net_arch, activation)
    flatten_weights(net)
    parameters = list(net.parameters())
    gradient = torch.zeros(sum(p.numel() for p in parameters))
    twin = learning_twin(net, gradient)
    assert twin is not None
    expected = torch.zeros_like(gradient)
    for seed in range(2):  # gradients add up
        seen, slope = observation(num, seed), torch.randn(num, 4)
        outputs = net(seen)
        assert torch.allclose(torch.from_numpy(twin.forward(seen)), outputs, atol=1e-5)
        twin.backward(slope.numpy())
        expected += flat_gradient((outputs * slope).sum(), parameters)
    assert torch.allclose(gradient, expected, rtol=1e-4, atol=1e-4 * num**0.5)


def test_weights_changed_in_place_are_seen() -> None:
    net = mlp([16], "tanh")
    weights = flatten_weights(net)
    twin = learning_twin(net, torch.zeros_like(weights))
    assert twin is not None
    with torch.no_grad():
        weights.mul_(0.5)
    seen = observation(5, 0)
    assert torch.allclose(torch.from_numpy(twin.forward(seen)), net(seen), atol=1e-6)
    net.load_state_dict(mlp([16], "tanh").state_dict())
    assert torch.allclose(torch.from_numpy(twin.forward(seen)), net(seen), atol=1e-6)


@pytest.mark.parametrize(
    ("net_arch", "activation"), [([8, "b"], "relu"), (["r8"], "tanh"), ([8], "silu"), ([8, "l"], "tanh")]
)
def test_other_networks_have_no_such_twin(net_arch: list[Any], activation: str) -> None:
    net = mlp(net_arch, activation)
    assert learning_twin(net, torch.zeros(sum(p.numel() for p in net.parameters()))) is None
    assert learning_twin(mlp([8], "relu").double(), torch.zeros(1000)) is None
