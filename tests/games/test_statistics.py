"""Running statistics that replicas share: each goes on by its own rows, and joins what all have added."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from palestra.games.gymnasium.normalization import Moments
from palestra.games.normalization import RunningMoments
from palestra.scaling.states import equal


def in_torch() -> RunningMoments:
    return RunningMoments((2,), centered=True, device=torch.device("cpu"))


def add(moments: Any, rows: np.ndarray) -> None:
    if isinstance(moments, Moments):
        moments.update(rows)
    else:
        moments.update(torch.from_numpy(rows), torch.ones(len(rows), dtype=torch.bool))


def joined(replicas: Sequence[Any]) -> None:
    added = [each.added.own_state() for each in replicas]
    for each in replicas:
        each.join_all(added)


@pytest.mark.parametrize("make", [in_torch, lambda: Moments((2,))], ids=["torch", "numpy"])
def test_replicas_come_to_the_same_statistics_those_of_all_rows(make: Any) -> None:
    rng = np.random.default_rng(0)
    replicas, alone = [make(), make()], make()
    for each in replicas:
        each.begin_sharing()
    for num_rows in (5, 1, 7):
        rows = [rng.normal(3.0, 2.0, (num_rows, 2)) for _ in replicas]
        for each, own in zip(replicas, rows, strict=True):
            add(each, own)
        assert not equal(replicas[0].own_state(), replicas[1].own_state())
        joined(replicas)
        add(alone, np.concatenate(rows))
        assert equal(replicas[0].state_dict(), replicas[1].state_dict())
        for name, value in alone.own_state().items():
            assert np.allclose(np.asarray(replicas[0].own_state()[name]), np.asarray(value))
    again = make()
    again.begin_sharing()
    add(replicas[0], np.ones((3, 2)))
    again.load_state_dict(replicas[0].state_dict())
    assert equal(again.state_dict(), replicas[0].state_dict())
    plain = make()
    plain.load_state_dict(replicas[0].state_dict())  # whoever evaluates needs no more
    assert equal(plain.state_dict(), replicas[0].own_state())


def test_integers_of_64_bits_are_joined_by_the_distance_of_their_origins() -> None:
    first = 2**62
    replicas = [Moments((1,), np.int64) for _ in range(2)]
    for each in replicas:
        each.begin_sharing()
    replicas[0].update(np.array([[first], [first + 2]]))
    replicas[1].update(np.array([[first + 10], [first + 12]]))
    joined(replicas)
    assert replicas[0].count == 4
    assert replicas[0].mean.tolist() == [6.0]  # from the first row
    assert replicas[0].variance.tolist() == [26.0]
    assert equal(*(each.state_dict() for each in replicas))
