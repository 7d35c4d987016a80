"""Covers palestra.nets, palestra.nets.deep_sets, palestra.nets.feed_forward, palestra.nets.mlp."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from palestra.config import ConfigError
from palestra.config.variants import members_of, names_of
from palestra.games.game import Observation
from palestra.games.spaces import Space
from palestra.nets import AnyNetConfig
from palestra.nets.activations import Tanh
from palestra.nets.inputs import flatten_observation, flatten_on_cpu
from palestra.nets.mlp import ResidualBlock
from palestra.nets.weights import body_of_another, output_weights
from tests.nets import making

N, DIMENSION = 7, 3
POINTS = {"points": Space((N, DIMENSION), torch.float32, padded=True)}
SPACES = POINTS | {"coords": Space((DIMENSION,), torch.float32, padded=False)}
DEEP_SETS = {"name": "deep_sets", "point_widths": [16, 12], "head_widths": [10]}
NEWTON_SETS = DEEP_SETS | {"name": "newton_sets"}
MLP = {"name": "mlp", "net_arch": [16, "b", "r12"], "activation": "relu"}


def build(data: dict[str, Any], spaces: dict[str, Space] = SPACES, num_outputs: int = 4, key: int = 1) -> nn.Module:
    return making.build(data, spaces, num_outputs, key).eval()


def mlp(net_arch: list[Any]) -> nn.Module:
    return build({"name": "mlp", "net_arch": net_arch, "activation": "relu"})


def boards(num: int, counts: Tensor | None = None) -> Observation:
    """Boards with 0 to N - 1 present rows at the front, -1 behind; the last place is empty in every world."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(num, N, DIMENSION, generator=generator)
    counts = torch.arange(num) % N if counts is None else counts
    points[torch.arange(N) >= counts.unsqueeze(1)] = -1.0
    return {"points": points, "coords": torch.randint(0, 2, (num, DIMENSION), generator=generator).float()}


def same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-6, rtol=0.0)


# ---- sets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [DEEP_SETS, NEWTON_SETS])
@pytest.mark.parametrize("spaces", [POINTS, SPACES])
def test_networks_of_sets_do_not_see_the_order_of_points(spaces: dict[str, Space], data: dict[str, Any]) -> None:
    net, seen = build(data, spaces), boards(40)
    order = torch.rand(40, N, generator=torch.Generator().manual_seed(1)).argsort(1)
    shuffled = seen | {"points": seen["points"].gather(1, order.unsqueeze(2).expand(-1, -1, DIMENSION))}
    assert same(net(seen), net(shuffled))


@pytest.mark.parametrize("data", [DEEP_SETS, NEWTON_SETS, MLP])
@pytest.mark.parametrize("filling", [[-1.0, 5.0, 7.0], [3.0, -1.0, 2.0], [1e30, 0.0, -1e30]])
def test_networks_do_not_see_what_stands_in_absent_rows(data: dict[str, Any], filling: list[float]) -> None:
    net, seen = build(data), boards(40)
    absent = seen["points"][..., :1] < 0
    other = seen | {"points": torch.where(absent, torch.tensor(filling), seen["points"])}
    assert torch.equal(net(seen), net(other))


@pytest.mark.parametrize("data", [DEEP_SETS, NEWTON_SETS])
@pytest.mark.parametrize("num_extra", [1, 30])
def test_networks_of_sets_do_not_see_the_number_of_empty_places(num_extra: int, data: dict[str, Any]) -> None:
    net, seen = build(data), boards(40)
    empty = torch.full((40, num_extra, DIMENSION), -1.0)
    empty_then_full = torch.cat([empty, seen["points"]], dim=1)
    assert same(net(seen), net(seen | {"points": empty_then_full}))


@pytest.mark.parametrize("data", [DEEP_SETS, NEWTON_SETS, MLP])
def test_boards_without_points_give_numbers(data: dict[str, Any]) -> None:
    assert torch.isfinite(build(data)(boards(3, counts=torch.zeros(3)))).all()


@pytest.mark.parametrize("data", [DEEP_SETS, NEWTON_SETS, MLP])
def test_an_absent_row_is_told_from_a_point_at_the_origin(data: dict[str, Any]) -> None:
    net, absent = build(data), boards(5, counts=torch.ones(5))
    with_origin = absent["points"].clone()
    with_origin[:, 1] = 0.0
    assert not same(net(absent), net(absent | {"points": with_origin}))


@pytest.mark.parametrize("data", [DEEP_SETS, NEWTON_SETS, MLP])
def test_every_entry_reaches_the_output(data: dict[str, Any]) -> None:
    net = build(data)
    seen = {name: value.requires_grad_() for name, value in boards(4, counts=torch.full((4,), N)).items()}
    net(seen).square().sum().backward()
    assert all(value.grad is not None and value.grad.any() for value in seen.values())


