"""How a player acts in a seat: the protocol that roll-outs and evaluations use."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

Memory = dict[str, Tensor]
PLAY = {"probabilities", "act", "choose", "draw"}  # methods that draw actions, and tell with which probabilities
Observes = Literal["observation", "with_critics", "state", "nothing", "seats"]


class Decision(NamedTuple):
    """The result of `act`.

    action: (B, ...) as the role's action space says. extras: what an algorithm stores with the decision
    (log-probabilities, ...), tensors (B, ...) by name. memory: for the next decision; {} without a memory.
    """

    action: Tensor
    extras: dict[str, Tensor]
    memory: Memory


def require_policies(policies: Mapping[str, "Policy"], roles: Sequence[str]) -> None:
    """Raise ValueError unless there is a policy for each of these roles."""
    if missing := [role for role in roles if role not in policies]:
        expected = f"expected a policy for each role ({', '.join(roles)}) in `policies` before anything is played"
        raise ValueError(f"{expected}, got none for {missing[0]!r}; roll_out(role, num_rounds) of a trainer sets them")


def told_probabilities(who: Any, *arguments: Any) -> Tensor | None:
    """Return the probabilities of actions that a policy, or a part by which it draws, tells; None if it tells none.

    None also where a class acts by a method of its own, and inherits `probabilities`: those are of another play.
    """
    owner = next((base for base in type(who).__mro__ if vars(base).keys() & PLAY), object)
    return who.probabilities(*arguments) if "probabilities" in {**vars(owner), **vars(who)} else None


class Policy(Protocol):
    """How a player acts in a seat.

    observes: what `view` is: the role's observation; in roll-outs alone, the same with what the game shows critics
    alone (`with_critics`); the state of the game; nothing ({}); or, in a seat that several players share, all of these
    by their names (`seats`).
    """

    observes: Observes

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        """Decide in every world.

        legal: bool (B, flags of the action space). keys: int64 (B,), of the random numbers that the policy draws.
        memory: of the last decision, zeros or {} at the start of a game.
        """
        ...
