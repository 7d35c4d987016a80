"""Networks of sets by kernels: the outputs and gradients of torch, and no kernel where somebody changed them. Covers
nets/kernels/plain.py, too."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from palestra.games.game import Observation
from palestra.games.spaces import Space
from palestra.nets.deep_sets import DeepSets, NewtonSets
from palestra.nets.flat import FlatNet
from palestra.nets.kernels.acting import ActingNet, acting_net
from palestra.nets.kernels.learning import LearningSets
from palestra.nets.sets import PackedSets
from palestra.nets.weights import flat_gradient, flatten_weights
from tests.nets.making import build, observe, space

REST = {"choice": space((2,)), "picture": space((1, 2, 2), torch.uint8), "number": space((), torch.int64)}
NEWTON = {"name": "newton_sets", "point_widths": [8, 6], "head_widths": [5]}


def spaces_of(N: int, n: int, before: list[str], after: list[str]) -> dict[str, Space]:
    names = {name: REST[name] for name in before}
    return names | {"points": space((N, n), padded=True)} | {name: REST[name] for name in after if name not in before}


def boards(spaces: dict[str, Space], num: int, largest: int, kind: str, seed: int = 0) -> Observation:
    """Sets of any number of members at any places, of single members, or without any; some members are equal."""
    generator = torch.Generator().manual_seed(seed)
    N, n = spaces["points"].shape
    points = torch.randint(0, largest, (num, N, n), generator=generator).float()
    absent = torch.rand(num, N, generator=generator) < torch.rand(num, 1, generator=generator)
    if kind == "single":
        absent = torch.arange(N).expand(num, N) != torch.randint(0, N, (num, 1), generator=generator)
    points[absent | torch.tensor(kind == "empty")] = torch.tensor([-1.0] + [7.0] * (n - 1))
    return observe(spaces, num) | {"points": points}


def outputs_and_gradients(
    compute: Callable[[Observation], Tensor], gradient: Callable[[Tensor], Tensor], seen: Observation
) -> list[Tensor]:
    """The outputs, and the gradients by the weights and by the entries that are float32."""
    outputs = compute(seen)
    slopes = torch.linspace(-1.0, 2.0, outputs.numel()).view_as(outputs)
    leaves = {name: value.clone().requires_grad_() for name, value in seen.items() if value.is_floating_point()}
    by_entries = torch.autograd.grad((compute(seen | leaves) * slopes).sum(), list(leaves.values()))
    return [outputs, gradient((compute(seen) * slopes).sum()), *by_entries]


def shared_by_equals(values: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Gradients by points, (B, N, n), each the mean over the equal points of its board: torch shares the gradient of a
    largest feature among these, the kernel gives it to one. Anything else as it is."""
    if values.shape != points.shape:
        return values
    same = (points.unsqueeze(2) == points.unsqueeze(1)).all(dim=3).float()
    return same @ values.float() / same.sum(dim=2, keepdim=True)


@settings(max_examples=60)
@given(
    name=st.sampled_from(["deep_sets", "newton_sets"]),
    num=st.integers(1, 40),
    N=st.integers(1, 6),
    n=st.integers(1, 4),
    before=st.lists(st.sampled_from(sorted(REST)), unique=True),
    after=st.lists(st.sampled_from(sorted(REST)), unique=True),
    point_widths=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    head_widths=st.lists(st.integers(1, 20), max_size=3),
    largest=st.sampled_from([1, 2, 50]),
    kind=st.sampled_from(["any", "single", "empty"]),
)
def test_outputs_and_gradients_are_those_of_torch(
    name: str,
    num: int,
    N: int,
    n: int,
    before: list[str],
    after: list[str],
    point_widths: list[int],
    head_widths: list[int],
    largest: int,
    kind: str,
) -> None:
    spaces = spaces_of(N, n, before, after)
    net = build({"name": name, "point_widths": point_widths, "head_widths": head_widths}, spaces)
    flat, seen = FlatNet(net, by_hand=True), boards(spaces, num, largest, kind)
    assert flat.learning_nets is not None
    assert isinstance(flat.learning_nets[0], LearningSets)
    found = outputs_and_gradients(flat, flat.gradient, seen)
    expected = outputs_and_gradients(net, lambda loss: flat_gradient(loss, flat.parameters), seen)
    acted = acting_net(net)
    assert isinstance(acted, ActingNet)
    for value, other in zip([*expected, expected[0]], [*found, acted(seen)], strict=True):
        value, other = (shared_by_equals(each, seen["points"]) for each in (value, other))
        size = max(1.0, float(value.detach().abs().max()))
        assert torch.allclose(other, value, rtol=1e-4, atol=1e-5 * size)


