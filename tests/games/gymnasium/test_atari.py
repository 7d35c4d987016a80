"""Atari games as they are shipped: frames in bytes, FIRE pressed where a game waits for it.

Covers palestra.games.gymnasium.environments, palestra.games.gymnasium.wrappers.
"""

import gymnasium
import numpy as np
import pytest
import torch

from palestra.commands.starting import starting_config
from palestra.config import check, load_yaml
from palestra.games.gymnasium import GymnasiumConfig, GymnasiumGame
from palestra.games.gymnasium.environments import make_environment
from palestra.games.gymnasium.wrappers import Fire
from palestra.run.shipped import shipped_configs

pytest.importorskip("ale_py")
SHIPPED = shipped_configs()


class Lives(gymnasium.Env):
    """The actions so far are seen; each that is 2 costs one of three lives."""

    observation_space = gymnasium.spaces.Box(0.0, 9.0, (9,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def get_action_meanings(self) -> list[str]:
        return ["NOOP", "FIRE", "LEFT"]

    def seen(self) -> np.ndarray:
        return np.pad(np.array(self.actions, dtype=np.float32), (0, 9 - len(self.actions)))

    def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
        self.actions: list[int] = []
        return self.seen(), {"lives": 3}

    def step(self, action):  # type: ignore[no-untyped-def]
        self.actions.append(action)
        lives = 3 - self.actions.count(2)
        return self.seen(), float(action), lives == 0, False, {"lives": lives}


def test_fire_is_pressed_at_the_beginning_and_for_every_lost_life() -> None:
    env = Fire(Lives())
    observation, _ = env.reset()
    assert observation.tolist()[:1] == [1.0]
    rewards = [env.step(action)[1:3] for action in (0, 2, 0, 2, 2)]
    assert env.unwrapped.actions == [1, 0, 2, 1, 0, 2, 1, 2]  # type: ignore[attr-defined]
    assert rewards == [(0.0, False), (3.0, False), (0.0, False), (3.0, False), (2.0, True)]


def test_a_game_without_fire_refuses_it() -> None:
    with pytest.raises(ValueError, match="expected an Atari game with the action FIRE"):
        Fire(gymnasium.make("CartPole-v1"))


def test_breakout_begins_without_the_player_pressing_fire() -> None:
    game = check(load_yaml(SHIPPED["dqn-breakout"])["game"], GymnasiumConfig)
    env = make_environment(game)
    observation, info = env.reset(seed=0)
    assert observation.shape == (4, 84, 84)
    for _ in range(200):  # the ball falls past a paddle that never moves
        _, _, terminated, _, info = env.step(0)
        if terminated:
            break
    assert info["lives"] < 5


def test_frames_stay_bytes_from_the_roll_out_to_the_replay_buffer() -> None:
    import palestra

    data = load_yaml(SHIPPED["dqn-pong"])
    data["num_worlds"] = 1
    trainer = palestra.Trainer(data)
    player = trainer.players["agent"]
    seen = trainer.roll_out("agent", 2)
    assert seen.observation["observation"].dtype == torch.uint8
    assert player.replay_buffer is not None
    player.replay_buffer.add(seen.rows(), seen.valid)
    rows = player.replay_buffer.sample(4)
    assert rows["next_observation.observation"].dtype == torch.uint8
    assert sum(value[0].nbytes for value in rows.values()) < 2 * 4 * 84 * 84 + 64
    trainer.game.close()


def test_any_atari_game_brings_its_wrappers_and_clipped_rewards_and_a_buffer_of_frames() -> None:
    assert starting_config("dqn", ["ALE/Pong-v5"]).game.id == "ALE/Pong-v5"  # type: ignore[union-attr]
    invaders = starting_config("dqn", ["ALE/SpaceInvaders-v5"])
    shipped = load_yaml(SHIPPED["dqn-breakout"])
    assert invaders.players["agent"].algorithm.replay_buffer.layout == "frames_once"  # type: ignore[union-attr]
    assert invaders.players["agent"].algorithm.net.name == "nature_cnn"  # type: ignore[union-attr]
    assert invaders.game.reward.clip == 1.0  # type: ignore[union-attr]
    names = [wrapper.name for wrapper in invaders.game.wrappers]  # type: ignore[union-attr]
    assert names == [wrapper["name"] for wrapper in shipped["game"]["wrappers"]]
    maze = starting_config("dqn", ["ALE/MsPacman-v5"])
    assert "fire" not in [wrapper.name for wrapper in maze.game.wrappers]  # type: ignore[union-attr]
    [entropy] = [starting_config("sac", ["ALE/Pong-v5"]).players["agent"].algorithm.entropy_coefficient]  # type: ignore[union-attr]
    assert entropy.target_entropy.name == "per_log_actions"


def test_spaces_of_a_shipped_game_are_images() -> None:
    game = GymnasiumGame(check(load_yaml(SHIPPED["ppo-pong"])["game"], GymnasiumConfig), torch.device("cpu"))
    assert game.spaces["agent"]["observation"].is_image
