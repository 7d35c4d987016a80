"""Distributions of actions, against torch.distributions, numerical integration, and counts of samples."""

import math
from typing import Any

import pytest
import torch
from scipy.stats import chisquare, kstest
from torch import Tensor
from torch import distributions as theirs

from palestra.algorithms.kernels.choices import CategoricalDraw
from palestra.algorithms.parts.distributions import Categorical, ClippedGaussian, HalfWidths, SquashedGaussian
from palestra.algorithms.parts.distributions import _invert as invert
from palestra.games.spaces import Box
from palestra.randomness import random_floats, random_normals, world_keys

CPU = torch.device("cpu")
NUM = 20_000
FOUR, PAIR = Categorical((4,), True), Categorical((3, 2), False)
LOGITS = torch.tensor([0.3, -1.2, 2.0, 0.7])
LEGAL = torch.tensor([True, True, False, True])


def rows(values: Tensor, num: int = NUM) -> Tensor:
    return values.expand(num, -1).contiguous()


def random_case(num: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """Logits, and masks with at least one legal action at the first and fourth place."""
    generator = torch.Generator().manual_seed(seed)
    legal = torch.rand(num, width, generator=generator) < 0.6
    legal[:, 0] = legal[:, 3] = True
    return 3 * torch.randn(num, width, generator=generator), legal


# ---- categorical -----------------------------------------------------------------------------------------


def test_discrete_log_prob_and_entropy_are_torchs() -> None:
    logits, legal = random_case(100, 4, 0)
    logits.requires_grad_()
    expected = theirs.Categorical(logits=logits.masked_fill(~legal, -1e9))
    action = expected.sample()
    distribution = FOUR.distribution(logits, legal)
    log_prob, entropy = distribution.log_prob(action), distribution.entropy()
    assert torch.allclose(log_prob, expected.log_prob(action), atol=1e-6)
    assert torch.allclose(entropy, expected.entropy(), atol=1e-6)
    (gradient,) = torch.autograd.grad((log_prob + entropy).sum(), logits)
    assert gradient.isfinite().all()
    assert (gradient[~legal] == 0).all()


def test_multi_discrete_sums_over_its_choices() -> None:
    logits, legal = random_case(100, 5, 1)
    parts = zip(logits.split([3, 2], 1), legal.split([3, 2], 1), strict=True)
    expected = [theirs.Categorical(logits=part.masked_fill(~mask, -1e9)) for part, mask in parts]
    action = torch.stack([choice.sample() for choice in expected], dim=1)
    distribution = PAIR.distribution(logits, legal)
    log_prob, entropy = distribution.log_prob(action), distribution.entropy()
    both = torch.stack([c.log_prob(a) for c, a in zip(expected, action.unbind(1), strict=True)])
    assert torch.allclose(log_prob, both.sum(0), atol=1e-5)
    assert torch.allclose(entropy, expected[0].entropy() + expected[1].entropy(), atol=1e-6)


def test_discrete_samples_have_their_probabilities_and_are_legal() -> None:
    action, log_prob = FOUR.sample(rows(LOGITS), rows(LEGAL), world_keys(0, NUM, CPU))
    probs = LOGITS.masked_fill(~LEGAL, -1e9).softmax(0)
    counts = torch.bincount(action, minlength=4)
    assert counts[2] == 0
    assert chisquare(counts[LEGAL], NUM * probs[LEGAL].double() / probs[LEGAL].double().sum()).pvalue > 1e-4
    assert torch.allclose(log_prob, probs.log()[action], atol=1e-6)


def test_multi_discrete_samples_choose_independently() -> None:
    logits, legal = torch.tensor([0.5, -0.5, 1.0, 0.2, -0.2]), torch.ones(5, dtype=torch.bool)
    action, log_prob = PAIR.sample(rows(logits), rows(legal), world_keys(1, NUM, CPU))
    first, second = (part.double().softmax(0) for part in logits.split([3, 2]))
    joint = (first.unsqueeze(1) * second).flatten()
    assert chisquare(torch.bincount(2 * action[:, 0] + action[:, 1], minlength=6), NUM * joint).pvalue > 1e-4
    assert torch.allclose(log_prob, PAIR.distribution(rows(logits), rows(legal)).log_prob(action), atol=1e-5)


@pytest.mark.parametrize("distribution", [Categorical((5,), True), PAIR])
def test_the_kernel_samples_as_tensor_operations_do(distribution: Categorical) -> None:
    """The same uniform numbers; a difference is only possible where rounding decides."""
    logits, legal = random_case(2000, 5, 2)
    keys = world_keys(2, 2000, CPU)
    action, _ = CategoricalDraw(distribution)(logits, legal, keys)
    uniforms = random_floats(keys, len(distribution.nums))
    parts = logits.masked_fill(~legal, -1e9).split(list(distribution.nums), dim=1)
    expected = torch.stack([invert(part.log_softmax(1), uniforms[:, k]) for k, part in enumerate(parts)], dim=1)
    assert (action.view(2000, -1) != expected).sum() <= 2


def test_rows_without_a_legal_action_stay_numbers() -> None:
    nothing = torch.zeros(8, 4, dtype=torch.bool)
    logits = LOGITS.repeat(8, 1).requires_grad_()
    action, log_prob = FOUR.sample(logits, nothing, world_keys(0, 8, CPU))
    assert log_prob.isfinite().all()
    distribution = FOUR.distribution(logits, nothing)
    later, entropy = distribution.log_prob(action), distribution.entropy()
    assert torch.autograd.grad((later + entropy).sum(), logits)[0].isfinite().all()


def test_mode_is_the_likeliest_legal_action() -> None:
    assert FOUR.mode(rows(LOGITS, 3), rows(LEGAL, 3)).tolist() == [3, 3, 3]
    free = torch.ones(1, 5, dtype=torch.bool)
    assert PAIR.mode(torch.tensor([[0.0, 2.0, 1.0, 3.0, 1.0]]), free).tolist() == [[1, 0]]


@pytest.mark.parametrize("family", [Categorical((5,), True), PAIR])
def test_discrete_kl_divergence_is_torchs(family: Categorical) -> None:
    (logits, legal), (other_logits, _) = random_case(100, 5, 3), random_case(100, 5, 4)
    parts = [x.masked_fill(~legal, -1e9).split(list(family.nums), dim=1) for x in (logits, other_logits)]
    both = [[theirs.Categorical(logits=part) for part in x] for x in parts]
    expected = sum(theirs.kl_divergence(p, q) for p, q in zip(*both, strict=True))
    distribution, other = (family.distribution(x, legal) for x in (logits, other_logits))
    assert torch.allclose(distribution.kl_divergence(other), expected, atol=1e-5)  # type: ignore[arg-type]
    assert torch.equal(distribution.kl_divergence(distribution), torch.zeros(100))


# ---- gaussian ----------------------------------------------------------------------------------------------

MEAN, LOG_STD = torch.tensor([0.3, -1.0]), torch.tensor([-0.5, 0.4])
LOW, HIGH = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 5.0])


