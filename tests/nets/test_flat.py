"""Networks as a function of one vector of weights."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from palestra.nets.flat import FlatNet
from palestra.nets.weights import flat_gradient
from tests.nets.making import build, observe, space

SPACES = {"seen": space((3,)), "action": space((2,))}
PLAIN = {"name": "mlp", "net_arch": [16, 8], "activation": "tanh"}
NORMED = PLAIN | {"net_arch": [16, "l", 8]}


def critics(data: dict[str, Any]) -> nn.ModuleList:
    return nn.ModuleList(build(data, SPACES) for _ in range(2))


@pytest.mark.parametrize("data", [PLAIN, NORMED], ids=["by hand", "by autograd"])
def test_gradients_reach_the_weights_and_what_is_seen(data: dict[str, Any]) -> None:
    nets, seen = critics(data), observe(SPACES, 9)
    nets[1].load_state_dict({name: value + 0.1 for name, value in nets[1].state_dict().items()})
    flat = FlatNet(nets, by_hand=True)
    assert (flat.learning_nets is not None) == (data is PLAIN)
    plain = [seen | {"action": seen["action"].clone().requires_grad_()} for _ in range(2)]
    outputs, wanted = flat(plain[0]), torch.stack([net(plain[1]) for net in nets])
    assert torch.allclose(outputs, wanted, atol=1e-6)
    slopes = torch.randn(outputs.shape)
    found = flat.gradient((flat(seen) * slopes).sum())
    assert torch.allclose(found, flat_gradient((wanted * slopes).sum(), list(nets.parameters())), atol=1e-5)
    by_action = torch.autograd.grad((flat(plain[0]) * slopes).sum(), plain[0]["action"])[0]
    again = torch.stack([net(plain[1]) for net in nets])
    assert torch.allclose(by_action, torch.autograd.grad((again * slopes).sum(), plain[1]["action"])[0], atol=1e-5)


def test_a_second_backward_pass_is_an_error() -> None:
    flat = FlatNet(build(PLAIN, SPACES), by_hand=True)
    loss = flat(observe(SPACES, 9)).sum()
    torch.autograd.grad(loss, flat.weights, retain_graph=True)
    with pytest.raises(AttributeError, match="passed"):
        torch.autograd.grad(loss, flat.weights)


def moved(flat: FlatNet) -> Tensor:
    with torch.no_grad():
        flat.weights.add_(0.1)
    return flat(observe(SPACES, 5)).detach()


@pytest.mark.parametrize("data", [PLAIN, NORMED], ids=["by hand", "by autograd"])
def test_twins_share_the_weights(data: dict[str, Any]) -> None:
    flat = FlatNet(critics(data), by_hand=True)
    view, first = flat.evaluation_view(), flat.first()
    outputs, seen = moved(flat), observe(SPACES, 5)
    assert torch.allclose(view(seen), outputs, atol=1e-6)
    assert torch.allclose(first(seen), outputs[0], atol=1e-6)
    seen["action"].requires_grad_()
    assert torch.autograd.grad(first(seen).sum(), seen["action"])[0].abs().sum() > 0.0
