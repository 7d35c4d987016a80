"""Lines on a board: against a plain implementation and PettingZoo's, by enumeration, as people type them, refused."""

from math import sqrt
from typing import Any

import pytest
import torch
from conftest import PLAIN
from matplotlib.figure import Figure
from torch import Tensor

from palestra.config import ConfigError
from palestra.evaluation.evaluations import trace_games
from palestra.evaluation.evaluator import Games, play_games
from palestra.games import make_game
from palestra.games.boards import BoardGame
from palestra.games.game import State
from palestra.games.trace import PictureStyle
from palestra.players import make_script
from palestra.randomness import fold, random_choice
from palestra.testing import check_game

Data = dict[str, Any]
Stones = dict[tuple[int, int], str]  # who has a stone where: by column and row from the lowest one

TIC_TAC_TOE: Data = {"name": "tic_tac_toe", "observation": PLAIN}


def connect_four(num_columns: int = 7, num_rows: int = 6, num_connected: int = 4) -> Data:
    size = {"num_columns": num_columns, "num_rows": num_rows, "num_connected": num_connected}
    return {"name": "connect_four", **size, "observation": PLAIN}


def game_of(config: Data) -> BoardGame:
    game = make_game(config)
    assert isinstance(game, BoardGame)
    return game


GAMES = {
    "tic_tac_toe": TIC_TAC_TOE,
    "connect_four": connect_four(),
    "all bits": connect_four(9, 6, 5),
    "tall": connect_four(2, 9, 3),
    "flat": connect_four(8, 1, 3),
    "wide": connect_four(5, 3, 4),
    "a stone wins": connect_four(3, 2, 1),
}


class Plain:
    """The same game in plain Python, of a config."""

    def __init__(self, config: Data) -> None:
        self.falls = config["name"] == "connect_four"
        sizes = (config.get(key, 3) for key in ("num_columns", "num_rows", "num_connected"))
        self.num_columns, self.num_rows, self.num_connected = sizes

    def square(self, stones: Stones, action: int) -> tuple[int, int] | None:
        """Where an action puts a stone; None: it is illegal."""
        if not self.falls:
            column, row = action % 3, 2 - action // 3
            return None if (column, row) in stones else (column, row)
        height = sum(column == action for column, _ in stones)
        return (action, height) if height < self.num_rows else None

    def legal(self, stones: Stones) -> list[bool]:
        return [self.square(stones, a) is not None for a in range(self.num_columns if self.falls else 9)]

    def has_won(self, stones: Stones, role: str) -> bool:
        own = {square for square, owner in stones.items() if owner == role}
        return any(
            all((x + i * dx, y + i * dy) in own for i in range(self.num_connected))
            for x, y in own
            for dx, dy in ((1, 0), (0, 1), (1, 1), (1, -1))
        )

    def is_full(self, stones: Stones) -> bool:
        return len(stones) == self.num_columns * self.num_rows

    def planes(self, stones: Stones, role: str) -> list[Any]:
        """What a role sees: its own stones, then those of the other, the highest row first."""
        rows, columns = range(self.num_rows - 1, -1, -1), range(self.num_columns)
        owners = [[stones.get((column, row)) for column in columns] for row in rows]
        own = [[float(owner == role) for owner in row] for row in owners]
        other = [[float(owner not in (role, None)) for owner in row] for row in owners]
        return [own, other]


def random_moves(game: BoardGame, state: State, seed: int) -> Tensor:
    keys = fold(torch.arange(len(state["mover"])), seed)
    return random_choice(keys, game.legal(state, "first"))


# ---- the rules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tic_tac_toe", "connect_four", "flat"])
def test_it_keeps_the_promises_of_a_game(name: str) -> None:
    check_game(game_of(GAMES[name]))


@pytest.mark.parametrize("name", GAMES)
def test_random_games_are_those_of_plain_rules(name: str) -> None:
    game, plain, num_games = game_of(GAMES[name]), Plain(GAMES[name]), 60
    state = game.reset(torch.arange(num_games))
    stones: list[Stones] = [{} for _ in range(num_games)]
    over = [False] * num_games
    for move in range(plain.num_columns * plain.num_rows):
        role = game.roles[move % 2]
        expected = [[not over[w] and role == each for each in game.roles] for w in range(num_games)]
        assert game.deciding(state).tolist() == expected
        assert [legal for w, legal in enumerate(game.legal(state, role).tolist()) if not over[w]] == [
            plain.legal(stones[w]) for w in range(num_games) if not over[w]
        ]
        for each in game.roles:
            seen = game.observe(state, each)
            assert seen["stones"].tolist() == [plain.planes(stones[w], each) for w in range(num_games)]
            legal = game.legal_by(each, seen)
            assert legal is not None
            assert torch.equal(legal, game.legal(state, each))
        actions = random_moves(game, state, move)
        before = state
        state, rewards, terminated, truncated = game.step(state, {role: actions}, actions)
        for w, action in enumerate(actions.tolist()):
            reward = 0.0
            if over[w]:
                assert all(torch.equal(state[key][w], before[key][w]) for key in state)
            else:
                square = plain.square(stones[w], action)
                assert square is not None
                stones[w][square] = role
                reward = float(plain.has_won(stones[w], role))
                over[w] = reward > 0 or plain.is_full(stones[w])
            assert rewards[w].tolist() == ([reward, -reward] if role == "first" else [-reward, reward])
        assert terminated.tolist() == [[each, each] for each in over]
        assert not truncated.any()
    assert all(over)


