"""The optimizers are torch's, on one vector; compiled or not."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from palestra.config import check
from palestra.optimizers import SMALLEST_NORMAL, AdamConfig, Optimizer, SGDConfig, clip

ADAM = {"name": "adam", "beta1": 0.8, "beta2": 0.99, "eps": 1e-5, "weight_decay": 0.0}
SGD = {"name": "sgd", "momentum": 0.0, "weight_decay": 0.0}
CONFIGS: list[dict[str, Any]] = [
    ADAM,
    ADAM | {"beta1": 0.0, "beta2": 0.999, "eps": 1e-8},
    ADAM | {"weight_decay": 0.1},
    SGD,
    SGD | {"momentum": 0.9, "weight_decay": 0.1},
]


def build(config: dict[str, Any], weights: Tensor) -> Optimizer:
    return check(config, AdamConfig if config["name"] == "adam" else SGDConfig).build(weights)


def build_torch(config: dict[str, Any], weights: Tensor) -> torch.optim.Optimizer:
    if config["name"] == "sgd":
        return torch.optim.SGD([weights], 0.0, config["momentum"], weight_decay=config["weight_decay"])
    betas = (config["beta1"], config["beta2"])
    return torch.optim.AdamW([weights], 0.0, betas, config["eps"], config["weight_decay"])


def gradient(step: int) -> Tensor:
    return torch.randn(50, generator=torch.Generator().manual_seed(step))


def run(optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.learning_rate.fill_(0.1 / (step + 1))
        optimizer.step(gradient(step))


@pytest.fixture(params=["eager", "as compiled"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As compiled: the way that the compiler takes, not compiled."""
    if request.param == "as compiled":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("config", CONFIGS)
def test_steps_are_those_of_torch(config: dict[str, Any]) -> None:
    weights, expected = nn.Parameter(gradient(100)), nn.Parameter(gradient(100))
    run(build(config, weights), range(20))
    optimizer = build_torch(config, expected)
    for step in range(20):
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        expected.grad = gradient(step)
        optimizer.step()
    assert torch.allclose(weights, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("config", CONFIGS)
def test_an_optimizer_that_is_restored_goes_on_to_the_bit(config: dict[str, Any]) -> None:
    weights = gradient(100)
    optimizer = build(config, weights)
    run(optimizer, range(5))
    again = weights.clone()
    restored = build(config, again)
    restored.load_state_dict(optimizer.state_dict())
    run(optimizer, range(5, 9))
    run(restored, range(5, 9))
    assert torch.equal(weights, again)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("config", [ADAM, SGD | {"momentum": 0.8}])
def test_the_state_of_a_weight_without_gradient_becomes_0_and_no_subnormal_number(config: dict[str, Any]) -> None:
    weights, expected = nn.Parameter(gradient(100)), nn.Parameter(gradient(100))
    optimizer, torchs = build(config, weights), build_torch(config, expected)
    optimizer.learning_rate.fill_(0.01)
    torchs.param_groups[0]["lr"] = 0.01
    is_dead = torch.arange(50) < 20
    for step in range(450):  # 0.8^400 is about 1e-39
        expected.grad = gradient(step).masked_fill(is_dead & (step > 0), 0.0)
        optimizer.step(expected.grad)
        torchs.step()
        for vector in [value for value in optimizer.state.values() if value.shape == weights.shape]:
            assert not ((vector != 0.0) & (vector.abs() < SMALLEST_NORMAL)).any()
    decaying = "mean" if config["name"] == "adam" else "velocity"
    assert (optimizer.state[decaying][is_dead] == 0.0).all()
    assert (optimizer.state[decaying][~is_dead] != 0.0).all()
    assert torch.allclose(weights, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("max_norm", "expected"), [(None, 5.0), (10.0, 5.0), (1.0, 1.0)])
def test_clip_shortens_what_is_too_long(max_norm: float | None, expected: float) -> None:
    clipped, norm = clip(torch.tensor([3.0, 0.0, -4.0]), max_norm)
    assert norm == 5.0
    assert torch.allclose(clipped, torch.tensor([3.0, 0.0, -4.0]) * expected / 5.0, rtol=1e-6)


@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_a_gradient_that_is_no_number_is_not_hidden(odd: float, max_norm: float | None) -> None:
    clipped, norm = clip(torch.tensor([3.0, odd, -4.0]), max_norm)
    assert not np.isfinite(norm)
    assert not torch.isfinite(clipped).all()


def test_a_norm_that_is_no_number_spoils_the_whole_gradient() -> None:
    clipped, _ = clip(torch.tensor([3.0, torch.nan, -4.0]), 1.0)
    assert clipped.isnan().all()
