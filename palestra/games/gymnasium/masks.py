"""Masks of legal actions that environments give: in their info, as an entry of a Dict observation, or by a method.

A mask of info or of `action_masks()` becomes an entry of the observation, too, so that it goes through vector
environments, ends of episodes and replays as observations do. Letters: B worlds.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, MultiBinary, Tuple

from palestra.config import cut
from palestra.games.gymnasium.spaces import MASK, WHOLE

METHOD = "action_masks()"  # as in sb3-contrib
INFO, OBSERVATION = "info.", "observation."
EXPECTED = f"expected {INFO}NAME, {OBSERVATION}NAME, {METHOD} or null"


def mask_entry(source: str | None) -> str | None:
    """Return the name of the entry that holds the mask in the observations of a vector environment, if any does."""
    if source is None:
        return None
    return source.removeprefix(OBSERVATION) if source.startswith(OBSERVATION) else MASK


class WithMask(gymnasium.Wrapper):
    """Puts the mask of `info` or of `action_masks()` into the observation. source: as `game.action_mask` names it."""

    def __init__(self, env: gymnasium.Env, source: str, num_flags: int) -> None:
        super().__init__(env)
        self.source, self.shape = source, (num_flags,)
        own = env.observation_space
        self.observation_space = Dict(with_mask(own, own, MultiBinary(num_flags)))

    def reset(self, **options: Any) -> Any:
        observation, info = self.env.reset(**options)
        return self._join(observation, info, may_lack=False), info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._join(observation, info, bool(terminated or truncated)), reward, terminated, truncated, info

    def _join(self, observation: Any, info: Any, may_lack: bool) -> dict[str, Any]:
        is_method = self.source == METHOD
        mask = self.env.get_wrapper_attr("action_masks")() if is_method else info.get(self.source.removeprefix(INFO))
        if mask is None and may_lack:
            mask = np.ones(self.shape, dtype=np.int8)
        flags = np.asarray(mask)
        if flags.shape != self.shape or not np.isin(flags, (0, 1)).all():
            got = "none" if mask is None else f"{flags.dtype} of shape {flags.shape}: {cut(repr(mask), 60)}"
            raise ValueError(f"expected flags of shape {self.shape} as {self.source}, got {got}")
        return with_mask(self.env.observation_space, observation, flags.astype(np.int8))


def with_mask(space: gymnasium.Space, own: Any, mask: Any) -> dict[str, Any]:
    """Return an observation, or its space, as a dict that holds the mask, or its space. space: of the observation."""
    if isinstance(space, Dict):
        return {**own, MASK: mask}
    entries = {str(index): each for index, each in enumerate(own)} if isinstance(space, Tuple) else {WHOLE: own}
    return {**entries, MASK: mask}


def without_mask(space: gymnasium.Space, observations: Any) -> Any:
    """Return the environment's own part of what WithMask gives. space: the environment's own, of observations."""
    if isinstance(space, Dict):
        return {name: value for name, value in observations.items() if name != MASK}
    if isinstance(space, Tuple):
        return tuple(observations[str(index)] for index in range(len(space)))
    return observations[WHOLE]


def masks_seen(env: gymnasium.Env, info: Any, num_flags: int) -> list[str]:
    """Name what looks like a mask of legal actions, as `game.action_mask` names it. info: of a first reset."""
    space, shape = env.observation_space, (num_flags,)
    entries = space.items() if isinstance(space, Dict) else ()
    seen = [f"{OBSERVATION}{name}" for name, each in entries if "mask" in str(name) and each.shape == shape]
    seen += [f"{INFO}{name}" for name, value in info.items() if "mask" in str(name) and np.shape(value) == shape]
    return seen + ([METHOD] if env.has_wrapper_attr("action_masks") else [])
