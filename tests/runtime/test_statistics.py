import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from palestra.runtime.statistics import (
    Estimate,
    Share,
    clusters_of,
    describe,
    estimate_interquartile_mean,
    estimate_mean,
    estimate_mean_of_few,
    estimate_probability_of_improvement,
    interquartile_mean,
    interquartile_mean_curve,
    probability_of_improvement,
    score_interval_of_improvement,
)

score_lists = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=12)


def test_mean_interval_covers_the_truth_in_95_of_100_samples() -> None:
    generator = torch.Generator().manual_seed(2)
    estimates = [estimate_mean(torch.rand(100, generator=generator)) for _ in range(1000)]
    coverage = sum(estimate.low <= 0.5 <= estimate.high for estimate in estimates) / 1000
    assert 0.93 <= coverage <= 0.97


def test_the_mean_of_one_value_is_uncertain_without_bound() -> None:
    assert estimate_mean(torch.tensor([3.0])) == Estimate(3.0, -math.inf, math.inf)


def test_mean_computed_by_hand() -> None:
    estimate = estimate_mean(torch.tensor([1.0, 3.0]))
    assert (estimate.value, estimate.high) == (2.0, pytest.approx(2.0 + 1.959964 * math.sqrt(2.0 / 2)))


@pytest.mark.parametrize("num", [2, 3, 10, 31, 32, 400])
def test_the_interval_of_the_mean_of_few_is_that_of_students_t(num: int) -> None:
    values = [float(value) for value in range(num)]
    estimate = estimate_mean_of_few(values)
    low, high = stats.t.interval(0.95, num - 1, loc=(num - 1) / 2, scale=stats.sem(values))
    assert (estimate.low, estimate.high) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize(
    ("hits", "games", "low", "high"), [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0)]
)
def test_the_interval_of_a_share_is_wilsons(hits: int, games: int, low: float, high: float) -> None:
    estimate = Share(hits, games).estimate()
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((hits / games, low, high), abs=1e-4)


def test_nothing_gives_no_estimate() -> None:
    assert math.isnan(Share(0, 0).estimate().value)
    estimate = estimate_mean(torch.zeros(0))
    assert all(math.isnan(value) for value in (estimate.value, estimate.low, estimate.high))


@given(score_lists)
def test_the_interquartile_mean_is_scipys_mean_trimmed_by_a_quarter(scores: list[float]) -> None:
    assert float(interquartile_mean(torch.tensor(scores))) == pytest.approx(stats.trim_mean(scores, 0.25))


@given(score_lists, score_lists)
def test_the_probability_of_improvement_is_scipys_u_by_the_number_of_pairs(
    ours: list[float], theirs: list[float]
) -> None:
    u = stats.mannwhitneyu(ours, theirs).statistic
    value = float(probability_of_improvement(torch.tensor(ours), torch.tensor(theirs)))
    assert value == pytest.approx(u / (len(ours) * len(theirs)))


def test_the_interval_of_the_interquartile_mean_is_that_of_all_possible_draws() -> None:
    """Two tasks of two runs: each resample is one of 16, equally likely; a draw never crosses tasks."""
    first, second = [0.0, 1.0], [10.0, 12.0]
    draws = [sorted([a, b, c, d]) for a in first for b in first for c in second for d in second]
    means = torch.tensor([(draw[1] + draw[2]) / 2 for draw in draws], dtype=torch.float64).sort().values
    estimate = estimate_interquartile_mean([torch.tensor(first), torch.tensor(second)], 20_000, seed=0)
    assert estimate == Estimate(5.5, float(means[0]), float(means[-1]))  # each end is met in 1 of 16 or more


def test_the_interval_of_the_probability_of_improvement_is_drawn_task_by_task() -> None:
    """The first task is won by all, the second by half of ours: the value is 1/2 + 1/4, and every draw has the 1/2."""
    won = (torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0]))
    open_ = (torch.tensor([0.0, 9.0]), torch.tensor([5.0, 5.0]))
    assert estimate_probability_of_improvement([won, open_], 2_000, seed=0) == Estimate(0.75, 0.5, 1.0)
    assert estimate_probability_of_improvement([won], 2_000, seed=0) == Estimate(1.0, 1.0, 1.0)


