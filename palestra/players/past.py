"""Past selves: the players that a learning player was, which do not learn.

Letters: B worlds.
"""

from collections.abc import Callable, Mapping
from copy import copy, deepcopy
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from palestra.config import ByName, Config, InBranch, NonNegativeFloat, PositiveFloat, PositiveInt
from palestra.games.game import TensorGame
from palestra.games.policy import Decision, Memory, Observes, told_probabilities
from palestra.players.player import Player
from palestra.randomness import fold
from palestra.rollouts.seated import SeatedPolicy, Sitter

Make = Callable[[TensorGame, str], Player]
Kept = dict[int, Mapping[str, Any]]


class UniformChoiceConfig(Config):
    name: Literal["uniform"]
    """each past self with the same probability"""

    def weights(self, contests: np.ndarray, won: np.ndarray) -> np.ndarray:
        return np.ones_like(contests)


class PrioritizedChoiceConfig(Config):
    """Prioritized fictitious self-play (Vinyals et al. 2019)."""

    usual: ClassVar[Any] = {"power": 1.0, "prior_games": 10.0}

    name: Literal["prioritized"]
    """by the share of the contests with it that the learning player has lost"""
    power: NonNegativeFloat
    """to which this share is raised; 0.0: all alike"""
    prior_games: PositiveFloat
    """contests that count as had before the first one, half of them lost"""

    def weights(self, contests: np.ndarray, won: np.ndarray) -> np.ndarray:
        """Return numbers proportional to the probabilities of past selves, by the contests of the player with each."""
        lost = (contests - won + 0.5 * self.prior_games) / (contests + self.prior_games)
        return (lost / lost.max()) ** self.power


class PastPlayerConfig(Config):
    """Past selves of a player that learns. It stands in place of a player's config."""

    usual: ClassVar[Any] = {"num_kept": 20, "num_seated": 4, "explores": True, "choice": "uniform"}

    past_of: str
    """the player that learns, of which copies are kept: from the start of the run on"""
    interval: PositiveInt
    """opt steps of that player from one copy to the next; then those that sit in worlds are drawn anew, too"""
    num_kept: Annotated[PositiveInt, InBranch.FREE]
    """how many copies are kept; a new one replaces the oldest; 1: the latest alone"""
    num_seated: PositiveInt
    """among how many of them the worlds of a pairing are divided; each is drawn from all, so that one may sit twice"""
    explores: bool
    """whether they explore as the player did then; false: as in evaluations, perhaps the same game every time"""
    choice: Annotated[UniformChoiceConfig | PrioritizedChoiceConfig, ByName(), InBranch.FREE]
    """how those that sit in worlds are drawn"""


class PastSelf:
    """One past self in a role: it observes by the statistics of its time.

    player: one like that which learns, held fixed. state: its copy, as `PastPolicy.kept` has it.
    """

    observes: Observes = "state"

    def __init__(self, player: Player, game: TensorGame, role: str, explores: bool) -> None:
        self.player, self.role, self.explores, self.game = player, role, explores, copy(game)
        self.game.observation_transform = deepcopy(game.observation_transform)
        self.policy: Any = player.policy(explores)  # as the player is now, until a state is loaded

    def load(self, state: Mapping[str, Any]) -> Self:
        now = {key: schedule.state_dict() for key, schedule in self.player.schedules().items()}
        then: dict[str, Any] = deepcopy(dict(state["player"]))  # an algorithm may write into it
        self.player.load_acting_state(then | {"schedules": now | then["schedules"]})  # a branch may have others
        self.player.set_training(False)
        self.game.load_state_dict(state["game"])
        self.policy = self.player.policy(self.explores)
        return self

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        return self.policy.act(self._seen(view), legal, keys, memory)

    def probabilities(self, view: Mapping[str, Tensor], legal: Tensor) -> Tensor | None:
        """Return the probabilities of its actions, (B, A); None if it tells none."""
        return told_probabilities(self.policy, self._seen(view), legal)

    def _seen(self, view: Mapping[str, Tensor]) -> dict[str, Tensor]:
        state = dict(view)
        seen = self.game.transformed(self.role, self.game.observe(state, self.role))
        if self.policy.observes == "with_critics":
            seen |= self.game.observe_for_critics(state, self.role)
        return seen


class PastPolicy:
    """All past selves that are kept, in a role: each decides in as many worlds as the others.

    make: makes a player like that which learns, for a role of a game; raises ConfigError where it does not fit. kept:
    the copies by the run's opt steps at which they were made, ascending; all seats have them in common.
    """

    kind = "past self"
    observes: Observes = "state"

    def __init__(self, config: PastPlayerConfig, game: TensorGame, role: str, make: Make, kept: Kept) -> None:
        self.config, self.game, self.role, self.make, self.kept = config, game, role, make, kept
        make(game, role)  # does it fit? What learns may get other networks (`set_model`) before any of these plays
        self.spare: list[PastSelf] = []
        self.made: dict[int, PastSelf] = {}

    def for_seat(self, game: Any, role: str) -> "PastPolicy":
        return PastPolicy(self.config, game, role, self.make, self.kept)

    def past_self(self, opt_steps: int) -> PastSelf:
        """Return the past self that was copied at these opt steps of the run."""
        for gone in self.made.keys() - self.kept.keys():
            self.spare.append(self.made.pop(gone))
        if opt_steps not in self.made:
            unloaded = self.spare.pop() if self.spare else self._made()
            self.made[opt_steps] = unloaded.load(self.kept[opt_steps])
        return self.made[opt_steps]

    def selves(self) -> list[PastSelf]:
        """Return all past selves that are kept; before there is a copy, the player as it is now."""
        return [self.past_self(each) for each in self.kept] or [self._made()]

    def _made(self) -> PastSelf:
        return PastSelf(self.make(self.game, self.role), self.game, self.role, self.config.explores)

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        """Decide by the past self of each world, which the memory knows; worlds of a new game get theirs in turn."""
        selves, before = self.selves(), memory.get("self", torch.zeros_like(keys))
        number = torch.arange(len(keys), device=keys.device)
        turn = number + self.game.roles.index(self.role) * (number // len(selves))  # so that all meet all
        chosen = torch.where(before == 0, (turn + fold(keys[:1], 0)) % len(selves) + 1, before)
        sitters = [Sitter((chosen == n).nonzero()[:, 0], each) for n, each in enumerate(selves, 1)]
        decision = SeatedPolicy(sitters, len(keys), keys.device).act({"state": view}, legal, keys, memory)
        return Decision(decision.action, {}, decision.memory | {"self": chosen})
