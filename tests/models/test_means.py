"""A learner takes the mean of a gradient over replicas, here over its own and one that a test makes up."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from palestra.config import check
from palestra.models.learning import Learner, LearningConfig
from palestra.models.model import Model, Terms
from palestra.scaling.means import Share, mean_of

SGD = {"name": "sgd", "momentum": 0.0, "weight_decay": 0.1}
GROUP = {"weights": "*", "optimizer": SGD, "learning_rate": {"name": "constant", "value": 1.0}}


class Net(Model):
    """Three weights, of which a batch reaches the first one alone."""

    def __init__(self) -> None:
        super().__init__({})
        self.first = nn.Parameter(torch.ones(2))
        self.second = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.third = nn.Parameter(torch.ones(1))

    def forward(self, batch: Tensor) -> Tensor:
        return batch * self.first

    def loss(self, outputs: Tensor, batch: Tensor) -> Terms:
        return {"loss_sum": outputs.sum(dim=1)}


def learner_beside(other: list[float], weight: float, **keys: Any) -> Learner:
    """Make a learner whose other replica has this gradient, of (first, third, second), and which weights it reaches."""
    said = {"order": None, "batch_size": None, "last_batch": None, "seeding": None, "num_microbatches": 1}
    said |= {"groups": [GROUP], "max_grad_norm": None, "ema": None, "precision": "float32"} | keys
    learner = Learner(Net(), check(said, LearningConfig))

    def mean(
        gradient: Tensor, metrics: Mapping[str, Any], weight_of_own: Tensor | float | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        torch.rand(3)  # as another replica does meanwhile
        own = Share(gradient, metrics, weight_of_own)
        return mean_of([own, Share(torch.tensor(other, dtype=gradient.dtype), metrics, weight)])

    learner.mean, learner.num_items = mean, 4
    return learner


def test_a_weight_that_is_reached_in_another_replica_steps_and_one_that_is_reached_in_none_stays() -> None:
    learner = learner_beside([1.0, 2.0, 0.0, 6.0, 6.0, 6.0, 1.0, 0.0, 1.0], weight=12.0)
    learner.opt_step(torch.tensor([[5.0, 8.0]] * 4))
    model = learner.model
    assert model.first.tolist() == pytest.approx([1 - 2.0 - 0.1, 1 - 3.5 - 0.1])  # type: ignore[union-attr, operator]
    assert model.second.tolist() == pytest.approx([1 - 4.5 - 0.1] * 3)  # type: ignore[union-attr, operator]
    assert model.second.dtype == torch.float64
    assert model.third.tolist() == [1.0]  # type: ignore[union-attr, operator]
    assert learner.unreached() == ["third"]


def test_a_batch_that_does_not_count_changes_nothing() -> None:
    learner = learner_beside([1.0, 2.0, 0.0, 6.0, 6.0, 6.0, 1.0, 0.0, 1.0], weight=12.0)
    learner.num_items = 0
    learner.opt_step(torch.full((4, 2), torch.nan))
    assert learner.model.first.tolist() == pytest.approx([-0.1, -1.1])  # type: ignore[union-attr, operator]
    assert learner.own_loss is not None
    assert learner.own_loss.isnan()


def test_a_replica_whose_items_count_nothing_does_not_count() -> None:
    learner = learner_beside([1.0, 2.0, 0.0, 6.0, 6.0, 6.0, 1.0, 0.0, 1.0], weight=12.0)
    loss = type(learner.model).loss
    learner.model.loss = lambda outputs, batch: loss(learner.model, outputs, batch) | {"weight": torch.zeros(4)}  # type: ignore[method-assign]
    learner.opt_step(torch.ones(4, 2))
    assert learner.model.first.tolist() == pytest.approx([-0.1, -1.1])  # type: ignore[union-attr, operator]


def test_replicas_leave_out_a_step_that_overflows_in_one_of_them() -> None:
    other = [torch.inf, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    learner = learner_beside(other, 4.0, precision="float16")
    assert learner.scale is not None
    metrics = learner.opt_step(torch.ones(4, 2))
    assert metrics["skipped_steps"] == 1.0
    assert learner.model.first.tolist() == [1.0, 1.0]  # type: ignore[union-attr, operator]
    assert float(learner.scale.value) == 2.0**15
    other[0] = 1.0
    learner = learner_beside(other, 4.0, precision="float16", max_grad_norm=None)
    metrics = learner.opt_step(torch.ones(4, 2))
    assert metrics["skipped_steps"] == 0.0
    assert learner.model.first.tolist() == pytest.approx([-0.1, 0.4])  # type: ignore[union-attr, operator]


def test_draws_after_a_mean_do_not_depend_on_what_others_have_drawn_meanwhile() -> None:
    learner, alone = learner_beside([0.0] * 9, 1.0), Learner(Net(), learner_beside([0.0] * 9, 1.0).config)
    found = []
    for each in (learner, alone):
        torch.manual_seed(7)
        each.opt_step(torch.ones(4, 2))
        found.append(torch.rand(1).item())
    assert found[0] == found[1]
