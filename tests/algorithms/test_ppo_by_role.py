"""PPO of a player in several roles: advantages are scaled and losses recorded role by role; the loss is the mean over
all rows."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import palestra
from palestra.algorithms.parts.advantages import Experience
from palestra.algorithms.ppo import PPO
from palestra.algorithms.terms import join_terms
from palestra.storage.records_file import read_records
from tests.algorithms.test_ppo import ACTIONS, METRICS, opt_step, plain_loss, prepared, ready_transitions
from tests.algorithms.test_ppo_recurrent import GAMES, LSTM, Play, make_ppo, shared
from tests.combinations import config_of

ROLES = ("first", "second")
BY_ROLE = METRICS | {f"{name}/{role}" for name in METRICS - {"grad_norm"} for role in ROLES}


def in_two_roles(actions: str, setting: str) -> Any:
    """As `prepared`, of a player that moves twice in one role and once in the other, whose rewards are of other
    sizes."""
    ppo = prepared(actions, setting)
    ppo.player.roles, ppo.player.moves = ROLES, ("second", "first", "second")
    batch = ready_transitions(ppo, num_worlds=30)
    batch.reward[: len(batch.reward) // 3] *= 10.0
    ppo.prepare(batch)
    return ppo


@pytest.mark.parametrize("setting", ["as it is", "no kernel", "plain advantages", "shared body"])
@pytest.mark.parametrize("actions", ACTIONS)
def test_the_loss_is_that_of_each_roles_rows_by_their_share(actions: str, setting: str) -> None:
    ppo = in_two_roles(actions, setting)
    assert (ppo.gradient_kernel is None) == (setting == "no kernel")
    index = torch.arange(400)
    batch = ppo.passes.experience.minibatch(index)
    net = copy.deepcopy(ppo.net)
    losses, numbers = [], []
    for place in range(2):
        is_own = (batch.role == place) & (batch.weight > 0)
        rows = batch._replace(weight=is_own.float())
        losses.append(plain_loss(ppo, rows, net, 0.2, 0.01))
        numbers.append(int(is_own.sum()))
    loss = (losses[0] * numbers[0] + losses[1] * numbers[1]) / sum(numbers)
    expected = torch.cat([x.flatten() for x in torch.autograd.grad(loss, list(net.parameters()))])
    arrays = None if ppo.gradient_kernel is None else ppo.gradient_kernel.read(ppo.passes.experience)
    gradient, metrics = ppo.find_gradient(ppo.passes.experience, index, (0.2, 0.0, 0.01), arrays)
    assert torch.allclose(gradient, expected, rtol=1e-3, atol=2e-5)
    assert metrics.keys() == BY_ROLE - {"grad_norm"}
    assert float(metrics["loss"]) == pytest.approx(loss.item(), rel=1e-3, abs=1e-5)
    for role, of_role in zip(ROLES, losses, strict=True):
        assert float(metrics[f"loss/{role}"]) == pytest.approx(of_role.item(), rel=1e-3, abs=1e-5)
    for name in METRICS - {"grad_norm"}:
        mean = sum(float(metrics[f"{name}/{role}"]) * num for role, num in zip(ROLES, numbers, strict=True))
        assert float(metrics[name]) == pytest.approx(mean / sum(numbers), rel=1e-3, abs=1e-5), name
    assert float(metrics["value_loss/first"]) != pytest.approx(float(metrics["value_loss/second"]), rel=0.01)


@pytest.mark.parametrize("setting", ["as it is", "no kernel"])
def test_a_role_without_rows_in_a_minibatch_changes_nothing(setting: str) -> None:
    ppo, alone = in_two_roles("discrete", setting), in_two_roles("discrete", setting)
    index = (ppo.passes.experience.role == 1).nonzero().flatten()
    alone.player.roles = ("first",)
    alone.passes.experience = alone.passes.experience._replace(role=torch.zeros_like(alone.passes.experience.role))
    vars(alone).pop("gradient_kernel", None)
    found, expected = (opt_step(each, each.passes.experience, index, 0) for each in (ppo, alone))
    assert expected == pytest.approx({name: found[name] for name in expected}, rel=1e-4, abs=1e-6)
    assert all(found[f"{name}/first"] == 0.0 for name in METRICS - {"grad_norm"})
    assert torch.allclose(ppo.weights, alone.weights, atol=1e-6)


def some_rows(num: int, num_roles: int, seed: int) -> Experience:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(4, num, generator=generator)
    role = torch.randint(num_roles, (num,), generator=generator)
    start, none = torch.zeros(1, num, dtype=torch.bool), torch.zeros(num, 0)
    advantage = numbers[0] * (1.0 + 5.0 * role) + role
    weight = (torch.rand(num, generator=generator) < 0.8).float()
    return Experience({}, {}, start, none, none, *numbers[1:3], advantage, numbers[3], weight, role)


@given(st.integers(2, 40), st.integers(2, 4), st.integers(0, 1000))
def test_the_advantages_of_each_role_have_mean_0_and_deviation_1(num: int, num_roles: int, seed: int) -> None:
    experience = some_rows(num, num_roles, seed)
    for place, rows in enumerate(experience.by_role([str(k) for k in range(num_roles)]).values()):
        own = (experience.role == place) & (experience.weight > 0)
        scaled = rows.normalized(normalize_advantages=True).advantage[own].double()
        if len(scaled) > 1:
            assert float(scaled.mean()) == pytest.approx(0.0, abs=1e-4)
            assert float(scaled.std(unbiased=False)) == pytest.approx(1.0, abs=1e-3)


def test_one_role_is_learned_from_as_it_is() -> None:
    """To the bit: the very rows and terms."""
    experience = some_rows(9, 1, 0)
    assert experience.by_role(["agent"])["agent"] is experience
    terms: dict[str, Tensor] = {"loss_a": torch.tensor(0.1), "b": torch.tensor(0.7)}
    joined = join_terms({"agent": terms}, {"agent": experience.weight})
    assert list(joined) == ["loss_a", "b"]
    assert all(joined[name] is term for name, term in terms.items())


class WithTerms(PPO):
    """With a term of the user's own that is no mean, and one that is recorded."""

    def loss(self, distribution: Any, value: Tensor, batch: Experience, **numbers: Any) -> dict[str, Tensor]:
        terms = super().loss(distribution, value, batch, **numbers)
        return terms | {"loss_num": 0.0 * value.sum() + (batch.weight > 0).sum(), "largest": value.max()}


