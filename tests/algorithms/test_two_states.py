"""PPO, SAC and TD3 learn the known values of TwoStates, whose episodes terminate and are cut off, in every autoreset
mode: who takes a cut for an end, or the next episode's beginning for what follows, is far off."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import palestra
from palestra.algorithms.parts.advantages import values as values_by
from palestra.games.spaces import Space
from palestra.nets.user_nets import UserNetConfig
from palestra.players.player import Player
from tests.algorithms.test_ppo import BASE, constant, probe_config, separate
from tests.games.gym_worlds import MODES, gym_data
from tests.gym_probes import two_states_backup

# "disabled" gives the experience of "same_step" to the bit, which tests/games/gymnasium/test_gym_worlds.py proves.
every_mode = pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[pytest.mark.slow] * (mode == "disabled")) for mode in MODES]
)
STATES = {"observation": torch.eye(2)}
GAMMA = 0.9
LINEAR = {"name": "mlp", "net_arch": [], "activation": "relu"}
# The second moment forgets within NUM_STEPS how large the first gradients were, which slow the last steps down.
ADAM = {"name": "adam", "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.0}
NUM_STEPS = 300


class Quadratic(nn.Module):
    """Of the action, other in each state: the form that the values of TwoStatesBox have."""

    class Config(UserNetConfig):
        pass

    def __init__(self, config: Config, spaces: dict[str, Space], num_outputs: int) -> None:
        super().__init__()
        self.factors = nn.Linear(2, 3, bias=False)

    def forward(self, seen: dict[str, Tensor]) -> Tensor:
        powers = seen["action"] ** torch.arange(3)
        return (self.factors(seen["observation"]) * powers).sum(dim=1, keepdim=True)


def falling(initial: float, num_steps: int = NUM_STEPS) -> dict[str, Any]:
    return {"name": "linear", "initial": initial, "final": 0.0, "num_steps": num_steps}


def off_policy(net: dict[str, Any], learning_rate: float) -> dict[str, Any]:
    """What SAC and TD3 have in common. The first 800 env steps are drawn at random, and stay in memory."""
    return {
        "gamma": GAMMA,
        "num_critics": 2,
        "transitions": {"name": "one_step"},
        "rollout_length": 1,
        "updates_per_turn": 8,
        "warmup_env_steps": 800,
        "batch_size": 128,
        "target": {"name": "polyak", "tau": 0.3, "interval": 1},
        "max_grad_norm": None,
        "policy_net": LINEAR,
        "critic_net": net,
        "policy_optimizer": ADAM,
        "critic_optimizer": ADAM,
        "policy_learning_rate": falling(0.03),
        "critic_learning_rate": falling(learning_rate),
        "replay_buffer": {"name": "uniform", "capacity": 10000, "layout": "whole", "scratch_folder": None},
    }


def trained(
    algorithm: dict[str, Any], env: str, mode: str, run: Path, num_worlds: int = 8, num_steps: int = NUM_STEPS
) -> Player:
    game = gym_data(
        id=f"tests.gym_probes:{env}-v0", arguments={"limit": 4}, vectorization={"name": "sync", "autoreset": mode}
    )
    config = probe_config("constant", False) | {"game": game, "num_worlds": num_worlds}
    config |= {
        "players": {
            "agent": {"algorithm": algorithm, "warm_start": None, "updates": {"name": "constant"}, "meets": None}
        },
        "stop": {"after": num_steps, "unit": "opt_steps"},
    }
    trainer = palestra.Trainer(config, run=run)
    trainer.fit()
    return trainer.players["agent"]


def softmax(q: np.ndarray) -> np.ndarray:
    return np.exp(q) / np.exp(q).sum(axis=1, keepdims=True)


@torch.no_grad()
def critics_of(player: Player, actions: list[float] | None) -> np.ndarray:
    """Every critic's values (critic, state, action), of discrete actions or of these numbers."""
    critics = player.nets["critics"]
    if actions is None:
        return np.stack([critic(STATES).numpy() for critic in critics])
    columns = [
        torch.stack([critic(STATES | {"action": torch.full((2, 1), action)})[:, 0] for critic in critics])
        for action in actions
    ]
    return torch.stack(columns, dim=2).numpy()


@every_mode
def test_ppo_learns_the_values_of_the_policy_that_its_loss_asks_for(mode: str, tmp_path: Path) -> None:
    """With entropy in its loss at a price of 1, and not in its returns: the softmax of what the actions are worth."""
    algorithm = BASE | {
        "gamma": GAMMA,
        "gae_lambda": 0.2,
        "rollout_length": 32,
        "num_passes": 10,
        "num_minibatches": 1,
        "body": separate(LINEAR),
        "entropy_coefficient": constant(1.0),
        "normalize_advantages": False,
        "max_grad_norm": None,
        "learning_rate": falling(0.02, 1000),
        "optimizer": ADAM | {"beta2": 0.999},
    }
    ppo: Any = trained(algorithm, "TwoStates", mode, tmp_path / "run", num_worlds=64, num_steps=1000).algorithm
    values = np.zeros(2)
    for _ in range(500):
        q = two_states_backup(values, GAMMA)
        policy = softmax(q)
        values = (policy * q).sum(axis=1)
    assert np.allclose(values_by(ppo.critic, STATES, {}), values, atol=1e-2)
    with torch.no_grad():
        assert np.allclose(ppo.net.policy(STATES).softmax(dim=1), policy, atol=2e-2)


@every_mode
def test_sac_learns_the_soft_values_of_discrete_actions(mode: str, tmp_path: Path) -> None:
    alpha = 0.5
    algorithm = off_policy(LINEAR, 0.1) | {
        "name": "sac",
        "entropy_coefficient": {"name": "fixed", "value": alpha},
        "log_std": None,
        "evaluation": "deterministic",
    }
    player = trained(algorithm, "TwoStates", mode, tmp_path / "run")
    q = np.zeros((2, 2))
    for _ in range(500):
        q = two_states_backup(alpha * np.log(np.exp(q / alpha).sum(axis=1)), GAMMA)
    assert np.allclose(critics_of(player, None), q, atol=1e-2)
    with torch.no_grad():
        policy = player.nets["policy"](STATES).softmax(dim=1)
    assert np.allclose(policy, softmax(q / alpha), atol=1e-2)


@every_mode
@pytest.mark.parametrize("name", ["sac", "td3"])
def test_the_best_values_of_actions_that_are_numbers_are_learned(name: str, mode: str, tmp_path: Path) -> None:
    """Of the best action in each state, and of the one that is best in the other. SAC: without a price on entropy."""
    own = {
        "sac": {
            "entropy_coefficient": {"name": "fixed", "value": 0.0},
            "log_std": {"min": -5.0, "max": 1.0},
            "evaluation": "deterministic",
        },
        "td3": {
            "policy_interval": 2,
            "smoothing": {"std": 0.01, "max_noise": 0.03},
            "exploration": {"name": "gaussian", "std": constant(0.5)},
        },
    }[name]
    critics = off_policy({"name": "tests.algorithms.test_two_states:Quadratic"}, 0.2)
    player = trained(critics | own | {"name": name}, "TwoStatesBox", mode, tmp_path / "run")
    values = [[9.0, 10.0], [2.0, 1.0]]
    assert np.allclose(critics_of(player, [-0.5, 0.5]), values, atol=1e-2)