def test_clipped_gaussian_counts_the_value_before_it_is_clipped() -> None:
    distribution = ClippedGaussian(LOW, HIGH)
    noise = random_normals(world_keys(0, 500, CPU), 2)
    value, log_prob = distribution.draw(MEAN, LOG_STD, noise)
    expected = theirs.Independent(theirs.Normal(MEAN, LOG_STD.exp()), 1)
    assert torch.allclose(log_prob, expected.log_prob(value), atol=1e-5)
    assert torch.allclose(distribution.log_prob(MEAN, LOG_STD, value), log_prob, atol=1e-5)
    assert torch.allclose(distribution.entropy(MEAN, LOG_STD), expected.entropy())
    action = distribution.action(value)
    assert ((action >= LOW) & (action <= HIGH)).all()
    assert (action != value).any()
    assert torch.equal(action[action == value], value[action == value])


def test_gaussian_noise_gives_samples_of_the_distribution() -> None:
    value, _ = ClippedGaussian(LOW, HIGH).draw(MEAN, LOG_STD, random_normals(world_keys(3, NUM, CPU), 2))
    for column in range(2):
        std = math.exp(LOG_STD[column])
        assert kstest(value[:, column], "norm", args=(float(MEAN[column]), std)).pvalue > 1e-4


def test_squashed_log_prob_is_that_of_torchs_change_of_variables() -> None:
    distribution = SquashedGaussian(LOW, HIGH)
    mean, log_std = MEAN.double().expand(400, -1), LOG_STD.double()
    noise = random_normals(world_keys(0, 400, CPU), 2).double()
    value, log_prob = distribution.draw(mean, log_std, noise)
    action = distribution.action(value)
    steps = [theirs.TanhTransform(), theirs.AffineTransform(distribution.center, distribution.half_width)]
    expected = theirs.TransformedDistribution(theirs.Normal(mean, log_std.exp()), steps).log_prob(action).sum(1)
    assert torch.allclose(log_prob, expected, atol=1e-4)
    assert torch.allclose(distribution.log_prob(mean, log_std, value), log_prob, atol=1e-6)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (1.5, -1.0), (-0.7, 0.5), (4.0, -2.0)])
def test_squashed_density_sums_to_one_and_gives_the_entropy(mean: float, log_std: float) -> None:
    """Integrals over the action, by the trapezoid rule on the grid that equally spaced values make."""
    distribution = SquashedGaussian(torch.tensor([-1.0]), torch.tensor([3.0]))
    std = math.exp(log_std)
    value = torch.linspace(mean - 9 * std, mean + 9 * std, 20_001, dtype=torch.float64).unsqueeze(1)
    parameters = torch.full_like(value, mean), torch.full_like(value, log_std)
    log_prob = distribution.log_prob(*parameters, value)
    action = (distribution.center.double() + distribution.half_width.double() * value.tanh()).squeeze(1)
    assert torch.trapezoid(log_prob.exp(), action) == pytest.approx(1.0, abs=1e-3)
    expected = -torch.trapezoid(log_prob.exp() * log_prob, action)
    assert distribution.entropy(*parameters)[0] == pytest.approx(float(expected), abs=5e-3)


