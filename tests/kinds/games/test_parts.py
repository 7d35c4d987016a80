"""The game and the players of a run are built by one function, whoever asks for them."""

import ast
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
import torch

import palestra
from palestra.kinds.games.parts import build_evaluations, build_parts
from palestra.run.kinds import read_config

MakeConfig = Callable[..., dict[str, Any]]
HOUSE = Path(palestra.__file__).parent


def callers(name: str) -> set[str]:
    """The files of palestra in which something of that name is called."""
    found = set()
    for path in HOUSE.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if name in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == name:
                found.add(path.relative_to(HOUSE).as_posix())
    return found


def test_players_and_evaluations_are_built_in_one_place() -> None:
    assert callers("Player") == {"kinds/games/parts.py"}
    assert callers("Evaluations") == {"kinds/games/parts.py"}
    builders = {"trainer", "stored", "tournament", "actors"}
    assert callers("build_parts") == {f"kinds/games/{name}.py" for name in builders}


def test_parts_hold_the_game_and_the_players_of_a_config(make_config: MakeConfig) -> None:
    config = read_config(make_config({"players.agent": {"scripted": "random"}}))
    parts = build_parts(config, torch.device("cpu"), None)
    assert parts.game.roles == ("host", "agent")
    assert list(parts.players) == list(config.players)
    assert [player.name for player in parts.learners] == ["host"]
    assert build_evaluations(parts).players is parts.players
    with pytest.raises(FrozenInstanceError):
        parts.game = None  # type: ignore[misc, assignment]


def test_a_loaded_player_is_that_of_the_training_held_fixed(make_config: MakeConfig, tmp_path: Path) -> None:
    trainer = palestra.Trainer(make_config(), run=tmp_path / "run")
    trainer.fit()
    loaded, trained = palestra.load_player(tmp_path / "run", "host"), trainer.players["host"]
    assert (loaded.opt_steps, loaded.env_steps) == (trained.opt_steps, trained.env_steps)
    for name, net in trained.nets.items():
        for own, weight in zip(loaded.nets[name].parameters(), net.parameters(), strict=True):
            assert torch.equal(own, weight)
            assert not own.requires_grad
        assert not loaded.nets[name].training
    assert loaded.game is not None
    assert loaded.game.roles == trainer.game.roles
    assert (loaded.learning, loaded.optimizers, loaded.replay_buffer) == (False, {}, None)
