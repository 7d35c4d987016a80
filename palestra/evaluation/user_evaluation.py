"""Evaluations of one's own: what they must be, and how they are played."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from palestra.config import UserConfig
from palestra.evaluation.evaluator import STREAM
from palestra.players.player import Player
from palestra.randomness import base_key, restored_global_states, seeded_global_state


class UserEvaluation(ABC):
    """Base of an evaluation of one's own. It carries its keys as `Config`, a UserConfig.

    Must be set: `scores`, the names of what it measures. Must be implemented: `play`. A new object plays each time.
    """

    scores: ClassVar[Sequence[str]]

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def play(
        self, players: Mapping[str, Player], num_games: int, seed: int, watch: Callable[[int], None]
    ) -> Mapping[str, float]:
        """Play the evaluation and return its scores by name, those of `scores`.

        players: all players of the run, by name, with their networks in evaluation mode; `predict` asks them. seed: all
        randomness comes from it; it also seeds the global generators of Python, NumPy and torch. watch: to be called
        now and then with how many games are over; it ends the evaluation if the run is asked to leave.
        """


def play_user_evaluation(
    config: UserConfig,
    players: Mapping[str, Player],
    num_games: int,
    seed: int,
    watch: Callable[[int], None],
) -> dict[str, float]:
    """Let a new object of the class that a config names play; return its scores in the order of `scores`.

    The global generators and the players are afterwards as they were. Raises TypeError for scores that are none.
    """
    evaluation: UserEvaluation = config.build()
    counts = {player.name: player.num_predictions for player in players.values()}
    key = base_key(seed, STREAM)
    try:
        with restored_global_states(), seeded_global_state(key), torch.no_grad():
            random.seed(key)
            np.random.seed(key % 2**32)
            for player in players.values():
                player.num_predictions = 0  # draws of `predict` follow it
            found = evaluation.play(players, num_games, seed, watch)
    finally:
        for name, count in counts.items():
            players[name].num_predictions = count
    if not isinstance(found, Mapping) or set(found) != set(evaluation.scores):
        names = sorted(found) if isinstance(found, Mapping) else type(found).__name__
        raise TypeError(f"expected the scores {', '.join(evaluation.scores)} from {config.name}, got {names}")
    try:
        return {name: float(found[name]) for name in evaluation.scores}
    except (TypeError, ValueError) as error:
        raise TypeError(f"expected numbers from {config.name}, got {dict(found)!r}") from error
