"""Networks in training and evaluation mode, module by module."""

import pytest
import torch
from torch import nn

from palestra.nets.weights import evaluation_mode, in_evaluation, set_in_evaluation


def net_with_a_fixed_norm() -> nn.Sequential:
    """In training mode, but for its batch norm."""
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5)).train()
    net[1].eval()
    return net


def modes(net: nn.Module) -> list[bool]:
    return [module.training for module in net.modules()]


def test_each_module_returns_to_its_mode_also_after_an_error() -> None:
    nets = [net_with_a_fixed_norm(), nn.BatchNorm1d(2).eval(), nn.BatchNorm1d(2).train()]
    before = [modes(net) for net in nets]

    def evaluate() -> None:
        with evaluation_mode(iter(nets)):
            assert not any(any(modes(net)) for net in nets)
            nets[1].train()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        evaluate()
    assert [modes(net) for net in nets] == before
    assert before[0] == [True, True, False, True]


def test_in_evaluation_mode_the_statistics_of_batch_norm_stay() -> None:
    net = nn.BatchNorm1d(2).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with evaluation_mode([net]):
        net(torch.rand(8, 2))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    net(torch.rand(8, 2))
    assert not torch.equal(net.running_mean, before["running_mean"])


def test_modes_are_written_and_read_module_by_module() -> None:
    one, other = net_with_a_fixed_norm(), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5)).eval()
    assert in_evaluation(one) == ["1"]
    assert in_evaluation(other) == ["", "0", "1", "2"]
    set_in_evaluation(other, in_evaluation(one))
    assert modes(other) == modes(one)
