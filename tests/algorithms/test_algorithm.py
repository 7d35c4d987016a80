"""What all algorithms share: terms of a loss, and what a player that was frozen forgets.

Covers palestra.algorithms.terms.
"""

from typing import Any

import pytest
import torch
from combinations import DQN, OFF_POLICY, SAC, TD3

from palestra.algorithms.dqn import DQNConfig
from palestra.algorithms.off_policy import OffPolicyConfig
from palestra.algorithms.sac import SACConfig
from palestra.algorithms.td3 import TD3Config
from palestra.algorithms.terms import metrics_of, total_loss
from palestra.config import check
from tests.algorithms.probing import ProbeTurn, make_probe, seat


def test_terms_named_loss_add_up_in_their_order_and_keep_their_gradients() -> None:
    x = torch.tensor(3.0, requires_grad=True)
    terms = {"loss_far": x.square(), "q_mean": 100.0 * x, "loss_near": 2.0 * x}
    total = total_loss(terms)
    assert float(total.detach()) == 15.0
    assert torch.autograd.grad(total, x)[0] == 8.0
    large = {"loss_a": torch.tensor(1e8), "loss_b": torch.tensor(-1e8), "loss_c": torch.tensor(1.0)}
    assert total_loss(large) == 1.0
    assert total_loss({name: large[name] for name in ("loss_c", "loss_a", "loss_b")}) == 0.0


def test_all_other_terms_are_recorded_without_their_gradients() -> None:
    x = torch.tensor(3.0, requires_grad=True)
    metrics = metrics_of({"loss_far": x.square(), "q_mean": 100.0 * x, "mean_loss": 2.0 * x})
    assert metrics == {"q_mean": 300.0, "mean_loss": 6.0}
    assert not any(metric.requires_grad for metric in metrics.values())


def test_a_loss_without_such_a_term_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected a loss with at least one term named loss_\*, got \['q_mean'\]"):
        total_loss({"q_mean": torch.tensor(1.0)})


@pytest.mark.parametrize(
    ("keys", "kind"), [(DQN, DQNConfig), (SAC, SACConfig), (TD3, TD3Config), (OFF_POLICY, OffPolicyConfig)]
)
def test_who_was_frozen_forgets_rows_that_wait_for_rewards(keys: dict[str, Any], kind: Any) -> None:
    probe = make_probe("identity", continuous=kind in (SACConfig, TD3Config))
    config: Any = check(keys | {"transitions": {"name": "n_step", "steps": 3}}, kind)
    turn = ProbeTurn(seat(config, probe.spaces["agent"], probe.action_spaces["agent"]), probe)
    turn.run()
    algorithm: Any = turn.player.algorithm
    assert algorithm.transition_builder.waiting["valid"].any()
    algorithm.forget_waiting()
    assert algorithm.state_dict()["transition_builder"]["waiting"] is None
