"""rho with its interval, by hand and by sampling."""

import math

import pytest
import torch
from torch import Tensor

from palestra.games.polyhedra.game import estimate_rho
from palestra.runtime.statistics import Estimate


def games(num: int, chance: float, max_rounds: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Games that end in each round with a chance, and are cut off at `max_rounds`: finished, lengths."""
    uniform = torch.rand(num, generator=generator, dtype=torch.float64)
    lengths = (uniform.log() / math.log1p(-chance)).floor().long() + 1
    return lengths <= max_rounds, lengths.clamp(max=max_rounds)


def test_rho_is_games_finished_by_rounds_played() -> None:
    estimate = estimate_rho(torch.tensor([True, True, False]), torch.tensor([1, 3, 4]))
    residuals = (1 - 0.25, 1 - 0.75, 0 - 1.0)  # f - rho * l
    half = 1.959964 * math.sqrt(3 / 2 * sum(r * r for r in residuals)) / 8
    assert (estimate.value, estimate.high) == (0.25, pytest.approx(0.25 + half))
    assert estimate.low == max(0.25 - half, 0.0)


def test_rho_interval_agrees_with_the_bootstrap() -> None:
    generator = torch.Generator().manual_seed(0)
    finished, lengths = games(800, 0.15, 12, generator)
    estimate = estimate_rho(finished, lengths)
    drawn = torch.randint(800, (4000, 800), generator=generator)
    ratios = finished[drawn].sum(1) / lengths[drawn].sum(1)
    low, high = torch.quantile(ratios, torch.tensor([0.025, 0.975])).tolist()
    assert estimate.low == pytest.approx(low, abs=0.1 * (high - low))
    assert estimate.high == pytest.approx(high, abs=0.1 * (high - low))


@pytest.mark.parametrize(("chance", "max_rounds"), [(0.3, 100), (0.1, 10), (0.02, 20)])
def test_rho_interval_covers_the_truth_in_95_of_100_samples(chance: float, max_rounds: int) -> None:
    """Cutting off does not bias rho here: in every round played the game ends with the same chance."""
    generator = torch.Generator().manual_seed(1)
    estimates = [estimate_rho(*games(400, chance, max_rounds, generator)) for _ in range(1000)]
    coverage = sum(estimate.low <= chance <= estimate.high for estimate in estimates) / 1000
    assert 0.93 <= coverage <= 0.97


def test_without_a_finished_game_the_interval_tells_how_few_there_may_be() -> None:
    """With a chance at the upper end, so many rounds pass without an end in 2.5 of 100 samples."""
    estimate = estimate_rho(torch.zeros(10, dtype=torch.bool), torch.full((10,), 100))
    assert (estimate.value, estimate.low) == (0.0, 0.0)
    assert (1 - estimate.high) ** 1000 == pytest.approx(0.025, rel=0.01)


def test_an_interval_of_rho_stays_between_0_and_1() -> None:
    one = estimate_rho(torch.tensor([True]), torch.tensor([2]))
    assert one == Estimate(0.5, 0.0, 1.0)
    assert estimate_rho(torch.tensor([False]), torch.tensor([2])).high == 1.0
    few = estimate_rho(torch.tensor([True, False, False]), torch.tensor([1, 9, 9]))
    assert (few.low, few.value) == (0.0, pytest.approx(1 / 19))


def test_no_games_give_no_rho() -> None:
    estimate = estimate_rho(torch.zeros(0, dtype=torch.bool), torch.zeros(0, dtype=torch.int64))
    assert all(math.isnan(value) for value in (estimate.value, estimate.low, estimate.high))
