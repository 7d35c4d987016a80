"""The modules that `palestra export` writes: a player that acts without chance."""

from collections.abc import Callable

from torch import Tensor, nn

from palestra.nets.user_nets import RecurrentNet


class Deterministic(nn.Module):
    """A player that acts without chance: its network, and a function from outputs and legal actions to actions.

    The first `num_flags` outputs are the values of all choices, or their logits.
    """

    def __init__(self, net: nn.Module, choose: Callable[[Tensor, Tensor], Tensor], num_flags: int) -> None:
        super().__init__()
        self.net, self.choose, self.num_flags = net, choose, num_flags
        self.eval()

    def forward(self, observation: dict[str, Tensor], legal: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.net(observation)
        return self.choose(outputs, legal), outputs[:, : self.num_flags]


class DeterministicRecurrent(nn.Module):
    """A player that acts without chance by a network with a memory, which is the last argument and the last result.

    prefix: what the player's memory puts before the names of the network's memory.
    """

    def __init__(
        self, net: RecurrentNet, choose: Callable[[Tensor, Tensor], Tensor], num_flags: int, prefix: str
    ) -> None:
        super().__init__()
        self.net, self.choose, self.num_flags, self.prefix = net, choose, num_flags, prefix
        self.eval()

    def forward(
        self, observation: dict[str, Tensor], legal: Tensor, memory: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        outputs, after = self.net(observation, memory)
        return self.choose(outputs, legal), outputs[:, : self.num_flags], dict(after)
