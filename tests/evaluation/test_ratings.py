"""Ratings from who met whom, against values known by hand."""

import math
from typing import Any

import pytest
import torch

from palestra.evaluation.ratings import SCALE, rate


def board(first: str, second: str, share: float, games: int = 100) -> dict[str, Any]:
    """A pairing of a game of two roles; share: of the contests that the first has won."""
    players = {"first": first, "second": second}
    return {"players": players, "contests": games, "won": {"first": share, "second": 1 - share}}


def test_odds_of_ten_to_one_are_400_points() -> None:
    ratings = rate([board("a", "x", 10 / 11), board("b", "x", 1 / 2)])
    assert ratings is not None
    assert ratings["first"]["a"] - ratings["second"]["x"] == pytest.approx(400)
    assert ratings["first"]["b"] == pytest.approx(ratings["second"]["x"])
    assert sum(rating for players in ratings.values() for rating in players.values()) == pytest.approx(0, abs=1e-9)


def test_known_strengths_are_found_from_the_shares_that_they_make() -> None:
    first, second = {"a": 1.3, "b": -0.4, "c": 0.2}, {"x": 0.7, "y": -1.1}
    pairs = [
        board(one, two, 1 / (1 + math.exp(second[two] - first[one])), games)
        for games, (one, two) in enumerate([(a, x) for a in first for x in second], start=5)
    ]
    found = rate(pairs)
    assert found is not None
    mean = (sum(first.values()) + sum(second.values())) / 5
    assert found["first"] == pytest.approx({name: SCALE * (value - mean) for name, value in first.items()})
    assert found["second"] == pytest.approx({name: SCALE * (value - mean) for name, value in second.items()})


def test_the_ratings_are_the_most_likely_ones() -> None:
    """At the maximum each player has won as much as its rating lets expect, though the shares fit no ratings."""
    shares = {("a", "x"): 0.9, ("a", "y"): 0.2, ("b", "x"): 0.3, ("b", "y"): 0.6}
    ratings = rate([board(*names, share) for names, share in shares.items()])
    assert ratings is not None
    expected = {
        (a, x): 1 / (1 + 10 ** ((ratings["second"][x] - ratings["first"][a]) / 400)) for a in "ab" for x in "xy"
    }
    for name in "abxy":
        won = sum(share for names, share in shares.items() if name in names)
        assert sum(share for names, share in expected.items() if name in names) == pytest.approx(won)


@pytest.mark.parametrize(
    "pairs",
    [
        [board("a", "x", 0.5)],  # two players: nothing to compare
        [board("a", "x", 1.0), board("b", "x", 0.5)],  # nobody has ever won against a
        [board("a", "x", 0.5), board("b", "x", 0.0)],  # b has never won
        [board("a", "x", 0.5), board("b", "y", 0.5)],  # two groups that never met
        [board("a", "x", 0.5), board("b", "x", 0.5, games=0)],  # not played
        [],
        [{"players": {"agent": name}, "contests": 5} for name in "abc"],  # one role
    ],
)
def test_without_wins_both_ways_there_is_no_rating(pairs: list[dict[str, Any]]) -> None:
    assert rate(pairs) is None


def test_all_wins_in_a_circle_are_rated() -> None:
    ratings = rate([board("a", "x", 1.0), board("a", "y", 0.0), board("b", "x", 0.0), board("b", "y", 1.0)])
    assert ratings == {"first": pytest.approx({"a": 0, "b": 0}), "second": pytest.approx({"x": 0, "y": 0})}


def test_lopsided_pairs_converge() -> None:
    ratings = rate([board("a", "x", 1 - 1e-6, 10**6), board("b", "x", 1e-6, 10**6)])
    assert ratings is not None
    assert ratings["first"]["a"] - ratings["first"]["b"] == pytest.approx(2 * SCALE * math.log(1e6 - 1))
    assert torch.get_default_dtype() == torch.float32
