"""Prioritized replay: the tree of sums, the law of the draws, the weights, and that everything is restored."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from palestra.buffers.prioritized import PrioritizedReplay, PrioritizedReplayConfig, SumTree

CPU = torch.device("cpu")
ON_CPU_OR_GPU_PATH = pytest.mark.parametrize("on_cpu", [True, False])


def make_buffer(capacity: int, alpha: float = 1.0, beta: float = 1.0, on_cpu: bool = True) -> PrioritizedReplay:
    """on_cpu: False takes the way of a GPU, on tensors that are on the CPU nevertheless."""
    data = {
        "name": "prioritized",
        "capacity": capacity,
        "layout": "whole",
        "scratch_folder": None,
        "alpha": alpha,
        "eps": 1e-3,
    }
    config = PrioritizedReplayConfig.model_validate(data | {"beta": {"name": "constant", "value": beta}})
    buffer = PrioritizedReplay(config, CPU, 0, "replay")
    buffer._on_cpu = buffer.tree.on_cpu = on_cpu
    return buffer


def fill(buffer: PrioritizedReplay, numbers: range) -> None:
    buffer.add({"number": torch.tensor(numbers)}, torch.ones(len(numbers), dtype=torch.bool))


# ---- the tree ------------------------------------------------------------------------------------------

SETS = st.lists(st.tuples(st.integers(0, 299), st.sampled_from([0.0, 0.5, 1.0, 3.0, 1e-6])), min_size=1, max_size=60)


@settings(max_examples=80)
@given(num=st.sampled_from([1, 5, 16, 17, 256, 300]), sets=SETS, on_cpu=st.booleans())
def test_the_tree_finds_what_a_running_sum_finds(num: int, sets: list[tuple[int, float]], on_cpu: bool) -> None:
    tree, plain = SumTree(num, CPU), np.zeros(num)
    tree.on_cpu = on_cpu
    for place, value in sets:
        tree.set(torch.tensor([place % num]), torch.tensor([value], dtype=torch.float64))
        plain[place % num] = value
    assert np.array_equal(tree.leaves.numpy(), plain)
    assert tree.total().item() == pytest.approx(plain.sum(), rel=1e-12)
    if plain.sum() > 0.0:
        sums = plain.cumsum()
        middles = (sums - plain / 2)[plain > 0.0]  # well away from where rounding decides
        assert tree.find(torch.from_numpy(middles)).tolist() == np.flatnonzero(plain > 0.0).tolist()
        edges = torch.tensor([0.0, float(sums[-1])], dtype=torch.float64)
        assert (plain[tree.find(edges).numpy()] > 0.0).all()


def test_the_tree_depends_on_its_leaves_alone() -> None:
    tree, again = SumTree(300, CPU), SumTree(300, CPU)
    generator = np.random.default_rng(0)
    for _ in range(50):
        places = torch.from_numpy(generator.permutation(300)[:20])
        tree.set(places, torch.from_numpy(generator.random(20)))
    again.fill(tree.leaves)
    assert torch.equal(again.nodes, tree.nodes)
    again.fill(tree.leaves[:7].clone())
    assert again.total().item() == pytest.approx(tree.leaves[:7].sum().item()), "what stood there before is gone"


# ---- the buffer ----------------------------------------------------------------------------------------


@ON_CPU_OR_GPU_PATH
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_rows_are_drawn_in_proportion_to_their_priorities(alpha: float, on_cpu: bool) -> None:
    buffer = make_buffer(5, alpha, on_cpu=on_cpu)
    fill(buffer, range(5))
    buffer.drawn = torch.arange(5)
    td_error = torch.tensor([0.1, -0.2, 0.4, -1.0, 2.0])
    buffer.update_priorities(td_error)
    counts = torch.bincount(torch.cat([buffer.sample(7)["number"].clone() for _ in range(2000)]), minlength=5)
    priorities = (td_error.abs().double() + 1e-3).pow(alpha)
    assert chisquare(counts, 14_000 * priorities / priorities.sum()).pvalue > 1e-4


@ON_CPU_OR_GPU_PATH
def test_rows_that_are_gone_or_not_valid_are_never_drawn(on_cpu: bool) -> None:
    buffer = make_buffer(4, on_cpu=on_cpu)
    fill(buffer, range(3))
    buffer.add({"number": torch.tensor([3, 4, 5])}, torch.tensor([True, False, True]))
    assert set(buffer.sample(200)["number"].tolist()) == {1, 2, 3, 5}


@ON_CPU_OR_GPU_PATH
def test_a_priority_is_the_size_of_the_td_error_and_eps_to_the_power_of_alpha(on_cpu: bool) -> None:
    buffer = make_buffer(2, alpha=0.5, on_cpu=on_cpu)
    buffer.config = buffer.config.model_copy(update={"eps": 0.25})
    fill(buffer, range(2))
    buffer.drawn = torch.arange(2)
    buffer.update_priorities(torch.tensor([-2.0, 0.0]))
    assert buffer.tree.leaves[:2].tolist() == pytest.approx([1.5, 0.5])


def test_a_new_row_has_the_largest_priority_that_there_has_been() -> None:
    buffer = make_buffer(4)
    fill(buffer, range(2))
    assert buffer.tree.leaves[:2].tolist() == [1.0, 1.0]
    buffer.drawn = torch.tensor([0, 1])
    buffer.update_priorities(torch.tensor([2.0, 0.5]))
    buffer.update_priorities(torch.tensor([0.5, 0.5]))
    fill(buffer, range(2, 3))
    assert buffer.tree.leaves[2].item() == pytest.approx(2.001)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_weights_make_up_for_the_drawing(beta: float) -> None:
    """(N * P)^-beta, over the largest of the batch: equation of section 3.4."""
    buffer = make_buffer(3, beta=beta)
    fill(buffer, range(3))
    buffer.drawn = torch.arange(3)
    buffer.update_priorities(torch.tensor([0.5, 1.0, 2.0]))
    numbers = buffer.sample(20)["number"].numpy()
    probability = np.array([0.501, 1.001, 2.001]) / 3.503
    expected = (3 * probability[numbers]) ** -beta
    assert buffer.importance(0).numpy() == pytest.approx(expected / expected.max(), rel=1e-6)


@ON_CPU_OR_GPU_PATH
def test_weights_follow_the_schedule_of_beta(on_cpu: bool) -> None:
    buffer = make_buffer(3, on_cpu=on_cpu)
    rising = {"name": "linear", "initial": 0.0, "final": 1.0, "num_steps": 10}
    buffer.config = PrioritizedReplayConfig.model_validate(buffer.config.model_dump() | {"beta": rising})
    fill(buffer, range(3))
    buffer.drawn = torch.arange(3)
    buffer.update_priorities(torch.tensor([0.5, 1.0, 2.0]))
    buffer.drawn = torch.arange(3)
    for opt_steps, beta in ((0, 0.0), (5, 0.5), (10, 1.0), (2, 0.2)):
        expected = (0.501 / np.array([0.501, 1.001, 2.001])) ** beta
        assert buffer.importance(opt_steps).numpy() == pytest.approx(expected, rel=1e-6)


def test_the_loop_of_a_cpu_draws_what_tensor_operations_draw() -> None:
    samples = []
    for on_cpu in (True, False):
        buffer = make_buffer(40, on_cpu=on_cpu)
        fill(buffer, range(40))
        buffer.drawn = torch.arange(40)
        buffer.update_priorities(torch.arange(40) / 8)  # sums of these are exact
        samples.append([buffer.sample(16)["number"].tolist() for _ in range(3)])
    assert samples[0] == samples[1]


@settings(max_examples=30)
@given(num=st.integers(1, 12), later=st.integers(0, 7), seed=st.integers(0, 100))
def test_a_restored_buffer_goes_on_to_the_bit(num: int, later: int, seed: int) -> None:
    def go_on(buffer: PrioritizedReplay) -> tuple[list[list[int]], list[float]]:
        samples = []
        for step in range(4):
            samples.append(buffer.sample(6)["number"].tolist())
            buffer.update_priorities(torch.randn(6, generator=torch.Generator().manual_seed(seed + step)))
        if later:
            fill(buffer, range(100, 100 + later))
        return [*samples, buffer.sample(6)["number"].tolist()], buffer.importance(0).tolist()

    buffer = make_buffer(8, alpha=0.6, beta=0.4)
    for number in range(num):
        fill(buffer, range(number, number + 1))
    go_on(buffer)
    buffer.update_priorities(torch.full((6,), 9.0))  # larger than what comes later
    go_on(buffer)
    restored = make_buffer(8, alpha=0.6, beta=0.4)
    first = max(0, buffer.num_added - 8)
    restored.load_rows(first, buffer.packed_rows(first, buffer.num_added))
    restored.load_state_dict(copy.deepcopy(buffer.state_dict()))
    assert go_on(restored) == go_on(buffer)
