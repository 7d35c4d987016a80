"""The mathematician and the curious: ask, play, and players in Python."""

from pathlib import Path

import pytest

from tests.doors.conftest import Shell

BOARD = "[[0,3,1],[2,2,0],[5,0,1]]"
SHIPPED = "palestra:polyhedra"


def test_ask_the_shipped_pair(shell: Shell) -> None:
    shown = shell("ask", SHIPPED, "--board", BOARD)
    assert shown.startswith("3 points: (0, 3, 1), (2, 2, 0), (5, 0, 1)\n")
    for role in ("host: host (dqn", "agent: agent (dqn"):
        assert f"\n{role}" in shown
    for script in ("zeillinger", "all_coordinates", "look_ahead", "greedy"):
        assert script in shown


def test_play_against_the_shipped_host(shell: Shell) -> None:
    words = ("play", SHIPPED, "--as", "agent", "--board", "[[0,2,0],[2,0,0]]", "--against", "all_coordinates")
    shown = shell(*words, "--seed", "0", typed="hint\nx7\nx1\n")
    assert "Q-value" in shown, "the hint"
    assert "one point is left: the host has won" in shown
    assert shown.endswith("the game is over after 1 round; returns: host 1, agent -1\n")


@pytest.mark.slow
def test_watch_two_players(shell: Shell) -> None:
    shown = shell("play", SHIPPED, "--pairing", "host=zeillinger", "--seed", "3")
    assert shown.startswith("host: zeillinger, agent: agent")
    assert "the game is over after" in shown
    assert shell("play", SHIPPED, "--pairing", "host=zeillinger", "--seed", "3") == shown


@pytest.mark.slow
def test_ask_and_play_a_run_of_another_game(shell: Shell, runs: Path) -> None:
    shown = shell("ask", runs / "nim" / "seed-0", "--board", "[1,2,3]")
    assert "nim_optimal" in shown
    played = shell("play", runs / "nim" / "seed-0", "--as", "first", "--board", "[1,0,0]", typed="1 from heap 1\n")
    assert "the game is over after 1 round; returns: first 1, second -1" in played
    shown = shell("ask", runs / "cart" / "seed-0", "--observation", "[0.1, 0, 0, 0]")
    assert "probability" in shown


@pytest.mark.slow
def test_players_in_python(shell: Shell, runs: Path) -> None:
    printed = shell.python(
        "import gymnasium, torch",
        "host = palestra.load_player('palestra:polyhedra-host')",
        "print(host)",
        f"player = palestra.load_player({str(runs / 'cart' / 'seed-0')!r})",
        "print(player)",
        "environments = gymnasium.make_vec('CartPole-v1', 4)",
        "observations, _ = environments.reset(seed=0)",
        "actions, state = player.predict(observations)",
        "environments.step(actions)",
        "single, _ = player.predict(observations[0])",
        "assert single == actions[0] and state is None",
        "import numpy as np",
        "points = np.full((20, 3), -1, np.float32); points[:2] = [[0, 2, 0], [2, 0, 0]]",
        "action, _ = host.predict({'points': points}, legal=np.array([True, False, False, False]))",
        "assert action == 0",
    )
    of_host, of_agent = printed.splitlines()
    assert "host" in of_host
    assert "dqn" in of_host
    assert "ppo" in of_agent
