"""What the config of a game tells before the game is built is what the game tells when it is.

Covers palestra.evaluation.config, palestra.games.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PLAIN

from palestra.config import ConfigError, check, load_yaml
from palestra.config.validation import checked
from palestra.config.variants import members_of, names_of
from palestra.evaluation.config import EvaluationConfig
from palestra.games import AnyGameConfig, GameConfig, make_game
from palestra.games.dialogue.protocols import AnyProtocolConfig
from palestra.games.dialogue.witness import WitnessConfig
from palestra.games.world import WorldGame
from palestra.run.shipped import shipped_configs

CPU = torch.device("cpu")
GAMES: dict[str, dict[str, Any]] = {
    "polyhedra": load_yaml(shipped_configs()["dqn-polyhedra"])["game"],
    "nim": {"name": "nim", "num_heaps": 3, "max_stones": 3, "observation": PLAIN},
    "connect_four": {
        "name": "connect_four",
        "num_columns": 7,
        "num_rows": 6,
        "num_connected": 4,
        "observation": PLAIN,
    },
    "tic_tac_toe": {"name": "tic_tac_toe", "observation": PLAIN},
    "dialogue": {
        "name": "dialogue",
        "protocol": checked({"name": "nip"}, AnyProtocolConfig).model_dump(),
        "scenario": {"name": "witness", **WitnessConfig.usual},
        "observation": PLAIN,
    },
    "matrix": {"name": "matrix", "payoffs": [[[1.0, 0.0], [0.0, 1.0]]], "num_rounds": 2, "observation": PLAIN},
    "harvest": {
        "name": "harvest",
        "num_farmers": 2,
        "num_kinds": 2,
        "num_rounds": 1,
        "luck": 1.0,
        "observation": PLAIN,
    },
    "cartpole": {
        "name": "cartpole",
        "max_rounds": 9,
        "initial_low": -0.1,
        "initial_high": 0.1,
        "sutton_barto_reward": True,
        "observation": PLAIN,
    },
    "pendulum": {
        "name": "pendulum",
        "max_rounds": 9,
        "g": 10.0,
        "initial_angle": 3.0,
        "initial_speed": 1.0,
        "observation": PLAIN,
    },
    "acrobot": {"name": "acrobot", "max_rounds": 9, "initial_low": -0.1, "initial_high": 0.1, "observation": PLAIN},
    "mountain_car": {
        "name": "mountain_car",
        "max_rounds": 9,
        "initial_low": -0.6,
        "initial_high": -0.4,
        "goal_speed": 0.0,
        "observation": PLAIN,
    },
    "spaces": {
        "name": "spaces",
        "roles": {
            "one": {
                "observation": {"x": {"shape": [2], "dtype": "float32", "padded": False}},
                "action": {"discrete": 2},
            },
        },
        "always_legal": True,
        "observation": PLAIN,
    },
    "gymnasium": load_yaml(shipped_configs()["dqn-cartpole"])["game"],
}
DICE = """
import torch
from palestra.games import TensorGame, UserGameConfig

class Dice(TensorGame):
    class Config(UserGameConfig):
        fault: str

    def __init__(self, config, device):
        self.device = device
        if config.fault == "raises":
            raise ValueError("no dice")
        if config.fault == "text":
            self.roles = "host"
        if config.fault == "twice":
            self.roles = ("host", "host")

    reset = deciding = observe = legal = transition = None

class Bare(TensorGame): ...
"""


def config_of(name: str) -> GameConfig:
    data = {
        "name": "main",
        "interval": None,
        "at_start": True,
        "num_games": 1,
        "final_num_games": 1,
        "max_rounds": 1,
        "seed": None,
        "game": GAMES[name],
        "pairings": [],
        "references": None,
    }
    config = check(data, EvaluationConfig).game
    assert config is not None
    return config


def test_every_game_is_looked_at_here() -> None:
    assert GAMES.keys() == names_of(members_of(AnyGameConfig)).keys()


@pytest.mark.parametrize("name", GAMES)
def test_the_declared_roles_are_those_of_the_game_that_is_built(name: str) -> None:
    config = config_of(name)
    game = config.build(CPU, "torch")
    assert config.declared_roles() == game.roles
    assert game.config is config  # type: ignore[attr-defined]
    assert isinstance(game, WorldGame) == (config.environment_id() is not None)


@pytest.fixture
def dice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dice.py").write_text(DICE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "modules", sys.modules.copy())


@pytest.mark.usefixtures("dice")
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("raises", r"^game: 'dice:Dice' cannot be made: ValueError: no dice \(dice\.py, line \d+\)$"),
        ("text", r"^game: Dice\.roles: expected a tuple of different names, got 'host'$"),
        ("twice", r"^game: Dice\.roles: expected a tuple of different names, got \('host', 'host'\)$"),
        ("none", r"^game: Dice\.roles: expected a tuple of different names, got None$"),
    ],
)
def test_a_game_of_ones_own_that_has_no_roles_is_told_where_the_file_is_read(
    fault: str, error: str, make_config: Any
) -> None:
    from palestra.run.kinds import read_config

    with pytest.raises(ConfigError, match=error):
        read_config(make_config({"game": {"name": "dice:Dice", "fault": fault}}))


@pytest.mark.usefixtures("dice")
def test_the_config_of_a_game_of_ones_own_derives_from_the_base_of_such_configs() -> None:
    with pytest.raises(ConfigError, match=r"Config of 'dice:Bare', a subclass of .*UserGameConfig, got None"):
        make_game({"name": "dice:Bare"})
