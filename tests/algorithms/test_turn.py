"""The loops of a turn: what is done is never done twice, wherever a turn was left."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from palestra.algorithms.algorithm import Algorithm
from palestra.algorithms.turn import Turn
from palestra.games.spaces import Discrete
from palestra.players.player import Metrics, Player
from palestra.rollouts.transitions import Transitions

Learn = Callable[["Listed", Turn], None]


class Listed(Algorithm):
    """Writes down what its turns do; the list is its state."""

    def __init__(self, player: Player, learn: Learn) -> None:
        super().__init__(None, player)
        self.done: list[Any] = []
        self._learn = learn

    def learn(self, turn: Turn) -> None:
        self._learn(self, turn)

    def policy(self, explore: bool) -> Any:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {"done": list(self.done)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


class Left(Exception):
    """Raised at the safe point at which a turn is left."""


class LeavingTurn(Turn):
    """Leaves at the safe point of a number, from 1 on; 0: at none."""

    def __init__(self, player: Player, leave_at: int = 0) -> None:
        super().__init__(player)
        self.leave_at, self.num_safe_points = leave_at, 0

    def collect(self, num_rounds: int) -> Transitions:
        raise NotImplementedError

    def before_step(self) -> None:
        raise NotImplementedError

    def after_step(self, metrics: Metrics, num_opt_steps: int = 1) -> None:
        raise NotImplementedError

    def safe_point(self) -> None:
        self.num_safe_points += 1
        if self.num_safe_points == self.leave_at:
            raise Left


def made(learn: Learn) -> Listed:
    player = Player("player", ("agent",), {}, Discrete(2), torch.device("cpu"), seed=1, compile=False, by_hand=True)
    player.algorithm = algorithm = Listed(player, learn)
    return algorithm


def flat(self: Listed, turn: Turn) -> None:
    for _ in turn.once("roll_out"):
        self.done.append("rolled out")
    for number in turn.times("updates", 3):
        self.done.append(number)


def nested(self: Listed, turn: Turn) -> None:
    for number in turn.times("passes", 2):
        for _ in turn.once("shuffle"):
            self.done.append(f"pass {number}")
        for minibatch in turn.times("minibatches", 2):
            self.done.append((number, minibatch))


def ended_early(self: Listed, turn: Turn) -> None:
    for number in turn.times("passes", 5):
        self.done.append(number)
        if number == 1:
            turn.last("passes")
    for _ in turn.once("end"):
        self.done.append("end")


def ended_inside(self: Listed, turn: Turn) -> None:
    """The item that says it is the last one is not done yet."""
    for number in turn.times("passes", 3):
        if number == 1:
            turn.last("passes")
        for _ in turn.once("minibatch"):
            self.done.append(number)
        for _ in turn.once("end"):
            self.done.append(f"end of {number}")


def shrinking(self: Listed, turn: Turn) -> None:
    """The number is asked for when a loop begins; when it goes on, it would be another."""
    for number in turn.times("updates", 3 - len(self.done)):
        self.done.append("last" if turn.is_last("updates") else number)


CASES: list[tuple[Learn, list[Any]]] = [
    (flat, ["rolled out", 0, 1, 2]),
    (nested, ["pass 0", (0, 0), (0, 1), "pass 1", (1, 0), (1, 1)]),
    (ended_early, [0, 1, "end"]),
    (ended_inside, [0, "end of 0", 1, "end of 1"]),
    (shrinking, [0, 1, "last"]),
]


def left_everywhere(learn: Learn) -> Iterator[Listed]:
    """An algorithm for every safe point of a turn: left there, and gone on with in a fresh object from the JSON of its
    state."""
    whole = LeavingTurn(made(learn).player)
    whole.run()
    for leave_at in range(1, whole.num_safe_points + 1):
        left = made(learn)
        with pytest.raises(Left):
            LeavingTurn(left.player, leave_at).run()
        again = made(learn)
        again.player.load_state_dict(json.loads(json.dumps(left.player.state_dict())))
        LeavingTurn(again.player).run()
        yield again


@pytest.mark.parametrize(("learn", "expected"), CASES)
def test_a_turn_left_at_any_safe_point_does_the_rest_and_nothing_twice(learn: Learn, expected: list[Any]) -> None:
    num = 0
    for algorithm in left_everywhere(learn):
        assert [tuple(each) if isinstance(each, list) else each for each in algorithm.done] == expected
        assert algorithm.player.turn_progress == {}
        num += 1
    assert num >= 3


def test_a_turn_that_was_left_goes_on_in_memory_too() -> None:
    algorithm = made(flat)
    for leave_at in (1, 1, 1, 1, 0):
        turn = LeavingTurn(algorithm.player, leave_at)
        if leave_at:
            with pytest.raises(Left):
                turn.run()
        else:
            turn.run()
    assert algorithm.done == ["rolled out", 0, 1, 2]


def test_the_next_turn_begins_anew() -> None:
    algorithm = made(flat)
    turn = LeavingTurn(algorithm.player)
    turn.run()
    turn.run()
    assert algorithm.done == ["rolled out", 0, 1, 2] * 2
    assert turn.num_safe_points == 8


def broken(self: Listed, turn: Turn) -> None:
    for number in turn.times("updates", 3):
        if number == 1:
            break


def returning(self: Listed, turn: Turn) -> None:
    for _ in turn.times("updates", 3):
        return


def doubled(self: Listed, turn: Turn) -> None:
    for _ in range(2):
        for _ in turn.once("roll_out"):
            pass


def mistaken(self: Listed, turn: Turn) -> None:
    for _ in turn.times("updates", 3):
        turn.last("passes")


@pytest.mark.parametrize(
    ("learn", "words"),
    [
        (broken, r"Listed\.learn left the loop 'updates' by break or return; expected turn\.last\('updates'\)"),
        (returning, r"Listed\.learn left the loop 'updates' by break or return"),
        (doubled, r"expected a different name for every loop of a turn, got 'roll_out' twice"),
        (mistaken, r"expected the name of an open loop \(updates\), got 'passes'"),
    ],
)
def test_what_would_go_wrong_after_a_resume_is_refused(learn: Learn, words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        LeavingTurn(made(learn).player).run()
