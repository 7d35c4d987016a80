"""What one reads is what runs: whatever is edited, overridden or replaced is learned, recorded and played, and kernels
step aside; what has nothing to do with them, they do not mind."""

import sys
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor

import palestra
from palestra.algorithms.algorithm import Algorithm
from palestra.algorithms.dqn import DQN
from palestra.algorithms.kernels import choices
from palestra.algorithms.parts import return_distributions
from palestra.algorithms.parts.exploration import EpsilonGreedyConfig
from palestra.algorithms.parts.return_distributions import ExpectedConfig
from palestra.algorithms.ppo import PPO
from palestra.algorithms.sac import SAC
from palestra.algorithms.td3 import TD3
from palestra.nets.mlp import MLP
from palestra.players.player import Metrics
from palestra.runtime import guard
from tests.algorithms.kernels.conftest import RunEdited
from tests.algorithms.kernels.table import KERNELS, VARIANTS
from tests.algorithms.kernels.variants import (
    PRIORITIZED,
    VECTOR,
    Numbers,
    choice_data,
    dqn_batch,
    make_dqn,
)
from tests.forked import ForkedWithoutPalestra
from tests.forked import run as run_process

# ---- the files of hashes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_hashes_are_those_of_the_code_as_it_stands(kernel: guard.Kernel) -> None:
    """If not, `make kernels` compares kernels and methods again, and renews them."""
    (owner, *_) = (variant.make() for variant in VARIANTS if variant.kernel is kernel)
    assert guard.find_edit(kernel, owner) is None


# ---- losses and targets ------------------------------------------------------------------------------------
# An edit is made before or after a DQN is; `learned` tells of one opt step's gradient, metrics and priorities.


prioritized = partial(make_dqn, replay_buffer=PRIORITIZED)


def learned(dqn: Any) -> Numbers:
    gradient, metrics, priorities = dqn.find_gradient(dqn_batch(VECTOR, num=64))
    numbers = {name: torch.as_tensor(value) for name, value in metrics.items()}
    return {"gradient": gradient, "priorities": priorities, **numbers}


def with_new_metric(self: DQN, outputs: Tensor, value_target: Tensor, batch: Any) -> dict[str, Tensor]:
    return STOCK_LOSS(self, outputs, value_target, batch) | {"q_largest": outputs.max()}


def with_penalty(self: DQN, outputs: Tensor, value_target: Tensor, batch: Any) -> dict[str, Tensor]:
    return STOCK_LOSS(self, outputs, value_target, batch) | {"loss_size": 0.1 * outputs.square().mean()}


def halved_for_batches_of_64(self: DQN, outputs: Tensor, value_target: Tensor, batch: Any) -> dict[str, Tensor]:
    terms = STOCK_LOSS(self, outputs, value_target, batch)
    return terms | {"loss_td": terms["loss_td"] / 2} if len(batch.reward) == 64 else terms


def clamped_target(self: DQN, next_outputs: Tensor, choosing_outputs: Tensor, batch: Any) -> Tensor:
    return STOCK_TARGET(self, next_outputs, choosing_outputs, batch).clamp(-0.5, 0.5)


def of_action_doubled(outputs: Tensor, action: Tensor) -> Tensor:
    return 2.0 * return_distributions.of_action(outputs, action)


def doubled_losses(self: ExpectedConfig, outputs: Tensor, target: Tensor, extras: Any) -> Tensor:
    return 2.0 * (outputs - target).square()


def small_priorities(self: DQN, outputs: Tensor, value_target: Tensor, batch: Any) -> Tensor:
    return torch.full_like(batch.reward, 0.1)


STOCK_LOSS, STOCK_TARGET = DQN.loss, DQN.target
LOSSES = {
    "a new metric": ("loss", with_new_metric, {"q_largest"}),
    "an extra term": ("loss", with_penalty, {"gradient", "loss"}),
    "halved for batches of 64": ("loss", halved_for_batches_of_64, {"gradient", "loss"}),
    "clamped targets": ("target", clamped_target, {"gradient", "loss", "td_error", "priorities"}),
    "other priorities": ("priorities", small_priorities, {"priorities"}),
}


def changes(edited: Numbers) -> set[str]:
    """What comes out otherwise than of the stock DQN."""
    stock = learned(prioritized())
    names = stock.keys() | edited.keys()
    return {name for name in names if name not in stock or not torch.allclose(stock[name], edited[name], rtol=1e-3)}


