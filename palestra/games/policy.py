"""How somebody in a seat acts: what a roll-out and an evaluation ask of a player."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

from torch import Tensor

Memory = dict[str, Tensor]
Sees = Literal["observation", "state", "nothing"]


class Decision(NamedTuple):
    """What `act` gives. action: (B, ...) as the role's action space says. extras: what an algorithm keeps of the
    decision (log-probabilities, ...)."""

    action: Tensor
    extras: dict[str, Tensor]
    memory: Memory


class Policy(Protocol):
    """How somebody in a seat acts. `sees` tells what `view` is: the role's observation, the exact state, or nothing
    ({})."""

    sees: Sees

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision: ...
