"""What one reads of PPO is what runs: whatever is edited, overridden or replaced in its loss, its distributions and its
draws is learned, recorded and played, and the kernel steps aside.

Covers palestra.algorithms.parts.action_heads, palestra.algorithms.parts.actor_critic,
palestra.algorithms.parts.advantages, palestra.algorithms.parts.passes, palestra.algorithms.parts.playing.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

import palestra
from palestra.algorithms.parts.action_heads import DiscreteHead
from palestra.algorithms.parts.advantages import Experience, Sequences, generalized_advantages
from palestra.algorithms.parts.distributions import Categorical, CategoricalDistribution
from palestra.algorithms.ppo import PPO
from palestra.randomness import fold
from tests.algorithms.kernels.conftest import RunEdited
from tests.algorithms.kernels.ppo_variants import make_ppo, ppo_data, ppo_numbers, sequences_of
from tests.algorithms.kernels.variants import VECTOR, Numbers
from tests.nets.making import random_observations

STOCK_LOSS, STOCK_DRAW = PPO.loss, DiscreteHead.draw
Terms = dict[str, Tensor]


def own_ppo(cls: type[PPO] = PPO) -> PPO:
    return make_ppo(cls, normalize_advantages=False)


def learned(ppo: Any) -> Numbers:
    """One opt step's gradient and metrics, on a minibatch that is the same for all."""
    experience, index = ppo_data(ppo)
    arrays = None if ppo.gradient_kernel is None else ppo.gradient_kernel.read(experience)
    gradient, metrics = ppo.find_gradient(experience, index, ppo_numbers(ppo), arrays)
    return {"gradient": gradient.clone(), **{name: torch.as_tensor(value) for name, value in metrics.items()}}


def changes(edited: Numbers) -> set[str]:
    """What comes out otherwise than of the stock PPO."""
    stock = learned(own_ppo())
    names = stock.keys() | edited.keys()
    return {
        name
        for name in names
        if name not in stock or not torch.allclose(stock[name].float(), edited[name].float(), rtol=1e-3, atol=1e-5)
    }


# ---- the loss --------------------------------------------------------------------------------------------------


def with_penalty_beyond_3(self: PPO, distribution: Any, value: Tensor, batch: Experience, **numbers: Any) -> Terms:
    terms = STOCK_LOSS(self, distribution, value, batch, **numbers)
    ratio = (distribution.log_prob(batch.action) - batch.log_prob).exp()
    return terms | {"loss_far": batch.mean((ratio - 3.0).relu())}


def with_clamped_advantages(self: PPO, distribution: Any, value: Tensor, batch: Experience, **numbers: Any) -> Terms:
    batch = batch._replace(advantage=batch.advantage.clamp(-5.0, 5.0))
    return STOCK_LOSS(self, distribution, value, batch, **numbers)


def with_new_metric(self: PPO, distribution: Any, value: Tensor, batch: Experience, **numbers: Any) -> Terms:
    return STOCK_LOSS(self, distribution, value, batch, **numbers) | {"value_largest": value.max()}


def with_extra_term(self: PPO, distribution: Any, value: Tensor, batch: Experience, **numbers: Any) -> Terms:
    return STOCK_LOSS(self, distribution, value, batch, **numbers) | {"loss_size": batch.mean(value.square())}


def with_other_entropy(self: PPO, distribution: Any, value: Tensor, batch: Experience, **numbers: Any) -> Terms:
    terms = STOCK_LOSS(self, distribution, value, batch, **numbers)
    return terms | {"loss_entropy": -0.5 * batch.mean(distribution.entropy().sqrt())}


LOSSES = {
    "a penalty beyond ratio 3": (with_penalty_beyond_3, {"gradient", "loss"}),
    "clamped advantages": (with_clamped_advantages, {"gradient", "loss", "policy_loss"}),
    "a new metric": (with_new_metric, {"value_largest"}),
    "an extra term": (with_extra_term, {"gradient", "loss"}),
    "another entropy": (with_other_entropy, {"gradient", "loss"}),
}


