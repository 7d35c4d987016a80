import pytest
import torch
from torch import Tensor, nn

from palestra.nets.activations import FUNCTION_FROM, Tanh

TINY = torch.logspace(-44, 1, 20_001)
NUMBERS = torch.cat([torch.linspace(-12.0, 12.0, 200_001), TINY, -TINY, torch.tensor([0.0, 1e30, -1e30, torch.inf])])


def errors_in_ulp(y: Tensor, x: Tensor) -> Tensor:
    """The distances of float32 numbers from the true tanh, in units in the last place of what is true."""
    true = torch.tanh(x.double())
    rounded = true.float().abs()
    ulp = torch.nextafter(rounded, torch.tensor(torch.inf)) - rounded
    return (y.double() - true).abs() / ulp.double()


def test_tanh_is_exact_to_rounding_also_near_zero() -> None:
    assert errors_in_ulp(Tanh()(NUMBERS), NUMBERS).max() <= 2.0


def test_tanh_with_gradients_is_exact_to_rounding() -> None:
    x = NUMBERS.clone().requires_grad_()
    assert errors_in_ulp(Tanh()(x).detach(), NUMBERS).max() <= 2.0


@pytest.mark.slow
def test_compiled_tanh_is_exact_to_rounding() -> None:
    x = NUMBERS[(NUMBERS.abs() > 1e-37) & NUMBERS.isfinite()].requires_grad_()
    tanh = torch.compile(Tanh())
    with torch.no_grad():
        assert errors_in_ulp(tanh(x), x).max() <= 4.0
    assert errors_in_ulp(tanh(x).detach(), x.detach()).max() <= 4.0
    gradient = torch.autograd.grad(tanh(x).sum(), x)[0]
    assert torch.allclose(gradient.double(), 1.0 - torch.tanh(x.detach().double()) ** 2, rtol=0.0, atol=5e-7)


@pytest.mark.parametrize("num", [8, FUNCTION_FROM])
def test_the_gradient_of_tanh_is_that_of_the_formula(num: int) -> None:
    x = torch.linspace(-6.0, 6.0, num).requires_grad_()
    gradient = torch.autograd.grad(Tanh()(x).sum(), x)[0]
    assert torch.allclose(gradient.double(), 1.0 - torch.tanh(x.detach().double()) ** 2, rtol=0.0, atol=5e-7)


def test_tanh_has_second_derivatives() -> None:
    x = torch.linspace(-3.0, 3.0, FUNCTION_FROM).requires_grad_()

    def second(function: nn.Module) -> Tensor:
        slope = torch.autograd.grad(function(x).sum(), x, create_graph=True)[0]
        return torch.autograd.grad(slope.sum(), x)[0]

    assert torch.allclose(second(Tanh()), second(nn.Tanh()), atol=1e-5)


def test_tanh_of_other_numbers_is_that_of_torch() -> None:
    x = torch.linspace(-3.0, 3.0, 7, dtype=torch.float64)
    assert torch.equal(Tanh()(x), torch.tanh(x))
