import torch
from torch import Tensor, nn

from palestra.algorithms.parts.actor_critic import initialize_orthogonal
from tests.nets.making import build, space

VECTOR = {"seen": space((5,))}
SCREEN = {"seen": space((2, 8, 8), torch.uint8)}
NATURE = {"name": "nature_cnn", "channels": [6, 9], "kernels": [3, 3], "strides": [2, 1], "hidden_widths": [7]}


def is_orthogonal(weight: Tensor, gain: float) -> bool:
    """Whether the rows or the columns, whichever are fewer, are orthogonal and of length `gain`."""
    matrix = weight.detach().flatten(1).double()
    matrix = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    return torch.allclose(matrix @ matrix.T, gain**2 * torch.eye(len(matrix), dtype=torch.float64), atol=1e-5)


def test_hidden_layers_and_output_have_their_gains() -> None:
    net = build(NATURE, SCREEN)
    initialize_orthogonal(net, 2.0**0.5, 0.01, key=3)
    *hidden, output = [module for module in net.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert all(is_orthogonal(layer.weight, 2.0**0.5) for layer in hidden)
    assert is_orthogonal(output.weight, 0.01)
    assert not any(layer.bias.any() for layer in (*hidden, output) if layer.bias is not None)


def test_layers_without_bias_and_normalisations_are_left_as_they_are() -> None:
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.LayerNorm(4), nn.Linear(4, 2))
    initialize_orthogonal(net, 1.0, 1.0, key=3)
    assert torch.equal(net[1].weight, torch.ones(4))
    assert is_orthogonal(net[0].weight, 1.0)


def test_equal_keys_make_equal_weights_and_the_global_state_stays() -> None:
    def weights(key: int) -> Tensor:
        net = build({"name": "mlp", "net_arch": [8], "activation": "tanh"}, VECTOR)
        initialize_orthogonal(net, 1.0, 1.0, key)
        return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])

    state = torch.get_rng_state()
    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
    assert torch.equal(torch.get_rng_state(), state)
