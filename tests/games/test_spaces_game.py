"""The game `spaces`: roles and spaces alone. A player of it predicts, is asked and exported, and nobody plays."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import LEARNER, TINY, MakeConfig
from typer.testing import CliRunner

import palestra
from palestra.cli import app
from palestra.config import ConfigError, load_yaml, render
from palestra.data.columns import read_columns
from palestra.games import make_game
from palestra.games.spaces import Box, Discrete, MultiDiscrete, Space
from palestra.games.spaces_game import find_spaces
from palestra.kinds.games.config import RunConfig
from palestra.kinds.games.parts import build_parts
from palestra.rollouts import fuse
from palestra.run.kinds import read_config
from palestra.run.shipped import shipped_tournaments

Data = dict[str, Any]
PLAIN: Data = {"normalize": None, "clip": None}
NUMBERS: Data = {"shape": [4], "dtype": "float32", "padded": False}
SPACES: Data = {
    "name": "spaces",
    "roles": {"agent": {"observation": {"observation": NUMBERS}, "action": {"discrete": 2}}},
    "always_legal": True,
    "observation": PLAIN,
}
NO_PLAY = "expected a game that can be played, got 'spaces', which says what roles observe and do, and no rules"
COLUMNS: Data = {"observation": {"observation": ["seen"]}, "action": ["action"], "legal": None, "next_legal": None}


def spaces(**changes: Any) -> Data:
    return copy.deepcopy(SPACES) | changes


def test_it_has_the_roles_and_spaces_that_the_config_says() -> None:
    image = {"shape": [3, 8, 9], "dtype": "uint8", "padded": False}
    points = {"shape": [5, 3], "dtype": "float32", "padded": True}
    roles = {
        "one": {"observation": {"image": image, "points": points}, "action": {"multi_discrete": [2, 3]}},
        "two": {"observation": {"x": NUMBERS}, "action": {"low": [-1.0, 0.0], "high": [1.0, 0.0]}},
    }
    game = make_game(spaces(roles=roles, always_legal=False))
    assert game.roles == ("one", "two")
    assert game.spaces["one"] == {
        "image": Space((3, 8, 9), torch.uint8, False),
        "points": Space((5, 3), torch.float32, True),
    }
    assert game.action_spaces == {"one": MultiDiscrete((2, 3)), "two": Box((-1.0, 0.0), (1.0, 0.0))}
    assert not game.always_legal
    assert [score.name for score in game.declared_scores] == ["return/one", "return/two"]


@pytest.mark.parametrize(
    ("action", "error"),
    [
        ({"low": [0.0], "high": [1.0, 2.0]}, r"action\.high: expected 1 numbers, as many as low, got 2"),
        ({"low": [1.0], "high": [0.0]}, r"action\.high\.0: expected a number >= low\.0 = 1, got 0"),
        ({"discrete": 2, "low": [0.0]}, "action: expected a mapping with either"),
        ({"discrete": 0}, r"action\.discrete"),
    ],
)
def test_what_is_no_action_space_is_told(action: Data, error: str) -> None:
    roles = {"agent": {"observation": {"x": NUMBERS}, "action": action}}
    with pytest.raises(ConfigError, match=rf"^game\.roles\.agent\.{error}"):
        make_game(spaces(roles=roles))


def test_nobody_can_play() -> None:
    game = make_game(SPACES)
    with pytest.raises(ConfigError, match=f"^game.name: {NO_PLAY}$"):
        fuse(game).new_worlds(2, 0, "play")


# ---- as a file shows it ------------------------------------------------------------------------------------


def found_in(tmp_path: Path, columns: Data = COLUMNS, **arrays: Any) -> Data:
    np.savez(tmp_path / "rows.npz", **arrays)
    return find_spaces(read_columns(str(tmp_path / "rows.npz")), COLUMNS | columns, "agent")


@pytest.mark.parametrize(
    ("action", "space"),
    [
        (np.array([0, 2, 1]), Discrete(3)),
        (np.array([0.5, -0.25, 0.0], dtype=np.float32), Box((-1.0,), (1.0,))),
        (np.array([[0.5, -2.0], [0.0, 3.0], [0.0, 0.0]]), Box((0.0, -2.0), (0.5, 3.0))),
        (np.array([[0, 4], [1, 0], [0, 0]]), MultiDiscrete((2, 5))),
        (np.array([[0.0], [1.0], [1.0]], dtype=np.float32), Box((-1.0,), (1.0,))),
        (np.array([0, 1 << 40, 1]), Box((0.0,), (float(1 << 40),))),
        (np.array([[[0.5, 0.1], [0.0, 0.2]]] * 3), Box((-1.0,) * 4, (1.0,) * 4)),
    ],
)
def test_a_file_shows_its_action_space(action: np.ndarray, space: Any, tmp_path: Path) -> None:
    found = found_in(tmp_path, seen=np.zeros((3, 4), dtype=np.float32), action=action)
    assert found["always_legal"]
    assert make_game(found | {"observation": PLAIN}).action_spaces["agent"] == space


def test_a_file_shows_what_is_observed_and_which_actions_are_legal(tmp_path: Path) -> None:
    arrays: Data = {"seen": np.zeros((3, 2)), "more": np.zeros(3), "action": np.array([0, 1, 1])}
    arrays |= {"image": np.zeros((3, 1, 8, 8), dtype=np.uint8), "legal": np.ones((3, 4), dtype=bool)}
    columns = {"observation": {"all": ["seen", "more"], "image": ["image"]}, "legal": ["legal"]}
    found = found_in(tmp_path, columns, **arrays)
    assert not found["always_legal"]
    game = make_game(found | {"observation": PLAIN})
    all_, image = game.spaces["agent"].values()
    assert all_ == Space((3,), torch.float32, False)
    assert image == Space((1, 8, 8), torch.uint8, False)
    assert game.action_spaces["agent"] == Discrete(4)
    found = found_in(tmp_path, columns, **arrays | {"image": np.zeros((3, 8, 6, 3), dtype=np.uint8)})
    assert make_game(found | {"observation": PLAIN}).spaces["agent"]["image"].shape == (3, 8, 6)


def test_a_file_without_these_columns_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^replay_buffer\.columns\.action: expected columns of the file \(seen\), got 'action'$"
    ):
        found_in(tmp_path, seen=np.zeros((3, 4)))
    with pytest.raises(
        ConfigError, match=r"columns\.action: expected finite numbers in the column 'action', got nan in row 1 "
    ):
        found_in(tmp_path, seen=np.zeros((3, 4)), action=np.array([0.0, np.nan]))
    with pytest.raises(ConfigError, match=r"columns\.action: expected numbers in the column 'action', got none$"):
        found_in(tmp_path, seen=np.zeros((3, 4)), action=np.zeros((3, 0)))
    arrays = {"seen": np.zeros((3, 4)), "action": np.zeros(3), "more": np.zeros(2)}
    with pytest.raises(ConfigError, match=r"columns\.action: expected 3 rows in 'more', as in 'action', got 2$"):
        found_in(tmp_path, {"action": ["action", "more"]}, **arrays)


@pytest.mark.parametrize("entry", [{"shape": [3]}, {"shape": [2, 3, 4]}, {"shape": [2, 3], "dtype": "uint8"}])
def test_a_set_has_members_of_numbers(entry: Data) -> None:
    entry = {"dtype": "float32", "padded": True} | entry
    role = {"observation": {"points": entry}, "action": {"discrete": 2}}
    game = {"name": "spaces", "roles": {"agent": role}, "always_legal": True, "observation": PLAIN}
    with pytest.raises(
        ConfigError, match=r"observation\.points\.padded: expected false, or float32 of shape \[members, "
    ):
        make_game(game)


# ---- a run ---------------------------------------------------------------------------------------------------


def cartpole(make_config: MakeConfig, **changes: Any) -> Data:
    game = {"name": "cartpole", "max_rounds": 20, "initial_low": -0.05, "initial_high": 0.05}
    game |= {"sutton_barto_reward": False, "observation": PLAIN}
    own: Data = {"game": game, "roles": {"agent": "agent"}, "players": {"agent": LEARNER}, "num_worlds": 2}
    own |= {"evaluations": [], "best": None, "stop": {"after": 4, "unit": "opt_steps"}}
    return make_config(own | changes)


@pytest.fixture
def run(make_config: MakeConfig, in_tmp_path: Path) -> Path:
    """A run whose config says `spaces`, as that of a player that has learned from recorded play."""
    palestra.Trainer(cartpole(make_config), run="run").fit()
    config = Path("run/config.yml")
    config.write_text(render(read_config(load_yaml(config) | {"game": SPACES}), RunConfig))
    return Path("run")


def told(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*map(str, words)])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stdout if code == 0 else result.stderr.rstrip("\n")


def test_a_player_predicts_is_asked_and_exported(run: Path) -> None:
    player = palestra.load_player(run)
    actions, _ = player.predict(np.zeros((5, 4), dtype=np.float32))
    assert actions.shape == (5,)
    assert "(dqn, 4 opt steps) chooses" in told("ask", run, "--observation", "[0.1,0,0,0]")
    assert "acts as the player in 512 decisions" in told("export", run)


def test_a_player_is_told_in_python_and_exported_where_some_actions_are_illegal(run: Path) -> None:
    config = Path("run/config.yml")
    config.write_text(render(read_config(load_yaml(config) | {"game": SPACES | {"always_legal": False}}), RunConfig))
    actions, _ = palestra.load_player(run).predict(np.zeros((5, 4), np.float32), legal=np.array([[False, True]] * 5))
    assert actions.tolist() == [1] * 5
    line = told("ask", run, "--observation", "[0.1,0,0,0]", code=2)
    assert line.startswith("--observation: expected --board, or in Python predict(..., legal=FLAGS), as observations")
    assert "acts as the player in 512 decisions" in told("export", run)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["evaluate", "run", "--pairing", "agent=agent"], "game: expected a game that can be played"),
        (["data", "collect", "run", "x.npz"], f"game.name: {NO_PLAY}"),
        (["play", "run"], f"game.name: {NO_PLAY}"),
        (["ask", "run", "--board", "[1]"], "--board: expected --observation, because the game 'spaces' has no boards"),
    ],
)
def test_play_is_refused_in_one_line(words: list[str], error: str, run: Path) -> None:
    line = told(*words, code=2)
    assert error in line
    assert "\n" not in line


def test_it_is_evaluated_in_a_game(run: Path, make_config: MakeConfig) -> None:
    game = cartpole(make_config)["game"]
    fields = ",".join(
        f"{key}: {'{normalize: null, clip: null}' if key == 'observation' else value}" for key, value in game.items()
    )
    words = [f"game={{{fields}}}".replace("False", "false"), "--games", 3, "--pairing", "agent=agent"]
    assert "evaluation asked, 1 pairing at opt step 4" in told("evaluate", run, *words)


def test_a_tournament_needs_a_game(in_tmp_path: Path) -> None:
    tournament = load_yaml(next(iter(shipped_tournaments().values())))
    tournament |= {"game": SPACES, "pairings": [{"agent": "random"}], "players": {}}
    Path("meet.yml").write_text(json.dumps(tournament))
    for words in (["check", "meet.yml"], ["evaluate", "meet.yml", "--run", "met"]):
        assert told(*words, code=2) == "game: expected a game that can be played, got 'spaces'"
    assert not Path("met").exists()


def test_an_evaluation_needs_a_game_of_its_own(make_config: MakeConfig) -> None:
    evaluation = TINY["evaluations"][0] | {"pairings": [{"agent": "agent"}], "interval": None}
    config = cartpole(make_config, evaluations=[evaluation])
    game = config["game"]
    config["game"] = SPACES
    with pytest.raises(ConfigError, match=r"^evaluations\.0\.game: expected a game that can be played .*'spaces' of"):
        read_config(config)
    config["evaluations"][0]["game"] = game
    parts = build_parts(read_config(config), torch.device("cpu"), None)
    assert parts.game.roles == ("agent",)
