"""What stands beside four replicas is one training of their size, and what both have scored is told in a table."""

from typing import Any

import pytest

from benchmarks.replicas_learning import LARGE, NUM, ONE, REPLICAS, Trained, markdown, rows_of
from palestra.config import under
from palestra.run.branching import tree_differences
from palestra.run.kinds import read_config

SIZES = {"num_worlds", "players.agent.algorithm.batch_size", "players.agent.algorithm.replay_buffer.capacity"}


@pytest.mark.parametrize("name", LARGE)
def test_one_training_differs_from_a_replica_in_its_size_alone(name: str) -> None:
    one, large = (read_config(name, changes).model_dump(mode="json") for changes in ([], LARGE[name]))
    sizes = {key for key in SIZES if under(one, *key.split(".")) is not None}
    assert {change.key for change in tree_differences(one, large)} == sizes
    for key in sizes:
        assert under(large, *key.split(".")) == NUM * under(one, *key.split("."))


def test_the_table_says_who_is_better_how_surely() -> None:
    found: dict[str, Any] = {
        REPLICAS: [Trained(seed + 10.0, seed) for seed in range(5)],
        ONE: [Trained(seed, seed) for seed in range(5)],
    }
    last, mean = rows_of("ppo-cartpole", found)
    assert last["improvement"].value == 1.0
    assert last["improvement"].low > 0.5
    assert mean["improvement"].value == 0.5
    assert "| ppo-cartpole | return at the end | 5 | 12 [" in markdown([last, mean])
