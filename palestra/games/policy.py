"""How a player acts in a seat: the protocol that roll-outs and evaluations use."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

from torch import Tensor

Memory = dict[str, Tensor]
Observes = Literal["observation", "with_critics", "state", "nothing"]


class Decision(NamedTuple):
    """The result of `act`. action: (B, ...) as the role's action space says. extras: what an algorithm stores with the
    decision (log-probabilities, ...), tensors (B, ...) by name. memory: for the next decision; {} without a memory."""

    action: Tensor
    extras: dict[str, Tensor]
    memory: Memory


class Policy(Protocol):
    """How a player acts in a seat. observes: what `view` is: the role's observation; in roll-outs alone, the same with
    what the game shows critics alone (`with_critics`); the state of the game; or nothing ({})."""

    observes: Observes

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        """Decide in every world. legal: bool (B, flags of the action space). keys: int64 (B,), of the random numbers
        that the policy draws. memory: of the last decision, zeros or {} at the start of a game."""
        ...
