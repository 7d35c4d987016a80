"""A game made to find out what goes wrong around games."""

import torch
from torch import Tensor

from palestra.games.game import Observation, State, TensorGame
from palestra.games.spaces import Discrete, Space
from palestra.randomness import random_integers

CPU = torch.device("cpu")
ROLES = ("a", "b", "c")


class TagGame(TensorGame):
    """A game whose observations carry its number, the step and the role, and whose number decides all that happens.

    Some games are over at their start, some are cut off; unless the roles decide one by one, in half of them the later
    ones leave before the end. pattern: "together", all roles decide in every step; "one by one", one after another,
    each in a move of its own; "at will", in one move, any of them and at least the first.
    """

    tallies = ("odd",)
    quiet_moves = ()

    def __init__(self, num_roles: int, pattern: str) -> None:
        self.roles = ROLES[:num_roles]
        self.pattern, self.lockstep, self.device = pattern, pattern != "at will", CPU
        self.moves = tuple((role,) for role in self.roles) if pattern == "one by one" else (self.roles,)
        self.action_spaces = dict.fromkeys(self.roles, Discrete(4))
        self.spaces = {role: {"tag": Space((3,), torch.float32, padded=False)} for role in self.roles}

    def reset(self, keys: Tensor) -> State:
        game = random_integers(keys, 1, 2**24).squeeze(1)
        return {"game": game, "step": torch.zeros_like(game), "odd": game % 2}

    def ends(self, state: State) -> Tensor:
        """The step in which each role's game is over: (B, R)."""
        game = state["game"].unsqueeze(1)
        length = torch.where(game % 11 == 0, 0, 3 + game % 4)
        leaves_early = (game // 16 % 2) * (torch.arange(len(self.roles)) > 0) * (self.pattern != "one by one")
        return (length - leaves_early).clamp(min=0)

    def deciding(self, state: State) -> Tensor:
        role, game, step = torch.arange(len(self.roles)), state["game"].unsqueeze(1), state["step"].unsqueeze(1)
        running = step < self.ends(state)
        if self.pattern == "together":
            return running
        if self.pattern == "one by one":
            return running & (step % len(self.roles) == role)
        wanted = running & ((game // 7 + step * (role + 2)) % 3 == 0)
        return wanted | (running & (role == 0) & ~wanted.any(1, keepdim=True))

    def observe(self, state: State, role: str) -> Observation:
        tag = [state["game"], state["step"], torch.full_like(state["step"], self.roles.index(role))]
        return {"tag": torch.stack(tag, dim=1).float()}

    def legal(self, state: State, role: str) -> Tensor:
        return (state["game"] + state["step"] + self.roles.index(role)).unsqueeze(1) % 3 != torch.arange(4)

    def transition(
        self, state: State, actions: dict[str, Tensor], keys: Tensor
    ) -> tuple[State, Tensor, Tensor, Tensor]:
        game, step, deciding = state["game"], state["step"], self.deciding(state)
        moved, played = torch.zeros_like(game, dtype=torch.bool), torch.zeros_like(game)
        for role, action in actions.items():
            decides = deciding[:, self.roles.index(role)]
            moved, played = moved | decides, played + torch.where(decides, action, 0)
        new = state | {"step": step + moved}
        luck = random_integers(keys, 1, 3)
        numbers = (game + 3 * step + played).unsqueeze(1) + 5 * torch.arange(len(self.roles)) + luck
        rewards = ((numbers % 7) - 3.0) * moved.unsqueeze(1)
        terminated = new["step"].unsqueeze(1) >= self.ends(state)
        truncated = moved & (game % 3 == 0) & (new["step"] == 2) & ~terminated.all(1)
        return new, rewards, terminated, truncated
