"""Games that people play or watch in the terminal.

Covers palestra.players.people.
"""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from palestra.cli import app
from tests.commands.test_ask import shipped, train
from tests.conftest import TINY

BOARD = "[[0,9,1],[2,2,0],[5,0,1]]"


def play(run: Path, *arguments: str, typed: str = "", code: int = 0) -> str:
    result = CliRunner().invoke(app, ["play", str(run), *arguments], input=typed)
    assert result.exit_code == code, result.output
    assert code == 0 or result.stdout == ""
    return result.stdout if code == 0 else result.stderr.rstrip("\n")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(TINY, tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture(scope="module")
def nim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shipped("dqn-nim", tmp_path_factory.mktemp("runs") / "nim")


def test_a_person_answers_a_scripted_host_until_the_end(run: Path) -> None:
    """By hand: x1 makes of (0, 2, 0), (2, 0, 0) the points (2, 2, 0), (2, 0, 0), of which the second is a vertex."""
    shown = play(
        run,
        "--as",
        "agent",
        "--against",
        "all_coordinates",
        "--board",
        "[[0,2,0],[2,0,0]]",
        "--seed",
        "0",
        typed="x1\n",
    )
    assert shown.splitlines() == [
        "host: all_coordinates, agent: you",
        "",
        "2 points: (0, 2, 0), (2, 0, 0)",
        "host (all_coordinates) chooses x1, x2, x3",
        "agent, your move (x1; x2; x3), hint or quit: agent (you) chooses x1",
        "",
        "after 1 round:",
        "1 point: (2, 0, 0)",
        "one point is left: the host has won",
        "the game is over after 1 round; returns: host 1, agent -1",
    ]


def test_a_person_hosts_against_the_learned_agent(run: Path) -> None:
    shown = play(run, "--as", "host", "--board", BOARD, typed="x1 x2\n1 3\n")
    assert "host (you) chooses x1, x2\nagent (agent) chooses x" in shown
    assert "host (you) chooses x1, x3\nagent (agent) chooses x" in shown
    assert "left after 2 rounds" in shown  # the input ends there


def test_a_hint_shows_what_ask_shows_and_mistakes_ask_again(run: Path) -> None:
    typed = "x9\nx1 x2\nx1\nhint\nquit\nx2\n"
    shown = play(run, "--as", "agent", "--pairing", "host=zeillinger", "--board", "[[0,2,1],[1,0,3]]", typed=typed)
    assert "host (zeillinger) chooses x2, x3" in shown
    assert "expected coordinates out of x1, x2, x3" in shown
    assert "expected one coordinate for an agent, such as 'x1', got 'x1 x2'" in shown
    assert "expected a legal move of 'agent' (x2; x3), got 'x1'" in shown
    hint = shown.partition("agent: agent (dqn, ")[2].splitlines()
    assert hint[1].split() == ["choice", "Q-value", "chosen", "by"]
    assert {line.split()[0] for line in hint[2:4]} == {"x2", "x3"}
    assert shown.endswith("left after 0 rounds\n")
    assert "agent (you) chooses" not in shown


def test_a_person_beats_nim_by_perfect_moves(nim: Path) -> None:
    shown = play(
        nim,
        "--as",
        "first",
        "--board",
        "[1,2,2]",
        "--against",
        "choose_first",
        typed="1 from heap 1\n1 from 3\n1 from 3\n",
    )
    *_, last = shown.splitlines()
    assert "heap 2: || (2)" in shown
    assert "second (choose_first) chooses 1 from heap 2" in shown
    assert last == "the game is over after 5 rounds; returns: first 1, second -1"


def test_two_players_are_watched_the_same_by_the_same_seed(run: Path) -> None:
    shown = play(run, "--seed", "5")
    assert shown.startswith("host: host, agent: agent\n")
    assert "the game is " in shown.splitlines()[-1]
    assert play(run, "--seed", "5") == shown
    other = play(run)
    first = other.partition("\n")[0]
    assert first.startswith("for the same game again: --seed ")
    seed = first.split()[-1]
    assert play(run, "--seed", seed) == other.partition("\n")[2]


def test_pairings_add_up(run: Path) -> None:
    together = play(run, "--seed", "5", "--pairing", "host=zeillinger,agent=greedy")
    assert together.startswith("host: zeillinger, agent: greedy\n")
    assert play(run, "--seed", "5", "--pairing", "host=zeillinger", "--pairing", "agent=greedy") == together


def test_a_game_that_is_cut_off_says_so(run: Path) -> None:
    shown = play(run, "--pairing", "host=choose_first,agent=choose_last", "--board", "[[0,0,1],[1,1,0]]")
    assert f"the game is cut off after {TINY['game']['max_rounds']} rounds" in shown


def test_a_drawn_board_is_one_on_which_somebody_decides(nim: Path) -> None:
    for seed in range(20):
        assert "after 0 rounds" not in play(nim, "--seed", str(seed))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--as", "judge"], "--as: expected a role of the game (host, agent), got 'judge'"),
        (["--pairing", "judge=random"], "--pairing: expected a role of the game (host, agent), got 'judge'"),
        (["--pairing", "host"], "--pairing: expected role=player,role=player, such as host=zeillinger, got 'host'"),
        (
            ["--pairing", "host=zeillinger", "--pairing", "host=random"],
            "--pairing: expected one player in the role 'host', got 'zeillinger' and 'random'",
        ),
        (["--pairing", "host=greedy"], "host: expected the role agent for the player 'greedy', got 'host'"),
        (["--pairing", "host=agent"], "host: expected a player that can sit in the role 'host', got 'agent'"),
        (
            ["--board", "[[1]]"],
            "--board: expected points of 3 coordinates, such as [[0,1,2],[2,1,0]], got the point [1]",
        ),
    ],
)
def test_a_mistake_is_one_line(run: Path, arguments: list[str], message: str) -> None:
    assert play(run, *arguments, code=2) == message


def test_an_unknown_player_and_an_environment_are_one_line(run: Path, tmp_path: Path) -> None:
    message = play(run, "--as", "agent", "--against", "nobody", code=2)
    assert message.startswith("host: expected a player of the run (host, agent), a scripted one (random, ")
    assert message.endswith("got 'nobody'")
    message = play(shipped("ppo-cartpole", tmp_path / "run"), code=2)
    assert message.startswith("RUN: expected a run in a game of boards, got one in an environment")
