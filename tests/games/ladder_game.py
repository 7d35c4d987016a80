"""A small zero-sum game with payoffs on the way, and its rules once more in plain Python."""

import torch
from torch import Tensor

from palestra.games.game import Moved, Observation, State, TensorGame
from palestra.games.spaces import Discrete, Space
from palestra.runtime.scores import declared_returns

STEPS = {"up": 3, "down": 2}  # each role climbs so many steps at most
TOP = 7


def pay(place: int, step: int) -> float:
    """What the first role gets for a step from a place."""
    return float((place * 5 + step * 3) % 4 - 1)


class LadderGame(TensorGame):
    """Two roles climb one ladder in turn, by 1 step or more, from one of three places; the last step ends the game.

    State: place int64 (B,), mover int64 (B,). fault: what is wrong with it, or "cut off", where it is from place 4 on.
    """

    roles = ("up", "down")
    moves = (roles,)
    lockstep = False
    fully_observable = True
    num_starts = 3
    declared_scores = declared_returns(roles, zero_sum=True, shown=True)

    def __init__(self, fault: str = "") -> None:
        self.fault, self.device = fault, torch.device("cpu")
        self.action_spaces = {role: Discrete(num) for role, num in STEPS.items()}
        self.spaces = {role: {"place": Space((1,), torch.float32, padded=False)} for role in self.roles}

    def reset(self, keys: Tensor) -> State:
        return self.numbered_starts(keys % 3)

    def numbered_starts(self, numbers: Tensor) -> State:
        return {"place": numbers.clone(), "mover": torch.zeros_like(numbers)}

    def deciding(self, state: State) -> Tensor:
        running = (state["place"] < TOP).unsqueeze(1)
        if self.fault == "both decide":
            return running.expand(-1, 2)
        return running & (state["mover"].unsqueeze(1) == torch.arange(2))

    def observe(self, state: State, role: str) -> Observation:
        return {"place": state["place"].float().unsqueeze(1)}

    def legal(self, state: State, role: str) -> Tensor:
        steps = torch.arange(1, STEPS[role] + 1)
        return state["place"].unsqueeze(1) + steps <= TOP

    def transition(self, state: State, actions: dict[str, Tensor], keys: Tensor) -> Moved:
        place, mover = state["place"], state["mover"]
        step = torch.where(mover == 0, actions["up"], actions["down"]) + 1
        gained = ((place * 5 + step * 3) % 4 - 1).float()
        rewards = torch.stack([gained, -gained if self.fault != "not zero-sum" else gained], dim=1)
        if self.fault == "random":
            step = step + (keys % 8 == 7)  # rarely
        after = place + step if self.fault != "recurs" else place + 0 * step
        over = after >= TOP
        # another order of the entries than that of the starts
        truncated = (after >= 4) & ~over & (self.fault == "cut off")
        return {"mover": 1 - mover, "place": after}, rewards, over.unsqueeze(1).expand(-1, 2), truncated
