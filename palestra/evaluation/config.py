"""The config of a run's evaluations, and its checks beyond types."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from palestra.config import (
    ByKey,
    ByName,
    Config,
    ConfigError,
    ConfigErrorItem,
    NonEmptyStr,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UserConfig,
    below,
    load_class,
)
from palestra.evaluation.evaluator import STREAM
from palestra.evaluation.exploitability import ExploitabilityConfig
from palestra.games import AnyGameConfig, GameConfig
from palestra.players import script_error
from palestra.players.player import Player
from palestra.players.scripted import ScriptedPlayerConfig
from palestra.randomness import base_key, restored_global_states, seeded_global_state
from palestra.runtime.intervals import Interval
from palestra.runtime.scores import DeclaredScore, normalized_of


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
    config: UserConfig, players: Mapping[str, Player], num_games: int, seed: int, watch: Callable[[int], None]
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


EvaluationName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=180)]


class TimedEvaluationConfig(Config):
    name: EvaluationName
    """its name in records, files and `best`; different for each evaluation"""
    interval: Interval | None
    """how often, besides the end of a run; null: only then"""
    at_start: bool
    """whether it is also played before training; in a branch: before that goes on"""


class ReferenceConfig(Config):
    random: float
    """mean return of random play, which is worth 0"""
    expert: float
    """mean return of an expert, who is worth 100"""

    @model_validator(mode="after")
    def _check_distance(self) -> Self:
        if self.random == self.expert:
            raise ConfigError.at("expert", f"expected another number than `random`, got {self.expert} for both")
        return self


class EvaluationConfig(TimedEvaluationConfig):
    own_scores: ClassVar[None] = None
    usual: ClassVar[Any] = {
        "name": "main",
        "interval": {"every": 5000, "unit": "opt_steps"},
        "at_start": True,
        "references": None,
        "num_games": 20,
        "final_num_games": 100,
    }

    num_games: PositiveInt
    """games per pairing, from the same starts every time"""
    final_num_games: PositiveInt
    """games per pairing at the end of a run, and of `palestra evaluate`"""
    max_rounds: PositiveInt
    """a game is cut off (truncated) after so many rounds"""
    seed: NonNegativeInt | None
    """determines the starts of the games, the same for every pairing; null: the run's seed"""
    game: AnyGameConfig | None
    """other rules, parameters or another environment, with the same roles, in which the players' networks fit; null:
    the run's game"""
    pairings: list[dict[str, str]]
    """who plays whom: for every role a player of this file or a scripted one, which may be a class of your own"""
    references: Annotated[dict[str, ReferenceConfig], Field(min_length=1)] | None
    """by role, returns by which its own are measured as the score normalized/ROLE: 100 times what they are above random
    play, as a share of what an expert's are; null: there is no such score"""

    def normalized_scores(self) -> list[DeclaredScore]:
        """Return the scores that `references` add to those of the game."""
        meaning = "mean return of {} between that of random play, 0, and that of an expert, 100"
        return [
            DeclaredScore(normalized_of(role), meaning.format(role), "points", (role,), (), shown=True)
            for role in self.references or {}
        ]

    def seats(self) -> dict[str, dict[str, str]]:
        """Return the pairings by their paths in this config."""
        return {f"pairings.{number}": pairing for number, pairing in enumerate(self.pairings)}

    def user_names(self) -> list[str]:
        return [name for pairing in self.pairings for name in pairing.values() if ":" in name]


AnyPlayedByConfig = Annotated[ExploitabilityConfig | UserConfig, ByName(user_class=UserEvaluation)]


class UserEvaluationConfig(TimedEvaluationConfig):
    """An evaluation that a class of the user's own plays, or that measures exploitability."""

    game: ClassVar[None] = None

    num_games: PositiveInt
    """games that the class is asked to play; 1 of exploitability"""
    final_num_games: PositiveInt
    """games at the end of a run, and of `palestra evaluate`"""
    seed: NonNegativeInt | None
    """determines all randomness of the evaluation; null: the run's seed"""
    played_by: AnyPlayedByConfig
    """exploitability, or a class of your own, package.module:Class, with its keys"""

    def seats(self) -> dict[str, dict[str, str]]:
        """Return who sits in which role, by its path in this config; {} if the class may ask any player of the run."""
        return {"played_by.roles": self.played_by.roles} if isinstance(self.played_by, ExploitabilityConfig) else {}

    @property
    def pairings(self) -> list[dict[str, str]]:
        return [*self.seats().values()]

    @property
    def own_scores(self) -> Sequence[str]:
        """The names of the scores that the class measures."""
        if isinstance(self.played_by, ExploitabilityConfig):
            return [score.name for score in self.played_by.declared_scores()]
        return load_class(self.played_by.name, UserEvaluation).scores  # type: ignore[type-abstract]


