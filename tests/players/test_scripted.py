"""Covers palestra.players, palestra.players.scripted_games, palestra.players.scripted_polyhedra."""

from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from palestra.evaluation.evaluator import play_games
from palestra.games.game import State, TensorGame
from palestra.games.nim import NimConfig, NimGame
from palestra.games.normalization import UNCHANGED
from palestra.games.polyhedra.game import PolyhedraGame
from palestra.players import SCRIPTED, make_script, script_error
from palestra.randomness import fold, world_keys
from tests.games.plain_polyhedra import Board, boards_of, played, polyhedra_config, subsets

CPU = torch.device("cpu")
DIMENSIONS, REDUCTIONS = (2, 3, 4), ("vertices", "minimal")
HOSTS = ("random", "choose_first", "choose_last", "all_coordinates", "zeillinger", "look_ahead")
AGENTS = ("random", "choose_first", "choose_last", "greedy")

OWN = "a class of your own as 'package.module:Class'"
POLYHEDRA = polyhedra_config(dimension=3, reduction="vertices", max_num_points=9)

every_game = pytest.mark.parametrize(("n", "reduction"), [(n, r) for n in DIMENSIONS for r in REDUCTIONS])


@cache
def polyhedra(n: int, reduction: str) -> PolyhedraGame:
    return PolyhedraGame(polyhedra_config(dimension=n, reduction=reduction, max_num_points=9), CPU, "numba")


NIM = NimConfig(name="nim", num_heaps=3, max_stones=3, observation=UNCHANGED)


def nim() -> NimGame:
    return NimGame(NIM, CPU)


def choices(name: str, game: TensorGame, state: State, role: str, keys: Tensor) -> list[int]:
    policy = make_script(name, game)
    view = state if policy.observes == "state" else {}
    return policy.act(view, game.legal(state, role), keys, {}).action.tolist()


def boards_in_play(game: PolyhedraGame, num: int, agent: str = "random") -> Iterator[tuple[State, Tensor]]:
    """States in which the host decides somewhere, over some rounds of random play, with fresh keys."""
    keys = world_keys(game.config.dimension, num, CPU)
    state = game.reset(fold(keys, 0))
    for move in range(1, 5):
        move_keys = fold(keys, move)
        yield state, move_keys
        for role in ("host", "agent"):
            action = torch.tensor(choices("random", game, state, role, move_keys + 1 + (role == "agent")))
            state = game.transition(state, {role: action}, keys)[0]


# ---- the rules, in plain Python --------------------------------------------------------------------------


def zeillinger(board: Board) -> tuple[int, ...]:
    """Zeillinger's choice: of all pairs the difference of least spread, and of fewest extreme entries among these."""

    def rank(v: tuple[int, ...]) -> tuple[int, int]:
        return max(v) - min(v), v.count(max(v)) + v.count(min(v))

    differences = [tuple(x - y for x, y in zip(p, q, strict=True)) for p, q in combinations(board, 2)]
    v = min(differences, key=rank)
    return tuple(sorted((v.index(min(v)), v.index(max(v)))))


def look_ahead(board: Board, reduction: str) -> tuple[int, ...]:
    def points_left(chosen: tuple[int, ...]) -> float:
        return sum(len(played(board, chosen, axis, reduction)) for axis in chosen) / len(chosen)

    return min(subsets(len(board[0])), key=points_left)


def greedy(board: Board, chosen: tuple[int, ...], reduction: str) -> int:
    return max(chosen, key=lambda axis: len(played(board, chosen, axis, reduction)))


@every_game
def test_zeillinger_chooses_as_the_plain_rule(n: int, reduction: str) -> None:
    game, num_seen = polyhedra(n, reduction), 0
    for state, keys in boards_in_play(game, 500):
        actions = choices("zeillinger", game, state, "host", keys)
        for board, action in zip(boards_of(state["points"]), actions, strict=True):
            if len(board) > 1:
                assert subsets(n)[action] == zeillinger(board)
                num_seen += 1
    assert num_seen > 500


@every_game
def test_look_ahead_chooses_as_the_plain_rule(n: int, reduction: str) -> None:
    game = polyhedra(n, reduction)
    for state, keys in boards_in_play(game, 16):
        actions = choices("look_ahead", game, state, "host", keys)
        for board, action in zip(boards_of(state["points"]), actions, strict=True):
            assert len(board) == 1 or subsets(n)[action] == look_ahead(board, reduction)


