"""The place of a training among replicas."""

import pytest
import torch

from palestra.scaling.replica import Replica


def test_a_lone_replica_hands_back_what_it_gets() -> None:
    alone, gradient = Replica(), torch.ones(3)
    found, metrics = alone.mean(gradient, {"loss": 1.0}, weight=0.0)
    assert found is gradient
    assert metrics == {"loss": 1.0}
    assert alone.each("numbers", 7) == [7]
    assert (alone.num_means, alone.leads, alone.is_alone) == (1, True, True)


def test_a_mean_outside_of_fit_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"expected fit\(\) of a training with 2 replicas, got a call outside of it"):
        Replica(0, 2).mean(torch.ones(3), {})
