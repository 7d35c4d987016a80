"""TD3+BC: the policy's loss is that of the paper; without its term it is TD3; without values it clones."""

from typing import Any

import pytest
import torch
from torch import Tensor

from palestra.algorithms.td3 import TD3
from palestra.algorithms.td3_bc import TD3BC, TD3BCConfig
from palestra.config import check
from tests.algorithms.probing import seat
from tests.algorithms.test_td3 import BASE, BOX, CENTER, HALF_WIDTH, SPACES, batch_of, make_td3, rate


def make_td3_bc(alpha: float, **changes: Any) -> TD3BC:
    made: TD3BC = seat(check(BASE | {"name": "td3_bc", "alpha": alpha} | changes, TD3BCConfig), SPACES, BOX)
    return made


def values_of(td3: TD3, actions: Tensor, observation: dict[str, Tensor]) -> Tensor:
    return td3.frozen_critic(observation | {"action": actions})[:, 0]


def test_the_policys_loss_is_that_of_the_paper() -> None:
    td3_bc, batch = make_td3_bc(2.5), batch_of(32)
    gradient, metrics = td3_bc.policy_gradient(batch)
    actions = torch.tanh(td3_bc.policy_net(batch.observation))
    q_values = values_of(td3_bc, actions, batch.observation)
    distance = (actions - (batch.action - CENTER) / HALF_WIDTH).square().mean()
    loss = distance - 2.5 * q_values.mean() / q_values.abs().mean().detach()
    torch.testing.assert_close(gradient, td3_bc.policy_net.gradient(loss), rtol=1e-5, atol=1e-6)
    assert float(metrics["policy_loss"]) == pytest.approx(float(loss.detach()))
    assert float(metrics["distance"]) == pytest.approx(float(distance.detach()))


def test_without_the_term_it_makes_the_opt_steps_of_td3(monkeypatch: pytest.MonkeyPatch) -> None:
    """The actions taken are the policy's own, so that their distance has no gradient, and alpha undoes the scale."""
    td3, batch, sizes = make_td3(policy_interval=1), batch_of(32), []
    with torch.no_grad():
        batch.action = CENTER + HALF_WIDTH * torch.tanh(td3.policy_net(batch.observation))
    loss = td3.policy_loss

    def watched(q_values: Tensor, *others: Any) -> dict[str, Tensor]:
        sizes.append(float(q_values.detach().abs().mean()))
        return loss(q_values, *others)

    monkeypatch.setattr(td3, "policy_loss", watched)
    td3.opt_step(batch.rows())
    td3_bc = make_td3_bc(sizes[0], policy_interval=1)
    before = td3_bc.policy_net.weights.clone()
    td3_bc.opt_step(batch.rows())
    assert not torch.allclose(td3_bc.policy_net.weights, before, atol=1e-3)
    torch.testing.assert_close(td3_bc.policy_net.weights, td3.policy_net.weights, rtol=0.0, atol=1e-6)
    torch.testing.assert_close(td3_bc.critics.weights, td3.critics.weights, rtol=0.0, atol=1e-6)
    torch.testing.assert_close(td3_bc.target_policy.weights, td3.target_policy.weights, rtol=0.0, atol=1e-6)


def test_with_little_weight_on_values_the_policy_takes_the_actions_of_the_data() -> None:
    td3_bc, batch = make_td3_bc(1e-6, policy_learning_rate=rate(0.02, 300), policy_interval=1), batch_of(64)
    batch.action = CENTER + HALF_WIDTH * torch.tanh(batch.observation["seen"][:, :2] - 0.3)
    for _ in range(300):
        td3_bc.opt_step(batch.rows())
        td3_bc.player.opt_steps += 1
    actions = td3_bc.half_widths.inverse(torch.tanh(td3_bc.policy_net(batch.observation)))
    assert float(((actions - batch.action) / HALF_WIDTH).abs().mean().detach()) < 0.05
