"""Configs, games and worlds of Gymnasium for the tests."""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palestra.config import check
from palestra.games.gymnasium import GymnasiumConfig, GymnasiumGame, GymnasiumWorld
from palestra.games.world import Outcome

CPU = torch.device("cpu")
MODES = ("next_step", "same_step", "disabled")
Data = dict[str, Any]

WALK: Data = {
    "name": "gymnasium",
    "id": "tests.gym_probes:Walk-v0",
    "arguments": {},
    "wrappers": [],
    "vectorization": {"name": "sync", "autoreset": "next_step"},
    "observation": {"normalize": None, "clip": None, "channels": None},
    "reward": {"normalize": None, "clip": None},
    "action_mask": None,
}


def gym_data(**changes: Any) -> Data:
    """The config of a Walk, with keys replaced."""
    data = copy.deepcopy(WALK) | copy.deepcopy(changes)
    data["observation"].setdefault("channels", None)
    return data


def gym_game(vectorization: str = "sync", autoreset: str = "next_step", **changes: Any) -> GymnasiumGame:
    how = {"name": vectorization} | ({} if vectorization == "entry_point" else {"autoreset": autoreset})
    return GymnasiumGame(check(gym_data(**{"vectorization": how, **changes}), GymnasiumConfig), CPU)


def cart_pole(**changes: Any) -> Data:
    return gym_data(
        **{"id": "CartPole-v1", "arguments": {"sutton_barto_reward": False, "max_episode_steps": 500}, **changes}
    )


def walk_actions(observation: Tensor) -> Tensor:
    """A policy that depends on what is seen alone: the same in every autoreset mode."""
    return (observation[:, 0] + observation[:, 1]).long() % 3


def played(world: GymnasiumWorld, num_steps: int) -> list[tuple[Data, Tensor, Outcome]]:
    """Observation, action and outcome of every step of a Walk."""
    steps = []
    for _ in range(num_steps):
        observation = world.observation
        action = walk_actions(observation["observation"])
        steps.append((observation, action, world.step(action, torch.zeros(world.num_worlds, dtype=torch.int64))))
    return steps


def rows(steps: list[tuple[Data, Tensor, Outcome]]) -> dict[str, Tensor]:
    """The steps as tensors (T, B, ...)."""
    return {
        "observation": torch.stack([observation["observation"] for observation, _, _ in steps]),
        "action": torch.stack([action for _, action, _ in steps]),
        "next": torch.stack([outcome.observation["observation"] for _, _, outcome in steps]),
        **{
            name: torch.stack([getattr(outcome, name) for _, _, outcome in steps])
            for name in ("reward", "raw_reward", "terminated", "truncated", "valid")
        },
    }


def same_rows(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return all(np.array_equal(value, others[name], equal_nan=True) for name, value in some.items())


def assert_sound(found: dict[str, Tensor], mode: str) -> None:
    """No transition of many steps in a Walk crosses a reset; ends are true, and told apart."""
    valid, seen, following = found["valid"], found["observation"], found["next"]
    ended = found["terminated"] | found["truncated"]
    assert torch.equal(following[valid][:, 0], seen[valid][:, 0])  # the same episode
    assert torch.equal(following[valid][:, 1], seen[valid][:, 1] + 1)
    assert torch.equal(following[valid][:, 2], seen[valid][:, 2] + found["action"][valid] + 5)
    assert torch.equal(found["reward"][valid], following[valid][:, 1])
    kind = following[..., 0].long() % 3
    assert torch.equal(found["terminated"][ended], kind[ended] != 1)  # both at once: terminated
    assert torch.equal(found["truncated"][ended], kind[ended] == 1)
    assert set(kind[ended].tolist()) == {0, 1, 2}
    assert not ended[~valid].any()
    assert not found["reward"][~valid].any()
    pauses = ended[:-1].sum() if mode == "next_step" else torch.tensor(0)
    assert (~valid).sum() == pauses
    assert torch.equal(seen[1:][ended[:-1] & valid[1:]][:, 1], torch.zeros(int((ended[:-1] & valid[1:]).sum())))