def test_terms_of_ones_own_are_joined_and_recorded_by_role() -> None:
    ppo = prepared("discrete", "as it is", make=WithTerms)
    ppo.player.roles, ppo.player.moves = ROLES, ("second", "first", "second")
    ppo.prepare(ready_transitions(ppo, num_worlds=30))
    batch = ppo.passes.experience.minibatch(torch.arange(200))
    nums = [int(((batch.role == place) & (batch.weight > 0)).sum()) for place in range(2)]
    stock = prepared("discrete", "as it is")
    stock.player.roles = ROLES
    _, metrics = ppo.gradient(batch, *torch.tensor([0.2, 0.0, 0.01]))
    _, expected = stock.gradient(batch, *torch.tensor([0.2, 0.0, 0.01]))
    more = (nums[0] ** 2 + nums[1] ** 2) / sum(nums)
    assert float(metrics["loss"] - expected["loss"]) == pytest.approx(more, rel=1e-3)
    assert float(metrics["loss/first"] - expected["loss/first"]) == pytest.approx(nums[0], rel=1e-3)
    assert {"largest", "largest/first", "largest/second"} <= metrics.keys()
    assert "loss_num" not in metrics


def test_every_sequence_is_of_one_role() -> None:
    game = GAMES["two seats"]
    ppo = make_ppo(game, body=shared(LSTM))
    play = Play(ppo, game)
    ppo.prepare(play.collect())
    experience = ppo.passes.experience
    assert experience is not None
    roles = experience.role.view(experience.episode_start.shape)
    assert (roles == roles[0]).all()
    assert roles[0].bincount().tolist() == [5, 5]


@pytest.mark.parametrize(("game", "is_by_role"), [("nim", True), ("harvest", True), ("classic control", False)])
def test_records_say_it_by_role_where_there_are_several(game: str, is_by_role: bool, tmp_path: Path) -> None:
    combination = {"game": game, "actions": "discrete", "objective": "clip", "body": "separate"}
    trainer = palestra.make_trainer(config_of("ppo", combination), run=tmp_path / "run")
    trainer.fit()
    records = read_records(tmp_path / "run/records.jsonl")
    several = {player.name: player.roles for player in trainer.learners if len(player.roles) > 1}
    assert bool(several) == is_by_role
    for name in trainer.players:
        found = {each for record in records for each in record.get("players", {}).get(name, ()) if "/" in each}
        terms = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "value_mean")
        assert found == {f"{term}/{role}" for term in terms for role in several.get(name, ())}
