"""`trainer: {name: together}`: one roll-out of shared worlds serves all players that learn."""

from dataclasses import replace
from typing import Any

from palestra.kinds.games.config import RunConfig
from palestra.kinds.games.descriptions import shared_turns_in_words, updates_in_words
from palestra.kinds.games.trainer import PlayerTurn, Trainer
from palestra.players.player import Player
from palestra.recording.results import Stage
from palestra.rollouts.transitions import Transitions


class _ExperienceTaken(Exception):
    """The player has taken its share of the roll-out; the rest of its turn comes later."""


class _BeginningOfTurn(PlayerTurn):
    """A turn that ends at the first safe point after the roll-out."""

    trainer: "Together"

    def safe_point(self) -> None:
        if self.player.name not in self.trainer.without_experience:
            raise _ExperienceTaken


class Together(Trainer):
    """Trains players that play in the same worlds.

    In each epoch they all act as they are at its start, in one roll-out; its env steps and games count once. Then each
    takes its share, and they update, in the order of `players`. The roll-out, and what the algorithms do with it before
    their next safe point, are one piece, after which there is a safe point. An algorithm asks for one roll-out per
    turn. Raises RuntimeError if it asks for another one, or for another length than the players before it.

    waiting: the players whose turn of this epoch is not over. without_experience: during the roll-out, the players that
    have not asked for their share.
    """

    def _build(self) -> None:
        super()._build()
        self.waiting: list[str] = []
        self.without_experience: list[str] = []
        self._shared: tuple[int, dict[str, Transitions]] | None = None

    def _make_worlds(self) -> dict[str, Any]:
        worlds = self._new_worlds(self.learners[0].num_worlds, "play/together", "num_worlds")
        for player in self.learners:
            player.worlds = worlds
        return {"together": worlds}

    @classmethod
    def train_stage(cls, config: RunConfig) -> Stage:
        stage = super().train_stage(config)
        if cls._train is not Together._train:
            return stage
        return replace(stage, description=shared_turns_in_words(config) + updates_in_words(config))

    def _train(self) -> None:
        """One epoch: a roll-out for all learning players, then the rest of their turns."""
        if not self.waiting:
            self._begin_turns()
        while self.waiting:
            self.give_turn(self.players[self.waiting[0]])
            del self.waiting[0]

    def _begin_turns(self) -> None:
        learning = [player for player in self.learners if not player.frozen]
        self.without_experience, self._shared = [player.name for player in learning], None
        for player in learning:
            try:
                _BeginningOfTurn(self, player).run()
            except _ExperienceTaken:
                self.waiting.append(player.name)
        self.without_experience, self._shared = [], None
        if self.waiting:
            self.safe_point()

    def roll_out_of(self, player: Player, num_rounds: int) -> Transitions:
        """The share of a player in the roll-out of this epoch."""
        if player.name not in self.without_experience:
            raise RuntimeError(f"expected one roll-out per turn with 'together', got another one of {player.name!r}")
        self.without_experience.remove(player.name)
        if self._shared is None:
            self._shared = num_rounds, self._play([each for each in self.learners if not each.frozen], num_rounds)
        shared_rounds, shared = self._shared
        if num_rounds != shared_rounds:
            expected = f"expected roll-outs of one length with 'together', {shared_rounds} rounds"
            raise RuntimeError(f"{expected} as of the first player, got {num_rounds} of {player.name!r}")
        return self._handed_out(player, {role: shared[role] for role in player.roles})

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"waiting": list(self.waiting)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.waiting = list(state["waiting"])

    def state_of_branch(self, state: dict[str, Any]) -> dict[str, Any]:
        learning = [player.name for player in self.learners]
        return super().state_of_branch(state) | {"waiting": [name for name in state["waiting"] if name in learning]}