def test_the_score_interval_of_an_improvement_is_wide_where_few_runs_all_win() -> None:
    for truth, num in ((1.0, 4), (0.0, 4), (0.75, 8)):
        low, high = score_interval_of_improvement(truth, num, num)
        for end, other in ((low, 1.0 - high), (high, 1.0 - low)):  # each end solves the equation, and sides are alike
            spread = 1.0 + (num - 1) * ((1.0 - end) / (2.0 - end) + end / (1.0 + end))
            is_end = end in (0.0, 1.0) or abs(truth - end) == pytest.approx(
                1.959964 * math.sqrt(end * (1.0 - end) * spread) / num, abs=1e-5
            )
            assert is_end
            assert other == pytest.approx(score_interval_of_improvement(1.0 - truth, num, num)[end == high])
    assert score_interval_of_improvement(1.0, 4, 4) == (pytest.approx(0.58, abs=0.01), 1.0)


def test_the_bootstrap_interval_covers_the_truth_about_95_times_in_100() -> None:
    """The percentile interval of 40 runs is a little narrow (Agarwal et al. 2021, figure 5)."""
    generator = torch.Generator().manual_seed(3)
    samples = torch.rand(500, 40, generator=generator, dtype=torch.float64)
    estimates = [estimate_interquartile_mean([scores], 500, seed=0) for scores in samples]
    coverage = sum(estimate.low <= 0.5 <= estimate.high for estimate in estimates) / 500
    assert 0.91 <= coverage <= 0.97


def test_tasks_with_different_numbers_of_runs_are_taken_as_they_are() -> None:
    scores = [torch.tensor([1.0]), torch.tensor([1.0, 1.0, 1.0])]
    assert estimate_interquartile_mean(scores, 100, seed=0) == Estimate(1.0, 1.0, 1.0)


def test_a_bootstrap_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    estimate_interquartile_mean([torch.rand(3, generator=torch.Generator().manual_seed(0))], 100, seed=0)
    assert torch.equal(before, torch.get_rng_state())


def test_no_runs_give_no_interquartile_mean_and_no_improvement() -> None:
    for estimate in (
        estimate_interquartile_mean([torch.zeros(0)], 10, 0),
        estimate_probability_of_improvement([], 10, 0),
    ):
        assert all(math.isnan(value) for value in (estimate.value, estimate.low, estimate.high))


# ---- how the games of an evaluation are spread -----------------------------------------------------------


def test_the_spread_of_games_is_what_its_names_say() -> None:
    found = describe(torch.tensor([5.0, 1.0, 2.0, 100.0, 3.0, 4.0, 0.0, 6.0]))
    spread = {"mean": 121 / 8, "std": stats.tstd([5, 1, 2, 100, 3, 4, 0, 6]), "min": 0.0, "max": 100.0, "median": 3.5}
    assert {name: found[name] for name in spread} == pytest.approx(spread)
    assert found["iqm"] == (2 + 3 + 4 + 5) / 4
    assert found["iqm_low"] <= found["iqm"] <= found["iqm_high"]


def test_games_that_are_alike_have_no_spread() -> None:
    names = ("mean", "min", "max", "median", "iqm", "iqm_low", "iqm_high")
    assert describe(torch.full((7,), 2.5)) == dict.fromkeys(names, 2.5) | {"std": 0.0}


def test_of_one_game_and_of_none_only_what_there_is_is_told() -> None:
    one = describe(torch.tensor([4]))
    assert math.isnan(one.pop("std"))
    assert set(one.values()) == {4.0}
    assert all(map(math.isnan, describe(torch.tensor([])).values()))


def test_the_interval_of_the_interquartile_mean_is_that_of_a_plain_bootstrap() -> None:
    generator = torch.Generator().manual_seed(5)
    values = torch.randn(300, generator=generator).exp()
    plain = interquartile_mean(values[torch.randint(300, (20_000, 300), generator=generator)])
    low, high = torch.quantile(plain, torch.tensor([0.025, 0.975])).tolist()
    found = describe(values)
    assert found["iqm_low"] == pytest.approx(low, abs=0.1 * (high - low))
    assert found["iqm_high"] == pytest.approx(high, abs=0.1 * (high - low))


