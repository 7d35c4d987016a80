"""The rules of a game as pure functions on a batch of worlds.

A state is a dict of tensors whose first axis is the world. Letters: B worlds, R roles, A actions.

How other shapes of game fit: a lone agent is one role and one turn; rounds of messages among many roles are one turn
per speaker (or one turn in which several speak at once); a game whose worlds are at different moves lists all movers
in one turn and tells them apart by `deciding`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from palestra.randomness import runs_on_cpu

State = dict[str, Tensor]
Observation = dict[str, Tensor]


def expand_mask(mask: Tensor, like: Tensor) -> Tensor:
    """A mask of worlds, bool (B,), that broadcasts against a tensor of any shape (B, ...)."""
    return mask.view(-1, *([1] * (like.dim() - 1)))


class IllegalMove(ValueError):
    """An action that the rules forbid was given to the public `step`."""


@dataclass(frozen=True)
class Space:
    """One entry of an observation: the shape of one world's part, without the axis of worlds.

    `padded`: the entry is a set, its first axis lists the members, and rows with a negative entry are absent.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    padded: bool


class TensorGame(ABC):
    """The rules. Stateless: everything that changes is in the state that goes in and comes out.

    Must be set: `roles`, in the order of the axis R; `turns`, the roles that may decide in each turn of a round;
    `quiet_turns`, those by number in which nothing is earned and no running game ends (never the last of a round);
    `num_actions` and `spaces` by role; `tallies`, the names of state entries of shape (B,) to be summed over finished
    games; `device`; `lockstep`, whether a role that waits in a world decides there whenever its turn comes, until the
    game is over. Must be implemented: `reset`, `deciding`, `observe`, `legal`, `transition`. May be overridden:
    `refill`.
    """

    roles: tuple[str, ...]
    turns: tuple[tuple[str, ...], ...]
    quiet_turns: tuple[int, ...]
    num_actions: dict[str, int]
    spaces: dict[str, dict[str, Space]]
    tallies: tuple[str, ...]
    lockstep: bool
    device: torch.device

    @abstractmethod
    def reset(self, keys: Tensor) -> State:
        """New worlds, one per key (see palestra.randomness): keys int64 (B,). The tensors are new and may be written
        to."""

    def refill(self, state: State, where: Tensor, keys: Tensor) -> State:
        """`state` with new worlds in the places `where`: bool (B,); keys int64 (B,). May write to the tensors of
        `state`."""
        if not runs_on_cpu(where):
            fresh = self.reset(keys)
            return {name: torch.where(expand_mask(where, value), fresh[name], value) for name, value in state.items()}
        rows = where.nonzero().squeeze(1)  # a CPU pays for these alone; a GPU would have to wait to learn which
        for name, value in self.reset(keys[rows]).items():
            # numpy's: after torch's threads have copied, they spin on the cores that the kernels' threads want
            state[name].numpy()[rows.numpy()] = value.numpy()
        return state

    @abstractmethod
    def deciding(self, state: State) -> Tensor:
        """Which roles decide now: bool (B, R). No role decides in a world that is over."""

    @abstractmethod
    def observe(self, state: State, role: str) -> Observation:
        """What a role sees: new tensors of shape (B, *space.shape), never views of the state."""

    @abstractmethod
    def legal(self, state: State, role: str) -> Tensor:
        """The legal actions of a role: bool (B, A); at least one per world in which the role decides."""

    @abstractmethod
    def transition(
        self, state: State, actions: dict[str, Tensor], keys: Tensor
    ) -> tuple[State, Tensor, Tensor, Tensor]:
        """One turn, unchecked. actions: int64 (B,) by role; those of roles that do not decide are ignored.

        Gives the new state, rewards (B, R) float32, terminated (B, R) bool (over for that role, no bootstrap) and
        truncated (B,) bool (cut off; never together with terminated). A world that is over when it comes in stays as
        it is, with reward 0 and terminated True.
        """

    def step(self, state: State, actions: dict[str, Tensor], keys: Tensor) -> tuple[State, Tensor, Tensor, Tensor]:
        """One turn, checked: as `transition`, but raises IllegalMove for an action that is missing, out of range or
        illegal."""
        deciding = self.deciding(state)
        for index, role in enumerate(self.roles):
            wanted = deciding[:, index]
            if role not in actions:
                if wanted.any():
                    raise IllegalMove(
                        f"{role} decides in {int(wanted.sum())} worlds, but actions has no entry {role!r}"
                    )
                continue
            action, num_actions = actions[role], self.num_actions[role]
            actions = actions | {role: action.masked_fill(~wanted, 0)}  # what is ignored may be any number
            inside = (action >= 0) & (action < num_actions)
            chosen = action.clamp(0, num_actions - 1).unsqueeze(1)
            illegal = wanted & ~(inside & self.legal(state, role).gather(1, chosen).squeeze(1))
            if illegal.any():
                world = int(illegal.nonzero()[0, 0])
                moves = self.legal(state, role)[world].nonzero().flatten().tolist()
                raise IllegalMove(f"{role} plays {int(action[world])} in world {world}; legal there: {moves}")
        return self.transition(state, actions, keys)
