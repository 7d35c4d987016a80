"""`harvest`: a cooperative game whose reward depends mostly on what no role observes and no action changes.

A critic that observes more than its player explains much more of the reward.

Letters: B worlds, T rounds, R roles, K kinds of weather.
"""

from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot, pad

from palestra.config import NonNegativeFloat, PositiveInt
from palestra.games.config import TensorGameConfig
from palestra.games.game import Kernel, Moved, Observation, State, TensorGame
from palestra.games.spaces import Discrete, Space
from palestra.randomness import random_integers


class HarvestConfig(TensorGameConfig):
    name: Literal["harvest"]
    """farmers sow, each by the weather over the own field; the weather over all fields decides most of the harvest"""
    num_farmers: Annotated[int, Field(ge=2, le=100)]
    """how many roles there are: farmer_0, farmer_1, ..."""
    num_kinds: Annotated[int, Field(ge=2, le=100)]
    """kinds of weather, and of seed; each weather has one seed that is right"""
    num_rounds: PositiveInt
    """rounds of a game"""
    luck: NonNegativeFloat
    """a round brings between -luck and luck, whatever is sown, and 1 more if all farmers sow what is right"""

    usual: ClassVar[dict[str, Any]] = {"num_farmers": 2, "num_kinds": 4, "num_rounds": 2, "luck": 20.0}
    usual_run: ClassVar = {"trainer": "together"}

    def make(self, device: torch.device, kernel: Kernel) -> "HarvestGame":
        return HarvestGame(self, device)


class HarvestGame(TensorGame):
    """The game of farmers who sow, each by the weather over the own field.

    State: weather int64 (B, T, R), from 0 to K - 1; round int64 (B,); right int64 (B,), the rounds so far in which all
    farmers sowed what is right, the number of their weather.

    All farmers get the same: 1 in such a round, and luck * (2 * (sum of the weather mod K) / (K - 1) - 1). The mean of
    this share is 0, also where the weather over all fields but one is known. So the best mean return is T.

    A farmer observes `seen`, float32 (K + 1,): its weather of this round, one-hot, and the share of the rounds that are
    left. Critics are shown `weather`, float32 (T, R, K): all of this round, the next one and so on, one-hot.
    """

    tallies = ("right",)
    lockstep = True
    always_legal = True

    def __init__(self, config: HarvestConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        T, R, K = config.num_rounds, config.num_farmers, config.num_kinds
        self.roles = tuple(f"farmer_{number}" for number in range(R))
        self.moves = (self.roles,)
        self.spaces = {role: {"seen": Space((K + 1,), torch.float32, padded=False)} for role in self.roles}
        self.critic_spaces = {role: {"weather": Space((T, R, K), torch.float32, padded=False)} for role in self.roles}
        self.action_spaces = {role: Discrete(K) for role in self.roles}

    def reset(self, keys: Tensor) -> State:
        T, R = self.config.num_rounds, self.config.num_farmers
        weather = random_integers(keys, T * R, self.config.num_kinds).view(-1, T, R)
        return {"weather": weather, "round": torch.zeros_like(keys), "right": torch.zeros_like(keys)}

    def _is_running(self, state: State) -> Tensor:
        return state["round"] < self.config.num_rounds

    def _from_now_on(self, state: State) -> Tensor:
        """Return the weather of this round, the next one and so on, -1 after the last one: int64 (B, T, R)."""
        rounds = state["round"].unsqueeze(1) + torch.arange(self.config.num_rounds, device=self.device)
        later = pad(state["weather"], (0, 0, 0, self.config.num_rounds), value=-1)
        rounds = rounds.clamp(max=later.shape[1] - 1)
        return later.gather(1, rounds.unsqueeze(2).expand(-1, -1, self.config.num_farmers))

    def _one_hot(self, weather: Tensor) -> Tensor:
        """Encode weather one-hot; -1, which stands for no round, becomes zeros."""
        return one_hot(weather + 1, self.config.num_kinds + 1)[..., 1:].float()

    def deciding(self, state: State) -> Tensor:
        return self._is_running(state).unsqueeze(1).expand(-1, len(self.roles))

    def observe(self, state: State, role: str) -> Observation:
        own = self._from_now_on(state)[:, 0, self.roles.index(role)]
        left = 1.0 - state["round"].float() / self.config.num_rounds
        return {"seen": torch.cat([self._one_hot(own), left.unsqueeze(1)], dim=1)}

    def observe_for_critics(self, state: State, role: str) -> Observation:
        return {"weather": self._one_hot(self._from_now_on(state))}

    def transition(self, state: State, actions: dict[str, Tensor], keys: Tensor) -> Moved:
        running, weather = self._is_running(state), self._from_now_on(state)[:, 0]
        is_right = (torch.stack([actions[role] for role in self.roles], dim=1) == weather).all(dim=1) & running
        num_kinds = self.config.num_kinds
        luck = self.config.luck * (2.0 * (weather.sum(dim=1) % num_kinds).float() / (num_kinds - 1) - 1.0)
        new = state | {"round": state["round"] + running, "right": state["right"] + is_right}
        rewards = torch.where(running, is_right.float() + luck, 0.0).unsqueeze(1).expand(-1, len(self.roles))
        over = ~self._is_running(new)
        return new, rewards, over.unsqueeze(1).expand(-1, len(self.roles)), torch.zeros_like(over)
