from typing import Any

import pytest
import torch
from torch import Tensor

from palestra.config import ConfigError, check
from palestra.games.game import Observation
from palestra.games.policy import Memory
from palestra.nets.recurrent import RecurrentNet
from palestra.nets.weights import evaluation_view, flatten_weights
from tests.nets.making import FeedForwardHolder, build, observe, space

SPACES = {"seen": space((3,)), "points": space((4, 2), padded=True)}
LSTM = {
    "name": "recurrent",
    "encoder": {"name": "mlp", "net_arch": [6], "activation": "tanh"},
    "encoder_width": 5,
    "cell": "lstm",
    "hidden_size": 7,
    "net_arch": [6],
    "activation": "tanh",
}
GRU = LSTM | {"cell": "gru"}
T, B = 12, 3
CPU = torch.device("cpu")

EPISODE_STARTS = {
    "nowhere": torch.zeros(T, B, dtype=torch.bool),
    "everywhere": torch.ones(T, B, dtype=torch.bool),
    "at the first step": (torch.arange(T) == 0).unsqueeze(1).expand(T, B),
    "here and there": torch.rand(T, B, generator=torch.Generator().manual_seed(0)) < 0.15,
    "at the last step of one": (torch.arange(T) == T - 1).unsqueeze(1) & (torch.arange(B) == 1),
}

both_cells = pytest.mark.parametrize("data", [LSTM, GRU], ids=["lstm", "gru"])
every_pattern = pytest.mark.parametrize("episode_start", EPISODE_STARTS.values(), ids=EPISODE_STARTS.keys())


def make(data: dict[str, Any]) -> RecurrentNet:
    net = build(data, SPACES)
    assert isinstance(net, RecurrentNet)
    return net


def some_memory(net: RecurrentNet) -> Memory:
    generator = torch.Generator().manual_seed(1)
    zeros = net.initial_memory(B, CPU)
    return {name: torch.randn(value.shape, generator=generator).requires_grad_() for name, value in zeros.items()}


def step_by_step(net: RecurrentNet, seen: Observation, memory: Memory, episode_start: Tensor) -> Tensor:
    outputs = []
    for step, starts in enumerate(episode_start):
        zeros = net.initial_memory(B, CPU)
        memory = {name: torch.where(starts.unsqueeze(1), zeros[name], value) for name, value in memory.items()}
        output, memory = net({name: value[step] for name, value in seen.items()}, memory)
        outputs.append(output)
    return torch.stack(outputs)


def gradients(outputs: Tensor, net: RecurrentNet, memory: Memory) -> list[Tensor]:
    weighted = outputs * torch.linspace(-1.0, 1.0, outputs.numel()).view_as(outputs)
    wanted = [*net.parameters(), *memory.values()]
    found = torch.autograd.grad(weighted.sum(), wanted, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, wanted, strict=True)]


@both_cells
@every_pattern
def test_unrolling_is_stepping_with_a_memory_zeroed_where_episodes_begin(
    data: dict[str, Any], episode_start: Tensor
) -> None:
    net, seen = make(data), observe(SPACES, T, B)
    memory = some_memory(net)
    unrolled, stepped = net.unroll(seen, memory, episode_start), step_by_step(net, seen, memory, episode_start)
    assert unrolled.shape == (T, B, 4)
    assert torch.allclose(unrolled, stepped, atol=1e-6)
    for a, b in zip(gradients(unrolled, net, memory), gradients(stepped, net, memory), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@both_cells
def test_episodes_one_after_another_are_episodes_by_themselves(data: dict[str, Any]) -> None:
    net, seen = make(data), observe(SPACES, T, B)
    memory = some_memory(net)
    episode_start = EPISODE_STARTS["nowhere"].clone()
    episode_start[5] = True
    first, second = ({name: value[part] for name, value in seen.items()} for part in (slice(5), slice(5, None)))
    apart = [
        net.unroll(first, memory, episode_start[:5]),
        net.unroll(second, net.initial_memory(B, CPU), torch.zeros_like(episode_start[5:])),
    ]
    together = net.unroll(seen, memory, episode_start)
    assert torch.allclose(together, torch.cat(apart), atol=1e-6)
    for a, b in zip(gradients(together, net, memory), gradients(torch.cat(apart), net, memory), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@both_cells
def test_worlds_do_not_see_each_other(data: dict[str, Any]) -> None:
    net, seen = make(data), observe(SPACES, T, B)
    memory = some_memory(net)
    together = net.unroll(seen, memory, EPISODE_STARTS["here and there"])
    for world in range(B):
        one = slice(world, world + 1)
        alone = net.unroll(
            {name: value[:, one] for name, value in seen.items()},
            {name: value[one] for name, value in memory.items()},
            EPISODE_STARTS["here and there"][:, one],
        )
        assert torch.allclose(together[:, one], alone, atol=1e-6)


@both_cells
def test_what_was_seen_before_matters(data: dict[str, Any]) -> None:
    net, seen = make(data), observe(SPACES, T, B)
    start = net.initial_memory(B, CPU)
    before = {name: torch.cat([value[:1].flip(1), value[1:]]) for name, value in seen.items()}
    a, b = net.unroll(seen, start, EPISODE_STARTS["nowhere"]), net.unroll(before, start, EPISODE_STARTS["nowhere"])
    assert not torch.allclose(a[-1], b[-1], atol=1e-7)


@both_cells
def test_the_first_memory_is_zero(data: dict[str, Any]) -> None:
    memory = make(data).initial_memory(B, CPU)
    assert all(value.shape == (B, 7) and not value.any() for value in memory.values())
    assert set(memory) == ({"hidden", "cell"} if data is LSTM else {"hidden"})


@both_cells
def test_flat_weights_and_twins_are_the_networks_own(data: dict[str, Any]) -> None:
    net, seen = make(data), observe(SPACES, T, B)
    memory, episode_start = some_memory(net), EPISODE_STARTS["here and there"]
    before = net.unroll(seen, memory, episode_start)
    weights = flatten_weights(net)
    view = evaluation_view(net)
    assert isinstance(view, RecurrentNet)
    assert torch.equal(net.unroll(seen, memory, episode_start), before)
    with torch.no_grad():
        weights.mul_(0.5)
    assert not torch.allclose(net.unroll(seen, memory, episode_start), before)
    assert torch.equal(view.unroll(seen, memory, episode_start), net.unroll(seen, memory, episode_start))


def test_faults_of_the_encoder_are_told_below_it() -> None:
    encoder = {"name": "nature_cnn", "channels": [4], "kernels": [8], "strides": [4], "hidden_widths": []}
    with pytest.raises(ConfigError, match=r"^encoder.kernels.0: expected a window of at most 4 x 4 pixels"):
        build(LSTM | {"encoder": encoder}, {"seen": space((1, 4, 4), torch.uint8)})


def test_who_has_no_use_for_a_memory_refuses_recurrent_networks() -> None:
    with pytest.raises(ConfigError, match=r"^net.name: expected one of .*'multi_input'.*, got 'recurrent'"):
        check({"net": LSTM}, FeedForwardHolder)
