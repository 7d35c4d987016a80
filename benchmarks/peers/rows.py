"""The rows of the table: what is done, and by whom. README.md says what is counted, and how."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from benchmarks.comparing import Comparison
from benchmarks.learning_settings import DQN, PPO, SAC, Hyperparameters, hyperparameters_to_json
from benchmarks.peers.processes import OWN_PYTHON, PEERS_PYTHON, Script

PALESTRA, SB3 = "palestra", "stable-baselines3"
PEERS = (SB3, "skrl", "tianshou", "torchrl", "sbx")
SCRIPTS = {
    PALESTRA: Script("benchmarks.peers.ours", OWN_PYTHON),
    "bare script": Script("benchmarks.peers.bare", OWN_PYTHON),
    "palestra train": Script("benchmarks.peers.start", OWN_PYTHON),
    "script of stable-baselines3": Script("benchmarks.peers.start", OWN_PYTHON),  # which lies in both environments
    "matrix products alone": Script("benchmarks.peers.floor", PEERS_PYTHON),
    "convolutions alone": Script("benchmarks.peers.floor", PEERS_PYTHON),
    SB3: Script("benchmarks.peers.sb3", PEERS_PYTHON),
    "skrl": Script("benchmarks.peers.skrl", PEERS_PYTHON),
    "tianshou": Script("benchmarks.peers.tianshou", PEERS_PYTHON),
    "torchrl": Script("benchmarks.peers.torchrl", PEERS_PYTHON),
    "sbx": Script("benchmarks.peers.sbx", PEERS_PYTHON),
}
Unit = Literal["env steps/s", "us per batch", "s to solved", "s to first opt step"]


def value_of(unit: Unit, answer: dict[str, Any]) -> float:
    """What an answer comes to, in the unit."""
    if unit == "env steps/s":
        return float(answer["env_steps"] / answer["seconds"])
    return float(answer["seconds"] * 1e6 / answer["opt_steps"] if unit == "us per batch" else answer["seconds"])


def comparison(
    row: str, title: str, unit: Unit, work: dict[str, Any], contenders: Mapping[str, dict[str, Any]]
) -> Comparison:
    """One work and those who do it. contenders: title to what of the work is different for this one; the title begins
    with a name of SCRIPTS. The first one is the baseline."""
    found = {name: (script_of(name), own) for name, own in contenders.items()}
    return Comparison(row, title, unit, work, found, partial(value_of, unit))


def script_of(contender: str) -> Script:
    """'stable-baselines3, batched env' is the work of stable-baselines3."""
    return SCRIPTS[contender.split(",")[0]]


def training(environment: str, hyperparameters: Hyperparameters, warmup_env_steps: int) -> dict[str, Any]:
    """warmup_env_steps: before times are taken."""
    return {
        "kind": "train",
        "environment": environment,
        "hyperparameters": hyperparameters_to_json(hyperparameters),
        "batched": False,
        "warmup_env_steps": warmup_env_steps,
        "solved_at": None,
    }


def replay(prioritized: bool) -> dict[str, Any]:
    """The sizes of HalfCheetah; buffers are full."""
    sizes = {"capacity": 1_000_000, "observation_size": 17, "action_size": 6, "batch_size": 256}
    return {"kind": "replay", "prioritized": prioritized, **sizes}


def start(config: str, beside_sb3: bool) -> Comparison:
    """From the command to the first opt step of a shipped config."""
    ours: dict[str, Any] = {"library": PALESTRA, "cold": False}
    contenders: dict[str, dict[str, Any]] = {"palestra train": ours, "palestra train, cold": ours | {"cold": True}}
    if beside_sb3:
        contenders = {"script of stable-baselines3": {"library": SB3}} | contenders
    work = {"kind": "start", "config": config}
    return comparison("P9", f"start of {config}", "s to first opt step", work, contenders)


SMALL_PPO = PPO(
    num_envs=8,
    rollout_length=128,
    batch_size=256,
    num_passes=4,
    gamma=0.99,
    gae_lambda=0.95,
    entropy_coef=0.01,
    learning_rate=2.5e-4,
    linear_decay=False,
)
LARGE_PPO = replace(SMALL_PPO, num_envs=4096, rollout_length=64, batch_size=32768, num_passes=1)
SMALL_DQN = DQN(
    gamma=0.99,
    learning_rate=2.5e-4,
    batch_size=128,
    buffer_capacity=10_000,
    warmup_env_steps=1_000,
    env_steps_per_turn=10,
    opt_steps_per_turn=1,
    target_interval=500,
    exploration_fraction=1e-9,  # at its final value from the start: runs have no planned end
    exploration_final=0.05,
    net_arch=(120, 84),
)
DQN_OF_8 = replace(SMALL_DQN, num_envs=8, env_steps_per_turn=40, opt_steps_per_turn=4)  # 5 steps of all, 4 opt steps
ATARI_DQN = DQN(
    gamma=0.99,
    learning_rate=1e-4,
    batch_size=32,
    buffer_capacity=10_000,
    warmup_env_steps=1_000,
    env_steps_per_turn=4,
    opt_steps_per_turn=1,
    target_interval=1_000,
    exploration_fraction=1e-9,
    exploration_final=0.01,
    net_arch=None,
)
SMALL_SAC = SAC(learning_rate=3e-4, warmup_env_steps=500)

ALL: dict[str, dict[str, Any]] = {name: {} for name in (*PEERS, PALESTRA)}
FLOOR: dict[str, dict[str, Any]] = {"matrix products alone": {}}
BATCHED = {"batched": True}
SOLVED = {"solved_at": 475.0}
SHIPPED = f"{PALESTRA}, own batched env, shipped settings"  # hyperparameters of its own: said so

COMPARISONS = (
    comparison("P1", "PPO, CartPole-v1, 8 x 128", "env steps/s", training("CartPole-v1", SMALL_PPO, 8_192), ALL),
    comparison(
        "P2",
        "PPO, CartPole-v1, 8 x 128",
        "env steps/s",
        training("CartPole-v1", SMALL_PPO, 8_192),
        {SB3: {}, f"{PALESTRA}, own batched env": BATCHED},
    ),
    comparison(
        "P3",
        "PPO, CartPole-v1, 4096 x 64, 1 pass",
        "env steps/s",
        training("CartPole-v1", LARGE_PPO, 1),
        {
            SB3: {},
            f"{SB3}, batched env": BATCHED,
            "skrl, batched env": BATCHED,
            "sbx, batched env": BATCHED,
            "bare script, batched env": BATCHED,
            f"{PALESTRA}, own batched env": BATCHED,
        },
    ),
    comparison("P4", "DQN, CartPole-v1, 1 env", "env steps/s", training("CartPole-v1", SMALL_DQN, 2_000), ALL),
    comparison("P4", "DQN, CartPole-v1, 8 envs", "env steps/s", training("CartPole-v1", DQN_OF_8, 2_000), ALL),
    comparison(
        "P5",
        "uniform replay, 1M stored, batch 256",
        "us per batch",
        replay(prioritized=False),
        {name: {} for name in (SB3, "skrl", "tianshou", "torchrl", PALESTRA)},
    ),
    comparison(
        "P5",
        "prioritized replay with its update, 1M stored, batch 256",
        "us per batch",
        replay(prioritized=True),
        {name: {} for name in ("tianshou", "torchrl", PALESTRA)},
    ),
    comparison(
        "P6",
        "PPO, CartPole-v1 solved, learning rate 2.5e-4",
        "s to solved",
        training("CartPole-v1", SMALL_PPO, 0) | SOLVED,
        ALL,
    ),
    comparison(
        "P6",
        "PPO, CartPole-v1 solved, learning rate 1e-3",
        "s to solved",
        training("CartPole-v1", replace(SMALL_PPO, learning_rate=1e-3), 0) | SOLVED,
        ALL | {SHIPPED: BATCHED | {"hyperparameters": None}},
    ),
    comparison("P7", "SAC, Pendulum-v1", "env steps/s", training("Pendulum-v1", SMALL_SAC, 600), ALL | FLOOR),
    comparison("P7", "SAC, HalfCheetah-v5", "env steps/s", training("HalfCheetah-v5", SMALL_SAC, 600), ALL | FLOOR),
    comparison(
        "P8",
        "DQN, Atari frames (ALE/Pong-v5), batch 32",
        "env steps/s",
        training("ALE/Pong-v5", ATARI_DQN, 1_500),
        {SB3: {}, PALESTRA: {}, "convolutions alone": {}},
    ),
    start("dqn-cartpole", beside_sb3=True),
    start("ppo-cartpole", beside_sb3=True),
    start("dqn-polyhedra", beside_sb3=False),
)