@pytest.mark.parametrize("num", [20, 0])
def test_loops_flatten_an_observation_as_tensor_operations_do(num: int) -> None:
    seen = {name: value[:num] for name, value in boards(20).items()}
    flat = flatten_observation(seen, SPACES)
    assert flat.shape == (num, N * DIMENSION + N + DIMENSION)
    assert torch.equal(torch.from_numpy(flatten_on_cpu(seen, SPACES)), flat)


def test_deep_sets_compute_board_by_board_what_their_docstring_says() -> None:
    net, observation = build(DEEP_SETS), boards(20)
    outputs = net(observation)
    num_compared = 0
    for points, coords, found in zip(observation["points"], observation["coords"], outputs, strict=True):
        present = points[(points >= 0).all(-1)]
        if len(present):
            features = net.point_layers(torch.cat([present, coords.expand(len(present), -1)], dim=1))
            pooled = torch.cat([features.amax(0), features.mean(0)])
            assert torch.allclose(found, net.output(net.head(torch.cat([pooled, coords]))), atol=1e-6)
            num_compared += 1
    assert num_compared >= 15


def test_newton_sets_does_not_see_where_a_board_lies() -> None:
    net, seen = build(NEWTON_SETS), boards(40)
    points = (20 * seen["points"]).round()
    moved = torch.where(points < 0, points, points + torch.tensor([3.0, 0.0, 50.0]))
    assert same(net(seen | {"points": points}), net(seen | {"points": moved}))


def test_deep_sets_needs_exactly_one_set() -> None:
    with pytest.raises(ConfigError, match="one set of points for 'deep_sets', got none"):
        build(DEEP_SETS, {"coords": SPACES["coords"]})


# ---- net_arch ----------------------------------------------------------------------------------------


def kinds(net: nn.Module) -> list[tuple[Any, ...]]:
    """Layers by kind and width."""
    described: list[tuple[Any, ...]] = []
    for layer in net.layers:  # type: ignore[union-attr]
        if isinstance(layer, nn.Linear):
            described.append(("linear", layer.in_features, layer.out_features))
        elif isinstance(layer, nn.BatchNorm1d):
            described.append(("batch norm", layer.num_features))
        elif isinstance(layer, ResidualBlock):
            described.append(("residual", layer.layers[0].in_features, layer.layers[3].out_features))
        else:
            described.append((type(layer).__name__.lower(),))
    return described


WIDTH_IN = N * DIMENSION + N + DIMENSION  # numbers, flags of presence, coords


@pytest.mark.parametrize(
    ("net_arch", "expected"),
    [
        ([], [("linear", WIDTH_IN, 4)]),
        ([8], [("linear", WIDTH_IN, 8), ("relu",), ("linear", 8, 4)]),
        ([8, "l"], [("linear", WIDTH_IN, 8), ("layernorm",), ("relu",), ("linear", 8, 4)]),
        (["b", 8], [("batch norm", WIDTH_IN), ("linear", WIDTH_IN, 8), ("relu",), ("linear", 8, 4)]),
        ([8, "b"], [("linear", WIDTH_IN, 8), ("batch norm", 8), ("relu",), ("linear", 8, 4)]),
        ([8, "r8"], [("linear", WIDTH_IN, 8), ("relu",), ("residual", 8, 8), ("relu",), ("linear", 8, 4)]),
        (
            [{"repeat": 2, "net_arch": [5, {"repeat": 1, "net_arch": ["r6"]}]}],
            [
                *[("linear", WIDTH_IN, 5), ("relu",), ("residual", 5, 6), ("relu",)],
                *[("linear", 6, 5), ("relu",), ("residual", 5, 6), ("relu",), ("linear", 6, 4)],
            ],
        ),
    ],
)
def test_net_arch_is_written_out_as_layers(net_arch: list[Any], expected: list[tuple[Any, ...]]) -> None:
    net = mlp(net_arch)
    assert kinds(net) == expected
    assert net(boards(6)).shape == (6, 4)


@pytest.mark.parametrize(
    ("activation", "kind"), [("relu", nn.ReLU), ("tanh", Tanh), ("silu", nn.SiLU), ("elu", nn.ELU), ("gelu", nn.GELU)]
)
def test_an_activation_stands_after_every_hidden_layer_and_in_blocks(activation: str, kind: type[nn.Module]) -> None:
    net = build({"name": "mlp", "net_arch": [8, "r8", 8], "activation": activation})
    assert sum(type(module) is kind for module in net.modules()) == 4
    assert not isinstance(net.layers[-1], kind)  # type: ignore[index]


def test_an_unknown_activation_is_told() -> None:
    with pytest.raises(ConfigError, match=r"^net.activation: expected one of .*, got 'tan'; did you mean 'tanh'\?"):
        build({"name": "mlp", "net_arch": [8], "activation": "tan"})


@pytest.mark.parametrize("width", [6, 9])
def test_a_residual_block_adds_to_its_input(width: int) -> None:
    block = ResidualBlock(6, width, "relu").eval()
    for parameter in block.layers.parameters():
        nn.init.zeros_(parameter)
    x = torch.rand(5, 6)
    assert torch.equal(block(x), x if width == 6 else block.shortcut(x))


