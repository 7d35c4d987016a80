"""Exchanges between threads: who comes when, and what happens if one of them fails."""

import threading
from collections.abc import Callable

import pytest

from palestra.scaling.exchange import Exchange, ReplicaFailed
from palestra.scaling.means import LockstepError


def run(num: int, body: Callable[[Exchange, int], None]) -> Exchange:
    exchange = Exchange(num)

    def follow(place: int) -> None:
        try:
            exchange.begin(place)
            body(exchange, place)
            exchange.leave(place)
        except ReplicaFailed:
            pass
        except Exception as error:
            exchange.fail(error)

    threads = [threading.Thread(target=follow, args=(place,)) for place in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return exchange


@pytest.mark.parametrize("num", [2, 4])
def test_one_computes_at_a_time_and_all_get_what_is_made_of_all_values(num: int) -> None:
    order, found = [], []

    def body(exchange: Exchange, place: int) -> None:
        for turn in range(3):
            order.append((turn, place))
            found.append(exchange.swap(place, "numbers", 10 * place + turn, list))

    assert run(num, body).failure is None
    assert order == [(turn, place) for turn in range(3) for place in range(num)]
    assert found == [[10 * place + turn for place in range(num)] for turn in range(3) for _ in range(num)]


def test_a_failure_ends_all_and_is_the_first_one() -> None:
    def body(exchange: Exchange, place: int) -> None:
        exchange.swap(place, "a beginning", None, list)
        if place == 1:
            raise ValueError("the second of four")
        exchange.swap(place, "an end", None, list)

    failure = run(4, body).failure
    assert isinstance(failure, ValueError)
    assert str(failure) == "the second of four"


def test_replicas_that_exchange_different_things_are_told_apart() -> None:
    def body(exchange: Exchange, place: int) -> None:
        exchange.swap(place, "a mean" if place in (0, 3) else "an epoch", None, list)

    failure = run(4, body).failure
    assert isinstance(failure, LockstepError)
    assert "got a mean by replicas 0, 3, an epoch by replicas 1, 2" in str(failure)


@pytest.mark.parametrize("early", [0, 1, 3])
def test_a_replica_that_ends_before_the_others_is_told_and_nobody_waits_for_it(early: int) -> None:
    def body(exchange: Exchange, place: int) -> None:
        exchange.swap(place, "a beginning", None, list)
        if place != early:
            exchange.swap(place, "an epoch", None, list)

    failure = run(4, body).failure
    assert isinstance(failure, LockstepError)
    assert "expected all replicas to end at one place, got " in str(failure)
