"""The optimizers are torch's, on one vector; compiled or not.

Covers palestra.optimizers.torch_optim, palestra.optimizers.optimizer, palestra.optimizers.ours.
"""

import copy
import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from palestra.config import Config, ConfigError, check
from palestra.nets.flat import FlatNet
from palestra.nets.weights import compiled, flatten_weights
from palestra.optimizers import (
    Optimizer,
    OptimizerConfig,
    TorchOptimizerConfig,
    clip,
    learning_rate_factors,
)
from palestra.optimizers.optimizer import SMALLEST_NORMAL
from palestra.optimizers.ours import STEPS_PER_FLUSH
from palestra.storage.stored_files import copied, decode, encode
from tests.nets import making

ADAM = {"name": "adam", "beta1": 0.8, "beta2": 0.99, "eps": 1e-5, "weight_decay": 0.0}
SGD = {"name": "sgd", "momentum": 0.0, "weight_decay": 0.0}
CONFIGS: list[dict[str, Any]] = [
    ADAM,
    ADAM | {"beta1": 0.0, "beta2": 0.999, "eps": 1e-8},
    ADAM | {"weight_decay": 0.1},
    SGD,
    SGD | {"momentum": 0.9, "weight_decay": 0.1},
]


class Holder(Config):
    optimizer: OptimizerConfig


def build(config: dict[str, Any], weights: Tensor) -> Optimizer:
    optimizer: Optimizer = check({"optimizer": config}, Holder).optimizer.build(weights)
    return optimizer


def build_torch(config: dict[str, Any], weights: list[Tensor]) -> torch.optim.Optimizer:
    if config["name"] == "sgd":
        return torch.optim.SGD(weights, 0.0, config["momentum"], weight_decay=config["weight_decay"])
    betas = (config["beta1"], config["beta2"])
    return torch.optim.AdamW(weights, 0.0, betas, config["eps"], config["weight_decay"])


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
    optimizer = build_torch(config, [expected])
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
    optimizer, torchs = build(config, weights), build_torch(config, [expected])
    optimizer.learning_rate.fill_(0.01)
    torchs.param_groups[0]["lr"] = 0.01
    is_dead = torch.arange(50) < 20
    for step in range(450):  # 0.8^400 is about 1e-39
        expected.grad = gradient(step).masked_fill(is_dead & (step > 0), 0.0)
        optimizer.step(expected.grad)
        torchs.step()
        if (step + 1) % STEPS_PER_FLUSH:
            continue
        for vector in [value for value in optimizer.state.values() if value.shape == weights.shape]:
            assert not ((vector != 0.0) & (vector.abs() < SMALLEST_NORMAL)).any()
    decaying = "mean" if config["name"] == "adam" else "velocity"
    assert (optimizer.state[decaying][is_dead] == 0.0).all()
    assert (optimizer.state[decaying][~is_dead] != 0.0).all()
    assert torch.allclose(weights, expected, rtol=1e-4, atol=1e-5)


# ---- by hand -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [ADAM | {"weight_decay": 0.1}, SGD | {"momentum": 0.9, "weight_decay": 0.1}, {"name": "torch.optim:RMSprop"}],
)
def test_by_hand_it_steps_as_that_of_torch_also_where_some_weights_have_no_gradient(config: dict[str, Any]) -> None:
    net = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)])
    other = copy.deepcopy(net)
    optimizer = by_hand(config, flatten_weights(net), rate=0.1)
    torchs = (
        torch.optim.RMSprop(other.parameters())
        if config["name"].startswith("torch")
        else build_torch(config, list(other.parameters()))
    )
    torchs.param_groups[0]["lr"] = 0.1
    for step in range(6):
        skips = step % 2 if config["name"] != "adam" else 0  # ours counts the steps of all weights together
        learned = slice(skips, 2)
        for each, modules in ((optimizer, net), (torchs, other)):
            each.zero_grad()
            sum(layer(torch.ones(4, 3)).square().sum() for layer in modules[learned]).backward()
            each.step()
    for one, expected in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, expected)


def by_hand(config: dict[str, Any], weights: Tensor, rate: float) -> Optimizer:
    optimizer = build(TorchOptimizerConfig.in_full(config["name"]) if config.keys() == {"name"} else config, weights)
    optimizer.scheduled = lambda: rate
    return optimizer


def test_gradients_add_up_until_they_are_forgotten_and_a_step_without_any_is_an_error() -> None:
    net = nn.Linear(3, 2)
    weights = flatten_weights(net)
    optimizer, before = by_hand(SGD, weights, rate=1.0), weights.clone()
    for _ in range(2):
        net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(before - weights, torch.full((8,), 2.0))
    optimizer.zero_grad()
    with pytest.raises(
        RuntimeError, match=r"expected gradients of the weights \(loss.backward\(\) before step\(\)\), got none"
    ):
        optimizer.step()
    torch.testing.assert_close(before - weights, torch.full((8,), 2.0))


