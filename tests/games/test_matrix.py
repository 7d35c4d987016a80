"""Bimatrix games: against a loop in plain Python, at their equilibria, as people type them, and refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PLAIN
from hypothesis import given
from hypothesis import strategies as st

from palestra import make_trainer
from palestra.commands.starting import starting_config
from palestra.config import ConfigError
from palestra.games import make_game
from palestra.games.matrix import MatrixGame
from palestra.testing import check_game

Data = dict[str, Any]

DILEMMA = [[[3.0, 3.0], [0.0, 5.0]], [[5.0, 0.0], [1.0, 1.0]]]
WIDE = [[[1.0, -2.0], [0.0, 4.0], [2.0, 2.0]], [[-1.0, 0.5], [3.0, 0.0], [0.0, 0.0]]]


def game_of(payoffs: Any, num_rounds: int) -> MatrixGame:
    game = make_game({"name": "matrix", "payoffs": payoffs, "num_rounds": num_rounds, "observation": PLAIN})
    assert isinstance(game, MatrixGame)
    return game


@pytest.mark.parametrize(("payoffs", "num_rounds"), [(DILEMMA, 1), (WIDE, 4)])
def test_it_keeps_the_promises_of_a_game(payoffs: Any, num_rounds: int) -> None:
    check_game(game_of(payoffs, num_rounds))


@st.composite
def tables(draw: st.DrawFn) -> list[list[list[float]]]:
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    payoff = st.floats(-100, 100, width=32)
    return [[[draw(payoff), draw(payoff)] for _ in range(columns)] for _ in range(rows)]


@given(tables(), st.integers(1, 5), st.integers(0, 2**31))
def test_rewards_and_observations_are_those_of_a_plain_loop(table: Any, num_rounds: int, seed: int) -> None:
    game, random = game_of(table, num_rounds), torch.Generator().manual_seed(seed)
    keys = torch.arange(3)
    state, last = game.reset(keys), None
    for number in range(num_rounds):
        chosen = [torch.randint(num, (3,), generator=random) for num in game.nums]
        for own, role in enumerate(game.roles):
            seen = game.observe(state, role)["seen"].tolist()
            for world in range(3):
                plain = []
                for place in (own, 1 - own):
                    plain += [float(last is not None and last[place][world] == i) for i in range(game.nums[place])]
                assert seen[world] == pytest.approx([*plain, number / num_rounds])
        state, rewards, terminated, truncated = game.step(
            state, dict(zip(game.roles, chosen, strict=True)), keys + number
        )
        assert rewards.tolist() == [
            table[row][column] for row, column in zip(*map(torch.Tensor.tolist, chosen), strict=True)
        ]
        assert terminated.all().item() is (number + 1 == num_rounds) is terminated.any().item()
        assert not truncated.any()
        last = chosen


@pytest.mark.parametrize("trainer", ["in_turn", "together"])
@pytest.mark.parametrize(
    ("payoffs", "returns"),
    [
        (DILEMMA, [1.0, 1.0]),  # both defect: better whatever the other does
        ([[[2.0, 2.0], [4.0, 1.0], [0.0, 0.0]], [[1.0, 1.0], [3.0, 3.5], [-1.0, 5.0]]], [2.0, 2.0]),  # in two steps:
        # row's first choice is better whatever column does; then column's first one is its best
    ],
)
def test_players_find_the_only_equilibrium(payoffs: Any, returns: list[float], trainer: str, tmp_path: Path) -> None:
    rules = [f"game.payoffs={payoffs}", "game.num_rounds=1"]
    data = starting_config("ppo", ["matrix", *rules]).model_dump()
    data |= {"trainer": {"name": trainer}, "num_worlds": 32, "stop": {"after": 20, "unit": "epochs"}}
    for player in data["players"].values():
        player["algorithm"] |= {"learning_rate": {"name": "constant", "value": 0.01}, "num_minibatches": 4}
    data["evaluations"] = []
    data["best"] = None
    run = make_trainer(data, run=tmp_path / "run")
    run.fit()
    got = [torch.tensor(run.recent_returns(role)).mean().item() for role in run.game.roles]
    assert got == pytest.approx(returns, abs=0.3)


def test_people_type_the_last_choices() -> None:
    game = game_of(WIDE, 4)
    state = game.read_board([1, 2])
    assert game.observe(state, "row")["seen"].tolist() == [[0.0, 1.0, 0.0, 0.0, 1.0, 0.25]]
    assert game.observe(state, "column")["seen"].tolist() == [[0.0, 0.0, 1.0, 0.0, 1.0, 0.25]]
    one = {name: value[0] for name, value in state.items()}
    assert game.describe_board(one) == "round 1 of 4 played; row chose 1 and got 0, column chose 2 and got 0"
    first = {name: value[0] for name, value in game.read_board([]).items()}
    assert game.describe_board(first) == "round 0 of 4 played"
    for wrong in ([2, 0], [0], "0,1", [0.0, 1.0]):
        with pytest.raises(ValueError, match=r"expected the last choices of row and column, from \[0,0\] to \[1, 2\]"):
            game.read_board(wrong)
    with pytest.raises(ValueError, match="because the game has one round"):
        game_of(WIDE, 1).read_board([0, 0])


@pytest.mark.parametrize(
    ("payoffs", "messages"),
    [
        ([], ["game.payoffs: expected at least one pair in every row, as [[[1.0, 1.0]]]"]),
        (
            [[[1.0, 2.0]], [[1.0, 2.0], [0.0, 0.0]]],
            ["game.payoffs.1: expected 1 pairs, as in the first row, got 2"],
        ),
        ([[[1.0]]], ["game.payoffs.0.0: expected two numbers, what row gets and what column gets, got 1"]),
    ],
)
def test_tables_that_cannot_be_are_named(payoffs: Any, messages: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        game_of(payoffs, 1)
    assert [f"{error.path}: {error.message}" for error in caught.value.errors] == messages
