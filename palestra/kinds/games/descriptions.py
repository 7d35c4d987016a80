"""Describes the stages of a training of players in words and numbers, from the config alone."""

import math
from itertools import count

from palestra.config.errors import enumerated
from palestra.evaluation.config import EvaluationConfig, UserEvaluationConfig
from palestra.kinds.games.config import RunConfig
from palestra.recording.results import Stage
from palestra.training.training import replicas_in_words


def turns_in_words(config: RunConfig) -> str:
    """Describe the turns of learning players of which each rolls out for itself, or learns from recorded play."""
    names = config.learners()
    after = {name: f"after a {_roll_out(config, name)}" for name in names}
    for name in names:
        if not config.plays(name) and (data := config.data_set_of(name)) is not None:
            after[name] = f"from the play in {data.file}"
    if len(names) == 1:
        return f"{names[0]} updates {after[names[0]].replace('after a ', 'after each ')}"
    if len(set(after.values())) == 1 and all(map(config.plays, names)):
        return f"{enumerated(names)} update in turn, each {after[names[0]]} of its own"
    return f"{enumerated(names)} update in turn: {', '.join(f'{name} {each}' for name, each in after.items())}"


def shared_turns_in_words(config: RunConfig) -> str:
    """Describe the turns of learning players that play in the same roll-outs."""
    names = config.learners()
    if len(names) == 1:
        return turns_in_words(config)
    return f"{enumerated(names)} update together after each {_roll_out(config, names[0])}"


def _roll_out(config: RunConfig, player: str) -> str:
    num_worlds, num = config.worlds_of(player), config.num_replicas
    worlds = f"{num_worlds:,} world{'s' * (num_worlds != 1)}"
    worlds = f"in {worlds}" if num == 1 else f"in {replicas_in_words(config)} of {worlds}, {num * num_worlds:,} in all"
    length = getattr(config.players[player].algorithm, "rollout_length", None)  # type: ignore[union-attr]
    if not isinstance(length, int):  # an algorithm of one's own may have no such key
        return f"roll-out {worlds}"
    return f"roll-out of {length:,} round{'s' * (length != 1)} {worlds}"


def updates_in_words(config: RunConfig) -> str:
    """Say in which epochs each player learns, and that actors play, as the end of a sentence; "" if there is neither.

    All players learn in every epoch unless `updates` says otherwise.
    """
    updates = {name: config.players[name].updates for name in config.learners()}  # type: ignore[union-attr]
    acted = ""
    if (actors := config.actors) is not None:
        behind = f"{actors.lag} turn{'s' * (actors.lag != 1)} behind" if actors.lag else "without a lag"
        where = f"in {num} process{'es' * (num != 1)}" if (num := config.execution.actor_processes) else "here"
        acted = f"; {actors.num} actor{'s' * (actors.num != 1)} play{'s' * (actors.num == 1)} {where}, {behind}"
    if all(each.cycle == 1 for each in updates.values()):
        return acted
    num_epochs = config.stop.after if config.stop.unit == "epochs" else math.inf
    told = []
    for name, each in updates.items():
        first = next(epoch for epoch in count() if each.learns(epoch))
        never = f", first in epoch {first}: never in this run" if first >= num_epochs else ""
        told.append(f"{name} learns {each.in_words()}{never}")
    return "; " + ", ".join(told) + acted


def final_evaluations(config: RunConfig) -> Stage:
    """The evaluations at the end of a run."""
    texts = [_in_words(each) for each in config.evaluations]
    num_games = sum(_num_pairings(each) * each.final_num_games for each in config.evaluations)
    return Stage("; ".join(texts) or "no evaluations", num_games, "games")


def _num_pairings(evaluation: EvaluationConfig | UserEvaluationConfig) -> int:
    return 1 if isinstance(evaluation, UserEvaluationConfig) else len(evaluation.pairings)


def _in_words(evaluation: EvaluationConfig | UserEvaluationConfig) -> str:
    num, each = _num_pairings(evaluation), evaluation.final_num_games
    games = f"{each:,} game{'s' * (each != 1)}"
    if isinstance(evaluation, UserEvaluationConfig):
        return f"evaluation {evaluation.name}: {games}, played by {evaluation.played_by.name}"
    return f"evaluation {evaluation.name}: {num} pairing{'s' * (num != 1)} of {games}{' each' * (num != 1)}"
