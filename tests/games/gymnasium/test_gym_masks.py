"""Environments that forbid actions: their masks are obeyed wherever actions are chosen, or the user is told.

Covers palestra.games.gymnasium.masks.
"""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import LEARNER, MakeConfig

import palestra
from palestra.config import ConfigError
from palestra.games.gymnasium.spaces import MASK
from palestra.games.world import EnvironmentFailed
from palestra.kinds.games.export import export_player
from palestra.randomness import world_keys
from tests.games.gym_worlds import MODES, gym_game
from tests.gym_probes import Forbidding
from tests.test_gym_training import lone_agent

SOURCES = ("info.action_mask", "observation.mask", "action_masks()")
Data = dict[str, Any]


def forbidding(source: str | None, gives: str | None = None, **changes: Any) -> Data:
    given = {"gives": gives or source}
    return {"id": "tests.gym_probes:Forbidding-v0", "arguments": given, "action_mask": source} | changes


def play(world: Any, num_steps: int) -> list[Any]:
    """Random legal steps; the environment stops at any other one."""
    outcomes = []
    for number in range(num_steps):
        keys = world_keys(number, world.num_worlds, torch.device("cpu"))
        assert set(world.observation) == set(world.game.spaces["agent"])
        outcomes.append(world.step(world.game.action_space.draw(keys, world.legal), keys))
    return outcomes


@pytest.mark.parametrize(
    ("vectorization", "mode"), [*(("sync", mode) for mode in MODES), ("async", "same_step"), ("async", "next_step")]
)
@pytest.mark.parametrize("source", SOURCES)
def test_the_legal_actions_are_those_of_the_environment_at_every_decision(
    source: str, vectorization: str, mode: str
) -> None:
    game = gym_game(vectorization, mode, **forbidding(source))
    world = game.make_world(3, key=7, training=True)
    try:
        outcomes = play(world, 12)
        assert MASK not in outcomes[0].observation
        some = [outcome.legal for outcome in outcomes]
        assert any(not legal.all() for legal in some), "some action is forbidden somewhere"
        over = [outcome.legal[outcome.terminated | outcome.truncated] for outcome in outcomes]
        assert torch.cat(over).all(), "after the end nobody decides"
        again = gym_game(vectorization, mode, **forbidding(source)).make_world(3, key=7, training=True)
        again.load_state_dict(world.state_dict())
        assert torch.equal(again.legal, world.legal)
        assert again.observation.keys() == world.observation.keys()
        assert again.exact
        play(again, 6)
    finally:
        game.close()


def test_a_mask_without_a_legal_action_or_of_another_shape_is_the_environments_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    game, of_info = gym_game(**forbidding("observation.mask")), gym_game(**forbidding("info.action_mask"))
    given = Forbidding.given
    monkeypatch.setattr(Forbidding, "given", lambda self: ({**given(self)[0], "mask": np.zeros(4, np.int8)}, {}))
    with pytest.raises(EnvironmentFailed, match=r"expected a legal action in observation\.mask, got none"):
        play(game.make_world(2, key=1, training=True), 1)
    for mask, got in ((np.zeros(3, np.int8), r"int8 of shape \(3,\)"), (np.full(4, 2), "int64"), (None, "none")):
        info = {} if mask is None else {"action_mask": mask}
        monkeypatch.setattr(Forbidding, "given", lambda self, info=info: (given(self)[0], info))
        with pytest.raises(EnvironmentFailed, match=rf"expected flags of shape \(4,\) as info.action_mask, got {got}"):
            play(of_info.make_world(2, key=1, training=True), 9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            forbidding("mask"),
            r"action_mask: expected info\.NAME, observation\.NAME, action_masks\(\) or null, got 'mask'",
        ),
        (forbidding("observation.walk"), r"game.action_mask: expected an entry 'walk' .* of shape \(4,\)"),
        (
            forbidding("observation.other", "observation.mask"),
            r"game.action_mask: expected an entry 'other' .* got none",
        ),
        (
            {"id": "Pendulum-v1", "arguments": {"max_episode_steps": 5, "g": 10.0}, "action_mask": "info.m"},
            "vectors of",
        ),
        (
            {"id": "tests.gym_probes:TellingVector-v0", "vectorization": "entry_point", "action_mask": "info.mask"},
            "action_mask: expected observation.NAME or null of an entry_point environment",
        ),
    ],
)
def test_a_key_that_names_no_mask_is_told(changes: Data, message: str) -> None:
    if changes["action_mask"] == "observation.walk":
        changes = changes | {"arguments": {"gives": "observation.mask"}}
    with pytest.raises(ConfigError, match=message):
        gym_game(**changes)


def test_a_mask_that_is_not_used_is_told_at_the_start(make_config: MakeConfig, tmp_path: Path) -> None:
    (one, two, three) = gym_game(**forbidding(None, "all")).notes
    assert [f"({source} uses it)" in line for source, line in zip(SOURCES, (two, one, three), strict=True)] == [
        True
    ] * 3
    assert gym_game(**forbidding("info.action_mask", "all")).notes == []
    assert gym_game().notes == []


@pytest.mark.parametrize("source", SOURCES)
def test_a_player_learns_is_evaluated_and_exported_among_legal_actions(
    source: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    game = gym_game(**forbidding(source)).config.model_dump()
    learner: Data = copy.deepcopy(LEARNER)
    config = lone_agent(make_config, game, {"players": {"agent": learner}, "stop.after": 8})
    trainer = palestra.make_trainer(config, run=tmp_path / "run")
    trainer.fit()  # the environment stops at a forbidden action, of the random player as well
    assert "legal" in trainer.agent_replay_buffer.rows(0, 8)
    player = palestra.load_player(tmp_path / "run")
    env = Forbidding(source)
    observation, _ = env.reset(seed=3)
    legal = None if source == "observation.mask" else env.mask
    with torch.no_grad():
        for _ in range(20):
            action, _ = player.predict(observation, legal=legal, deterministic=False)
            assert env.mask[int(action) - 5]
    assert export_player(player, tmp_path / "exported", onnx=False)["policy.pt2"] > 0
    assert json.loads((tmp_path / "exported/policy.json").read_text())["environment"]["action_mask"] == source
