"""Ratings from who met whom, against values known by hand, a plain logistic regression, and simulated strengths."""

import math
from collections import Counter
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from palestra.evaluation.ratings import SCALE, Meeting, rate, rate_over_roles


def board(first: str, second: str, share: float, games: int = 100) -> Meeting:
    """A pairing of a game of two roles; share: of the contests that the first has won, which are one game."""
    wins = {"first": torch.tensor([share * games]), "second": torch.tensor([(1 - share) * games])}
    return Meeting({"first": first, "second": second}, {role: won.double() for role, won in wins.items()}, None)


def test_players_come_in_the_order_of_their_names() -> None:
    """And so in the same one in every process, though sets of names have another order in each."""
    ratings = rate([board(name, "x", 1 / 2) for name in "fbgdhcea"])
    assert ratings is not None
    assert [*ratings["first"]] == [*"abcdefgh"]
    assert [*ratings] == ["first", "second"]


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
        [Meeting({"agent": name}, {}, None) for name in "abc"],  # one role
    ],
)
def test_without_wins_both_ways_there_is_no_rating(pairs: list[Meeting]) -> None:
    assert rate(pairs) is None


def test_all_wins_in_a_circle_are_rated() -> None:
    ratings = rate([board("a", "x", 1.0), board("a", "y", 0.0), board("b", "x", 0.0), board("b", "y", 1.0)])
    assert ratings == {"first": pytest.approx({"a": 0, "b": 0}), "second": pytest.approx({"x": 0, "y": 0})}


def test_lopsided_pairs_converge() -> None:
    ratings = rate([board("a", "x", 1 - 1e-6, 10**6), board("b", "x", 1e-6, 10**6)])
    assert ratings is not None
    assert ratings["first"]["a"] - ratings["first"]["b"] == pytest.approx(2 * SCALE * math.log(1e6 - 1))
    assert torch.get_default_dtype() == torch.float32


# ---- over both roles ------------------------------------------------------------------------------------------

EVEN = torch.tensor([1.0, 0.0]).double()
STRENGTHS, LEAD = {"a": 0.9, "b": 0.1, "c": -1.0}, 0.4


def meeting(first: str, second: str, won: torch.Tensor, clusters: torch.Tensor | None = None) -> Meeting:
    """won: of each game, what the first role has won."""
    return Meeting({"first": first, "second": second}, {"first": won, "second": 1 - won}, clusters)


def simulated(num_games: int, generator: torch.Generator) -> list[Meeting]:
    """Everyone meets everyone in both roles, also themselves, at STRENGTHS and LEAD."""
    found = []
    for one, other in product(STRENGTHS, repeat=2):
        share = 1 / (1 + math.exp(STRENGTHS[other] - STRENGTHS[one] - LEAD))
        found.append(meeting(one, other, (torch.rand(num_games, generator=generator) < share).double()))
    return found


def plain_regression(meetings: list[Meeting]) -> dict[str, float]:
    """Minimise the loss of a logistic regression, a row for each game, by a method of scipy that knows no ratings."""
    names = sorted({name for each in meetings for name in each.players.values()})
    rows, won = [], []
    for each in meetings:
        one, other = each.players.values()
        row = [float(name == one) - float(name == other) for name in names] + [1.0]
        rows += [row] * len(each.wins["first"])
        won += each.wins["first"].tolist()
    x, y = np.array(rows), np.array(won)

    def loss(terms: np.ndarray) -> float:
        odds = x @ terms
        return float(np.logaddexp(0.0, odds).sum() - y @ odds + terms[:-1].sum() ** 2)

    terms = minimize(loss, np.zeros(len(names) + 1), method="BFGS", options={"gtol": 1e-7}).x
    return dict(zip([*names, "lead"], SCALE * terms, strict=True))


def rated(meetings: list[Meeting]) -> Mapping[str, Mapping[str, Any]]:
    found = rate_over_roles(meetings)
    assert found is not None
    return {**found["players"], "lead": found["roles"]["first"]}


@pytest.mark.parametrize("draws", [False, True])
def test_they_are_the_terms_of_a_plain_logistic_regression(draws: bool) -> None:
    meetings = simulated(50, torch.Generator().manual_seed(1))
    if draws:
        meetings = [meeting(*each.players.values(), each.wins["first"] * 0.5 + 0.25) for each in meetings]
    found = rated(meetings)
    assert {name: each["rating"] for name, each in found.items()} == pytest.approx(plain_regression(meetings), abs=0.01)
    assert sum(found[name]["rating"] for name in STRENGTHS) == pytest.approx(0, abs=1e-9)
    assert all(each["low"] < each["rating"] < each["high"] for each in found.values())
    assert rated(meetings) == found  # to the bit


def test_the_lead_of_the_first_role_is_no_strength() -> None:
    """Two equal players, of whom the first one wins 10 of 11: 400 points are the role's."""
    won = torch.tensor([1.0] * 10 + [0.0]).double()
    found = rated([meeting("a", "b", won), meeting("b", "a", won)])
    assert [found[name]["rating"] for name in ("a", "b", "lead")] == pytest.approx([0, 0, 400], abs=1e-6)


