"""Scripted players: they follow a rule and do not learn. Their random numbers come from the keys of each decision.

The players in this file play any game. Letters: B worlds, A actions.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from palestra.config import ConfigError, ConfigErrorItem
from palestra.games.config import GameConfig
from palestra.games.game import Game
from palestra.games.policy import Decision, Memory, Observes
from palestra.games.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from palestra.randomness import fold, random_choice, random_floats


class ScriptedPolicy:
    """Base of scripted players. Must be implemented: `choose`. Must be set: `name`.

    game_config: the config class of the game that it plays; None: any game. roles: the roles in which it may sit; None:
    any role. action_spaces: the kinds of action spaces from which it chooses. observes: what `choose` gets as `view`.
    Raises ConfigError for a role with another kind of action space.
    """

    name: ClassVar[str]
    game_config: ClassVar[type[GameConfig] | None] = None
    roles: ClassVar[tuple[str, ...] | None] = None
    action_spaces: ClassVar[tuple[type[ActionSpace], ...]] = (Discrete,)
    observes: Observes = "nothing"

    def __init__(self, game: Game, role: str) -> None:
        self.game, self.space = game, game.action_spaces[role]
        if not isinstance(self.space, self.action_spaces):
            can = " or ".join(kind.__name__ for kind in self.action_spaces)
            raise ConfigError(
                [ConfigErrorItem("", f"expected {can} actions for {self.name!r}, got {self.space}, those of {role!r}")]
            )

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        """The actions, (B, ...) as the action space says: a legal one in every world that has any."""
        raise NotImplementedError

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        return Decision(self.choose(view, legal, keys), {}, memory)


class RandomPolicy(ScriptedPolicy):
    """Any legal action, each with the same probability; numbers uniformly within their bounds."""

    name = "random"
    action_spaces = (Discrete, MultiDiscrete, Box)

    def __init__(self, game: Game, role: str) -> None:
        super().__init__(game, role)
        if isinstance(self.space, Box):
            self.low, self.high = (torch.tensor(x, device=game.device) for x in (self.space.low, self.space.high))
            if not (self.high - self.low).isfinite().all():
                message = f"expected actions with finite bounds for 'random', got {self.space}, those of {role!r}"
                raise ConfigError([ConfigErrorItem("", message)])

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        match self.space:
            case Discrete():
                return random_choice(keys, legal)
            case MultiDiscrete(nums=nums):
                choices = enumerate(legal.split(list(nums), dim=1))
                return torch.stack([random_choice(fold(keys, k), flags) for k, flags in choices], dim=1)
            case Box(low=low):
                return self.low + (self.high - self.low) * random_floats(keys, len(low))


class ChooseFirstPolicy(ScriptedPolicy):
    """The first legal action; as an agent of the polyhedra game: the first coordinate of the host's choice."""

    name = "choose_first"

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        return legal.to(torch.int8).argmax(dim=1)


class ChooseLastPolicy(ScriptedPolicy):
    """The last legal action; as an agent of the polyhedra game: the last coordinate of the host's choice."""

    name = "choose_last"

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        return legal.shape[1] - 1 - legal.flip(1).to(torch.int8).argmax(dim=1)