@pytest.mark.parametrize(
    ("net_arch", "places"),
    [
        ([8, 0], ["1"]),
        ([True], ["0"]),
        ([8, "c", "r", "r0", "rx", 2.5], ["1", "2", "3", "4", "5"]),
        ([{"repeat": 2}], ["0.net_arch"]),
        ([{"net_arch": [8]}], ["0.repeat"]),
        ([{"repeat": 0, "net_arch": 8, "times": 2}], ["0.net_arch", "0.repeat", "0.times"]),
        ([8, {"repeat": 2, "net_arch": [8, {"repeat": 1, "net_arch": ["q"]}]}], ["1.net_arch.1.net_arch.0"]),
    ],
)
def test_faults_of_a_net_arch_are_told_at_their_places(net_arch: list[Any], places: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        mlp(net_arch)
    assert sorted(error.path for error in caught.value.errors) == [f"net.net_arch.{place}" for place in places]


# ---- made from a key -----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [DEEP_SETS, NEWTON_SETS, MLP])
def test_equal_keys_make_equal_networks_and_others_do_not(data: dict[str, Any]) -> None:
    def weights(key: int) -> Tensor:
        return torch.cat([p.detach().flatten() for p in build(data, key=key).parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize("data", [DEEP_SETS, NEWTON_SETS])
@pytest.mark.parametrize("spaces", [POINTS, SPACES])
def test_networks_of_sets_are_exported_for_any_number_of_boards(spaces: dict[str, Space], data: dict[str, Any]) -> None:
    net, seen = build(data, spaces), {name: boards(40)[name] for name in spaces}
    batch = {name: {0: torch.export.Dim("batch", min=1)} for name in seen}
    program = torch.export.export(net, (seen,), dynamic_shapes=(batch,)).module()
    for num in (40, 3):
        some = {name: value[:num] for name, value in seen.items()}
        assert same(net(some), program(some))


@pytest.mark.parametrize("data", [DEEP_SETS, NEWTON_SETS])
def test_networks_of_sets_learn_the_same_in_graphs(data: dict[str, Any]) -> None:
    net, seen = build(data), boards(40)
    parameters = list(net.parameters())
    own = torch.autograd.grad(net(seen).square().sum(), parameters)
    in_graph = torch.autograd.grad(torch.compile(net, backend="aot_eager")(seen).square().sum(), parameters)
    assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in zip(own, in_graph, strict=True))


# ---- outputs and body ------------------------------------------------------------------------------

SCREEN = {"seen": Space((2, 16, 16), torch.uint8, padded=False)}
COORDS = {"coords": SPACES["coords"]}
EVERY_KIND: dict[str, tuple[dict[str, Any], dict[str, Space]]] = {
    "mlp": (MLP, SPACES),
    "deep_sets": (DEEP_SETS, SPACES),
    "newton_sets": (NEWTON_SETS, POINTS),
    "nature_cnn": (
        {"name": "nature_cnn", "channels": [2], "kernels": [3], "strides": [2], "hidden_widths": [7]},
        SCREEN,
    ),
    "impala_cnn": ({"name": "impala_cnn", "channels": [2], "hidden_widths": [7]}, SCREEN),
    "multi_input": (
        {
            "name": "multi_input",
            "entries": {"coords": MLP},
            "entry_width": 5,
            "net_arch": [6],
            "activation": "relu",
        },
        COORDS,
    ),
    "recurrent": (
        {
            "name": "recurrent",
            "encoder": MLP,
            "encoder_width": 5,
            "cell": "gru",
            "hidden_size": 6,
            "net_arch": [7],
            "activation": "tanh",
        },
        COORDS,
    ),
}


def test_every_kind_of_network_is_looked_at() -> None:
    assert EVERY_KIND.keys() == names_of(members_of(AnyNetConfig)).keys()


@pytest.mark.parametrize("name", EVERY_KIND)
def test_a_network_with_other_outputs_differs_in_its_output_weights_alone(name: str) -> None:
    data, spaces = EVERY_KIND[name]
    one, other = (build(data, spaces, num_outputs).state_dict() for num_outputs in (4, 9))
    differ = [key for key in one if one[key].shape != other[key].shape]
    assert output_weights(build(data, spaces)) == differ
    assert len(differ) == 2


def test_a_body_of_another_network_comes_with_ones_own_outputs() -> None:
    net, other = build(MLP, COORDS, 4, key=1), build(MLP, COORDS, 9, key=2)
    taken = body_of_another(net, other.state_dict())
    net.load_state_dict(taken)
    outputs = output_weights(net)
    fresh, there = build(MLP, COORDS, 4, key=1).state_dict(), other.state_dict()
    for name, value in net.state_dict().items():
        assert torch.equal(value, fresh[name] if name in outputs else there[name])
    several = nn.ModuleList([build(MLP, COORDS), build(MLP, COORDS)])
    assert output_weights(several) == [f"{place}.{name}" for place in (0, 1) for name in outputs]
    assert output_weights(nn.Conv2d(1, 1, 1)) == []
