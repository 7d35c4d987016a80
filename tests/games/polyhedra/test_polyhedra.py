"""Covers palestra.games.polyhedra.game, palestra.games.polyhedra.game_kernel."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from palestra.config import ConfigError
from palestra.games.game import IllegalMove, State
from palestra.games.polyhedra.game import (
    MAX_COORDINATE,
    PolyhedraGame,
    decode_host_action,
    encode_host_action,
    host_subsets,
)
from palestra.randomness import fold, random_choice, world_keys
from tests.games.plain_polyhedra import Board, boards_of, played, polyhedra_config, reduced, subsets

CPU = torch.device("cpu")
REDUCTIONS = ("vertices", "minimal")
KERNELS = ("numba", "torch")
KEYS = torch.zeros(1, dtype=torch.int64)


def make(kernel: str = "numba", **changes: object) -> PolyhedraGame:
    return PolyhedraGame(polyhedra_config(**changes), CPU, kernel)  # type: ignore[arg-type]


def state_of(game: PolyhedraGame, *boards: Sequence[tuple[float, ...]]) -> State:
    points = torch.full((len(boards), game.config.max_num_points, game.config.dimension), -1.0, dtype=torch.float64)
    for row, board in zip(points, boards, strict=True):
        row[: len(board)] = torch.tensor(board, dtype=torch.float64)
    return game.state_of(points)


def code(game: PolyhedraGame, *coordinates: int) -> int:
    return subsets(game.config.dimension).index(coordinates)


def play_round(
    game: PolyhedraGame, state: State, host: int | list[int], agent: int | list[int]
) -> tuple[State, Tensor, Tensor, Tensor]:
    """One round by the public `step`; a number stands for the same action in every world."""
    num = len(state["subset"])
    keys = torch.zeros(num, dtype=torch.int64)

    def actions(moves: int | list[int]) -> Tensor:
        return torch.tensor([moves] * num if isinstance(moves, int) else moves)

    state, rewards, terminated, truncated = game.step(state, {"host": actions(host)}, keys)
    assert not rewards.any()
    assert not truncated.any()
    assert terminated.any(1).tolist() == [row[1, 0] < 0 for row in state["points"]]
    return game.step(state, {"agent": actions(agent)}, keys)


def random_moves(game: PolyhedraGame, state: State, keys: Tensor) -> tuple[Tensor, Tensor]:
    host = random_choice(fold(keys, 0), game.legal(state, "host"))
    chosen = decode_host_action(host, game.config.dimension).bool()
    return host, random_choice(fold(keys, 1), chosen)


def play_moves(game: PolyhedraGame, state: State, host: Tensor, agent: Tensor) -> State:
    state = game.transition(state, {"host": host}, KEYS)[0]
    return game.transition(state, {"agent": agent}, KEYS)[0]


# ---- the rules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("board", "chosen", "axis", "by_vertices", "by_minimal"),
    [
        # (2,0) (3,3): the second is beaten
        ([(2, 0), (0, 3)], (0, 1), 0, [(2, 0)], [(2, 0)]),
        ([(2, 0), (0, 3)], (0, 1), 1, [(2, 2), (0, 3)], [(2, 2), (0, 3)]),
        # (0,9) (1,5) (4,5) (7,7): the last two are beaten
        ([(0, 9), (1, 4), (4, 1), (7, 0)], (0, 1), 1, [(0, 9), (1, 5)], [(0, 9), (1, 5)]),
        ([(0, 0, 6), (3, 3, 0)], (1, 2), 1, [(0, 6, 6), (3, 3, 0)], [(0, 6, 6), (3, 3, 0)]),
        # the middle point is above the segment between the others, and above neither of them
        ([(0, 4, 0), (2, 2, 1), (4, 0, 0)], (0, 1, 2), 2, [(0, 4, 4), (4, 0, 4)], [(0, 4, 4), (2, 2, 5), (4, 0, 4)]),
        # (2,2) (2,1) (2,0): equal in the first coordinate
        ([(0, 2), (1, 1), (2, 0)], (0, 1), 0, [(2, 0)], [(2, 0)]),
    ],
)
def test_a_round_computed_by_hand(
    board: list[tuple[int, ...]],
    chosen: tuple[int, ...],
    axis: int,
    by_vertices: list[tuple[int, ...]],
    by_minimal: list[tuple[int, ...]],
    kernel: str,
) -> None:
    for reduction, expected in (("vertices", by_vertices), ("minimal", by_minimal)):
        game = make(kernel, dimension=len(board[0]), reduction=reduction)
        state, rewards, terminated, _ = play_round(game, state_of(game, board), code(game, *chosen), axis)
        over = len(expected) == 1
        assert boards_of(state["points"]) == [tuple(expected)]
        assert rewards.tolist() == [[1.0, -1.0] if over else [0.0, 0.0]]
        assert terminated.tolist() == [[over, over]]
        assert state["rounds"].tolist() == [1]


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_random_games_are_those_of_the_plain_rules(reduction: str, n: int) -> None:
    game = make(dimension=n, reduction=reduction, max_num_points=9, max_value=7)
    keys = world_keys(n, 80, CPU)
    state = game.reset(fold(keys, 0))
    boards = boards_of(state["points"])
    assert all(board == reduced(board, reduction) for board in boards)
    num_moves = 0
    for move in range(1, 9):
        num_moves += sum(len(board) > 1 for board in boards)
        host, agent = random_moves(game, state, fold(keys, move))
        state = play_moves(game, state, host, agent)
        boards = [
            played(board, subsets(n)[h], a, reduction) if len(board) > 1 else board
            for board, h, a in zip(boards, host.tolist(), agent.tolist(), strict=True)
        ]
        assert boards_of(state["points"]) == boards
    assert num_moves > 100
    assert 1 in map(len, boards)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_both_reductions_end_the_same_games_in_the_same_round(n: int) -> None:
    """One vertex is one orthant, and one minimal point too."""
    games = [make(dimension=n, reduction=reduction) for reduction in REDUCTIONS]
    keys = world_keys(n, 500, CPU)
    states = [game.reset(fold(keys, 0)) for game in games]
    for move in range(1, 15):
        host, agent = random_moves(games[0], states[0], fold(keys, move))
        states = [play_moves(game, state, host, agent) for game, state in zip(games, states, strict=True)]
        running = [(state["points"][..., 0] >= 0).sum(1) > 1 for state in states]
        assert torch.equal(*running)
        assert torch.equal(states[0]["rounds"], states[1]["rounds"])


@pytest.mark.parametrize("changes", [{}, {"reward": {"name": "length"}, "max_rounds": 3}, {"rescale_state": True}])
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_kernels_play_the_same_games_to_the_bit(reduction: str, n: int, changes: dict[str, object]) -> None:
    size = {"dimension": n, "reduction": reduction, "max_num_points": 12, "max_value": 20}
    games = [make(kernel, **size, **changes) for kernel in KERNELS]
    keys = world_keys(n, 100, CPU)
    states = [game.reset(fold(keys, 0)) for game in games]
    for move in range(1, 10):
        assert_same(states[0], states[1])
        assert_same(*(game.deciding(state) for game, state in zip(games, states, strict=True)))
        host, agent = random_moves(games[0], states[0], fold(keys, move))
        for actions in ({"host": host}, {"agent": agent}):
            results = [game.transition(state, actions, KEYS) for game, state in zip(games, states, strict=True)]
            assert_same(*results)
            states = [result[0] for result in results]
            for role in ("host", "agent"):
                assert_same(*(game.legal(state, role) for game, state in zip(games, states, strict=True)))
        over = results[0][2].all(1) & (keys % 2 == 0)
        refilled = [
            game.refill({name: value.clone() for name, value in state.items()}, over, fold(keys, move))
            for game, state in zip(games, states, strict=True)
        ]
        assert_same(*refilled)
        states = refilled


@pytest.mark.parametrize(
    "changes",
    [
        {"reduction": "vertices"},
        {"reward": {"name": "length"}, "max_rounds": 3},
        {"reward": {"name": "points", "weight": 0.3}},
        {"rescale_state": True},
        {"initial_points": [[[2**49, 3, 0], [0, 2**50, 5], [7, 7, 7], [1, 2**49, 1]]]},
    ],
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_turn_in_place_gives_what_a_pure_one_gives(kernel: str, changes: dict[str, object]) -> None:
    """Ended and overflowing worlds among them, and moves in which the others decide."""
    game, keys = make(kernel, max_num_points=12, max_value=20, **changes), world_keys(1, 200, CPU)
    state = game.reset(fold(keys, 0))
    num_ended = num_truncated = 0
    for move in range(1, 8):
        host, agent = random_moves(game, state, fold(keys, move))
        for actions in (
            {"host": host},
            {"agent": agent},
            {"agent": agent},
            {"host": host},
            {"host": host, "agent": agent},
        ):
            before = {name: value.clone() for name, value in state.items()}
            pure = game.transition(state, actions, KEYS)
            assert_same(before, state)
            written = game.transition_in_place(before, actions, KEYS)
            assert_same(pure, written)
            state = written[0]
            num_ended += int(written[2].all(1).sum())
            num_truncated += int(written[3].sum())
    assert num_ended > 0
    assert num_truncated > 0 or not {"max_rounds", "initial_points"} & set(changes)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "changes", [{}, {"reduction": "vertices"}, {"rescale_state": True}, {"initial_points": [[[3, 1, 0], [0, 0, 5]]]}]
)
def test_refilled_worlds_are_new_and_the_others_stay(
    changes: dict[str, object], kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    game, keys = make(kernel, max_num_points=12, **changes), world_keys(1, 40, CPU)
    state = game.reset(fold(keys, 0))
    for move in range(1, 4):
        state = play_moves(game, state, *random_moves(game, state, fold(keys, move)))
    fresh, where = game.reset(fold(keys, 9)), keys % 3 == 0
    expected = {name: torch.stack([(fresh if w else state)[name][i] for i, w in enumerate(where)]) for name in state}
    for way in ("loops", "tensors"):
        if way == "tensors":
            monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        old = {name: value.clone() for name, value in state.items()}
        assert_same(game.refill(old, where, fold(keys, 9)), expected)


def test_boards_that_exact_integers_decide_are_counted_by_both_kernels() -> None:
    big = 2.0**48
    states = []
    for kernel in KERNELS:
        game = make(kernel, reduction="vertices")
        board = [(0, 0, big), (0, big, 0), (big / 2, 0, 0), (1, 1, big / 4)]
        state = state_of(game, board, [(0, 0, 4), (4, 0, 0)])
        states.append(play_moves(game, state, torch.tensor([0, 0]), torch.tensor([1, 0])))
    assert_same(*states)
    assert (states[0]["exact"] > 0).tolist() == [True, False]


def assert_same(a: object, b: object) -> None:
    """Nested dicts and tuples of tensors, equal to the bit and of the same types."""
    if isinstance(a, dict) and isinstance(b, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, tuple) and isinstance(b, tuple):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert isinstance(a, Tensor)
        assert isinstance(b, Tensor)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(a, b)


def test_a_game_that_is_over_stays_as_it_is() -> None:
    game = make(max_rounds=1)
    before = state_of(game, [(2, 3, 1)])
    state, rewards, terminated, truncated = game.transition(before, {"host": torch.tensor([2])}, KEYS)
    state, rewards, terminated, truncated = game.transition(state, {"agent": torch.tensor([1])}, KEYS)
    assert all(torch.equal(state[name], before[name]) for name in before)
    assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == ([[0.0, 0.0]], [[True, True]], [False])
    assert not game.deciding(state).any()


def test_roles_decide_in_turn() -> None:
    game = make()
    state = state_of(game, [(0, 0, 4), (4, 0, 0)])
    assert game.deciding(state).tolist() == [[True, False]]
    state = game.step(state, {"host": torch.tensor([0])}, KEYS)[0]
    assert game.deciding(state).tolist() == [[False, True]]
    state = game.step(state, {"agent": torch.tensor([1])}, KEYS)[0]
    assert game.deciding(state).tolist() == [[True, False]]


def test_worlds_at_different_moves_step_together() -> None:
    game = make(dimension=2, max_num_points=2, reward={"name": "length"})
    state = state_of(game, [(2, 0), (0, 3)], [(2, 0), (0, 3)])
    state["subset"][1] = 3
    zeros = torch.zeros(2, dtype=torch.int64)
    state, rewards, terminated, _ = game.step(state, {"host": zeros, "agent": zeros}, zeros)
    assert boards_of(state["points"]) == [((2, 0), (0, 3)), ((2, 0),)]
    assert (state["subset"].tolist(), state["rounds"].tolist()) == ([3, 0], [0, 1])
    assert (rewards.tolist(), terminated.tolist()) == ([[0.0, 0.0], [-1.0, 1.0]], [[False] * 2, [True] * 2])


# ---- the host's action code ----------------------------------------------------------------------------


def test_action_code_is_ordered_by_bitmask() -> None:
    assert decode_host_action(torch.arange(4), 3).tolist() == [[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_action_codes_encode_and_decode(n: int) -> None:
    codes = torch.arange(2**n - n - 1)
    decoded = decode_host_action(codes, n)
    assert [tuple(row.nonzero().flatten().tolist()) for row in decoded] == subsets(n)
    assert host_subsets(n) == [sum(2**k for k in chosen) for chosen in subsets(n)]
    assert torch.equal(encode_host_action(decoded), codes)
    assert torch.equal(encode_host_action(decoded.view(1, -1, n).float()), codes.view(1, -1))


def test_choices_of_fewer_than_two_coordinates_have_no_code() -> None:
    with pytest.raises(ValueError, match="at least two"):
        encode_host_action(torch.tensor([[1, 1, 0], [0, 1, 0]]))


def test_codes_out_of_range_are_not_decoded() -> None:
    with pytest.raises(IndexError):
        decode_host_action(torch.tensor([4]), 3)


# ---- illegal moves -------------------------------------------------------------------------------------


def test_the_agent_picks_from_the_choice_of_the_host() -> None:
    game = make()
    board = [(0, 0, 4), (4, 0, 0)]
    state = state_of(game, board, board)
    state = game.step(state, {"host": torch.tensor([3, 1])}, KEYS)[0]
    assert game.legal(state, "agent").tolist() == [[True, True, True], [True, False, True]]
    with pytest.raises(IllegalMove, match=r"^expected a legal action of 'agent' in world 1 \(\[0, 2\]\), got 1$"):
        game.step(state, {"agent": torch.tensor([1, 1])}, KEYS)


@pytest.mark.parametrize("action", [-1, 4, 10**9])
def test_the_public_step_refuses_actions_out_of_range(action: int) -> None:
    game = make()
    state = state_of(game, [(3, 3, 3)], [(0, 0, 4), (4, 0, 0)])
    expected = rf"^expected a legal action of 'host' in world 1 \(\[0, 1, 2, 3\]\), got {action}$"
    with pytest.raises(IllegalMove, match=expected):
        game.step(state, {"host": torch.tensor([0, action])}, KEYS)


def test_the_public_step_refuses_a_missing_action() -> None:
    game = make()
    state = state_of(game, [(0, 0, 4), (4, 0, 0)])
    with pytest.raises(IllegalMove, match="expected actions of 'host', which decides in 1 worlds, got none"):
        game.step(state, {"agent": torch.tensor([0])}, KEYS)


def test_actions_of_those_who_do_not_decide_are_ignored() -> None:
    game = make()
    state = state_of(game, [(0, 0, 4), (4, 0, 0)], [(1, 1, 1)])
    state = game.step(state, {"host": torch.tensor([0, 99])}, KEYS)[0]
    assert state["subset"].tolist() == [3, 0]


# ---- how a game is cut off -------------------------------------------------------------------------------


def test_rounds_beyond_the_limit_are_truncated() -> None:
    game = make(dimension=2, max_rounds=3)
    state = state_of(game, [(1, 0), (0, 50)], [(1, 0), (0, 50)])
    for num_rounds in range(1, 4):  # axis 1 takes 50 rounds to end the game, axis 0 one
        agent = [1, 0 if num_rounds == 3 else 1]
        state, rewards, terminated, truncated = play_round(game, state, 0, agent)
        assert state["rounds"].tolist() == [num_rounds] * 2
        assert truncated.tolist() == [num_rounds == 3, False]
    assert terminated.any(1).tolist() == [False, True]
    assert rewards.tolist() == [[0.0, 0.0], [1.0, -1.0]]
    assert state["overflow"].tolist() == [False, False]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_coordinate_beyond_the_exact_range_truncates_and_is_counted(kernel: str) -> None:
    game = make(kernel, dimension=2)
    most = MAX_COORDINATE
    state = state_of(game, [(0, most), (2, 0)], [(1, most - 1), (2, 0)], [(1, most), (2, 0)], [(most, 1), (1, most)])
    state, _, terminated, truncated = play_round(game, state, 0, [1, 1, 1, 0])
    assert state["points"].amax((1, 2)).tolist() == [most, most, most + 1, most + 1]
    assert state["overflow"].tolist() == truncated.tolist() == [False, False, True, False]
    assert terminated.any(1).tolist() == [False, False, False, True]


# ---- what players see ------------------------------------------------------------------------------------


def test_rescale_touches_observations_alone() -> None:
    board = [(0, 0, 4), (4, 0, 1)]
    plain, scaled = make(), make(rescale=True)
    for game, factor in ((plain, 1.0), (scaled, 0.25)):
        state = state_of(game, board, [(0, 0, 0)])
        seen = game.observe(state, "host")["points"]
        assert boards_of(state["points"]) == [tuple(board), ((0, 0, 0),)]
        assert torch.equal(seen[0, :2], torch.tensor(board) * factor)
        assert (seen[0, 2:] == -1.0).all()
        assert torch.equal(seen[1, 0], torch.zeros(3))
    moves = [torch.tensor([0, 0]), torch.tensor([0, 0])]
    states = [play_moves(game, state_of(game, board, board), *moves) for game in (plain, scaled)]
    assert torch.equal(states[0]["points"], states[1]["points"])


def test_rescale_state_divides_the_state_itself() -> None:
    game = make(rescale_state=True, dimension=2)
    state = state_of(game, [(4.0, 0.0), (0.0, 8.0)])
    assert state["points"][0, :2].tolist() == [[0.5, 0.0], [0.0, 1.0]]
    state = play_round(game, state, 0, 1)[0]
    assert state["points"][0, :2].tolist() == [[0.5, 0.5], [0.0, 1.0]]


def test_the_agent_sees_the_choice_of_the_host() -> None:
    game = make()
    board = [(0, 0, 4), (4, 0, 0)]
    state = game.step(state_of(game, board, board), {"host": torch.tensor([1, 3])}, KEYS)[0]
    assert game.observe(state, "agent")["coords"].tolist() == [[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]]
    assert "coords" not in game.observe(state, "host")


@pytest.mark.parametrize("role", ["host", "agent"])
def test_observations_fit_their_spaces_and_are_new_tensors(role: str) -> None:
    game = make()
    state = game.reset(world_keys(0, 5, CPU))
    kept = {name: value.clone() for name, value in state.items()}
    seen = game.observe(state, role)
    assert {name: (value.shape[1:], value.dtype) for name, value in seen.items()} == {
        name: (torch.Size(space.shape), space.dtype) for name, space in game.spaces[role].items()
    }
    for value in seen.values():
        value.fill_(9.0)
    assert all(torch.equal(state[name], kept[name]) for name in state)


# ---- where games start -------------------------------------------------------------------------------------


def test_random_starts_are_reduced_points_of_the_whole_range() -> None:
    game = make(max_num_points=6, max_value=3, dimension=2)
    boards = boards_of(game.reset(world_keys(1, 3000, CPU))["points"])
    assert all(board == reduced(board, "minimal") for board in boards)
    assert {point for board in boards for point in board} == {(x, y) for x in range(4) for y in range(4)} - {(3, 3)}


def test_starts_given_by_the_user_are_reduced_and_all_drawn() -> None:
    given: list[Board] = [((3, 0), (1, 1), (2, 2), (0, 3)), ((0, 5), (5, 0)), ((7, 7),)]
    for reduction in REDUCTIONS:
        game = make(dimension=2, reduction=reduction, initial_points=[[list(p) for p in board] for board in given])
        drawn = boards_of(game.reset(world_keys(0, 300, CPU))["points"])
        assert set(drawn) == {reduced(board, reduction) for board in given}
        assert min(drawn.count(board) for board in set(drawn)) > 60


@pytest.mark.parametrize(("boards", "got"), [([1, 2, 3], "one point"), ([[1, 2, 3], [0, 2, 2]], "one board")])
def test_one_board_in_place_of_a_list_of_boards_is_one_error_with_an_example(boards: list[Any], got: str) -> None:
    with pytest.raises(ConfigError) as raised:
        polyhedra_config(initial_points=boards)
    expected = "initial_points: expected a list of boards, each a list of points"
    text, _, example = str(raised.value).partition("; write ")
    assert text == f"{expected}, got {got}"
    assert polyhedra_config(initial_points=json.loads(example)).initial_points == json.loads(example)


@pytest.mark.parametrize(
    ("boards", "places"),
    [
        ([], ["initial_points"]),
        ([[]], ["initial_points.0"]),
        ([[[1, 2, 3]], [[1, 2, 3]] * 9], ["initial_points.1"]),
        ([[[1, 2, 3], [1, 2], [1, 2, -1], [0, 0, 2**50 + 1]]], [f"initial_points.0.{j}" for j in (1, 2, 3)]),
    ],
)
def test_starts_that_are_no_boards_are_refused_at_their_place(boards: object, places: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        polyhedra_config(initial_points=boards)
    assert [error.path for error in caught.value.errors] == places


# ---- rewards -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reward", "going_on", "won"),
    [
        ({"name": "win"}, 0.0, 1.0),
        ({"name": "length"}, -1.0, -1.0),
        ({"name": "points", "weight": 0.5}, 0.5 * 1 / 8, 1.0 + 0.5 * 2 / 8),
    ],
)
def test_rewards_by_name(reward: dict[str, object], going_on: float, won: float) -> None:
    """Three boards: one loses a point, one loses two and is won, one was over before."""
    game = make(dimension=2, reward=reward)
    state = state_of(game, [(0, 6), (1, 2), (3, 0)], [(0, 2), (1, 1), (2, 0)], [(1, 1)])
    state, rewards, _, _ = play_round(game, state, 0, [1, 0, 0])
    assert [len(board) for board in boards_of(state["points"])] == [2, 1, 1]
    assert rewards.tolist() == [[going_on, -going_on], [won, -won], [0.0, 0.0]]
