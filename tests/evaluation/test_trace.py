"""A game told move by move is one of those that the evaluation plays.

Covers palestra.games.trace.
"""

import torch

from palestra.config import Config
from palestra.evaluation.evaluations import NUM_TRACED, trace_games, typical
from palestra.evaluation.evaluator import play_games
from palestra.games.game import TensorGame
from palestra.games.nim import NimConfig
from palestra.games.normalization import UNCHANGED
from palestra.players import make_script
from tests.games.plain_polyhedra import polyhedra_config


def tensor_game(config: Config) -> TensorGame:
    game = config.build(torch.device("cpu"), "torch")
    assert isinstance(game, TensorGame)
    return game


def test_a_traced_game_is_the_one_of_middle_length_and_its_moves_lead_from_board_to_board() -> None:
    game = tensor_game(polyhedra_config())
    policies = {role: make_script("random", game, role) for role in game.roles}
    trace = typical(trace_games(game, policies, 50, seed=3))
    assert trace is not None
    lengths = sorted(play_games(game, policies, NUM_TRACED, 50, seed=3).lengths.tolist())
    assert trace.length == lengths[len(lengths) // 2]
    assert [choice.role for choice in trace.choices] == ["host", "agent"] * trace.length
    states = [choice.state for choice in trace.choices] + [trace.end]
    for choice, after in zip(trace.choices, states[1:], strict=True):
        before = {name: value.unsqueeze(0) for name, value in choice.state.items()}
        new, *_ = game.transition(before, {choice.role: choice.action.unsqueeze(0)}, torch.zeros(1, dtype=torch.int64))
        assert torch.equal(new["points"][0], after["points"])
        assert torch.equal(new["subset"][0], after["subset"])
    assert trace.is_finished == (int(trace.end["num_points"]) <= 1)


def test_in_a_game_turn_by_turn_only_who_decides_is_told() -> None:
    game = tensor_game(NimConfig(name="nim", num_heaps=3, max_stones=4, observation=UNCHANGED))
    trace = typical(trace_games(game, {role: make_script("random", game, role) for role in game.roles}, 50, seed=0))
    assert trace is not None
    expected = ("first", "second") * trace.length
    assert tuple(choice.role for choice in trace.choices) == expected[: len(trace.choices)]
    assert int(trace.end["heaps"].sum()) == 0


def test_games_that_are_over_at_their_start_are_no_trace() -> None:
    game = tensor_game(polyhedra_config(initial_points=[[[1, 2, 3]]]))
    policies = {role: make_script("random", game, role) for role in game.roles}
    assert trace_games(game, policies, 50, seed=0) == []
    assert typical([]) is None


def test_traces_have_the_returns_of_the_games_that_are_played() -> None:
    game = tensor_game(NimConfig(name="nim", num_heaps=3, max_stones=4, observation=UNCHANGED))
    policies = {role: make_script("random", game, role) for role in game.roles}
    traces = trace_games(game, policies, 50, seed=4)
    games = play_games(game, policies, NUM_TRACED, 50, seed=4)
    assert [trace.length for trace in traces] == games.lengths.tolist()
    for role in game.roles:
        assert [trace.returns[role] for trace in traces] == games.returns[role].tolist()
