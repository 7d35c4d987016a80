"""Records and results of evaluations that no run has written."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from palestra.games.polyhedra.game import SCORES
from palestra.recording.results import PairResult
from palestra.runtime.scores import DeclaredScore, Estimate, declared_returns

RHO = SCORES[:1]
POLYHEDRA = ("host", "agent")


def returns_in(*roles: str) -> tuple[DeclaredScore, ...]:
    return declared_returns(roles, zero_sum=False, shown=True)


def evaluation_of(
    pairs: Sequence[Mapping[str, Any]], declared: Sequence[DeclaredScore], roles: Sequence[str], **keys: Any
) -> dict[str, Any]:
    """The record of an evaluation of those pairs."""
    scores = json.loads(json.dumps([asdict(score) for score in declared]))
    record = {"kind": "evaluation", "evaluation": "main", "opt_steps": 0, "roles": list(roles)}
    return record | {"declared_scores": scores, "pairs": list(pairs), "ratings": None} | keys


def played_pair(
    players: Mapping[str, str], learned: Sequence[str], scores: Mapping[str, float | None], half: float, **keys: Any
) -> dict[str, Any]:
    """A pairing in a record. half: of the intervals of all scores."""
    ends = {name: [None, None] if value is None else [value - half, value + half] for name, value in scores.items()}
    pair = {"players": dict(players), "learned": list(learned), "games": 4, "truncated": 0}
    return pair | {"scores": dict(scores), "intervals": ends} | keys


def result_of(
    players: Mapping[str, str],
    learned: Sequence[str],
    declared: Sequence[DeclaredScore],
    scores: Mapping[str, Estimate],
    games: int,
    truncated: int = 0,
) -> PairResult:
    """The result of a pairing."""
    return PairResult(
        dict(players), tuple(learned), scores, {score.name: score for score in declared}, games, truncated, 0
    )