AnyEvaluationConfig = Annotated[EvaluationConfig | UserEvaluationConfig, ByKey()]


class Delay(Config):
    after: PositiveInt
    """how many"""
    unit: NonEmptyStr
    """a counter of the run, such as opt_steps or epochs"""


class EvaluatorsConfig(Config):
    num_processes: PositiveInt
    """how many processes; each plays one evaluation at a time, with execution.num_threads threads"""
    results: Delay
    """how long after it was requested an evaluation counts: the first safe point after that records it and decides by
    it, and waits for it if necessary"""
    timeout_s: PositiveFloat
    """seconds for one evaluation, including the start of its process; a process that takes longer is killed"""
    max_restarts: NonNegativeInt
    """how often an evaluation is begun anew, in a new process, after its process has died or was killed; then it
    fails"""


def evaluation_errors(
    evaluations: Sequence[EvaluationConfig | UserEvaluationConfig],
    game: GameConfig,
    roles: Sequence[str],
    players: Mapping[str, ScriptedPlayerConfig | None],
) -> Iterator[ConfigErrorItem]:
    """Find the errors in the evaluations of a run.

    game: the config of its game. roles: of this game. players: of the file, by name, each with its config if it is
    scripted, else None.
    """
    names = [evaluation.name for evaluation in evaluations]
    for index, evaluation in enumerate(evaluations):
        path = f"evaluations.{index}"
        if evaluation.name in names[:index]:
            yield ConfigErrorItem(
                f"{path}.name", f"expected a different name for each evaluation, got {evaluation.name!r} twice"
            )
        played: GameConfig = game if evaluation.game is None else evaluation.game
        fault = None if evaluation.game is None else _game_fault(index, evaluation.game, game, roles)
        if fault is not None:
            yield ConfigErrorItem(f"{path}.game.{fault.path}", fault.message)
        elif not played.can_be_played and isinstance(evaluation, EvaluationConfig):
            message = f"expected a game that can be played (or `played_by`), got {played.name!r}"
            yield ConfigErrorItem(f"{path}.game", f"{message}{' of the run' if evaluation.game is None else ''}")
        else:
            for role in getattr(evaluation, "references", None) or ():
                if role not in roles:
                    message = f"unknown key; the known roles: {', '.join(roles)}"
                    yield ConfigErrorItem(f"{path}.references.{role}", message)
            for place, pairing in evaluation.seats().items():
                yield from pairing_errors(f"{path}.{place}", pairing, played, roles, players)
            if isinstance(evaluation, UserEvaluationConfig) and evaluation.seats():
                for key in ("num_games", "final_num_games"):
                    if (num := getattr(evaluation, key)) != 1:
                        yield ConfigErrorItem(f"{path}.{key}", f"expected 1, because nothing is sampled, got {num}")


def _game_fault(index: int, played: GameConfig, game: GameConfig, roles: Sequence[str]) -> ConfigErrorItem | None:
    """Say why an evaluation cannot be played in another game than the run's, or return None. roles: of the run's."""
    with below(f"evaluations.{index}"):
        own = played.declared_roles()
    if set(own) != set(roles):
        message = f"expected a game with the roles of the run's game, {', '.join(roles)}, got {played.name!r} with the"
        return ConfigErrorItem("name", f"{message} roles {', '.join(own)}")
    return game.misfit(played)


def pairing_errors(
    path: str,
    pairing: Mapping[str, str],
    game: GameConfig,
    roles: Sequence[str],
    players: Mapping[str, ScriptedPlayerConfig | None],
) -> Iterator[ConfigErrorItem]:
    """Find the errors in one pairing, which stands at `path`."""
    known = f"players of this file: {', '.join(players) or 'none'}"
    for role in roles:
        if role not in pairing:
            message = f"expected a scripted player, or one of the {known}, but the key is missing"
            yield ConfigErrorItem(f"{path}.{role}", message)
    for role, player in pairing.items():
        if role not in roles:
            message = f"unknown key; the known roles: {', '.join(roles)}"
            yield ConfigErrorItem(f"{path}.{role}", message)
            continue
        if (script := players.get(player, player)) is not None and (fault := script_error(script, game, role)):
            yield ConfigErrorItem(f"{path}.{role}", f"{fault}; {known}")