@pytest.mark.parametrize(
    ("moves", "winner"),
    [
        ([1, 1, 2, 2, 3, 3, 4], "first"),  # a row
        ([1, 2, 1, 2, 1, 2, 7, 2], "second"),  # a column
        ([1, 2, 2, 3, 3, 4, 3, 4, 4, 7, 4], "first"),  # a diagonal that rises
        ([7, 6, 6, 5, 5, 4, 5, 4, 4, 1, 4], "first"),  # a diagonal that falls
        ([6, 1, 7, 1, 1, 2, 1, 2], None),  # the top of a column and the foot of the next: no line
    ],
)
def test_four_in_any_direction_win_and_no_line_runs_round_an_edge(moves: list[int], winner: str | None) -> None:
    state = game_of(connect_four()).read_board(moves)
    assert int(state["mover"]) == (len(moves) % 2 if winner is None else 2)


@pytest.mark.parametrize("name", GAMES)
def test_a_first_file_cuts_off_no_game_and_one_role_wants_high_what_the_other_wants_low(name: str) -> None:
    game, plain = game_of(GAMES[name]), Plain(GAMES[name])
    assert game.config.usual_rounds() == plain.num_columns * plain.num_rows
    for score, role, other in zip(game.declared_scores, game.roles, game.roles[::-1], strict=True):
        assert (score.name, score.wish_of(role), score.wish_of(other)) == (f"return/{role}", "high", "low")


def levels(game: BoardGame) -> list[State]:
    """All positions by the number of stones, each once, found by the game's own step."""
    found = [game.reset(torch.zeros(1, dtype=torch.int64))]
    while (running := found[-1]["mover"] < 2).any():
        state = {name: value[running] for name, value in found[-1].items()}
        worlds, actions = game.legal(state, "first").nonzero().unbind(1)
        state = {name: value[worlds] for name, value in state.items()}
        after = game.step(state, dict.fromkeys(game.roles, actions), actions)[0]
        columns = torch.stack(list(after.values()), dim=1).unique(dim=0).unbind(1)
        found.append(dict(zip(after, columns, strict=True)))
    return found


def test_tic_tac_toe_has_5478_positions_and_is_a_draw() -> None:
    game = game_of(TIC_TAC_TOE)
    positions = levels(game)
    assert [len(level["mover"]) for level in positions] == [1, 9, 72, 252, 756, 1260, 1520, 1140, 390, 78]
    values: dict[tuple[int, int], float] = {}  # for first, under best play
    for level in reversed(positions):
        for first, second, mover in torch.stack(list(level.values()), dim=1).tolist():
            state = {"first": torch.tensor(first), "second": torch.tensor(second)}
            if mover == 2:
                lines = [bool(game.has_line(state[role])) for role in game.roles]
                values[first, second] = float(lines[0]) - float(lines[1])
                continue
            squares = game.placed((state["first"] | state["second"]).unsqueeze(0))[0].tolist()
            after = [(first | bit, second) if mover == 0 else (first, second | bit) for bit in squares if bit]
            values[first, second] = (max, min)[mover](values[each] for each in after)
    assert len(values) == 5478
    assert values[0, 0] == 0.0


def played(players: tuple[str, str], num_games: int) -> Games:
    game = game_of(connect_four())
    policies = {role: make_script(name, game, role) for role, name in zip(game.roles, players, strict=True)}
    return play_games(game, policies, num_games, max_rounds=42, seed=0)


def test_random_connect_four_is_as_long_and_as_often_won_as_known() -> None:
    games = played(("random", "random"), num_games=10_000)
    assert games.finished.all()
    lengths = games.lengths.double()
    assert float(lengths.mean()) == pytest.approx(21.3, abs=4 * float(lengths.std()) / sqrt(10_000))
    for role, share in (("first", 0.556), ("second", 0.441)):
        bound = 4 * sqrt(share * (1 - share) / 10_000)
        assert float((games.returns[role] > 0).double().mean()) == pytest.approx(share, abs=bound)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "config"), [("connect_four_v3", connect_four()), ("tictactoe_v3", TIC_TAC_TOE)])