@every_game
def test_greedy_chooses_as_the_plain_rule(n: int, reduction: str) -> None:
    game = polyhedra(n, reduction)
    for state, keys in boards_in_play(game, 60):
        hosts = choices("random", game, state, "host", keys)
        state = game.transition(state, {"host": torch.tensor(hosts)}, keys)[0]
        actions = choices("greedy", game, state, "agent", keys)
        for board, host, action in zip(boards_of(state["points"]), hosts, actions, strict=True):
            assert len(board) == 1 or action == greedy(board, subsets(n)[host], reduction)


@pytest.mark.parametrize("agent", AGENTS)
@every_game
def test_zeillinger_wins_from_every_start(n: int, reduction: str, agent: str) -> None:
    game = polyhedra(n, reduction)
    policies = {"host": make_script("zeillinger", game), "agent": make_script(agent, game)}
    games = play_games(game, policies, num_games=600, max_rounds=1000, seed=n)
    assert games.finished.all()
    assert games.tallies["overflow"] == 0
    assert len(games.finished) + games.started_over == 600


# ---- simple players --------------------------------------------------------------------------------------

LEGAL = torch.tensor([[0, 1, 1, 0, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]], dtype=torch.bool)


@pytest.mark.parametrize(("name", "expected"), [("choose_first", [1, 0, 4]), ("choose_last", [4, 0, 4])])
def test_first_and_last_are_those_of_the_legal_actions(name: str, expected: list[int]) -> None:
    assert make_script(name, nim()).act({}, LEGAL, torch.arange(3), {}).action.tolist() == expected


def test_the_agent_that_chooses_first_takes_the_first_coordinate_of_the_choice() -> None:
    game = polyhedra(3, "minimal")
    state = game.reset(world_keys(0, 4, CPU))
    state["subset"] = torch.tensor(subsets_as_masks(3))
    assert choices("choose_first", game, state, "agent", torch.arange(4)) == [0, 0, 1, 0]
    assert choices("choose_last", game, state, "agent", torch.arange(4)) == [1, 2, 2, 2]


def subsets_as_masks(n: int) -> list[int]:
    return [sum(2**k for k in chosen) for chosen in subsets(n)]


def test_all_coordinates_chooses_all_coordinates() -> None:
    for n in DIMENSIONS:
        game = polyhedra(n, "minimal")
        [action] = set(choices("all_coordinates", game, game.reset(torch.arange(5)), "host", torch.arange(5)))
        assert subsets(n)[action] == tuple(range(n))


def test_random_plays_every_legal_action_equally_often() -> None:
    actions = make_script("random", nim()).act({}, LEGAL[:1].expand(6000, -1), torch.arange(6000), {}).action
    counts = torch.bincount(actions, minlength=5)
    assert int(counts[~LEGAL[0]].sum()) == 0
    assert chisquare(counts[LEGAL[0]]).pvalue > 1e-4


@pytest.mark.parametrize("name", HOSTS)
@every_game
def test_no_host_plays_an_illegal_action(n: int, reduction: str, name: str) -> None:
    game = polyhedra(n, reduction)
    for state, keys in boards_in_play(game, 100):
        action = torch.tensor(choices(name, game, state, "host", keys))
        assert game.legal(state, "host").gather(1, action.unsqueeze(1))[game.deciding(state)[:, 0]].all()


@pytest.mark.parametrize("name", AGENTS)
@every_game
def test_no_agent_plays_an_illegal_action(n: int, reduction: str, name: str) -> None:
    game = polyhedra(n, reduction)
    for state, keys in boards_in_play(game, 100):
        host = torch.tensor(choices("random", game, state, "host", keys))
        state = game.transition(state, {"host": host}, keys)[0]
        action = torch.tensor(choices(name, game, state, "agent", keys))
        assert game.legal(state, "agent").gather(1, action.unsqueeze(1))[game.deciding(state)[:, 1]].all()


# ---- who may sit where -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "game", "role", "fault"),
    [
        ("zeillinger", POLYHEDRA, "host", None),
        ("random", NIM, "second", None),
        ("zeillinger", POLYHEDRA, "agent", "expected the role host for the player 'zeillinger', got 'agent'"),
        ("greedy", POLYHEDRA, "host", "expected the role agent for the player 'greedy', got 'host'"),
        ("greedy", NIM, "first", "expected the game 'polyhedra' for the player 'greedy', got another one"),
        ("gredy", POLYHEDRA, "agent", f"expected a scripted player ({', '.join(SCRIPTED)}) or {OWN}, got 'gredy'"),
    ],
)
def test_players_are_told_where_they_cannot_sit(name: str, game: Any, role: str, fault: str | None) -> None:
    assert script_error(name, game, role) == fault


def test_every_scripted_player_is_listed() -> None:
    assert set(SCRIPTED) == {*HOSTS, *AGENTS, "nim_optimal", "connect_four_tactical", "optimal", "witness_optimal"}
