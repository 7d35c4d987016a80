"""The states of replicas: what is equal is kept once, and every state comes back to the bit."""

import math
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from palestra.scaling.states import differing, digests, equal, own_part, with_part

TENSORS = st.sampled_from(
    [
        torch.tensor([1.0, math.nan]),
        torch.tensor([1.0, 2.0]),
        torch.tensor([1, 2]),
        torch.zeros(0),
        torch.zeros(0, 3),
        torch.tensor(True),
    ]
)
LEAVES = (
    TENSORS
    | st.none()
    | st.booleans()
    | st.integers(0, 2)
    | st.sampled_from([0.0, -0.0, 1.0, math.nan])
    | st.text("ab", max_size=2)
)
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        | st.dictionaries(st.integers(0, 2), inner, max_size=2)
    ),
    max_leaves=8,
)


@given(state=STATES, of_leader=STATES)
def test_a_state_comes_back_from_the_leaders_and_its_own_part(state: Any, of_leader: Any) -> None:
    assert equal(with_part(own_part(state, of_leader), of_leader), state)
    assert own_part(state, state) is None


def test_equal_parts_are_left_out_and_others_named() -> None:
    of_leader = {"nets": {"q": torch.ones(2)}, "worlds": {"keys": torch.tensor([1])}, "num": 3}
    state = {"nets": {"q": torch.ones(2)}, "worlds": {"keys": torch.tensor([2])}, "num": 3}
    assert list(own_part(state, of_leader)["entries"]) == ["worlds"]  # type: ignore[index]
    assert [*differing(state, of_leader)] == ["worlds.keys"]
    assert not equal(torch.tensor([0.0]), torch.tensor([0]))
    assert not equal(0.0, -0.0)
    assert not equal(1, True)


class Pair(NamedTuple):
    left: int
    right: int


def test_what_a_checkpoint_does_not_keep_makes_no_difference() -> None:
    """The order of keys and classes of values: one replica may have loaded what another one has made since."""
    loaded = {"rows": {"action": torch.ones(2), "reward": torch.ones(2)}, "groups": [{"a": 1, "b": (1, 2)}], "x": 1.5}
    rows = {"reward": torch.ones(2), "action": torch.ones(2)}
    made = {"rows": rows, "groups": [OrderedDict(b=Pair(1, 2), a=1)], "x": np.float64(1.5)}
    for one, other in ((loaded, made), (made, loaded)):
        assert own_part(one, other) is None
        assert digests(one) == digests(other)
    later = made | {"rows": rows | {"reward": torch.zeros(2)}}
    assert list(own_part(later, loaded)["entries"]["rows"]["entries"]) == ["reward"]  # type: ignore[index]
    assert not equal([1, 2], (1, 2))
    assert not equal("1", 1)
