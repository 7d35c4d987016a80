"""The try-out of what a game says of its scores: what it declares, what it finds, and who has won."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from palestra.config import ConfigErrorItem
from palestra.games.game import State, TensorGame
from palestra.games.scores import GameEnds
from palestra.games.tryout_calls import CheckedCalls
from palestra.runtime.scores import DeclaredScore, return_of
from palestra.runtime.statistics import Estimate, Share

FOUND = (Share, Estimate, int, float, type(None))


def faults_of_declared(game: TensorGame) -> list[ConfigErrorItem]:
    """Return the faults of a game's `declared_scores`, which are needed before it is tried. Its roles are sound."""
    place = f"{type(game).__name__}.declared_scores"
    return [ConfigErrorItem(place, fault) for fault in _declared_faults(game.declared_scores, game.roles)]


def _declared_faults(declared: Any, roles: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(declared, tuple) or not declared or not all(isinstance(one, DeclaredScore) for one in declared):
        yield f"expected a tuple of one DeclaredScore or more, got {declared!r:.200}"
        return
    names = [score.name for score in declared]
    if len(set(names)) < len(names):
        yield f"expected different names, got {', '.join(names)}"
    for score in declared:
        for role in (*score.high_for, *score.low_for):
            if role not in roles:
                yield f"expected roles of the game ({', '.join(roles)}) that want {score.name!r}, got {role!r}"


def check_scores(tryout: CheckedCalls, game: TensorGame, state: State) -> None:
    """Let a game find the scores of some games, which lasted one round. state: how they ended."""
    if unknown := [name for name in game.outcome_entries if name not in state]:
        tryout.fault("outcome_entries", f"entries of the state ({', '.join(state)})", ", ".join(unknown))
        return
    num = len(next(iter(state.values())))
    ends = GameEnds(
        finished=torch.ones(num, dtype=torch.bool, device=game.device),
        lengths=torch.ones(num, dtype=torch.int64, device=game.device),
        returns={role: torch.zeros(num, device=game.device) for role in game.roles},
        outcomes={name: state[name] for name in game.outcome_entries},
        clusters=None,
    )
    declared = {score.name for score in game.declared_scores} - {return_of(role) for role in game.roles}
    found = tryout.attempt("scores", ends)
    if not isinstance(found, Mapping) or set(found) != declared:
        got = ", ".join(sorted(map(str, found))) if isinstance(found, Mapping) else type(found).__name__
        tryout.fault(
            "scores", f"the scores that it declares besides returns ({', '.join(sorted(declared))})", got or "none"
        )
    else:
        for name, score in found.items():
            if not isinstance(score, FOUND):
                tryout.fault("scores", f"a number, None, a Share or an Estimate as {name!r}", type(score).__name__)
    wins = tryout.attempt("wins", ends)
    if not isinstance(wins, Mapping) or (wins and set(wins) != set(game.roles)):
        tryout.fault("wins", f"a number for each of the roles {', '.join(game.roles)}, or none", repr(wins))
