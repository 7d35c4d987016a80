"""The config of a run's evaluations, and its checks beyond types."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from palestra.config import Config, ConfigErrorItem, NonEmptyStr, NonNegativeInt, PositiveFloat, PositiveInt, below
from palestra.games import AnyGameConfig, GameConfig
from palestra.players import script_error
from palestra.runtime.intervals import Interval


class EvaluationConfig(Config):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    """its name in records, files and `best`; different for each evaluation"""
    interval: Interval | None
    """how often, in addition to the start and the end of a run; null: only then"""
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
    """who plays whom: for every role a player of this file or a scripted one"""


class Delay(Config):
    after: PositiveInt
    """how many"""
    unit: Literal["opt_steps", "env_steps", "epochs"]
    """opt_steps, env_steps or epochs"""


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


class BestConfig(Config):
    evaluation: NonEmptyStr
    """which of the evaluations, by name"""
    pairing: NonNegativeInt
    """which of its pairings, counted from 0"""
    measure: Annotated[str, Field(pattern=r"^(rho|return/.+)$")]
    """rho, or return/ROLE"""
    goal: Literal["max", "min"]
    """whether a higher (max) or a lower (min) value is better"""


def evaluation_errors(
    evaluations: Sequence[EvaluationConfig],
    game: GameConfig,
    roles: Sequence[str],
    players: Mapping[str, str | None],
) -> Iterator[ConfigErrorItem]:
    """The errors in the evaluations of a run. game: the config of its game. roles: of this game. players: of the file,
    by name, each with the name of its script, or None if it has none."""
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
        else:
            yield from _pairing_errors(f"{path}.pairings", evaluation.pairings, played, roles, players)


def _game_fault(index: int, played: GameConfig, game: GameConfig, roles: Sequence[str]) -> ConfigErrorItem | None:
    """Why an evaluation cannot be played in a game other than the run's, or None. roles: of the run's game."""
    with below(f"evaluations.{index}"):
        own = played.declared_roles()
    if set(own) != set(roles):
        message = f"expected a game with the roles of the run's game, {', '.join(roles)}, got {played.name!r} with the"
        return ConfigErrorItem("name", f"{message} roles {', '.join(own)}")
    return game.misfit(played)


def _pairing_errors(
    path: str,
    pairings: Sequence[dict[str, str]],
    game: GameConfig,
    roles: Sequence[str],
    players: Mapping[str, str | None],
) -> Iterator[ConfigErrorItem]:
    known = f"players of this file: {', '.join(players)}"
    for index, pairing in enumerate(pairings):
        for role in roles:
            if role not in pairing:
                message = f"expected a scripted player, or one of the {known}, but the key is missing"
                yield ConfigErrorItem(f"{path}.{index}.{role}", message)
        for role, player in pairing.items():
            if role not in roles:
                message = f"unknown key; the known roles: {', '.join(roles)}"
                yield ConfigErrorItem(f"{path}.{index}.{role}", message)
                continue
            script = players.get(player, player)
            if script is not None and (fault := script_error(script, game, role)):
                yield ConfigErrorItem(f"{path}.{index}.{role}", f"{fault}; {known}")


def best_errors(
    best: BestConfig | None, evaluations: Sequence[EvaluationConfig], roles: Sequence[str], learners: Collection[str]
) -> Iterator[ConfigErrorItem]:
    """The errors in `best`, which says what makes a checkpoint the best one. learners: the players that learn."""
    if best is None:
        return
    measures = ["rho", *(f"return/{role}" for role in roles)]
    if best.measure not in measures:
        message = f"expected one of {', '.join(measures)}, got {best.measure!r}"
        yield ConfigErrorItem("best.measure", message)
    by_name = {evaluation.name: evaluation for evaluation in evaluations}
    if best.evaluation not in by_name:
        expected = f"one of {', '.join(by_name)}" if by_name else "null for best, as there are no evaluations"
        yield ConfigErrorItem("best.evaluation", f"expected {expected}, got {best.evaluation!r}")
        return
    pairings = by_name[best.evaluation].pairings
    learning = [index for index, pairing in enumerate(pairings) if any(name in learners for name in pairing.values())]
    if best.pairing not in learning:
        numbers = f" ({', '.join(map(str, learning))})" if learning else ", of which there is none"
        message = f"expected a pairing with a player that learns{numbers}, got {best.pairing}"
        yield ConfigErrorItem("best.pairing", message)
