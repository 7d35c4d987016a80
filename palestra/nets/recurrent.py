"""`recurrent`: a network with a memory; and NamedNet, which calls networks with and without a memory in the same way.

Letters: T steps, B worlds.
"""

# A memory is a dict of tensors by name. The memory of a player joins those of its networks, each under the name of its
# network: `policy.hidden`.

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from palestra.config import Config, PositiveInt, below
from palestra.games.policy import Memory
from palestra.games.spaces import Space
from palestra.nets.activations import ACTIVATIONS, Activation
from palestra.nets.feed_forward import NetConfig
from palestra.nets.mlp import NetArch, make_layers
from palestra.nets.user_nets import RecurrentNet


class RecurrentConfig(Config):
    usual: ClassVar = {"encoder_width": 64, "cell": "gru", "hidden_size": 64, "net_arch": [], "activation": "tanh"}

    name: Literal["recurrent"]
    """an encoder, a recurrent cell with a memory, then layers"""
    encoder: NetConfig
    """the network before the cell"""
    encoder_width: PositiveInt
    """outputs of the encoder"""
    cell: Literal["lstm", "gru"]
    """lstm (Hochreiter & Schmidhuber 1997) or gru (Cho et al. 2014)"""
    hidden_size: PositiveInt
    """outputs of the cell"""
    net_arch: NetArch
    """the layers after the cell, as in mlp"""
    activation: Activation
    """activation after the encoder and after every hidden layer: relu, tanh, silu, elu or gelu"""

    def build(self, spaces: dict[str, Space], num_outputs: int) -> "Recurrent":
        return Recurrent(self, spaces, num_outputs)


class Recurrent(RecurrentNet):
    """An encoder, a recurrent cell, then layers. Memory: `hidden`, of an LSTM also `cell`, float32 (B, hidden_size)."""

    def __init__(self, config: RecurrentConfig, spaces: dict[str, Space], num_outputs: int) -> None:
        super().__init__()
        with below("encoder"):
            self.encoder = config.encoder.build(spaces, config.encoder_width)
        self.activation = ACTIVATIONS[config.activation]()
        self.is_lstm = config.cell == "lstm"
        self.names = ("hidden", "cell") if self.is_lstm else ("hidden",)
        self.core = (nn.LSTM if self.is_lstm else nn.GRU)(config.encoder_width, config.hidden_size)
        self.head = make_layers(config.net_arch, config.activation, config.hidden_size, num_outputs)

    def initial_memory(self, num_worlds: int, device: torch.device) -> Memory:
        return {name: torch.zeros(num_worlds, self.core.hidden_size, device=device) for name in self.names}

    def forward(self, observation: Mapping[str, Tensor], memory: Memory) -> tuple[Tensor, Memory]:
        x = self.activation(self.encoder(observation))
        weights = self.core.parameters()
        if self.is_lstm:  # for one step, the function of a cell is several times faster than the module
            hidden, cell = torch.lstm_cell(x, (memory["hidden"], memory["cell"]), *weights)
            return self.head(hidden), {"hidden": hidden, "cell": cell}
        hidden = torch.gru_cell(x, memory["hidden"], *weights)
        return self.head(hidden), {"hidden": hidden}

    def unroll(self, observation: Mapping[str, Tensor], memory: Memory, episode_start: Tensor) -> Tensor:
        """Compute the outputs of T steps as RecurrentNet says; waits once for a GPU.

        The steps between two starts of episodes are one call of the cell.
        """
        num_steps, num_worlds = episode_start.shape
        encoded = self.encoder({name: value.flatten(0, 1) for name, value in observation.items()})
        x = self.activation(encoded).unflatten(0, (num_steps, num_worlds))
        stays = (~episode_start).to(x.dtype).unsqueeze(-1)
        later = episode_start[1:].any(dim=1).nonzero().flatten() + 1
        parts = []
        for start, end in pairwise([0, *later.tolist(), num_steps]):
            memory = {name: value * stays[start] for name, value in memory.items()}
            outputs, memory = self._stretch(x[start:end], memory)
            parts.append(outputs)
        return self.head(torch.cat(parts).flatten(0, 1)).unflatten(0, (num_steps, num_worlds))

    def _stretch(self, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return the cell's outputs (T, B, hidden_size) along steps in which no episode begins, and its next memory."""
        state = tuple(memory[name].unsqueeze(0) for name in self.names)  # an axis for layers, of which there is one
        outputs, after = self.core(x, state if self.is_lstm else state[0])
        parts = after if self.is_lstm else (after,)
        return outputs, {name: part.squeeze(0) for name, part in zip(self.names, parts, strict=True)}


class NamedNet:
    """One of a player's networks, with or without a memory; it computes step by step or along whole sequences.

    name: that of the network, below which the player's memory has the network's own. net: a module, or a kernel in its
    place (see `acting_net`). remembers: whether it has a memory.
    """

    def __init__(self, name: str, net: Callable[..., Any]) -> None:
        self.name, self.net, self.remembers = name, net, isinstance(net, RecurrentNet)

    def initial_memory(self, num_worlds: int, device: torch.device) -> Memory:
        """Return the memory at the start of an episode."""
        if not isinstance(self.net, RecurrentNet):
            return {}
        return self._named(self.net.initial_memory(num_worlds, device))

    def step(self, observation: Mapping[str, Tensor], memory: Memory) -> tuple[Tensor, Memory]:
        """Return the outputs, float32 (B, num_outputs), and the network's new memory."""
        if not self.remembers:
            return self.net(observation), {}
        outputs, own = self.net(observation, self._own(memory))
        return outputs, self._named(own)

    def unroll(self, observation: Mapping[str, Tensor], memory: Memory, episode_start: Tensor) -> Tensor:
        """Return the outputs along B sequences of T steps, float32 (T * B, num_outputs).

        They lie step by step, in a step sequence by sequence, as the observation must too. memory, episode_start: as
        `RecurrentNet.unroll` wants them.
        """
        if not isinstance(self.net, RecurrentNet):
            outputs: Tensor = self.net(observation)
            return outputs
        steps = {name: value.unflatten(0, episode_start.shape) for name, value in observation.items()}
        return self.net.unroll(steps, self._own(memory), episode_start).flatten(0, 1)

    def _own(self, memory: Memory) -> Memory:
        start = f"{self.name}."
        return {name.removeprefix(start): value for name, value in memory.items() if name.startswith(start)}

    def _named(self, memory: Memory) -> Memory:
        return {f"{self.name}.{name}": value for name, value in memory.items()}