@pytest.mark.parametrize("edit", LOSSES)
@pytest.mark.parametrize("way", ["override", "on the instance", "on the instance, later", "on the class", "the code"])
def test_an_edited_loss_is_learned_and_recorded(edit: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, function, expected = LOSSES[edit]
    if way == "override":
        dqn = prioritized(type("Own", (DQN,), {name: function}))
    elif way.startswith("on the instance"):
        dqn = prioritized()
        if way.endswith("later"):
            assert dqn.gradient_kernel is not None
        setattr(dqn, name, function.__get__(dqn))
        dqn.begin_run()
    elif way == "on the class":
        monkeypatch.setattr(DQN, name, function)
        dqn = prioritized()
    else:
        original = FunctionType(getattr(DQN, name).__code__, DQN.loss.__globals__)
        for stock in ("STOCK_LOSS", "STOCK_TARGET"):
            monkeypatch.setitem(DQN.loss.__globals__, stock, original)
        monkeypatch.setattr(getattr(DQN, name), "__code__", function.__code__)
        dqn = prioritized()
    found = learned(dqn)
    assert dqn.gradient_kernel is None
    monkeypatch.undo()
    assert changes(found) == expected


PARTS: dict[str, tuple[Any, str, Any, set[str]]] = {
    "what the loss calls": (ExpectedConfig, "losses", doubled_losses, {"gradient", "loss"}),
    "a function by its name": (palestra.algorithms.dqn, "of_action", of_action_doubled, {"gradient", "loss", "q_mean"}),
    "a function of torch by its name": (
        return_distributions,
        "huber_loss",
        lambda outputs, target, **_: (outputs - target).abs(),
        {"gradient", "loss"},
    ),
    "the network": (
        MLP,
        "forward",
        lambda self, seen: self.layers(seen["seen"]).tanh(),
        {"gradient", "loss", "q_mean"},
    ),
}


@pytest.mark.parametrize("part", PARTS)
def test_an_edit_of_what_a_loss_calls_is_learned_and_recorded(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, function, expected = PARTS[part]
    monkeypatch.setattr(owner, name, function)
    dqn = prioritized()
    found = learned(dqn)
    assert dqn.gradient_kernel is None
    monkeypatch.undo()
    assert changes(found) >= expected


def test_a_wrapper_that_looks_like_the_method_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    @wraps(STOCK_LOSS)
    def loss(*arguments: Any) -> dict[str, Tensor]:
        return STOCK_LOSS(*arguments) | {"again": torch.zeros(())}

    monkeypatch.setattr(DQN, "loss", loss)
    dqn = prioritized()
    assert dqn.gradient_kernel is None
    assert "again" in learned(dqn)


def test_code_without_a_source_is_no_stock_code(monkeypatch: pytest.MonkeyPatch) -> None:
    room: dict[str, Any] = {}
    exec("def loss(self, outputs, value_target, batch): return {'loss_td': outputs.sum()}", room)
    monkeypatch.setattr(DQN, "loss", room["loss"])
    assert prioritized().gradient_kernel is None


def test_autograd_runs_where_the_config_says_so() -> None:
    dqn = prioritized(by_hand=False)
    assert (dqn.gradient_kernel, dqn.online.learning_nets, dqn.begin_run()) == (None, None, [])
    assert changes(learned(dqn)) == set()


def test_what_has_nothing_to_do_with_the_loss_leaves_the_kernel_alone() -> None:
    class Own(DQN):
        def opt_step(self, rows: Any) -> Metrics:
            return {**super().opt_step(rows), "mine": 1.0}

        def help(self) -> None: ...

    dqn = prioritized(Own)
    dqn.note = "mine"
    assert dqn.gradient_kernel is not None
    assert dqn.acting_kernel is choices.choose_greedily
    assert dqn.begin_run() == []


# ---- acting ------------------------------------------------------------------------------------------------


def contrary_choice(self: EpsilonGreedyConfig, q: Tensor, legal: Tensor, keys: Tensor, epsilon: float) -> Tensor:
    return q.masked_fill(~legal, torch.inf).argmin(dim=1)


def contrary_values(self: DQN, observation: Any) -> Tensor:
    return -self.q_values(self.act_fast(observation))


def contrary_q_values(self: DQN, net_outputs: Tensor) -> Tensor:
    return -net_outputs


CHOICES: dict[str, tuple[Any, str, Callable[..., Tensor]]] = {
    "choose": (EpsilonGreedyConfig, "choose", contrary_choice),
    "values": (DQN, "values", contrary_values),
    "q_values": (DQN, "q_values", contrary_q_values),
}


def played(dqn: Any) -> Tensor:
    action: Tensor = dqn.policy(explore=False).act(*choice_data(VECTOR), {}).action
    return action


@pytest.mark.parametrize("edit", CHOICES)
def test_an_edited_choice_is_played(edit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least legal value, in place of the largest."""
    owner, name, function = CHOICES[edit]
    seen, legal, _ = choice_data(VECTOR)
    q = prioritized().online.net(seen)
    expected = q.masked_fill(~legal, torch.inf).argmin(dim=1)
    decided = legal.any(dim=1)
    if owner is DQN:
        own, changed = prioritized(type("Own", (DQN,), {name: function})), prioritized()
        setattr(changed, name, function.__get__(changed))
        for dqn in (own, changed):
            assert torch.equal(played(dqn)[decided], expected[decided])
            assert dqn.acting_kernel is choices.choose_greedily  # chooses by the new values
    monkeypatch.setattr(owner, name, function)
    assert torch.equal(played(prioritized())[decided], expected[decided])


# ---- what a run says of it ---------------------------------------------------------------------------------


def test_the_line_names_what_was_edited_where_and_what_it_costs() -> None:
    dqn = prioritized(type("Own", (DQN,), {"loss": with_penalty}))
    (line,) = dqn.begin_run()
    number = with_penalty.__code__.co_firstlineno
    assert line == (
        f"Own.loss differs from palestra's (test_edits.py, line {number}): autograd finds the gradients, and DQN in "
        "CartPole-v1 takes 1.4 to 1.8 times as long"
    )
    assert dqn.kernels_in_use() == {"gradient_kernel": "torch", "acting_kernel": "by hand"}


# ---- edits of a file ---------------------------------------------------------------------------------------

FILES: dict[str, tuple[str, str, str, str]] = {
    "a new metric": ("algorithms/dqn.py", '"q_mean":', '"q_largest": outputs.max(), "q_mean":', "gradient"),
    "an extra term": (
        "algorithms/dqn.py",
        '"q_mean":',
        '"loss_q": 1e-3 * outputs.square().mean(), "q_mean":',
        "gradient",
    ),
    "the head": (
        "algorithms/parts/return_distributions.py",
        "return outputs - target",
        "return target - outputs",
        "gradient",
    ),
    "the choice": (
        "algorithms/parts/exploration.py",
        "1).squeeze(1) < epsilon",
        "1).squeeze(1) < epsilon / 2",
        "acting",
    ),
    "the network": ("nets/mlp.py", "return self.layers(flatten", "return 2 * self.layers(flatten", "gradient"),
    "a constant": ("nets/activations.py", "FUNCTION_FROM = 8192", "FUNCTION_FROM = 4096", "gradient"),
}
CHILD = """
from tests.algorithms.kernels.variants import make_dqn
print(*(name.removesuffix("_kernel") for name, way in make_dqn().kernels_in_use().items() if way == "torch"), sep=" ")
"""


@pytest.mark.parametrize("edit", FILES)
def test_an_edited_file_is_what_runs(edit: str, run_edited: RunEdited) -> None:
    file, old, new, expected = FILES[edit]
    assert run_edited(file, old, new, CHILD)[0].split() == expected.split()


SAME = {
    "algorithms/dqn.py": {
        "value, taken = self.config.value, of_action(": "# mine\n        value, taken = self.config.value, of_action(",
        "Return the terms of the loss by name": "Return my terms of the loss by name",
        "outputs: Tensor, value_target: Tensor, batch: Transitions) -> dict[str, Tensor]": (
            'outputs: Any, value_target, batch: "Mine")'
        ),
        "losses = value.losses(": "each: Tensor = value.losses(",
        "losses = losses *": "each = (\n                each\n            ) *",
        "losses.mean()": "each.mean(\n                # mine\n            )",
    },
    "algorithms/ppo.py": {
        "# of one row: never": "# mine: never",
        "Return the terms of a minibatch's loss": "My terms of a minibatch's loss",
        "clip_range: Number,\n        kl_coefficient: Number,": 'clip_range: "Mine",\n        kl_coefficient: Any,',
        "ratio = log_ratio.exp()": "quotient: Tensor = (log_ratio\n            .exp())",
        "kl = ratio -": "kl = quotient -",
        "clipped_ratio = ratio": "clipped_ratio = quotient",
        "surrogate = ratio": "surrogate = quotient",
        "torch.minimum(ratio": "torch.minimum(quotient",
        "(ratio !=": "(quotient !=",
    },
    # what the losses call
    "algorithms/parts/return_distributions.py": {"return outputs - target": "return (outputs - target)  # mine"},
    "nets/mlp.py": {"return self.layers(flatten": "# mine\n        return self.layers(flatten"},
}


def test_what_means_the_same_runs_by_hand(copied: Path) -> None:
    """Comments, docstrings, annotations, formatting and names of variables, in losses and what they call."""
    before = {file: (copied / "palestra" / file).read_text() for file in SAME}
    try:
        for file, text in before.items():
            for old, new in SAME[file].items():
                assert old in text
                text = text.replace(old, new)
            (copied / "palestra" / file).write_text(text)
        program = CHILD.replace("make_dqn()", "make()").replace("print(", "for make in (make_dqn, make_ppo): print(")
        program = f"from tests.algorithms.kernels.ppo_variants import make_ppo{program}print(PPO.loss.__doc__[:8])"
        program = f"from palestra.algorithms.ppo import PPO\n{program}"
        command = [sys.executable, "-B", "-c", program]
        ran = run_process(command, start=ForkedWithoutPalestra, cwd=copied, capture_output=True, text=True, check=True)
    finally:
        for file, text in before.items():
            (copied / "palestra" / file).write_text(text)
    assert ran.stdout.split() == ["My", "terms"]


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [(DQN, ["acting", "gradient"]), (PPO, ["draw", "advantages", "gradient"]), (SAC, []), (TD3, [])],
)
def test_the_names_of_kernel_properties_say_what_a_checkpoint_stores(
    algorithm: type[Algorithm], expected: list[str]
) -> None:
    kernels = [name for name in guard.kernel_properties(algorithm) if name.endswith("_kernel")]
    assert kernels == [f"{name}_kernel" for name in expected]