def test_ten_thousand_random_games_are_those_of_pettingzoo(name: str, config: Data) -> None:
    classic = pytest.importorskip("pettingzoo.classic")
    game, num_games = game_of(config), 10_000
    env = getattr(classic, name).env()
    state = game.reset(torch.arange(num_games))
    moves, legal = list[Tensor](), list[Tensor]()
    rewards, lengths = torch.zeros(num_games, 2), torch.zeros(num_games, dtype=torch.int64)
    while (running := game.deciding(state).any(dim=1)).any():
        legal.append(game.legal(state, "first"))
        moves.append(random_moves(game, state, len(moves)))
        state, gained, *_ = game.step(state, dict.fromkeys(game.roles, moves[-1]), moves[-1])
        rewards, lengths = rewards + gained, lengths + running
    # theirs are counted column by column
    theirs = [3 * (a % 3) + a // 3 for a in range(9)] if name == "tictactoe_v3" else list(range(7))
    for w in range(num_games):
        env.reset(seed=w)
        for move in range(int(lengths[w])):
            observation, _, terminated, truncated, _ = env.last()
            assert not terminated
            assert not truncated
            assert observation["action_mask"][theirs].astype(bool).tolist() == legal[move][w].tolist()
            env.step(theirs[int(moves[move][w])])
        assert all(env.terminations.values())
        assert list(env.rewards.values()) == rewards[w].tolist()


# ---- the tactical player ---------------------------------------------------------------------------------


def wins_at_once(plain: Plain, stones: Stones, role: str) -> set[int]:
    squares = {action: plain.square(stones, action) for action in range(plain.num_columns)}
    return {a for a, square in squares.items() if square and plain.has_won({**stones, square: role}, role)}


@pytest.mark.parametrize("size", [(7, 6, 4), (4, 5, 3)])
def test_the_tactical_player_misses_no_win_and_no_block(size: tuple[int, int, int]) -> None:
    config = connect_four(*size)
    game, plain, num_games = game_of(config), Plain(config), 60
    policy = make_script("connect_four_tactical", game)
    state, num_wins, num_blocks, quiet = game.reset(torch.arange(num_games)), 0, 0, [0] * plain.num_columns
    for move in range(plain.num_columns * plain.num_rows):
        role, other = game.roles[move % 2], game.roles[1 - move % 2]
        keys = fold(torch.arange(num_games), move + 100)
        chosen = policy.act(state, game.legal(state, role), keys, {}).action.tolist()
        seen = game.observe(state, role)["stones"].tolist()
        for w in game.deciding(state).any(dim=1).nonzero().flatten().tolist():
            stones: Stones = {
                (column, plain.num_rows - 1 - row): owner
                for owner, plane in zip((role, other), seen[w], strict=True)
                for row, flags in enumerate(plane)
                for column, flag in enumerate(flags)
                if flag
            }
            wins, blocks = (wins_at_once(plain, stones, each) for each in (role, other))
            assert chosen[w] in (wins or blocks or range(plain.num_columns))
            assert plain.square(stones, chosen[w]) is not None
            num_wins += bool(wins)
            num_blocks += bool(blocks and not wins)
            quiet[chosen[w]] += not (wins or blocks)
        actions = random_moves(game, state, move)
        state = game.step(state, {role: actions}, actions)[0]
    assert min(num_wins, num_blocks, *quiet) > 10


@pytest.mark.parametrize("moves", [[3, 3, 4, 4, 5, 5], [3, 3, 4, 4, 5]], ids=["wins", "blocks"])
def test_of_two_wins_or_blocks_the_tactical_player_draws_either(moves: list[int]) -> None:
    """first has three in a row and could go on at both ends."""
    game = game_of(connect_four())
    state = {name: value.expand(200) for name, value in game.read_board(moves).items()}
    legal = game.legal(state, game.roles[len(moves) % 2])
    chosen = make_script("connect_four_tactical", game).act(state, legal, torch.arange(200), {}).action
    counts = chosen.bincount(minlength=7)
    assert counts.nonzero().flatten().tolist() == [1, 5]
    assert int(counts[1]) == pytest.approx(100, abs=4.5 * sqrt(50))


@pytest.mark.parametrize("seat", [0, 1])
def test_the_tactical_player_beats_a_random_one_from_both_seats(seat: int) -> None:
    players = ("connect_four_tactical", "random") if seat == 0 else ("random", "connect_four_tactical")
    games = played(players, num_games=500)
    assert float((games.returns[("first", "second")[seat]] > 0).double().mean()) > 0.9


# ---- as people read and type it --------------------------------------------------------------------------


def lines_of(game: BoardGame, moves: list[int]) -> list[str]:
    return game.describe_board({name: value[0] for name, value in game.read_board(moves).items()}).splitlines()


def test_boards_are_typed_as_moves_and_drawn() -> None:
    assert lines_of(game_of(connect_four(4, 3, 3)), [4, 4, 1]) == [
        ". . . .",
        ". . . O",
        "X . . X",
        "1 2 3 4",
        "first: X, second: O",
    ]
    assert lines_of(game_of(TIC_TAC_TOE), [5, 1]) == ["O 2 3", "4 X 6", "7 8 9", "first: X, second: O"]
    assert lines_of(game_of(connect_four(12, 1, 4)), [11])[:2] == [
        " .  .  .  .  .  .  .  .  .  .  X  .",
        " 1  2  3  4  5  6  7  8  9 10 11 12",
    ]


@pytest.mark.parametrize(
    "board", ["no board", [0], [5], [4, 4, 4, 4], [True], [1.0], [[1]], [1, 2, 1, 2, 1, 2], None, 4]
)
def test_what_is_no_board_is_told_with_an_example(board: Any) -> None:
    expected = r"expected \[\] or the legal moves so far, each the number of a column, such as \[1\], got "
    with pytest.raises(ValueError, match=expected):
        game_of(connect_four(4, 3, 3)).read_board(board)


def test_actions_are_typed_as_they_are_described() -> None:
    for config, name, num in ((connect_four(12, 4), "column", 12), (TIC_TAC_TOE, "square", 9)):
        game = game_of(config)
        for action in range(num):
            text = game.describe_action("first", torch.tensor(action))
            assert text == f"{name} {action + 1}"
            assert game.read_action("first", text).tolist() == game.read_action("second", str(action + 1)).tolist()
            assert game.read_action("first", text).tolist() == action
            assert game.read_action("first", f" {name.capitalize()}  {action + 1}\n").tolist() == action
        for wrong in ("0", str(num + 1), "x", "-1", "1 2", ""):
            with pytest.raises(ValueError, match=f"expected the number of a {name}, from 1 to {num}, got '{wrong}'"):
                game.read_action("first", wrong)


@pytest.mark.parametrize("config", [connect_four(), TIC_TAC_TOE], ids=lambda config: str(config["name"]))
def test_the_picture_of_a_game_has_every_stone_with_its_number(config: Data) -> None:
    game = game_of(config)
    policies = {role: make_script("random", game, role) for role in game.roles}
    for trace in trace_games(game, policies, 42, seed=0)[:5]:
        (scene,) = game.storyboard(trace).scenes
        figure = Figure()
        scene.paint(figure, PictureStyle("black", ("blue", "red"), 8.0))
        (axes,) = figure.axes
        numbers = {text.get_text(): text.get_position() for text in axes.texts}
        assert list(numbers) == [str(number + 1) for number in range(trace.length)]
        seen = game.observe({name: value.unsqueeze(0) for name, value in trace.end.items()}, "first")["stones"][0]
        for number, (x, y) in enumerate(numbers.values()):
            assert seen[number % 2, int(y), int(x)] == 1.0
        stones = {(x, y): line.get_color() for line in axes.lines for x, y in line.get_xydata()}
        assert stones == {at: ("blue", "red")[number % 2] for number, at in enumerate(numbers.values())}
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        assert left < right
        assert bottom > top  # the highest row, which is the first of those that are seen, is above
        assert all(left < x < right and bottom > y > top for x, y in numbers.values())
        winner = next((role for role in game.roles if trace.returns[role] > 0), None)
        assert scene.caption.endswith("A draw." if winner is None else f"{winner} wins.")
        assert scene.description.count(game.action_name) == trace.length


def test_a_picture_tells_a_game_that_was_cut_off_from_a_draw() -> None:
    game = game_of(connect_four())
    policies = {role: make_script("choose_first", game, role) for role in game.roles}
    (scene,) = game.storyboard(trace_games(game, policies, 4, seed=0)[0]).scenes
    assert scene.caption == "After 4 moves: Cut off."
    assert scene.description == "Cut off. The moves: column 1, column 1, column 1, column 1."


@pytest.mark.parametrize(
    ("size", "errors"),
    [
        ((7, 6, 8), ["game.num_connected: expected at most 7, the longer side of the board, got 8"]),
        (
            (10, 9, 4),
            ["game.num_rows: expected num_columns * (num_rows + 1) to be at most 63, got 100 with 9 rows"],
        ),
        ((0, 6, 4), ["game.num_columns: expected an integer >= 1, got 0"]),
    ],
)
def test_boards_that_cannot_be_are_refused_in_one_line(size: tuple[int, int, int], errors: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        game_of(connect_four(*size))
    assert [f"{error.path}: {error.message}" for error in caught.value.errors] == errors
