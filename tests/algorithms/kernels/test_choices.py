"""The loop over worlds that makes epsilon-greedy choices on a CPU."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.algorithms.kernels.choices import choose_greedily
from palestra.algorithms.parts.exploration import EpsilonGreedyConfig
from palestra.randomness import world_keys

EPSILON_GREEDY = EpsilonGreedyConfig.model_validate(
    {"name": "epsilon_greedy", "epsilon": {"name": "constant", "value": 1.0}}
)


@settings(max_examples=50)
@given(
    rows=st.lists(st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 2.0]), st.booleans()), min_size=3, max_size=3)),
    epsilon=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 1000),
)
def test_the_loop_chooses_what_tensor_operations_choose(
    rows: list[list[tuple[float, bool]]], epsilon: float, seed: int
) -> None:
    q = torch.tensor([[value for value, _ in row] for row in rows]).view(-1, 3)
    legal = torch.tensor([[flag for _, flag in row] for row in rows], dtype=torch.bool).view(-1, 3)
    keys = world_keys(seed, len(rows), torch.device("cpu"))
    chosen = choose_greedily(q, legal, keys, epsilon)
    assert torch.equal(EPSILON_GREEDY.choose(q, legal, keys, epsilon), chosen)
