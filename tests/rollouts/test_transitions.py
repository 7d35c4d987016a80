"""Rows of experience as a buffer stores them."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.rollouts.transitions import Transitions, join_roles


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


def numbered(numbers: list[int]) -> Transitions:
    """Rows that can be told apart by their numbers."""
    index, rows = torch.tensor(numbers), transitions(always_legal=False).at(torch.zeros(len(numbers), dtype=torch.long))
    return replace(rows, action=index, observation={"seen": index.float()})


@settings(max_examples=50, derandomize=True)
@given(
    moves=st.lists(st.sampled_from("ab"), min_size=1, max_size=4),
    num_worlds=st.integers(1, 5),
    num_rounds=st.integers(1, 4),
)
def test_roles_are_joined_in_the_order_in_which_they_have_moved(
    moves: list[str], num_worlds: int, num_rounds: int
) -> None:
    """Rows are numbered as they are decided: round by round, in a round move by move, in a move world by world."""
    numbers: dict[str, list[int]] = {role: [] for role in sorted(set(moves))}
    for number, (move, role), world in product(range(num_rounds), enumerate(moves), range(num_worlds)):
        numbers[role].append((number * len(moves) + move) * num_worlds + world)
    joined = join_roles({role: numbered(of_role) for role, of_role in numbers.items()}, moves, num_worlds)
    in_order = list(range(num_rounds * len(moves) * num_worlds))
    assert joined.action.tolist() == joined.observation["seen"].tolist() == in_order
    assert len(joined.valid) == len(joined.legal) == len(in_order)
