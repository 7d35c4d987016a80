"""Videos of players in environments."""

from collections.abc import Generator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from palestra.config import ConfigError
from palestra.evaluation.evaluator import STREAM
from palestra.games.policy import Memory, Policy
from palestra.games.world import WorldGame
from palestra.randomness import base_key, fold, world_keys


class Frame(NamedTuple):
    """A picture of an episode.

    pixels: uint8 (height, width, 3). fps: frames per second. total: the return so far. is_last: whether it is the last
    one of its episode.
    """

    pixels: np.ndarray
    fps: float
    total: float
    is_last: bool


def require_extra() -> None:
    """Raise ConfigError if the extra `video` is missing."""
    if find_spec("imageio_ffmpeg") is None:
        raise ConfigError.at("--video", "filming needs an extra: pip install 'palestra[video]'")


def film_episodes(
    game: WorldGame, policy: Policy, num_games: int, max_rounds: int, seed: int, path: Path
) -> list[float]:
    """Write the first episodes of an evaluation into an MP4 (see `episode_frames`); returns their returns.

    Raises ConfigError if the environment cannot be rendered as pixels, or the extra `video` is missing.
    """
    require_extra()
    from imageio_ffmpeg import write_frames

    returns, writer = list[float](), None
    try:
        with closing(episode_frames(game, policy, num_games, max_rounds, seed)) as frames:
            for frame in frames:
                if writer is None:
                    size = (frame.pixels.shape[1], frame.pixels.shape[0])
                    writer = write_frames(str(path), size, fps=frame.fps, macro_block_size=1)
                    writer.send(None)
                writer.send(frame.pixels)
                returns += [frame.total] if frame.is_last else []
    finally:
        if writer is not None:
            writer.close()
    return returns


@torch.no_grad()
def episode_frames(
    game: WorldGame, policy: Policy, num_games: int, max_rounds: int, seed: int
) -> Generator[Frame, None, None]:
    """Render the first episodes of an evaluation, one after the other in one world.

    There is a frame of every start, and one after every step. Raises ConfigError if the environment cannot be rendered
    as pixels.
    """
    rendered = game.with_rendering()
    key = base_key(seed, STREAM)
    keys, num_rounds = world_keys(key, 1, game.device), 0
    memory: Memory = {}
    num_ended, length, total, ended = 0, 0, 0.0, False
    with closing(rendered.make_world(1, key, training=False)) as world:
        fps = world.frames_per_second
        while num_ended < num_games:
            num_rounds += 1
            round_keys = fold(keys, num_rounds)
            view = world.observation if policy.observes == "observation" else {}
            if not ended:  # else the last frame was shown, and the next step begins an episode
                yield Frame(world.render(), fps, total, False)
            decision = policy.act(view, world.legal, round_keys, memory)
            outcome = world.step(decision.action, round_keys + 1)
            memory = decision.memory if bool(outcome.valid[0]) else {}
            length, total = length + int(outcome.valid[0]), total + float(outcome.raw_reward[0])
            if (ended := bool(outcome.terminated[0] | outcome.truncated[0])) or length >= max_rounds:
                yield Frame(world.render(), fps, total, True)
                num_ended += 1
                length, total, memory = 0, 0.0, {}
                if not ended:
                    world.restart(torch.ones(1, dtype=torch.bool))
