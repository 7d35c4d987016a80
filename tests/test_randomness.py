import random
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest
from torch import Tensor

from palestra.games.nim import NimConfig, NimGame
from palestra.games.normalization import UNCHANGED
from palestra.nets import make_net
from palestra.nets.mlp import MLPConfig
from palestra.players import make_script
from palestra.randomness import (
    base_key,
    fold,
    fold_number,
    random_bits,
    random_choice,
    random_floats,
    random_integers,
    random_normals,
    restored_global_states,
    seeded_global_state,
    world_keys,
)
from palestra.rollouts.fused import FusedGame
from tests.forked import run as run_forked

CPU = torch.device("cpu")

# The published generator's first outputs from these seeds (Vigna's splitmix64.c; seed 0 also heads Java's test
# vectors).
REFERENCE = {
    0: (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC),
    1234567: (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431),
}


def unsigned(values: Tensor) -> list[int]:
    return [value % 2**64 for value in values.tolist()]


def drawn(keys: Tensor) -> list[Tensor]:
    """Everything that the module draws from keys."""
    legal = random_integers(fold(keys, 8), 9, 2).bool()
    return [
        random_bits(keys, 3),
        random_integers(keys, 3, 1000),
        random_integers(keys, 1, torch.full((1,), 7)),
        random_floats(keys, 3),
        random_choice(keys, legal),
        fold(keys, 5),
        fold(keys, keys.abs() >> 2),
    ]


@pytest.mark.parametrize("seed", REFERENCE)
def test_bits_are_those_of_splitmix64(seed: int) -> None:
    assert tuple(unsigned(random_bits(torch.tensor([seed]), 4)[0])) == REFERENCE[seed]


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63 - 1))
def test_a_number_is_folded_as_a_tensor_is(key: int, data: int) -> None:
    assert fold_number(key, data) == int(fold(torch.tensor([key]), data))


def test_fold_is_the_number_of_that_index() -> None:
    keys = world_keys(3, 10, CPU)
    expected = random_bits(keys, 5)
    assert torch.equal(torch.stack([fold(keys, i) for i in range(5)], dim=1), expected)
    assert torch.equal(fold(keys.unsqueeze(1), torch.arange(5)), expected)


def test_numpy_and_torch_give_the_same_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = world_keys(base_key(1, "some stream"), 500, CPU)
    by_numpy = drawn(keys)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr("palestra.randomness._mix_on_cpu", lambda x: pytest.fail("not the path of torch"))
    assert all(torch.equal(a, b) for a, b in zip(by_numpy, drawn(keys), strict=True))


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_numbers_do_not_depend_on_how_a_batch_is_split(seed: int, cuts: list[int]) -> None:
    keys = world_keys(base_key(seed, "split"), 40, CPU)
    parts = [drawn(part) for part in keys.tensor_split(sorted(cuts))]
    for whole, *pieces in zip(drawn(keys), *parts, strict=True):
        assert torch.equal(whole, torch.cat(pieces))


def test_a_world_has_the_same_key_in_a_batch_of_any_size() -> None:
    assert torch.equal(world_keys(9, 100, CPU)[:7], world_keys(9, 7, CPU))