def test_by_hand_the_gradient_of_a_network_of_kernels_counts() -> None:
    spaces = {"x": making.space((3,))}
    net = making.build({"name": "mlp", "net_arch": [8], "activation": "tanh"}, spaces)
    flat = FlatNet(net, by_hand=True)
    assert flat.learning_nets is not None
    optimizer, before = by_hand(SGD, flat.weights, rate=1.0), flat.weights.detach().clone()
    observation = {"x": torch.ones(2, 3)}
    gradient = flat.gradient(flat(observation).sum())
    flat(observation).sum().backward()
    optimizer.step()
    assert torch.equal(before - gradient, flat.weights)


def test_an_optimizer_without_a_schedule_says_so() -> None:
    net = nn.Linear(3, 2)
    optimizer = build(SGD, flatten_weights(net))
    net(torch.ones(1, 3)).sum().backward()
    with pytest.raises(RuntimeError, match="expected an optimizer of a player, whose schedule says the learning rate"):
        optimizer.step()


# ---- on a gradient -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_norm", "expected"), [(None, 5.0), (10.0, 5.0), (1.0, 1.0)])
def test_clip_shortens_what_is_too_long(max_norm: float | None, expected: float) -> None:
    clipped, norm = clip(torch.tensor([3.0, 0.0, -4.0]), max_norm)
    assert norm == 5.0
    assert torch.allclose(clipped, torch.tensor([3.0, 0.0, -4.0]) * expected / 5.0, rtol=1e-6)


def test_to_descend_is_to_clip_and_to_step() -> None:
    weights = nn.Parameter(torch.zeros(3))
    optimizer = build(SGD, weights)
    optimizer.learning_rate.fill_(2.0)
    assert optimizer.descend(torch.tensor([3.0, 0.0, -4.0]), 1.0, "norm") == {"norm": 5.0}
    assert torch.allclose(weights.detach(), torch.tensor([-1.2, 0.0, 1.6]))


@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_a_gradient_that_is_no_number_is_not_hidden(odd: float, max_norm: float | None) -> None:
    clipped, norm = clip(torch.tensor([3.0, odd, -4.0]), max_norm)
    assert not np.isfinite(norm)
    assert not torch.isfinite(clipped).all()


def test_a_norm_that_is_no_number_spoils_the_whole_gradient() -> None:
    clipped, _ = clip(torch.tensor([3.0, torch.nan, -4.0]), 1.0)
    assert clipped.isnan().all()


# ---- those of torch.optim ----------------------------------------------------------------------------------

