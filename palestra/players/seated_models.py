"""Models that learned from data in the seats of a game, held fixed.

Letters: B worlds.
"""

from collections.abc import Mapping
from typing import Any, Literal, Self

import torch
from torch import Tensor

from palestra.config import ConfigError
from palestra.games.game import Game
from palestra.games.policy import Decision, Memory, Observes
from palestra.games.spaces import Discrete, entries_in_words
from palestra.models.labelled import Classifier, LabelledModel
from palestra.models.model import Model
from palestra.models.sources import FromModelConfig
from palestra.players.user_scripts import require_actions, try_policy


class SeatedModelConfig(FromModelConfig):
    """A model of another run, which is held fixed. It stands in place of a player's config."""

    acts: Literal["selected", "sampled"]
    """selected: the action that its `select_action` names, which depends on the observation alone; sampled: one that
    its `sample_action` draws"""


class ModelPolicy:
    """How a model plays a role of a game.

    model: in evaluation mode, on the game's device. opt_steps: those after which it is so. Raises ConfigError for a
    model that does not fit the role, or fails there.
    """

    kind = "model"
    observes: Observes = "observation"

    def __init__(self, config: SeatedModelConfig, model: Model, opt_steps: int, game: Game, role: str) -> None:
        self.config, self.model, self.opt_steps = config, model, opt_steps
        self.role, self.space = role, game.action_spaces[role]
        self._method = "select_action" if config.acts == "selected" else "sample_action"
        if (fault := self._fault(game)) is not None:
            raise ConfigError.at("", f"expected {fault[0]}, got {fault[1]}")
        try_policy(self, config.from_model, game, role)

    def _fault(self, game: Game) -> tuple[str, str] | None:
        """Say what is expected of the model in this role, and what it is instead; None if it fits."""
        model, method, role, name = self.model, self._method, self.role, type(self.model).__name__
        if getattr(type(model), method) is getattr(Model, method):
            return f"a model with the method {method}", f"{name}, which has none"
        if isinstance(model, LabelledModel):
            shown = {name: (each.shape, each.dtype) for name, each in game.spaces[role].items()}
            if any(shown.get(name) != (each.shape, each.dtype) for name, each in model.spaces.items()):
                here, there = entries_in_words(game.spaces[role]), entries_in_words(model.spaces)
                return f"a model that has learned from {here}, as {role!r} observes", there
        if isinstance(model, Classifier):
            if not isinstance(self.space, Discrete):
                return f"a model for {self.space}, the actions of {role!r}", "a classifier, which chooses among classes"
            if (num := model.config.num_classes) != self.space.num:
                return f"a classifier of {self.space.num} classes, as {role!r} has actions", f"one of {num}"
        return None

    def for_seat(self, game: Game, role: str) -> Self:
        return type(self)(self.config, self.model, self.opt_steps, game, role)

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        """Play by the model. Raises IllegalMove for what is no action, or an illegal one where there are legal ones."""
        with torch.no_grad():
            arguments: tuple[Any, ...] = (view, legal) if self.config.acts == "selected" else (view, legal, keys)
            action = getattr(self.model, self._method)(*arguments)
        source = f"{self._method} of {type(self.model).__name__} ({self.config.from_model})"
        require_actions(action, self.space, legal, self.role, source)
        return Decision(action, {}, memory)
