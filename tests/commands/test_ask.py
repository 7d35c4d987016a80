"""What players answer when they are asked about a board or an observation.

Covers palestra.kinds.games.match.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import palestra
from palestra.cli import app
from palestra.config import load_yaml
from palestra.kinds.games.match import parse
from tests.conftest import TINY

ROOT = Path(__file__).parents[2]
BOARD = [[0, 3, 1], [2, 2, 0], [5, 0, 1]]


def ask(run: Path, *arguments: str, code: int = 0) -> str:
    """What the command prints; of a mistake its one line, which stands on stderr alone."""
    result = CliRunner().invoke(app, ["ask", str(run), *arguments])
    assert result.exit_code == code, result.output
    assert code == 0 or result.stdout == ""
    return result.stdout if code == 0 else result.stderr.rstrip("\n")


def train(config: dict[str, Any], folder: Path) -> Path:
    config = copy.deepcopy(config) | {"evaluations": [], "best": None}
    config["output"] |= {"display": "quiet", "recorders": []}
    palestra.make_trainer(config, run=folder).fit()
    return folder


def shipped(name: str, folder: Path) -> Path:
    return train(load_yaml(ROOT / "configs" / f"{name}.yml") | {"stop": {"after": 0.5, "unit": "epochs"}}, folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(TINY, tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture(scope="module")
def nim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shipped("dqn-nim", tmp_path_factory.mktemp("runs") / "nim")


@pytest.fixture(scope="module")
def cart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shipped("ppo-cartpole", tmp_path_factory.mktemp("runs") / "cart")


def rows(table: str) -> dict[str, tuple[float, list[str]]]:
    """The values and choosers in a table of choices, by choice."""
    found = {}
    for line in table.splitlines():
        choice, value, *who = [part for part in line.split("  ") if part]
        found[choice.strip()] = (float(value), who[0].strip().split(", ") if who else [])
    return found


def test_host_and_agent_answer_with_the_values_of_all_choices(run: Path) -> None:
    board, host, after, agent = ask(run, "--board", json.dumps(BOARD)).strip().split("\n\n")
    assert board == "3 points: (0, 3, 1), (2, 2, 0), (5, 0, 1)"
    head, header, *lines = host.splitlines()
    assert header.split() == ["choice", "Q-value", "chosen", "by"]
    found = rows("\n".join(lines))
    player = palestra.load_player(run, "host")
    points = torch.full((1, 6, 3), -1.0)
    points[0, :3] = torch.tensor(BOARD, dtype=torch.float32)
    assert player.game is not None
    observation = {"points": torch.where(points < 0, points, points / 5)}  # the config rescales what players see
    values = player.algorithm.choice_values(observation, torch.ones(1, 4, dtype=torch.bool), {})
    assert values is not None
    best = ["x1, x2", "x1, x3", "x2, x3", "x1, x2, x3"][int(values[1].argmax())]
    assert [value for value, _ in found.values()] == sorted((round(v, 4) for v in values[1][0].tolist()), reverse=True)
    assert next(iter(found)) == best
    assert head.startswith("host: host (dqn, ")
    assert head.endswith(f"chooses {best}")
    choosers = {name: choice for choice, (_, names) in found.items() for name in names}
    assert choosers.keys() == {"host", "choose_first", "choose_last", "all_coordinates", "zeillinger", "look_ahead"}
    assert choosers["all_coordinates"] == "x1, x2, x3"
    assert choosers["zeillinger"] == "x1, x2"  # the first pair differs by (-2, 1, 1): the least and the largest entry
    assert after == f"{board}\nthe host has named {best}"
    assert agent.startswith("agent: agent (dqn, ")
    assert set(rows("\n".join(agent.splitlines()[2:]))) == set(best.split(", "))


def test_the_agent_answers_the_move_that_is_named(run: Path) -> None:
    answer = ask(run, "--board", json.dumps(BOARD), "--move", "x1 x3")
    board, agent = answer.strip().split("\n\n")
    assert board.endswith("the host has named x1, x3")
    found = rows("\n".join(agent.splitlines()[2:]))
    assert set(found) == {"x1", "x3"}
    assert "choose_first" in found["x1"][1]
    assert "choose_last" in found["x3"][1]


def test_one_role_can_be_asked_alone(run: Path) -> None:
    answer = ask(run, "--board", json.dumps(BOARD), "--role", "agent")
    assert "agent: agent (dqn" in answer
    assert "host: host" not in answer


def test_nim_is_asked_with_its_own_words(nim: Path) -> None:
    answer = ask(nim, "--board", "[1,2,0]")
    first = answer.split("\n\n")[1]
    found = rows("\n".join(first.splitlines()[2:]))
    assert set(found) == {"1 from heap 1", "1 from heap 2", "2 from heap 2"}
    assert "nim_optimal" in found["1 from heap 2"][1]  # which leaves 1 and 1
    assert "second: player (dqn" in answer


def test_a_board_on_which_the_game_is_over_is_said_to_be(run: Path) -> None:
    lines = ask(run, "--board", "[[1,1,1],[2,2,2]]").splitlines()
    assert lines == [
        "1 point: (1, 1, 1)",
        "one point is left: the host has won",
        "the game is over: nobody decides here",
    ]


def test_an_environments_player_answers_an_observation_with_probabilities(cart: Path) -> None:
    head, header, *lines = ask(cart, "--observation", "[0.1, 0, 0, 0]").splitlines()
    assert header.split()[1] == "probability"
    found = rows("\n".join(lines))
    assert set(found) == {"0", "1"}
    assert sum(value for value, _ in found.values()) == pytest.approx(1.0, abs=2e-4)
    likeliest = str(int(palestra.load_player(cart).predict([0.1, 0.0, 0.0, 0.0])[0]))
    assert next(iter(found)) == likeliest
    assert head.endswith(f"chooses {likeliest}")
    assert "choose_first" in found["0"][1]


def test_a_vector_of_numbers_is_answered_without_values(tmp_path: Path) -> None:
    run = shipped("sac-pendulum", tmp_path / "run")
    (line,) = ask(run, "--observation", "[1.0, 0.0, 0.5]").splitlines()
    action = palestra.load_player(run).predict([1.0, 0.0, 0.5])[0]
    assert float(line.partition("chooses [")[2].rstrip("]")) == pytest.approx(float(action[0]), abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--board", "[[0,3]]"],
            "--board: expected points of 3 coordinates, such as [[0,1,2],[2,1,0]], got the point [0, 3]",
        ),
        (["--board", "[0,3,1]"], "--board: expected a list of points, such as [[0,1,2],[2,1,0]], got [0, 3, 1]"),
        (["--board", "0,3,1"], "--board: expected a list of points, such as [[0,1,2],[2,1,0]], got '0,3,1'"),
        (
            ["--board", "[[0,1,-1]]"],
            "--board: expected coordinates that are integers from 0 to 2**50, such as [[0,1,2],[2,1,0]], "
            "got the point [0, 1, -1]",
        ),
        (
            ["--board", str([[0, 1, 2]] * 7)],
            "--board: expected 1 to 6 points, as many as a board of the game holds, got 7",
        ),
        (
            ["--board", str(BOARD), "--move", "x1"],
            "--move: expected at least two coordinates for a host, such as 'x1 x2', got 'x1'",
        ),
        (
            ["--board", str(BOARD), "--move", "x1 x2", "--move", "x3"],
            "--move: expected a legal move of 'agent' (x1; x2), got 'x3'",
        ),
        (
            ["--board", str(BOARD), "--move", "[0,1]"],
            "--move: expected coordinates out of x1, x2, x3, such as 'x1 x2' for a host or 'x1' for an agent, "
            "got '[0,1]'",
        ),
        (
            ["--board", "[[0,0,0]]", "--move", "x1 x2"],
            "--move: expected no move after the end of the game, got 'x1 x2'",
        ),
        (["--board", str(BOARD), "--role", "judge"], "--role: expected a role of the game (host, agent), got 'judge'"),
        (["--observation", "[1]"], "--role: expected the role that observes this (host, agent), got none"),
        ([], "--board: expected either --board, perhaps with --move, or --observation alone"),
    ],
)
def test_a_mistake_is_one_line(run: Path, arguments: list[str], message: str) -> None:
    assert ask(run, *arguments, code=2) == message


def test_a_mistake_about_nim_or_an_environment_is_one_line(nim: Path, cart: Path) -> None:
    expected = "--board: expected 3 heaps of 0 to 3 stones, such as [1,2,3], got [[0, 3]]"
    assert ask(nim, "--board", "[[0,3]]", code=2) == expected
    assert ask(nim, "--board", "[1,2,3]", "--move", "2 from 1", code=2) == (
        "--move: expected a legal move of 'first' (1 from heap 1; 1 from heap 2; 2 from heap 2; 1 from heap 3; "
        "2 from heap 3; 3 from heap 3), got '2 from 1'"
    )
    assert "has no boards, got a board" in ask(cart, "--board", "[[0,3]]", code=2)
    wrong = ask(cart, "--observation", "[0.1, 0]", code=2)
    assert wrong.startswith("--observation: expected one observation of 'agent' as JSON (shapes: observation (4,))")
    assert len(wrong.splitlines()) == 1
    batch = ask(cart, "--observation", "[[0.1, 0, 0, 0]]", code=2)
    assert batch == "--observation: expected one observation, got a batch of 1"


@pytest.mark.parametrize(
    "text",
    ["[NaN,1,2,3]", "[Infinity,1,2,3]", "[-1e999,1,2,3]", "[1e300,1,2,3]", f"[1{'0' * 400},1,2,3]", "[null,1,2,3]"],
)
def test_an_observation_without_finite_numbers_is_refused(cart: Path, text: str) -> None:
    wrong = ask(cart, "--observation", text, code=2)
    assert wrong.startswith("--observation: expected one observation of 'agent' as JSON (shapes: observation (4,)): ")
    assert wrong.count("\n") == 0


def test_brackets_in_brackets_without_end_are_one_line(run: Path, cart: Path) -> None:
    deep = "[" * 5000 + "]" * 5000
    for folder, option in ((run, "--board"), (cart, "--observation")):
        told = ask(folder, option, deep, code=2)
        assert told.startswith(f"{option}: expected JSON, got brackets that are nested too deeply: '[[[")
        assert len(told) < 300


@pytest.mark.parametrize("board", ["[(3,0,0),(0,5,0)]", "(3, 0, 0), (0, 5, 0)", "((3,0,0),(0,5,0),)"])
def test_a_board_is_read_as_it_is_printed(board: str) -> None:
    assert parse(board, "--board") == [[3, 0, 0], [0, 5, 0]]


def test_what_is_no_board_stays_as_it_was_typed() -> None:
    assert [parse(text, "--board") for text in ("(3,0", "x1", "take (1)")] == ["(3,0", "x1", "take (1)"]


@pytest.mark.parametrize("name", ["palestra:polyhedra-agent", "runs/mine"])
@pytest.mark.parametrize("command", [("evaluate", "--pairing", "agent={name}"), ("play", "--against", "{name}")])
def test_a_player_of_another_run_is_told_the_way_in(command: tuple[str, ...], name: str) -> None:
    words = [word.format(name=name) for word in command[1:]]
    result = CliRunner().invoke(app, [command[0], "palestra:polyhedra", *words])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert f"{{NAME: {{from_run: {name}, player: PLAYER, checkpoint: latest}}}}" in result.stderr
    assert "palestra config tournament-polyhedra prints one" in result.stderr