TORCH: dict[str, dict[str, Any]] = {
    "ASGD": {},
    "Adadelta": {"rho": 0.8},
    "Adafactor": {},
    "Adagrad": {"initial_accumulator_value": 0.1},
    "Adam": {"betas": [0.8, 0.99], "amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
}


def torch_config(name: str, **arguments: Any) -> dict[str, Any]:
    usual = TorchOptimizerConfig.in_full(f"torch.optim:{name}")
    return usual | {"arguments": usual["arguments"] | TORCH[name] | arguments}


def by_torch(name: str, weights: Tensor, **arguments: Any) -> Optimizer:
    return build(torch_config(name, **arguments), weights)


def test_every_optimizer_of_torch_that_steps_on_one_gradient_has_a_name() -> None:
    assert TorchOptimizerConfig.classes == tuple(TORCH)
    classes = {name for name, each in vars(torch.optim).items() if isinstance(each, type)}
    # these want a closure, sparse gradients, matrices
    assert classes - {"Optimizer"} == TORCH.keys() | {"LBFGS", "SparseAdam", "Muon"}


@pytest.mark.parametrize("name", TORCH)
def test_steps_by_name_are_those_of_torch_to_the_bit(name: str) -> None:
    weights, expected = nn.Parameter(gradient(100)), nn.Parameter(gradient(100))
    run(by_torch(name, weights), range(20))
    arguments = {key: tuple(each) if isinstance(each, list) else each for key, each in TORCH[name].items()}
    optimizer = getattr(torch.optim, name)([expected], **arguments)
    for step in range(20):
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        expected.grad = gradient(step)
        optimizer.step()
    assert not torch.equal(weights, gradient(100))
    assert torch.equal(weights, expected)


@pytest.mark.parametrize("num_steps", [0, 5])
@pytest.mark.parametrize("name", TORCH)
def test_one_of_torch_goes_on_to_the_bit_from_what_a_checkpoint_holds(name: str, num_steps: int) -> None:
    weights = gradient(100)
    optimizer = by_torch(name, weights)
    run(optimizer, range(num_steps))
    tensors: dict[str, Tensor] = {}
    document = json.dumps(encode(optimizer.state_dict(), "", tensors))
    stored = copied(tensors)
    again = weights.clone()
    restored = by_torch(name, again)
    run(restored, range(50, 53))  # what it did before is forgotten
    again.copy_(weights)
    restored.load_state_dict(decode(json.loads(document), stored))
    run(optimizer, range(num_steps, num_steps + 4))
    run(restored, range(num_steps, num_steps + 4))
    assert torch.equal(weights, again)


@pytest.mark.parametrize(
    ("name", "changes", "begun"),
    [
        ("RMSprop", {"momentum": 0.9, "centered": True}, {"momentum_buffer", "grad_avg"}),
        ("Adam", {"amsgrad": True}, {"max_exp_avg_sq"}),
    ],
)
def test_what_one_of_torch_keeps_only_in_a_branch_begins_anew(
    name: str, changes: dict[str, Any], begun: set[str]
) -> None:
    without = {key: type(value)() for key, value in changes.items()}
    trunk, branch = (by_torch(name, gradient(100), **each) for each in (without, changes))
    run(trunk, range(5))
    branch.load_state_dict(old := trunk.state_dict())
    new = branch.state_dict()
    assert new.keys() - old.keys() == begun
    assert all(torch.equal(new[each], torch.zeros(50) if each in begun else old[each]) for each in new)
    run(branch, range(5, 9))
    assert all(branch.state_dict()[each].any() for each in begun)


@pytest.mark.parametrize("num_steps", [0, 5])
@pytest.mark.parametrize("name", TORCH)
def test_one_of_torch_leaves_frozen_weights_and_their_state(name: str, num_steps: int) -> None:
    weights = gradient(100)
    optimizer = by_torch(name, weights)
    run(optimizer, range(num_steps))
    mask = torch.arange(50) < 20
    before, state = weights.clone(), copied(optimizer.state_dict())
    optimizer.freeze(mask)
    run(optimizer, range(5, 8))
    assert torch.equal(weights[mask], before[mask])
    assert not torch.equal(weights[~mask], before[~mask])
    for key, value in optimizer.state_dict().items():
        if state and isinstance(value, Tensor) and value.shape == weights.shape:
            assert torch.equal(value[mask], state[key][mask])
    optimizer.thaw(mask)
    run(optimizer, range(8, 9))
    assert not torch.equal(weights[mask], before[mask])


# ---- factors of the learning rate --------------------------------------------------------------------------

FACTORS = torch.tensor([0.0, 0.25, 1.0, 3.0, 1.0]).repeat_interleave(10)
PARTS = {name: torch.zeros(2, 5) for name in ("value.0.weight", "value.0.bias", "policy.weight", "head.log_std", "x")}
BY_NAME = {"value.*.weight": 0.0, "value.?.bias": 0.25, "head.*": 3.0}


def after_steps(config: dict[str, Any], factors: Tensor | None, scale: float, frozen: Tensor | None = None) -> Tensor:
    """The weights after six steps. scale: of the learning rate."""
    weights = gradient(100)
    optimizer = build(config, weights)
    optimizer.factors = factors
    if frozen is not None:
        optimizer.freeze(frozen)
    for step in range(6):
        optimizer.learning_rate.fill_(scale * 0.1 / (step + 1))
        optimizer.step(gradient(step))
    return weights


def test_factors_go_by_names_in_which_a_star_stands_for_anything() -> None:
    found = learning_rate_factors(BY_NAME, PARTS)
    assert found is not None
    assert torch.equal(found, FACTORS)
    assert learning_rate_factors({}, PARTS) is None


def assert_factors_hold(config: dict[str, Any]) -> None:
    """By 0 and 1 to the bit."""
    found, whole = after_steps(config, FACTORS, 1.0), after_steps(config, None, 1.0)
    assert torch.equal(found[FACTORS == 0], gradient(100)[FACTORS == 0])
    assert torch.equal(found[FACTORS == 1], whole[FACTORS == 1])
    assert not torch.isclose(found[FACTORS == 0.25], whole[FACTORS == 0.25]).all()


def assert_factors_are_of_the_learning_rate(config: dict[str, Any]) -> None:
    found = after_steps(config, FACTORS, 1.0)
    for factor in (0.25, 3.0):
        is_own = torch.eq(FACTORS, factor)
        assert torch.allclose(found[is_own], after_steps(config, None, factor)[is_own], rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("config", CONFIGS)
def test_a_factor_is_one_of_the_learning_rate(config: dict[str, Any]) -> None:
    assert_factors_hold(config)
    assert_factors_are_of_the_learning_rate(config)


@pytest.mark.parametrize("name", TORCH)
def test_a_factor_multiplies_the_steps_of_one_of_torch(name: str) -> None:
    """Which is the same where these are linear in the learning rate. Adafactor's depend on all weights."""
    config = torch_config(name)
    if name == "Adafactor":
        found = after_steps(config, FACTORS, 1.0)
        assert torch.equal(found[FACTORS == 0], gradient(100)[FACTORS == 0])
        assert not torch.isclose(found[FACTORS == 3], after_steps(config, None, 1.0)[FACTORS == 3]).any()
        return
    assert_factors_hold(config)
    if name not in ("ASGD", "Rprop"):
        assert_factors_are_of_the_learning_rate(config)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("config", CONFIGS)
def test_frozen_weights_stay_whatever_their_factor(config: dict[str, Any]) -> None:
    frozen = torch.arange(50) % 2 == 0
    found, free = after_steps(config, FACTORS, 1.0, frozen), after_steps(config, FACTORS, 1.0)
    assert torch.equal(found[frozen], gradient(100)[frozen])
    assert torch.equal(found[~frozen], free[~frozen])


def test_frozen_weights_of_one_of_torch_stay_whatever_their_factor() -> None:
    frozen = torch.arange(50) % 2 == 0
    config = torch_config("RMSprop")
    found, free = after_steps(config, FACTORS, 1.0, frozen), after_steps(config, FACTORS, 1.0)
    assert torch.equal(found[frozen], gradient(100)[frozen])
    assert torch.equal(found[~frozen], free[~frozen])


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        (
            {"critic.*": 0.1, "x": 1.0},
            ["critic.*: expected weights among 'value.0.weight', "],
        ),
        (
            {"value.*": 0.1, "*.weight": 0.5},
            ["*.weight: expected one factor for value.0.weight, got two, by 'value.*' and '*.weight'"],
        ),
    ],
)
def test_patterns_that_match_nothing_or_one_weight_twice_are_told(
    factors: dict[str, float], expected: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        learning_rate_factors(factors, PARTS)
    lines = [f"{item.path}: {item.message}" for item in caught.value.errors]
    assert len(lines) == len(expected)
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True)), lines


