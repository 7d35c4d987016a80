"""Networks of a user's own are tried when they are made: what cannot learn, or does not fit, is named.

Covers palestra.nets.inputs.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from palestra.config import ConfigError, load_class
from palestra.games.game import cleared
from palestra.games.policy import Memory
from palestra.games.spaces import Space
from palestra.kinds.games.trainer import Trainer
from palestra.nets import RecurrentNet, UserNetConfig, UserNets, make_net
from palestra.nets.inputs import flat_size, flatten_observation

MakeConfig = Callable[..., dict[str, Any]]
SPACES = {"seen": Space((3,), torch.float32, False)}


class Plain(nn.Module):
    """Sound."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.noise = nn.Linear(3, 2), nn.Dropout(0.5)

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        outputs: Tensor = self.noise(self.layer(observation["seen"]))
        return outputs


class Unused(Plain):
    class Config(UserNetConfig):
        pass

    def __init__(self, config: Any = None, spaces: Any = SPACES, num_outputs: int = 2) -> None:
        super().__init__()
        self.spaces, self.layer = spaces, nn.Linear(flat_size(spaces), num_outputs)
        self.spare = nn.Linear(3, 3)

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        outputs: Tensor = self.layer(flatten_observation(observation, self.spaces))
        return outputs


class Detached(Plain):
    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        return super().forward(observation).detach()


class Frozen(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.layer.bias.requires_grad_(False)


class Squeezing(Plain):
    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        return super().forward(observation).squeeze()


class Double(Plain):
    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        return super().forward(observation).double()


class Bare(Plain):
    def __init__(self) -> None:
        super().__init__()
        del self.layer

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        return observation["seen"][:, :2]


class Averaging(RecurrentNet):
    """Sound: a running mean of what it observes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def initial_memory(self, num_worlds: int, device: torch.device) -> Memory:
        return {"mean": torch.zeros(num_worlds, 2, device=device)}

    def forward(self, observation: Mapping[str, Tensor], memory: Memory) -> tuple[Tensor, Memory]:
        mean = (memory["mean"] + self.layer(observation["seen"])) / 2
        return mean, {"mean": mean}

    def unroll(self, observation: Mapping[str, Tensor], memory: Memory, episode_start: Tensor) -> Tensor:
        outputs = []
        for seen, begins in zip(observation["seen"], episode_start, strict=True):
            output, memory = self({"seen": seen}, cleared(memory, begins))
            outputs.append(output)
        return torch.stack(outputs)


class Endless(Averaging):
    def unroll(self, observation: Mapping[str, Tensor], memory: Memory, episode_start: Tensor) -> Tensor:
        return super().unroll(observation, memory, torch.zeros_like(episode_start))


class Shortsighted(Averaging):
    def forward(self, observation: Mapping[str, Tensor], memory: Memory) -> tuple[Tensor, Memory]:
        return super().forward(observation, {"mean": memory["mean"].detach() if self.unrolls else memory["mean"]})

    unrolls = False

    def unroll(self, observation: Mapping[str, Tensor], memory: Memory, episode_start: Tensor) -> Tensor:
        self.unrolls = True
        return super().unroll(observation, memory, episode_start)


@pytest.mark.parametrize(
    ("net", "line"),
    [
        (
            Unused,
            "expected a gradient for every parameter from the Unused of set_model, got none for "
            "parameter 'spare.weight' (and 1 more)",
        ),
        (
            Detached,
            "expected a gradient for every parameter from the Detached of set_model, got none for "
            "parameter 'layer.weight' (and 1 more)",
        ),
        (
            Frozen,
            "expected parameters that require a gradient from the Frozen of set_model, got parameter 'layer.bias' "
            "without",
        ),
        (Squeezing, "expected outputs of shape (1, 2) for 1 worlds from the Squeezing of set_model, got (2,)"),
        (Double, "expected float32 outputs from the Double of set_model, got float64"),
        (Bare, "expected at least one parameter from the Bare of set_model, got none"),
        (
            Endless,
            "expected an `unroll` that gives the numbers of single steps from the Endless of set_model, got other",
        ),
        (Shortsighted, "expected an `unroll` that gives the gradients of single steps from the Shortsighted of"),
    ],
)
def test_a_network_that_cannot_learn_is_told_when_it_is_given(net: type[nn.Module], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_net(UserNets([net()]), SPACES, 2, key=1)
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize("kind", [Plain, Averaging])
def test_a_sound_network_is_taken_and_neither_it_nor_the_global_state_is_changed(kind: type[nn.Module]) -> None:
    net, before = kind(), torch.get_rng_state()
    weights = [parameter.clone() for parameter in net.parameters()]
    assert make_net(UserNets([net]), SPACES, 2, key=1) is net
    assert net.training
    assert all(torch.equal(a, b) and b.grad is None for a, b in zip(weights, net.parameters(), strict=True))
    assert torch.equal(before, torch.get_rng_state())


def test_an_unused_parameter_of_a_network_in_a_config_is_told_before_training(make_config: MakeConfig) -> None:
    name = f"{Unused.__module__}:Unused"
    assert load_class(name, nn.Module) is Unused
    with pytest.raises(ConfigError) as caught:
        Trainer(make_config({"players.host.algorithm.net": {"name": name}}))
    expected = (
        f"expected a gradient for every parameter from {name!r}, got none for parameter 'spare.weight' (and 1 more)"
    )
    assert str(caught.value) == f"players.host.algorithm.net.name: {expected}"
