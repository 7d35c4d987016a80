"""Scripted players: they follow a rule and do not learn. Their random numbers come from the keys of each decision.

The players in this file play any game. Letters: B worlds, A actions.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol, Self

import torch
from pydantic import ConfigDict
from torch import Tensor

from palestra.config import Config, ConfigError, PositiveInt
from palestra.games.config import GameConfig
from palestra.games.game import Game, IllegalMove, TensorGame
from palestra.games.policy import Decision, Memory, Observes, Policy
from palestra.games.positions import OVER, positions_of
from palestra.games.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from palestra.randomness import random_choice, random_floats


class ScriptedPlayerConfig(Config):
    """A scripted player. The `Config` of one of your own derives from it, and adds its keys."""

    model_config = ConfigDict(defer_build=False)  # errors of the model appear where it is defined

    scripted: str
    """a scripted player by name (`palestra list` shows them), or a class of your own"""

    def user_names(self) -> list[str]:
        return [self.scripted] if ":" in self.scripted else []


class Script(Policy, Protocol):
    """The policy of a player that does not learn, made for a role of a game.

    kind: what it is, for people. config: equal ones mean the same player.
    """

    kind: str

    @property
    def config(self) -> Config: ...

    def for_seat(self, game: Game, role: str) -> "Script":
        """Make the same player for another seat. Raises ConfigError if it cannot sit there."""
        ...


class ScriptedPolicy:
    """Base of scripted players, and of those of your own. It is made with its config, a game and a role of this game.

    Must be implemented: `choose`. May be overridden: `act`, for a player with a memory. May be implemented, for one
    that draws: `probabilities(view, legal)`, those with which `choose` draws, (B, flags), or None. May be set:
    `Config`, with the player's own keys; `game_config`, the config class of the game that it plays (None: any game);
    `roles` in which it may sit (None: any role); `action_spaces`, the kinds from which it chooses; `observes`, what it
    gets as `view`: the role's `observation`, the whole `state` of a tensor game, or `nothing`.

    Raises ConfigError for a role with another kind of action space, and if it observes the state of an environment.
    """

    Config: ClassVar[type[ScriptedPlayerConfig]] = ScriptedPlayerConfig
    game_config: ClassVar[type[GameConfig] | None] = None
    roles: ClassVar[tuple[str, ...] | None] = None
    action_spaces: ClassVar[tuple[type[ActionSpace], ...]] = (Discrete,)
    observes: Observes = "nothing"
    kind = "scripted"

    def __init__(self, config: ScriptedPlayerConfig, game: Game, role: str) -> None:
        self.config, self.game, self.role, self.space = config, game, role, game.action_spaces[role]
        fault = role_fault(type(self), config.scripted, role)
        if fault is None and not isinstance(self.space, self.action_spaces):
            can = " or ".join(kind.__name__ for kind in self.action_spaces)
            fault = f"expected {can} actions for {config.scripted!r}, got {self.space}, those of {role!r}"
        elif fault is None and self.observes == "state" and not isinstance(game, TensorGame):
            fault = f"expected a tensor game for {config.scripted!r}, which observes its state, got an environment"
        if fault is not None:
            raise ConfigError.at("", fault)

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        """Choose actions, (B, ...) as the action space says: a legal one in every world that has any.

        view: what the player observes, tensors (B, ...) by name; {} if nothing. legal: bool (B, flags of the action
        space). keys: int64 (B,), of the random numbers that it draws (palestra.randomness); it draws no others.
        """
        raise NotImplementedError

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        """Decide by `choose`. memory: of the last decision, by name (B, ...); zeros or {} at the start of a game."""
        return Decision(self.choose(view, legal, keys), {}, memory)

    def for_seat(self, game: Game, role: str) -> Self:
        return type(self)(self.config, game, role)


def role_fault(policy: type[ScriptedPolicy], name: str, role: str) -> str | None:
    """Say why a scripted player cannot sit in a role, or return None."""
    if policy.roles is None or role in policy.roles:
        return None
    return f"expected the role {' or '.join(policy.roles)} for the player {name!r}, got {role!r}"


class RandomPolicy(ScriptedPolicy):
    """Chooses any legal action, each with the same probability; numbers uniformly within their bounds."""

    action_spaces = (Discrete, MultiDiscrete, Box)

    def __init__(self, config: ScriptedPlayerConfig, game: Game, role: str) -> None:
        super().__init__(config, game, role)
        if isinstance(self.space, Box):
            self.low, self.high = (torch.tensor(x, device=game.device) for x in (self.space.low, self.space.high))
            if not (self.high - self.low).isfinite().all():
                message = f"expected actions with finite bounds for 'random', got {self.space}, those of {role!r}"
                raise ConfigError.at("", message)

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        if isinstance(self.space, Box):
            return self.low + (self.high - self.low) * random_floats(keys, len(self.low))
        return self.space.draw(keys, legal)

    def probabilities(self, view: Mapping[str, Tensor], legal: Tensor) -> Tensor:
        return uniform(legal)


class ChooseFirstPolicy(ScriptedPolicy):
    """Chooses the first legal action; as an agent of the polyhedra game: the first coordinate of the host's choice."""

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        return legal.to(torch.int8).argmax(dim=1)


class ChooseLastPolicy(ScriptedPolicy):
    """Chooses the last legal action; as an agent of the polyhedra game: the last coordinate of the host's choice."""

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        return legal.shape[1] - 1 - legal.flip(1).to(torch.int8).argmax(dim=1)


def uniform(flags: Tensor) -> Tensor:
    """Return the probabilities of choices among flags, bool (B, A), each with the same one: float64 (B, A)."""
    return flags.double() / flags.sum(dim=1, keepdim=True).clamp(min=1)


class OptimalConfig(ScriptedPlayerConfig):
    scripted: Literal["optimal"]
    """the player that plays optimally, by all positions of a game that can be enumerated"""
    max_positions: PositiveInt
    """how many positions the game may have; they are enumerated when the player is made, and held in memory"""


class OptimalPolicy(ScriptedPolicy):
    """Plays optimally against optimal play, by all positions of the game. Of the best actions it draws any.

    In a game that was cut off it draws any legal action. Raises ConfigError for a game that cannot be enumerated
    (palestra.games.positions).
    """

    Config = OptimalConfig
    observes = "state"

    def __init__(self, config: OptimalConfig, game: Game, role: str) -> None:
        super().__init__(config, game, role)
        self.positions = positions_of(game, config.max_positions)
        self.best = self.positions.best()
        # roll-outs play on in what the game has cut off, where positions come that were not enumerated
        self.is_cut_off = bool(game.deciding(self.positions.state)[self.positions.mover == OVER].any())  # type: ignore[attr-defined]

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        return random_choice(keys, self.probabilities(view, legal) > 0)

    def probabilities(self, view: Mapping[str, Tensor], legal: Tensor) -> Tensor:
        numbers = self.positions.find(dict(view))
        if not self.is_cut_off and bool((numbers < 0).any()):
            raise IllegalMove("expected positions that the game reaches from its starts for 'optimal', got another one")
        best = self.best[numbers, : legal.shape[1]] & legal & (numbers >= 0).unsqueeze(1)
        return uniform(torch.where(best.any(dim=1, keepdim=True), best, legal))