@pytest.mark.slow
def test_one_of_torch_steps_inside_a_compiled_function() -> None:
    ends = []
    for is_compiled in (False, True):
        weights = nn.Parameter(gradient(100))
        optimizers = [by_torch("RMSprop", weights), by_torch("Adam", weights)]

        def update(rows: Tensor, weights: Tensor = weights, optimizers: list[Optimizer] = optimizers) -> Tensor:
            for optimizer in optimizers:
                optimizer.step(rows * 2.0 + weights.detach())
            return weights.detach().sum()

        fast, mask = compiled(update, is_compiled), torch.arange(50) < 20
        for step in range(6):
            if step == 3:
                optimizers[0].freeze(mask)
            for optimizer in optimizers:
                optimizer.learning_rate.fill_(0.1 / (step + 1))
            total = fast(gradient(step))
            assert total == pytest.approx(float(weights.detach().sum()), rel=1e-5)
        ends.append(weights.detach())
    assert torch.allclose(ends[0], ends[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        (torch_config("RMSprop", lr=0.1), "arguments.lr", "the key learning_rate sets it"),
        (
            torch_config("RMSprop", foreach=True),
            "arguments.foreach",
            "expected no such key, because it changes nothing",
        ),
        (
            torch_config("RMSprop", alhpa=0.9),
            "arguments.alhpa",
            "unknown argument of torch.optim:RMSprop; did you mean 'alpha'?",
        ),
        (
            {"name": "torch.optim:Rprop", "arguments": {"etas": [0.5, 1.2], "step_sizes": [1e-6, 50]}},
            "arguments.maximize",
            "expected a value (usually false), but the key is missing",
        ),
        (
            torch_config("RMSprop", alpha=-1.0),
            "arguments",
            "expected those of torch.optim:RMSprop, but it raises: Invalid alpha value: -1.0",
        ),
        (torch_config("RMSprop", centered=1), "arguments.centered", "expected bool, got 1"),
        ({"name": "torch.optim:RMSporp", "arguments": {}}, "name", "did you mean 'torch.optim:RMSprop'?"),
        (
            {"name": "torch.optim:LBFGS", "arguments": {}},
            "name",
            "expected one of 'torch.optim:SGD', ",
        ),
        ({"name": "torch.optim:SGD"}, "arguments", "but the key is missing"),
    ],
)
def test_wrong_arguments_of_one_of_torch_are_named(data: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check({"optimizer": data}, Holder)
    [error] = caught.value.errors
    assert error.path == f"optimizer.{path}"
    assert message in error.message
