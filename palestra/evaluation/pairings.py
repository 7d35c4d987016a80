"""Who meets whom: the pairings of a config, played, and the best score among evaluations."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from palestra.evaluation.episodes import play_episodes
from palestra.evaluation.evaluator import BestConfig, EvaluationConfig, Games, evaluation_mode, play_games
from palestra.games.fused import Policy
from palestra.games.game import Game, TensorGame
from palestra.games.gym import GymnasiumGame
from palestra.player import Player
from palestra.players import make_script


def play_pairings(
    config: EvaluationConfig,
    game: Game,
    players: Mapping[str, Player],
    num_games: int,
    num_worlds: int,
    seed: int,
    with_scripted: bool,
    interrupted: Callable[[], bool],
) -> list[dict[str, Any]]:
    """The figures of every pairing, from the same starts for all: one dict each, in the config's order.

    Players act without exploration, their networks in evaluation mode; the modes are restored. with_scripted: also the
    pairings in which nobody learns. num_worlds: environments of Gymnasium at a time. Raises Interrupted as soon as
    `interrupted` says so.
    """
    results = []
    for pairing in config.pairings:
        learned = [role for role, name in pairing.items() if name in players and players[name].learning]
        if not learned and not with_scripted:
            continue
        with evaluation_mode([net for player in players.values() for net in player.nets.values()]):
            policies: dict[str, Policy] = {
                role: players[name].policy(explore=False) if name in players else make_script(name, game, role)
                for role, name in pairing.items()
            }
            games = _play(game, policies, num_games, num_worlds, config.max_rounds, seed, interrupted)
        results.append({"players": dict(pairing), "learned": learned, **games.summary()})
    return results


def _play(
    game: Game,
    policies: Mapping[str, Policy],
    num_games: int,
    num_worlds: int,
    max_rounds: int,
    seed: int,
    interrupted: Callable[[], bool],
) -> Games:
    if isinstance(game, GymnasiumGame):
        return play_episodes(game, policies["agent"], num_games, num_worlds, max_rounds, seed, interrupted)
    assert isinstance(game, TensorGame)
    return play_games(game, policies, num_games, max_rounds, seed, interrupted)


class BestScore:
    """The best score so far, by a config's measure."""

    def __init__(self, config: EvaluationConfig) -> None:
        self.config: BestConfig | None = config.best
        self.pairing = {} if config.best is None else config.pairings[config.best.pairing]
        self.value: float | None = None
        self._before: float | None = None

    def improves(self, pairs: list[dict[str, Any]]) -> bool:
        """Whether an evaluation is better than all before it; strictly, and never by a nan."""
        if self.config is None:
            return False
        pair = next(pair for pair in pairs if pair["players"] == self.pairing)
        measure = self.config.measure
        score = pair["rho"] if measure == "rho" else pair["returns"][measure.removeprefix("return/")]
        sign = 1.0 if self.config.goal == "max" else -1.0
        if math.isnan(score) or (self.value is not None and sign * score <= sign * self.value):
            return False
        self._before, self.value = self.value, score
        return True

    def take_back(self) -> None:
        """The last improvement could not be saved: who is better than what was saved is the best."""
        self.value = self._before