def test_another_process_draws_the_same_numbers() -> None:
    code = (
        "import torch; from palestra.randomness import *;"
        "print(random_bits(world_keys(base_key(7, 'play/host'), 5, torch.device('cpu')), 2).tolist())"
    )
    there = run_forked([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    here = random_bits(world_keys(base_key(7, "play/host"), 5, CPU), 2).tolist()
    assert there.strip() == str(here)


IN_TWO_THREADS = """
import gc, sys, threading, time
from palestra.randomness import restored_torch_states

def during_a_collection(phase, info):
    if sys._getframe(1).f_code.co_name == "_forked_on_cpu":
        time.sleep(0.001)  # lets the other thread go on

def work():
    for number in range(50):
        gc.set_threshold(1 + number % 7)  # so that some begin there
        with restored_torch_states():
            pass

gc.callbacks.append(during_a_collection)
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
"""


def test_garbage_that_is_collected_while_a_state_is_read_stops_no_other_thread_for_ever() -> None:
    done = run_forked([sys.executable, "-c", IN_TWO_THREADS], capture_output=True, text=True, timeout=30)
    assert done.stdout == "done\n", done.stderr


def test_seeds_streams_and_worlds_have_numbers_of_their_own() -> None:
    keys = [world_keys(base_key(seed, stream), 50, CPU) for seed in (0, 1) for stream in ("a", "b")]
    bits = random_bits(torch.cat(keys), 4)
    assert len(bits.unique()) == bits.numel()


@pytest.mark.parametrize("high", [1, 2, 7, 21, 1000])
def test_integers_are_uniform_below_high(high: int) -> None:
    values = random_integers(world_keys(11, 20 * high, CPU), 50, high).flatten()
    counts = torch.bincount(values, minlength=high)
    assert len(counts) == high
    assert high == 1 or chisquare(counts).pvalue > 1e-4


def test_integers_reach_both_ends_of_the_widest_range() -> None:
    values = random_integers(world_keys(2, 10_000, CPU), 1, 2**31)
    assert 0 <= values.min() < 2**20
    assert 2**31 - 2**20 < values.max() < 2**31


def test_floats_are_uniform_multiples_of_the_step_below_one() -> None:
    floats = random_floats(world_keys(5, 20_000, CPU), 2).flatten()
    assert floats.dtype == torch.float32
    assert torch.equal(floats * 2**24, (floats * 2**24).round())
    assert floats.min() >= 0.0
    assert floats.max() < 1.0
    assert chisquare(torch.histc(floats, 50, 0.0, 1.0)).pvalue > 1e-4


@pytest.mark.parametrize("num", [1, 4])
def test_bits_of_loops_are_those_of_tensor_operations(num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = fold(torch.arange(1000), 3).view(10, 100).T
    by_loops = random_bits(keys, num)
    monkeypatch.setattr("palestra.randomness.runs_on_cpu", lambda tensor: False)
    assert torch.equal(random_bits(keys, num), by_loops)


@pytest.mark.parametrize("num", [1, 2, 7])
def test_normals_of_loops_are_those_of_tensor_operations(num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = fold(torch.arange(50_000), 3)
    by_loops = random_normals(keys, num)
    assert (by_loops.shape, by_loops.dtype) == ((50_000, num), torch.float32)
    assert kstest(by_loops[:, -1], "norm").pvalue > 0.01
    monkeypatch.setattr("palestra.randomness.runs_on_cpu", lambda tensor: False)
    assert torch.allclose(random_normals(keys, num), by_loops, rtol=0.0, atol=2e-6)


@pytest.mark.parametrize("legal", [[1, 1, 1, 1], [0, 1, 0, 1, 1], [0, 0, 1], [1, 0, 0, 0, 0, 0, 1]])
def test_random_choice_is_uniform_over_the_legal_entries(legal: list[int]) -> None:
    mask = torch.tensor(legal, dtype=torch.bool)
    chosen = random_choice(world_keys(base_key(0, str(legal)), 20_000, CPU), mask.expand(20_000, -1))
    counts = torch.bincount(chosen, minlength=len(legal))
    assert int(counts[~mask].sum()) == 0
    assert mask.sum() == 1 or chisquare(counts[mask]).pvalue > 1e-4


def test_random_choice_without_a_legal_entry_is_0() -> None:
    assert random_choice(torch.arange(3), torch.zeros(3, 4, dtype=torch.bool)).tolist() == [0, 0, 0]


def test_neighbouring_keys_are_independent() -> None:
    """Play gives the seats of a turn keys that differ by one."""
    keys = world_keys(4, 20_000, CPU)
    here, there = random_integers(keys, 1, 4).squeeze(1), random_integers(keys + 1, 1, 4).squeeze(1)
    assert chisquare(torch.bincount(4 * here + there, minlength=16)).pvalue > 1e-4


# ---- the user's own random state --------------------------------------------------------------------


def play_a_little() -> None:
    game = NimGame(NimConfig(name="nim", num_heaps=2, max_stones=3, observation=UNCHANGED), CPU)
    fused = FusedGame(game, {role: make_script("random", game) for role in game.roles})
    fused.collect(fused.new_worlds(8, 0, "play"), game.roles, 5)


def make_a_net() -> None:
    game = NimGame(NimConfig(name="nim", num_heaps=2, max_stones=3, observation=UNCHANGED), CPU)
    make_net(MLPConfig(name="mlp", net_arch=[8, "b"], activation="relu"), game.spaces["first"], 6, key=1)


def draw_as_a_user() -> None:
    with restored_global_states():
        random.random(), np.random.random(), torch.rand(())


@pytest.mark.parametrize("deed", [play_a_little, make_a_net, lambda: drawn(torch.arange(4)), draw_as_a_user])
def test_the_users_global_random_state_is_not_touched(deed: Callable[[], object]) -> None:
    def numbers() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))

    def seed() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    seed()
    expected = numbers()
    seed()
    deed()
    assert numbers() == expected


def test_initialisers_depend_on_the_key_and_not_on_the_users_state() -> None:
    def first_numbers(key: int) -> Tensor:
        with seeded_global_state(key):
            return torch.rand(4)

    torch.manual_seed(1)
    here = first_numbers(-5)
    torch.manual_seed(2)
    assert torch.equal(first_numbers(-5), here)
    assert not torch.equal(first_numbers(-6), here)


def test_the_users_state_is_restored_after_an_error() -> None:
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError), seeded_global_state(3):
        raise RuntimeError
    assert torch.equal(torch.get_rng_state(), before)


def test_seeding_keeps_nothing_for_devices_that_are_not_in_use() -> None:
    """torch.manual_seed would keep a traceback for each, at every opt step of a loss that draws."""
    waiting = torch.cuda._queued_calls
    before = len(waiting)
    for number in range(3):
        with seeded_global_state(number):
            drawn = torch.rand(4)
        assert torch.equal(drawn, torch.rand(4, generator=torch.Generator().manual_seed(number)))
    assert len(waiting) == before