def test_gradients_of_several_batches_add_up() -> None:
    spaces = spaces_of(5, 3, [], ["choice"])
    flat = FlatNet(build(NEWTON, spaces), by_hand=True)
    assert flat.learning_nets is not None
    (net,), total, gradient = flat.learning_nets, torch.zeros_like(flat.weights), torch.empty_like(flat.weights)
    for number in range(2):
        x = net.read(boards(spaces, 9, 20, "any", seed=number))
        outputs, workspace = net.forward(x)
        net.backward(outputs, x, workspace, gradient.detach().numpy(), adds=number > 0)
        total += flat.gradient(flat(boards(spaces, 9, 20, "any", seed=number)).square().sum() / 2.0)
    assert torch.allclose(gradient, total, rtol=1e-4, atol=1e-4)


def test_weights_changed_in_place_are_seen() -> None:
    spaces = spaces_of(5, 3, [], [])
    net, other = build(NEWTON, spaces), build(NEWTON, spaces, key=2)
    acting, seen = acting_net(net), boards(spaces, 9, 20, "any")
    assert torch.equal(acting(seen), net(seen)), "weights that lie apart are torch's"
    flatten_weights(net)
    for change in (lambda: net.load_state_dict(other.state_dict()), lambda: net.output.bias.data.add_(1.0)):
        before = acting(seen)
        change()
        assert not torch.allclose(acting(seen), before)
        assert torch.allclose(acting(seen), net(seen), atol=1e-6)


# ---- whoever changes a network gets what they wrote --------------------------------------------------------


class Squared(NewtonSets):
    def coordinates(self, sets: Any) -> Tensor:
        return super().coordinates(sets).square()


class Raw(NewtonSets):
    coordinates = DeepSets.coordinates


class Twice(DeepSets):
    def forward(self, observation: Observation) -> Tensor:
        return 2.0 * super().forward(observation)


def with_gelu(net: Any) -> None:
    net.head[0][1] = nn.GELU()


def with_method(net: Any) -> None:
    net.coordinates = lambda sets: sets.members


def with_hook(net: Any) -> None:
    net.output.register_forward_hook(lambda module, inputs, outputs: 2.0 * outputs)


def as_class(cls: type[nn.Module]) -> Callable[[nn.Module], None]:
    def change(net: nn.Module) -> None:
        net.__class__ = cls

    return change


CHANGES = {
    "coordinates overridden": as_class(Squared),
    "coordinates of another network of ours": as_class(Raw),
    "forward overridden": as_class(Twice),
    "another layer": with_gelu,
    "a method of an object": with_method,
    "a hook": with_hook,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_network_is_what_learns_and_acts(change: str) -> None:
    spaces = spaces_of(5, 3, [], ["choice"])
    net, seen = build(NEWTON, spaces), boards(spaces, 9, 20, "any")
    stock = net(seen)
    CHANGES[change](net)
    flat = FlatNet(net, by_hand=True)
    assert (flat.learning_nets is None) == (change != "coordinates of another network of ours")
    expected = net(seen)
    assert not torch.allclose(stock, expected)
    with torch.no_grad():
        assert torch.allclose(flat(seen), expected, atol=1e-5)
    assert torch.allclose(flat(seen), expected, atol=1e-5)


@pytest.mark.parametrize(("owner", "name"), [(DeepSets, "forward"), (NewtonSets, "coordinates"), (PackedSets, "pool")])
def test_code_that_was_changed_anywhere_is_what_runs(owner: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(owner, name)
    spaces = spaces_of(5, 3, [], [])
    net, seen = build(NEWTON, spaces), boards(spaces, 9, 20, "any")
    stock = net(seen)
    monkeypatch.setattr(owner, name, lambda *arguments: 2.0 * original(*arguments))
    flat = FlatNet(net, by_hand=True)
    assert (flat.learning_nets, flat.acting_nets) == (None, None)
    assert not torch.allclose(flat(seen), stock)


def test_other_networks_have_no_such_kernel() -> None:
    spaces = spaces_of(5, 3, [], [])
    assert FlatNet(build(NEWTON, spaces), by_hand=False).learning_nets is None
    assert FlatNet(build(NEWTON | {"point_widths": []}, spaces), by_hand=True).learning_nets is None
    assert FlatNet(build(NEWTON, spaces).double(), by_hand=True).learning_nets is None
    whole = {"points": Space((5, 3), torch.int64, padded=True)}
    assert FlatNet(build(NEWTON, whole), by_hand=True).learning_nets is None


def test_numbers_that_are_none_are_not_hidden() -> None:
    spaces = spaces_of(5, 3, [], ["choice"])
    flat, seen = FlatNet(build(NEWTON, spaces), by_hand=True), boards(spaces, 9, 20, "any")
    seen["choice"][3, 1] = torch.nan
    outputs = flat(seen)
    assert outputs[3].isnan().all()
    assert outputs[:3].isfinite().all()
