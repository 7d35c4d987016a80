"""Initialisers beside torch's stock ones."""

from torch import nn

from palestra.randomness import seeded_global_state


def initialize_orthogonal(net: nn.Module, hidden_gain: float, output_gain: float, key: int) -> None:
    """Draw orthogonal weights for every linear and convolutional layer (Saxe et al. 2014), and set biases to zero.

    The linear layer that was registered last gives the outputs: its weights are scaled by `output_gain`, those of all
    others by `hidden_gain`. Other weights (normalisations, recurrent cells) stay as they are. All numbers come from
    `key`; torch's global state does not change.
    """
    layers = [module for module in net.modules() if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    output = [layer for layer in layers if isinstance(layer, nn.Linear)][-1]
    with seeded_global_state(key):
        for layer in layers:
            nn.init.orthogonal_(layer.weight, output_gain if layer is output else hidden_gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