@pytest.mark.parametrize("edit", LOSSES)
@pytest.mark.parametrize("way", ["override", "on the instance", "on the instance, later", "on the class"])
def test_an_edited_loss_is_learned_and_recorded(edit: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loss, expected = LOSSES[edit]
    if way == "override":
        ppo: Any = own_ppo(type("Own", (PPO,), {"loss": loss}))
    elif way == "on the class":
        monkeypatch.setattr(PPO, "loss", loss)
        ppo = own_ppo()
    else:
        ppo = own_ppo()
        if way.endswith("later"):
            assert ppo.gradient_kernel is not None
        ppo.loss = loss.__get__(ppo)
        ppo.begin_run()
    found = learned(ppo)
    assert ppo.gradient_kernel is None
    monkeypatch.undo()
    assert changes(found) == expected


def doubled_entropy(self: CategoricalDistribution) -> Tensor:
    return -2.0 * (self.log_probs[0].exp() * self.log_probs[0]).sum(dim=1)


def uniform_log_prob(self: CategoricalDistribution, action: Tensor) -> Tensor:
    return self.log_probs[0].mean(dim=1)


def unweighted(self: Experience, normalize_advantages: bool) -> Experience:
    return self._replace(weight=torch.ones_like(self.weight) / len(self.weight))


PARTS: dict[str, tuple[Any, str, Any, set[str]]] = {
    "the entropy": (CategoricalDistribution, "entropy", doubled_entropy, {"gradient", "loss", "entropy"}),
    "the log-probability": (CategoricalDistribution, "log_prob", uniform_log_prob, {"gradient", "approx_kl"}),
    "the weights": (Experience, "normalized", unweighted, {"gradient", "value_loss"}),
}


@pytest.mark.parametrize("part", PARTS)
def test_an_edit_of_what_the_loss_calls_is_learned_and_recorded(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, function, expected = PARTS[part]
    monkeypatch.setattr(owner, name, function)
    ppo = own_ppo()
    found = learned(ppo)
    assert ppo.gradient_kernel is None
    monkeypatch.undo()
    assert changes(found) >= expected


def test_what_has_nothing_to_do_with_the_loss_leaves_the_kernel_alone() -> None:
    class Own(PPO):
        def compute_advantages(self, sequences: Sequences) -> tuple[Tensor, Tensor]:
            advantage, value_target = super().compute_advantages(sequences)
            return advantage.clamp(-5.0, 5.0), value_target

    ppo = own_ppo(Own)
    assert ppo.kernels_in_use() == {
        "gradient_kernel": "by hand",
        "advantages_kernel": "torch",
        "draw_kernel": "by hand",
    }
    (line,) = ppo.begin_run()
    assert line.startswith("Own.compute_advantages differs from palestra's")


def test_autograd_runs_where_the_config_says_so() -> None:
    ppo = make_ppo(by_hand=False, normalize_advantages=False)
    assert (ppo.gradient_kernel, ppo.advantages_kernel, ppo.begin_run()) == (None, None, [])
    assert changes(learned(ppo)) == set()


def test_the_line_names_what_was_edited_and_what_it_costs() -> None:
    (line,) = own_ppo(type("Own", (PPO,), {"loss": with_extra_term})).begin_run()
    number = with_extra_term.__code__.co_firstlineno
    assert line.startswith(
        f"Own.loss differs from palestra's (test_ppo_edits.py, line {number}): autograd finds the gradients"
    )


# ---- the advantages --------------------------------------------------------------------------------------------


def doubled_advantages(self: PPO, sequences: Sequences) -> tuple[Tensor, Tensor]:
    advantage = 2.0 * generalized_advantages(sequences, self.config.gamma, self.config.gae_lambda)
    return advantage, advantage + sequences.value


def doubled_sums(sequences: Sequences, gamma: float, gae_lambda: float) -> Tensor:
    return 2.0 * generalized_advantages(sequences, gamma, gae_lambda)


@pytest.mark.parametrize("way", ["override", "on the instance, later", "on the class", "what it calls"])
def test_edited_advantages_are_learned(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = sequences_of(20, 6)
    stock, _ = own_ppo().find_advantages(sequences)
    if way == "override":
        ppo: Any = own_ppo(type("Own", (PPO,), {"compute_advantages": doubled_advantages}))
    elif way == "on the instance, later":
        ppo = own_ppo()
        assert ppo.advantages_kernel is not None
        ppo.compute_advantages = doubled_advantages.__get__(ppo)
        ppo.begin_run()
    elif way == "on the class":
        monkeypatch.setattr(PPO, "compute_advantages", doubled_advantages)
        ppo = own_ppo()
    else:
        monkeypatch.setattr(palestra.algorithms.ppo, "generalized_advantages", doubled_sums)
        ppo = own_ppo()
    advantage, value_target = ppo.find_advantages(sequences)
    assert ppo.advantages_kernel is None
    assert torch.allclose(advantage, 2.0 * stock, atol=1e-5)
    assert torch.equal(value_target, advantage + sequences.value)


# ---- the draw --------------------------------------------------------------------------------------------------


def last_action(self: DiscreteHead, outputs: Tensor, legal: Tensor, keys: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    action, extras = STOCK_DRAW(self, outputs, legal, keys)
    return torch.full_like(action, 2), extras


def last_sample(self: Categorical, logits: Tensor, legal: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    return torch.full((len(logits),), 2), torch.zeros(len(logits))


DRAWS: dict[str, tuple[Any, str, Any]] = {
    "the head": (DiscreteHead, "draw", last_action),
    "the distribution": (Categorical, "sample", last_sample),
}


@pytest.mark.parametrize("edit", DRAWS)
def test_an_edited_draw_is_played(edit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, function = DRAWS[edit]
    keys = fold(torch.arange(300), 7)
    data = random_observations(VECTOR, keys), torch.ones(300, 3, dtype=torch.bool), keys
    assert own_ppo().policy(explore=True).act(*data, {}).action.unique().tolist() == [0, 1, 2]
    monkeypatch.setattr(owner, name, function)
    ppo = own_ppo()
    assert ppo.policy(explore=True).act(*data, {}).action.unique().tolist() == [2]
    assert ppo.kernels_in_use()["draw_kernel"] == "torch"
    assert "torch draws the actions" in ppo.begin_run()[0]


def test_a_head_whose_draw_was_assigned_is_what_draws() -> None:
    keys = fold(torch.arange(300), 7)
    data = random_observations(VECTOR, keys), torch.ones(300, 3, dtype=torch.bool), keys
    ppo: Any = own_ppo()
    assert ppo.draw_kernel is not None
    ppo.net.head.draw = last_action.__get__(ppo.net.head)
    ppo.begin_run()
    assert ppo.policy(explore=True).act(*data, {}).action.unique().tolist() == [2]


# ---- edits of a file -------------------------------------------------------------------------------------------

ADDED = '"value_mean": batch.mean(value),'
FILES: dict[str, tuple[str, str, str, str]] = {
    "a new metric": ("algorithms/ppo.py", ADDED, f'{ADDED} "value_largest": value.max(),', "gradient"),
    "an extra term": ("algorithms/ppo.py", ADDED, f'{ADDED} "loss_size": batch.mean(value.square()),', "gradient"),
    "clamped advantages": (
        "algorithms/ppo.py",
        "surrogate = torch.minimum(ratio * batch.advantage,",
        "surrogate = torch.minimum(ratio * batch.advantage.clamp(-5.0, 5.0),",
        "gradient",
    ),
    "the normalization": ("algorithms/parts/advantages.py", ".sqrt() + 1e-8)", ".sqrt() + 1e-2)", "gradient"),
    "the distribution": (
        "algorithms/parts/distributions.py",
        "return -_total([(part.exp() * part)",
        "return -2.0 * _total([(part.exp() * part)",
        "gradient",
    ),
    "the advantages": (
        "algorithms/parts/advantages.py",
        "later + gae_lambda * ahead",
        "later + ahead",
        "advantages",
    ),
    "the target of the value": (
        "algorithms/ppo.py",
        "return advantage, advantage + sequences.value",
        "return advantage, 2.0 * advantage + sequences.value",
        "advantages",
    ),
    "the draw": (
        "algorithms/parts/distributions.py",
        "uniforms = random_floats(keys, len(self.nums))",
        "uniforms = random_floats(keys, len(self.nums)).square()",
        "draw",
    ),
    "the network": ("nets/mlp.py", "return self.layers(flatten", "return 2 * self.layers(flatten", "gradient"),
}
CHILD = """
from tests.algorithms.kernels.ppo_variants import make_ppo
print(*(name.removesuffix("_kernel") for name, way in make_ppo().kernels_in_use().items() if way == "torch"))
"""


@pytest.mark.parametrize("edit", FILES)
def test_an_edited_file_is_what_runs(edit: str, run_edited: RunEdited) -> None:
    file, old, new, expected = FILES[edit]
    assert set(run_edited(file, old, new, CHILD)[0].split()) == set(expected.split())
