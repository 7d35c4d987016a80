"""What is wrong with the scores of a game of one's own is told before anybody plays."""

from collections.abc import Mapping
from typing import Any

import pytest

from palestra.games.tryout import faults_of_declared, try_game
from palestra.runtime.scores import DeclaredScore, declared_returns
from palestra.runtime.statistics import Estimate, Share
from tests.games.tag_game import TagGame

ODD = DeclaredScore("odd", "share of odd games", "share", high_for=("a",), low_for=("b",), shown=True)


def game_with(scores: Any, wins: Any = None, entries: tuple[str, ...] = ("odd",), declared: Any = None) -> TagGame:
    """A game of the roles a and b that finds these scores and these wins."""

    class Scored(TagGame):
        declared_scores = (ODD, *declared_returns(("a", "b"), zero_sum=True, shown=True))
        outcome_entries = entries

        def scores(self, ends: Any) -> Any:
            return scores(ends) if callable(scores) else scores

        def wins(self, ends: Any) -> Any:
            return super().wins(ends) if wins is None else wins

    if declared is not None:
        Scored.declared_scores = declared
    return Scored(2, "together")


def told(game: TagGame) -> list[str]:
    return [f"{fault.path}: {fault.message}" for fault in (*faults_of_declared(game), *try_game(game, 2))]


@pytest.mark.parametrize("found", [Share(1, 2), Estimate(0.5, 0.0, 1.0), 0.5, 1, None])
def test_sound_scores_have_no_faults(found: Any) -> None:
    assert told(game_with({"odd": found})) == []
    assert told(game_with(lambda ends: {"odd": Share(int(ends.outcomes["odd"].sum()), len(ends.lengths))})) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": {"even": 0.5}}, "scores: expected the scores that it declares besides returns (odd), got even"),
        ({"scores": {}}, "scores: expected the scores that it declares besides returns (odd), got none"),
        ({"scores": 0.5}, "scores: expected the scores that it declares besides returns (odd), got float"),
        ({"scores": {"odd": "half"}}, "scores: expected a number, None, a Share or an Estimate as 'odd', got str"),
        ({"scores": lambda ends: ends.outcomes["even"]}, "scores: raises KeyError: 'even'"),
        (
            {"wins": {"a": 1.0, "b": 2.0}},
            "wins: expected a tensor (5,), a number for each game, of each of the roles a, b, or none, got {'a': 1.0, ",
        ),
        ({"entries": ("even",)}, "outcome_entries: expected entries of the state (game, step, odd), got even"),
    ],
)
def test_what_a_game_finds_is_told_where_it_is_wrong(changes: Mapping[str, Any], message: str) -> None:
    [fault] = told(game_with(**{"scores": {"odd": 0.5}, **changes}))
    assert fault.startswith(f"Scored.{message}")


def test_what_a_game_declares_is_told_where_it_is_wrong() -> None:
    for declared, message in (
        ((), "expected a tuple of one DeclaredScore or more, got ()"),
        (("odd",), "expected a tuple of one DeclaredScore or more, got ('odd',)"),
        ((ODD, ODD), "expected different names, got odd, odd"),
        (
            (DeclaredScore("odd", "", "share", ("a", "x"), (), shown=True),),
            "expected roles of the game (a, b) that want 'odd', got 'x'",
        ),
    ):
        faults = faults_of_declared(game_with({"odd": 0.5}, declared=declared))
        assert [str(fault.message) for fault in faults] == [message]
