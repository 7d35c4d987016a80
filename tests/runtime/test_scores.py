"""Scores as games declare them, and as records hold them."""

import json
from dataclasses import asdict

from palestra.runtime.scores import DeclaredScore, declared_in, declared_returns


def test_in_a_zero_sum_game_each_role_wants_the_returns_of_the_others_low() -> None:
    first, second = declared_returns(("first", "second"), zero_sum=True, shown=True)
    assert (first.name, first.wish_of("first"), first.wish_of("second")) == ("return/first", "high", "low")
    assert (second.wish_of("first"), second.wish_of("second")) == ("low", "high")
    alone, _ = declared_returns(("first", "second"), zero_sum=False, shown=True)
    assert (alone.wish_of("first"), alone.wish_of("second")) == ("high", None)


def test_a_record_gives_back_what_was_declared() -> None:
    declared = (
        DeclaredScore("rho", "a share", "share", high_for=("host",), low_for=("agent",), shown=True),
        *declared_returns(("host", "agent"), zero_sum=False, shown=False),
    )
    record = json.loads(json.dumps({"declared_scores": [asdict(score) for score in declared]}))
    record["declared_scores"][0]["more"] = "of another version"
    assert tuple(declared_in(record).values()) == declared
