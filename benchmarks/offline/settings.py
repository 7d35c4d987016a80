"""The hyperparameters with which palestra and d3rlpy learn from the same rows.

Where they have the same keys, values are d3rlpy's defaults, but for the batch size, which is 256 everywhere. Standard
library alone: d3rlpy's interpreter imports it.
"""

from dataclasses import dataclass
from typing import Any

ENVIRONMENT = "Hopper-v5"
NUM_NUMBERS, NUM_ACTIONS = 11, 3  # of its observations, of its actions
BATCH_SIZE = 256
HIDDEN = (256, 256)  # of every network, with relu
Values = dict[str, Any]

# The next observation is that of the next row, as d3rlpy has it: an episode's last row is lost where it was cut off.
COLUMNS = (
    "replay_buffer.columns={observation: {observation: [observation.observation]}, action: [action], reward: reward, "
    "terminated: terminated, truncated: truncated, episode: episode, next_observation: null, legal: null, "
    "next_legal: null, extras: {}}"
)
DATA_ALONE = (
    "rollout_length=null",
    "warmup_env_steps=0",
    "updates_per_turn=500",
    f"batch_size={BATCH_SIZE}",
    "best=null",
    "evaluations=[]",
)


@dataclass(frozen=True)
class Setting:
    """One algorithm on both sides. theirs: d3rlpy's class, and keys of its config. ours: changes of the first file.

    nets: our networks, by their keys.
    """

    theirs: str
    keys: Values
    ours: tuple[str, ...]
    nets: tuple[str, ...]


VALUES: Values = {"gamma": 0.99, "tau": 0.005, "n_critics": 2}
RATES: Values = {"actor_learning_rate": 3e-4, "critic_learning_rate": 3e-4}
OURS = ("gamma=0.99", "target.tau=0.005", "loss.num_critics=2", "learning_rate.value=0.0003")
HEADS = ("body.policy", "body.critic_0", "body.critic_1")

# d3rlpy's BC minimizes the squared distance to the action, ours the negative log-likelihood of a normal distribution.
# Its AWAC divides weights by their mean over the batch, ours cuts them off; d3rlpy's standard deviations begin at
# exp(-3) in AWAC and at exp(-1.5) in IQL, and its means are behind a tanh.
SETTINGS: dict[str, Setting] = {
    "bc": Setting(
        "BC", {"learning_rate": 1e-3, "policy_type": "deterministic"}, ("learning_rate.value=0.001",), ("body.policy",)
    ),
    "awac": Setting(
        "AWAC",
        VALUES | RATES | {"lam": 1.0, "n_action_samples": 1},
        (*OURS, "loss.temperature=1.0", "box_actions.initial_log_std=-3.0"),
        HEADS,
    ),
    "iql": Setting(
        "IQL",
        VALUES | RATES | {"expectile": 0.7, "weight_temp": 3.0, "max_weight": 100.0},
        (
            *OURS,
            "loss.expectile=0.7",
            "loss.temperature=0.3333333333333333",
            "loss.max_weight=100.0",
            "box_actions.initial_log_std=-1.5",
        ),
        (*HEADS, "body.value"),
    ),
    "td3_bc": Setting(
        "TD3PlusBC",
        VALUES
        | RATES
        | {"target_smoothing_sigma": 0.2, "target_smoothing_clip": 0.5, "alpha": 2.5, "update_actor_interval": 2},
        (
            *("gamma=0.99", "target.tau=0.005", "target.interval=2", "num_critics=2", "smoothing.std=0.2"),
            *("smoothing.max_noise=0.5", "alpha=2.5", "policy_interval=2"),
            *("policy_learning_rate.value=0.0003", "critic_learning_rate.value=0.0003"),
        ),
        ("policy_net", "critic_net"),
    ),
}


def words_of(name: str, file: str) -> list[str]:
    """The words of `palestra config` and `palestra train` by which an algorithm learns from a file of Hopper's rows."""
    setting, layers = SETTINGS[name], f"{list(HIDDEN)}"
    nets = [f"players.agent.algorithm.{net}.net_arch={layers}" for net in setting.nets]
    return [name, ENVIRONMENT, f"replay_buffer.file={file}", COLUMNS, *DATA_ALONE, *setting.ours, *nets]
