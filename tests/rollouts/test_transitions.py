"""Rows of experience as a buffer stores them."""

import pytest
import torch

from palestra.rollouts.transitions import Transitions


def transitions(always_legal: bool) -> Transitions:
    flags = torch.tensor([[True, False], [True, True]]) | always_legal
    return Transitions(
        observation={"seen": torch.tensor([1.0, 2.0])},
        action=torch.tensor([0, 1]),
        reward=torch.tensor([0.5, -0.5]),
        next_observation={"seen": torch.tensor([3.0, 4.0])},
        next_legal=flags.flip(0),
        terminated=torch.tensor([True, False]),
        truncated=torch.tensor([False, True]),
        valid=torch.tensor([True, True]),
        extras={"log_prob": torch.tensor([0.0, -1.0])},
        legal=flags,
        always_legal=always_legal,
    )


@pytest.mark.parametrize("always_legal", [True, False])
def test_rows_come_back_as_they_were(always_legal: bool) -> None:
    before = transitions(always_legal)
    after = Transitions.from_rows(before.rows())
    for name in Transitions.__dataclass_fields__:
        one, other = getattr(before, name), getattr(after, name)
        if isinstance(one, dict):
            assert one.keys() == other.keys()
            assert all(torch.equal(one[key], other[key]) for key in one)
        else:
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_rows_hold_legal_actions_only_where_an_action_may_be_illegal() -> None:
    assert "legal" in transitions(always_legal=False).rows()
    assert "legal" not in transitions(always_legal=True).rows()


@pytest.mark.parametrize("always_legal", [True, False])
def test_parts_are_joined_in_their_order(always_legal: bool) -> None:
    part = transitions(always_legal)
    joined = Transitions.concatenate([part, part])
    assert joined.action.tolist() == [0, 1, 0, 1]
    assert joined.observation["seen"].tolist() == [1.0, 2.0, 1.0, 2.0]
    assert torch.equal(joined.legal, torch.cat([part.legal, part.legal]))
    assert joined.always_legal is always_legal