def test_ratings_are_found_where_whole_steps_of_newton_s_method_lead_away_from_them() -> None:
    """The gradient of the likelihood is 0 there."""
    counts = {("a", "c"): (13, 1784), ("b", "d"): (0, 45), ("c", "b"): (5, 1), ("c", "c"): (190, 21159)}
    counts |= {("d", "c"): (13, 2)}
    found = rated([board(*pair, won / (won + lost), won + lost) for pair, (won, lost) in counts.items()])
    gradient = Counter[str]()
    for (first, second), (won, lost) in counts.items():
        points = found["lead"]["rating"] + found[first]["rating"] - found[second]["rating"]
        more = won - (won + lost) / (1 + 10 ** (-points / 400))
        gradient.update({"lead": more})
        gradient.update({first: more})
        gradient.subtract({second: more})
    assert [*gradient.values()] == pytest.approx([0.0] * 5, abs=1e-5)


def coverage(num_sets: int, num_games: int) -> dict[str, float]:
    """How often the interval of each term covers the truth."""
    generator, hits = torch.Generator().manual_seed(2), Counter[str]()
    truth = {**STRENGTHS, "lead": LEAD}
    for _ in range(num_sets):
        for name, each in rated(simulated(num_games, generator)).items():
            hits[name] += each["low"] <= SCALE * truth[name] <= each["high"]
    return {name: hits[name] / num_sets for name in truth}


def test_intervals_cover_the_strengths_of_a_few_simulations() -> None:
    assert all(share >= 0.85 for share in coverage(60, 100).values())


def test_intervals_are_as_wide_as_those_of_many_games() -> None:
    """The log odds of n even games have a variance of 4 / n; the lead is the mean of two, a strength half of that."""
    num = 1000
    won = EVEN.repeat(num // 2)
    found = rated([meeting("a", "b", won), meeting("b", "a", won)])
    for name, share in (("a", 0.5), ("b", 0.5), ("lead", 1.0)):
        half = share * SCALE * 1.96 * math.sqrt(2 / num)
        assert (found[name]["high"] - found[name]["low"]) / 2 == pytest.approx(half, rel=0.08)


@pytest.mark.slow
def test_intervals_cover_simulated_strengths_in_95_percent() -> None:
    assert coverage(1200, 100) == pytest.approx(dict.fromkeys((*STRENGTHS, "lead"), 0.95), abs=0.02)


def test_games_that_depend_on_each_other_count_as_one() -> None:
    """Every game played ten times over has the interval that one of each has."""
    meetings = simulated(100, torch.Generator().manual_seed(3))
    number = torch.arange(100).repeat(10)
    tenfold = [meeting(*each.players.values(), each.wins["first"].repeat(10), number) for each in meetings]
    once, ten = rated(meetings), rated(tenfold)
    for name, each in once.items():
        assert list(ten[name].values()) == pytest.approx([*each.values()], abs=1e-6)
    assert rated([each._replace(clusters=13 * number + 5) for each in tenfold]) == ten  # whatever they are called


@pytest.mark.parametrize(
    "meetings",
    [
        [],
        [meeting("a", "a", EVEN)],  # one player
        [meeting("a", "x", EVEN), meeting("b", "y", EVEN), meeting("a", "y", EVEN)],  # each in one role alone
        [meeting("a", "b", EVEN), meeting("b", "a", EVEN), meeting("c", "d", EVEN)],  # two groups that never met
        [meeting("a", "b", EVEN + 1 - EVEN), meeting("b", "a", EVEN * 0)],  # a has won all
        [meeting("a", "b", EVEN + 1 - EVEN), meeting("b", "a", EVEN + 1 - EVEN)],  # the first role has won all
        [Meeting({"agent": name}, {}, None) for name in "ab"],  # one role
        [Meeting({"first": name, "second": "x"}, {}, None) for name in "ab"],  # nobody wins there
    ],
)
def test_what_the_games_do_not_determine_is_not_rated(meetings: list[Meeting]) -> None:
    assert rate_over_roles(meetings) is None


def test_an_interval_without_an_end_is_left_out() -> None:
    """Of twenty games one was lost: a third of all resamples have none that was, and no finite rating."""
    won = torch.tensor([1.0] * 19 + [0.0]).double()
    found = rated([meeting("a", "b", won), meeting("b", "a", 1 - won), meeting("a", "a", EVEN)])
    assert found["a"]["rating"] == pytest.approx(SCALE * math.log(19) / 2)
    one_of_two = rated([meeting("a", "b", won), meeting("b", "a", EVEN * 0), meeting("a", "a", EVEN)])
    assert math.isnan(one_of_two["a"]["low"])
    assert math.isnan(one_of_two["a"]["high"])


def of_fifteen(num_lost: int) -> Mapping[str, Mapping[str, Any]]:
    """Ratings of a, who has lost so many of fifteen games, all as first: where a resample has none of these, no rating
    is finite."""
    won = torch.tensor([1.0] * (15 - num_lost) + [0.0] * num_lost).double()
    return rated([meeting("a", "b", won), meeting("b", "a", EVEN * 0), meeting("a", "a", EVEN.repeat(10))])


def test_resamples_that_determine_nothing_move_no_end() -> None:
    """Some 35 of 1000 resamples, more than lie above an end, have none of three lost games."""
    found = of_fifteen(3)
    assert found["a"]["rating"] < found["a"]["high"] < 5 * SCALE
    assert found["b"]["low"] > -5 * SCALE


def test_where_one_resample_in_ten_determines_nothing_no_end_is_known() -> None:
    found = of_fifteen(2)  # some 120 of 1000
    assert all(math.isnan(each[end]) for each in found.values() for end in ("low", "high"))
    assert all(math.isfinite(each["rating"]) for each in found.values())