@pytest.mark.parametrize("family", [ClippedGaussian(LOW, HIGH), SquashedGaussian(LOW, HIGH)])
def test_gaussian_kl_divergence_is_that_of_the_values_before_they_are_clipped_or_squashed(family: Any) -> None:
    """A bijection of both variables, as the tanh, leaves a divergence as it is."""
    means = torch.randn(2, 50, 2, generator=torch.Generator().manual_seed(0))
    log_stds = torch.tensor([[-0.5, 0.4], [0.1, -0.2]])
    p, q = (
        theirs.Independent(theirs.Normal(mean, log_std.exp().expand_as(mean)), 1)
        for mean, log_std in zip(means, log_stds, strict=True)
    )
    distribution, other = (family.distribution(mean, log_std) for mean, log_std in zip(means, log_stds, strict=True))
    assert torch.allclose(distribution.kl_divergence(other), theirs.kl_divergence(p, q), rtol=1e-5)


def test_squashed_samples_can_be_reparametrised() -> None:
    """Gradients of action and log-probability with respect to mean and log std, against finite differences."""
    distribution = SquashedGaussian(LOW.double(), HIGH.double())
    noise = random_normals(world_keys(0, 6, CPU), 2).double()

    def both(mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
        value, log_prob = distribution.draw(mean, log_std, noise)
        return distribution.action(value), log_prob

    mean = MEAN.double().repeat(6, 1).requires_grad_()
    log_std = LOG_STD.double().repeat(6, 1).requires_grad_()
    assert torch.autograd.gradcheck(both, (mean, log_std))


def test_squashed_values_far_out_stay_numbers() -> None:
    distribution = SquashedGaussian(LOW, HIGH)
    value = torch.tensor([[50.0, -50.0]], requires_grad=True)
    log_prob = distribution.log_prob(value.detach(), LOG_STD, value)
    (gradient,) = torch.autograd.grad(log_prob.sum(), value)
    assert log_prob.isfinite().all()
    assert gradient.isfinite().all()
    assert torch.allclose(distribution.action(value), torch.tensor([[2.0, 0.0]]))


# ---- fixed numbers -------------------------------------------------------------------------------------

LOCKED = Box((-1.0, 0.25, 0.0), (1.0, 0.25, 6.0))


@pytest.mark.parametrize("make", [ClippedGaussian, SquashedGaussian])
def test_a_fixed_number_is_played_and_counts_for_nothing(make: Any) -> None:
    """All but the action itself is as if the Box had the other numbers alone."""
    generator = torch.Generator().manual_seed(0)
    mean, log_std, noise, other_mean = torch.randn(4, 5, 3, generator=generator).unbind()
    free = [0, 2]
    whole = make(torch.tensor(LOCKED.low), torch.tensor(LOCKED.high))
    part = make(torch.tensor(LOCKED.low)[free], torch.tensor(LOCKED.high)[free])
    value, log_prob = whole.draw(mean, log_std, noise)
    expected_value, expected = part.draw(mean[:, free], log_std[:, free], noise[:, free])
    action = whole.action(value)
    assert torch.equal(log_prob, expected)
    assert torch.equal(action[:, free], part.action(expected_value))
    assert action[:, 1].tolist() == [0.25] * 5
    assert torch.equal(
        whole.log_prob(mean, log_std, value), part.log_prob(mean[:, free], log_std[:, free], value[:, free])
    )
    assert torch.allclose(whole.entropy(mean, log_std), part.entropy(mean[:, free], log_std[:, free]))
    ours, theirs_ = (
        family.distribution(m, s).kl_divergence(family.distribution(o, s))
        for family, m, s, o in (
            (whole, mean, log_std, other_mean),
            (part, mean[:, free], log_std[:, free], other_mean[:, free]),
        )
    )
    assert torch.equal(ours, theirs_)


def test_bounded_is_what_has_a_width_in_float32() -> None:
    largest = float(torch.finfo(torch.float32).max)
    assert LOCKED.is_bounded
    assert Box((1e9,), (1e9 + 1.0,)).is_bounded  # the same number in float32: fixed
    assert not any(Box((-x,), (x,)).is_bounded for x in (largest, math.inf, 1e39))
    assert not Box((0.0,), (math.inf,)).is_bounded
    assert not Box((1.0,), (0.0,)).is_bounded
    wide = Box((2e38,), (3e38,))
    assert wide.is_bounded
    assert HalfWidths(wide, CPU).inverse(torch.tensor([1.0])).tolist() == [pytest.approx(3e38)]
    mixed = HalfWidths(Box((-largest, 2.0, -1.0), (largest, 2.0, 3.0)), CPU)
    measured = mixed(torch.tensor([7.0, 2.0, 3.0]))
    assert measured.tolist() == [7.0, 0.0, 1.0]
    assert mixed.inverse(measured).tolist() == [7.0, 2.0, 3.0]