def test_the_spread_of_many_games_is_no_matter_of_memory() -> None:
    values = torch.randn(100_000, generator=torch.Generator().manual_seed(6))
    found = describe(values)
    assert 0 < found["iqm_high"] - found["iqm_low"] < 0.03
    assert torch.equal(values, torch.randn(100_000, generator=torch.Generator().manual_seed(6)))


def test_the_curve_of_interquartile_means_is_that_of_each_step() -> None:
    tracks = torch.rand(6, 3, generator=torch.Generator().manual_seed(0)).double()
    value, low, high = interquartile_mean_curve(tracks, 4000, seed=0, share=0.95)
    for step in range(3):
        expected = estimate_interquartile_mean([tracks[:, step]], 4000, seed=1)
        assert float(value[step]) == pytest.approx(expected.value)
        assert float(low[step]) == pytest.approx(expected.low, abs=0.02)
        assert float(high[step]) == pytest.approx(expected.high, abs=0.02)
    narrow = interquartile_mean_curve(tracks, 4000, seed=0, share=0.5)
    assert (narrow[1] > low).all()
    assert (narrow[2] < high).all()
    assert interquartile_mean_curve(tracks[:1], 100, seed=0, share=0.9).tolist() == [tracks[0].tolist()] * 3


# ---- values that depend on each other --------------------------------------------------------------------


def test_clustered_intervals_cover_the_truth_where_games_on_one_question_depend_on_each_other() -> None:
    """40 questions of which 77% are answered right, whatever is tried; each is asked about five times."""
    generator = torch.Generator().manual_seed(3)
    covered = {"share": 0, "mean": 0, "iqm": 0, "independent": 0}
    for _ in range(300):
        right = torch.rand(40, generator=generator) < 0.77
        level = torch.rand(40, generator=generator)
        asked = torch.randint(40, (200,), generator=generator)
        share, mean = Share.of(right[asked], asked).estimate(), estimate_mean(level[asked], asked)
        figures = describe(level[asked], asked)
        covered["share"] += share.low <= 0.77 <= share.high
        covered["mean"] += mean.low <= 0.5 <= mean.high
        covered["iqm"] += figures["iqm_low"] <= 0.5 <= figures["iqm_high"]
        alone = Share.of(right[asked], None).estimate()
        covered["independent"] += alone.low <= 0.77 <= alone.high
    assert all(covered[name] >= 0.9 * 300 for name in ("share", "mean", "iqm")), covered
    assert covered["independent"] < 0.75 * 300


def test_clustered_intervals_are_those_of_independent_values_where_no_two_are_of_one_cluster() -> None:
    values, flags, alone = torch.rand(60, generator=torch.Generator().manual_seed(4)), torch.arange(60) < 21, range(60)
    assert clusters_of(alone) is None
    one, other = estimate_mean(values, torch.tensor(alone)), estimate_mean(values)
    assert (one.low, one.high) == (pytest.approx(other.low), pytest.approx(other.high))
    assert Share.of(flags, torch.tensor(alone)).num == pytest.approx(59), "n - 1 of n"
    every_fourth = torch.arange(60) % 4
    assert Share.of(torch.ones(60) > 0, every_fourth).estimate() == Share(4, 4).estimate()


def test_the_sandwich_is_that_of_the_sums_over_clusters() -> None:
    values, clusters = torch.tensor([1.0, 2.0, 6.0, 4.0, 7.0]), torch.tensor([0, 0, 1, 2, 2])
    squares = (1 - 4 + 2 - 4) ** 2 + (6 - 4) ** 2 + (4 - 4 + 7 - 4) ** 2
    assert estimate_mean(values, clusters).half == pytest.approx(1.959964 * math.sqrt(squares * 3 / 2) / 5)


def test_one_question_gives_no_interval() -> None:
    same = clusters_of("aaa")
    for estimate in (
        estimate_mean(torch.tensor([1.0, 2.0, 3.0]), same),
        Share.of(torch.arange(3) > 0, same).estimate(),
    ):
        assert [math.isnan(number) for number in estimate] == [False, True, True]
    assert math.isnan(describe(torch.tensor([1.0, 2.0, 3.0]), same)["iqm_low"])
