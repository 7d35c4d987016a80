from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from palestra.config import Config, check
from palestra.games.game import Observation
from palestra.games.spaces import Space
from palestra.nets import NetConfig, make_net
from palestra.nets.acting import LARGEST_PRODUCT, acting_twin
from palestra.nets.weights import flatten_weights

VECTOR = {"seen": Space((4,), torch.float32, padded=False)}
SEVERAL = VECTOR | {"number": Space((), torch.int64, padded=False), "points": Space((3, 2), torch.float32, padded=True)}
PLAIN = {"name": "mlp", "net_arch": [64, 32], "activation": "tanh"}


class Holder(Config):
    net: NetConfig


def build(data: dict[str, Any], spaces: dict[str, Space] = VECTOR) -> nn.Module:
    return make_net(check({"net": data}, Holder).net, spaces, num_outputs=2, key=1)


def observe(num_worlds: int, spaces: dict[str, Space] = VECTOR) -> Observation:
    generator = torch.Generator().manual_seed(0)
    shapes = {
        name: (torch.randn(num_worlds, *space.shape, generator=generator), space) for name, space in spaces.items()
    }
    return {name: (3 * value).to(space.dtype) for name, (value, space) in shapes.items()}


def agree(twin: Callable[..., Tensor], net: nn.Module, seen: Observation) -> bool:
    was_training = net.training
    with torch.no_grad():
        expected = net.eval()(seen)
    net.train(was_training)
    outputs = twin(seen)
    return outputs.dtype == expected.dtype and torch.allclose(outputs, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_worlds", [1, 3, 8, 64, 1000])
@pytest.mark.parametrize("activation", ["relu", "tanh", "silu"])
@pytest.mark.parametrize("net_arch", [[], [5], [64, 64], [64, "b"], [8, "l", "r8"]])
def test_a_twin_says_what_its_network_says(net_arch: list[Any], activation: str, num_worlds: int) -> None:
    net = build({"name": "mlp", "net_arch": net_arch, "activation": activation})
    assert agree(acting_twin(net), net, observe(num_worlds))


@pytest.mark.parametrize("spaces", [{"image": Space((3, 2), torch.uint8, padded=False)}, SEVERAL])
def test_a_twin_sees_every_kind_of_observation(spaces: dict[str, Space]) -> None:
    net = build(PLAIN, spaces)
    assert agree(acting_twin(net), net, observe(8, spaces))


def test_networks_of_other_kinds_have_twins_too() -> None:
    net = build({"name": "deep_sets", "point_widths": [8], "head_widths": [8]}, SEVERAL)
    assert agree(acting_twin(net), net, observe(8, SEVERAL))


@pytest.mark.parametrize("flat_before", [True, False])
def test_a_twin_follows_every_change_of_the_weights(flat_before: bool) -> None:
    net = build(PLAIN)
    weights = flatten_weights(net) if flat_before else None
    twin, seen = acting_twin(net), observe(8)
    before = twin(seen)
    if weights is None:
        weights = flatten_weights(net)
    optimizer = torch.optim.SGD([weights], lr=0.1)
    weights.grad = torch.ones_like(weights)
    optimizer.step()
    assert not torch.allclose(twin(seen), before)
    assert agree(twin, net, seen)
    net.load_state_dict(build({**PLAIN}).state_dict())
    assert torch.equal(twin(seen), before)


def test_what_a_twin_gave_stays_as_it_was() -> None:
    twin = acting_twin(build(PLAIN))
    seen = observe(8)
    first = twin(seen)
    copy = first.clone()
    twin({"seen": seen["seen"] + 1.0})
    assert torch.equal(first, copy)


def test_a_twin_leaves_what_it_sees_alone() -> None:
    for net_arch in ([], [8]):
        twin, seen = acting_twin(build(PLAIN | {"net_arch": net_arch})), observe(8)
        copy = seen["seen"].clone()
        twin(seen)
        assert torch.equal(seen["seen"], copy)


def test_a_twin_gives_no_gradients_at_any_size() -> None:
    twin = acting_twin(build(PLAIN))
    assert not twin(observe(1)).requires_grad
    assert not twin(observe(LARGEST_PRODUCT // 2048 + 1)).requires_grad
