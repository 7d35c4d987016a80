"""How a player acts without chance, as one module that `palestra export` writes."""

from collections.abc import Callable

from torch import Tensor, nn

from palestra.nets.user_nets import RecurrentNet


class Deterministic(nn.Module):
    """How a player acts without chance: a network, and how its outputs and the legal actions become actions.

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
    """As `Deterministic`, for a network with a memory, which goes in after the legal actions and comes out last.

    prefix: before the names of the network's memory where it lies in the player's.
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
