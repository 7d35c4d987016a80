"""What the learning table trains, for palestra and stable-baselines3 alike.

The hyperparameters are those of rl-zoo3 2.9.2 (hyperparams/*.yml), but for what one library alone has: no
state-dependent exploration (PPO on Pendulum), no running normalisation (PPO on Acrobot), no schedule of the clip range
(PPO on CartPole). What rl-zoo3 leaves to stable-baselines3's defaults is written out. Runs end earlier on Acrobot by
PPO, on MuJoCo and on Pong, whose replay memory is smaller too.

Standard library alone: the peers' interpreters import it.
"""

from dataclasses import asdict, dataclass
from typing import Any

NUM_EVALUATION_EPISODES = 100
FIRST_EVALUATION_SEED = 1_000_000  # episode i is reset with this + i; training seeds are small numbers


@dataclass(frozen=True)
class PPO:
    """Schulman et al. 2017. Adam with eps 1e-5; separate networks for policy and value, tanh, orthogonal weights."""

    num_envs: int
    rollout_length: int  # env steps of each env per roll-out
    batch_size: int
    num_passes: int
    gamma: float
    gae_lambda: float
    entropy_coef: float
    learning_rate: float
    linear_decay: bool  # of the learning rate, to 0 at the end of training
    clip_range: float = 0.2
    value_coef: float = 0.5
    max_grad_norm: float = 0.5
    normalize_advantage: bool = True
    net_arch: tuple[int, ...] = (64, 64)


@dataclass(frozen=True)
class DQN:
    """Mnih et al. 2015. Huber loss, Adam, not double; exploration falls linearly from 1."""

    gamma: float
    learning_rate: float
    batch_size: int
    buffer_capacity: int
    warmup_env_steps: int
    env_steps_per_turn: int  # of all envs together
    opt_steps_per_turn: int
    target_interval: int  # env steps between copies to the target network
    exploration_fraction: float  # of the env steps, until exploration_final is reached
    exploration_final: float
    net_arch: tuple[int, ...] | None = (256, 256)  # None: the convolutions of Mnih et al.
    max_grad_norm: float = 10.0
    num_envs: int = 1


@dataclass(frozen=True)
class SAC:
    """Haarnoja et al. 2018: two critics, learned temperature, target entropy -dim(actions).

    An opt step per env step.
    """

    learning_rate: float
    warmup_env_steps: int
    gamma: float = 0.99
    tau: float = 0.005
    batch_size: int = 256
    buffer_capacity: int = 1_000_000
    net_arch: tuple[int, ...] = (256, 256)


@dataclass(frozen=True)
class TD3:
    """Fujimoto et al. 2018: an opt step per env step, the policy every second one."""

    learning_rate: float
    gamma: float
    buffer_capacity: int
    warmup_env_steps: int = 10_000
    tau: float = 0.005
    batch_size: int = 256
    policy_interval: int = 2
    exploration_noise: float = 0.1
    target_noise: float = 0.2
    target_noise_clip: float = 0.5
    net_arch: tuple[int, ...] = (400, 300)


Hyperparameters = PPO | DQN | SAC | TD3
ALGORITHMS: dict[str, type[Hyperparameters]] = {"ppo": PPO, "dqn": DQN, "sac": SAC, "td3": TD3}


def hyperparameters_to_json(hyperparameters: Hyperparameters) -> dict[str, Any]:
    """As JSON gives them back: with lists instead of tuples, and the algorithm's name."""
    values = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(hyperparameters).items()}
    return {"algorithm": type(hyperparameters).__name__.lower()} | values


def hyperparameters_from_json(values: dict[str, Any]) -> Hyperparameters:
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return ALGORITHMS[fields.pop("algorithm")](**fields)


@dataclass(frozen=True)
class Setting:
    """One row of the table. deterministic: how the trained player plays in the final evaluation."""

    environment: str
    env_steps: int
    hyperparameters: Hyperparameters
    deterministic: bool = True

    @property
    def algorithm(self) -> str:
        return type(self.hyperparameters).__name__.lower()

    def to_json(self) -> dict[str, Any]:
        """The row as JSON gives it back: lists instead of tuples."""
        return asdict(self) | {"hyperparameters": hyperparameters_to_json(self.hyperparameters)}

    @staticmethod
    def from_json(values: dict[str, Any]) -> "Setting":
        hyperparameters = hyperparameters_from_json(values["hyperparameters"])
        return Setting(values["environment"], values["env_steps"], hyperparameters, values["deterministic"])


# Acrobot and LunarLander share these; rl-zoo3 says -1 gradient steps there: as many as env steps.
DQN_CONTROL = DQN(
    gamma=0.99,
    learning_rate=6.3e-4,
    batch_size=128,
    buffer_capacity=50_000,
    warmup_env_steps=0,
    env_steps_per_turn=4,
    opt_steps_per_turn=4,
    target_interval=250,
    exploration_fraction=0.12,
    exploration_final=0.1,
)
SAC_MUJOCO = SAC(learning_rate=3e-4, warmup_env_steps=10_000)
TD3_MUJOCO = TD3(learning_rate=1e-3, gamma=0.99, buffer_capacity=1_000_000)

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "CartPole-v1",
        100_000,
        PPO(
            num_envs=8,
            rollout_length=32,
            batch_size=256,
            num_passes=20,
            gamma=0.98,
            gae_lambda=0.8,
            entropy_coef=0.0,
            learning_rate=1e-3,
            linear_decay=True,
        ),
    ),
    Setting(
        "CartPole-v1",
        50_000,
        DQN(
            gamma=0.99,
            learning_rate=2.3e-3,
            batch_size=64,
            buffer_capacity=100_000,
            warmup_env_steps=1_000,
            env_steps_per_turn=256,
            opt_steps_per_turn=128,
            target_interval=10,  # less than a turn: the target follows once per turn
            exploration_fraction=0.16,
            exploration_final=0.04,
        ),
    ),
    Setting(
        "Acrobot-v1",
        300_000,
        PPO(
            num_envs=16,
            rollout_length=256,
            batch_size=64,
            num_passes=4,
            gamma=0.99,
            gae_lambda=0.94,
            entropy_coef=0.0,
            learning_rate=3e-4,
            linear_decay=False,
        ),
    ),
    Setting("Acrobot-v1", 100_000, DQN_CONTROL),
    Setting(
        "LunarLander-v3",
        1_000_000,
        PPO(
            num_envs=16,
            rollout_length=1024,
            batch_size=64,
            num_passes=4,
            gamma=0.999,
            gae_lambda=0.98,
            entropy_coef=0.01,
            learning_rate=3e-4,
            linear_decay=False,
        ),
    ),
    Setting("LunarLander-v3", 100_000, DQN_CONTROL),
    Setting(
        "Pendulum-v1",
        100_000,
        PPO(
            num_envs=4,
            rollout_length=1024,
            batch_size=64,
            num_passes=10,
            gamma=0.9,
            gae_lambda=0.95,
            entropy_coef=0.0,
            learning_rate=1e-3,
            linear_decay=False,
        ),
    ),
    Setting("Pendulum-v1", 20_000, SAC(learning_rate=1e-3, warmup_env_steps=100)),
    Setting("Pendulum-v1", 20_000, TD3(learning_rate=1e-3, gamma=0.98, buffer_capacity=200_000)),
    Setting("HalfCheetah-v5", 100_000, SAC_MUJOCO),
    Setting("HalfCheetah-v5", 100_000, TD3_MUJOCO),
    Setting("Hopper-v5", 100_000, SAC_MUJOCO),
    Setting("Hopper-v5", 100_000, TD3_MUJOCO),
    Setting(
        "ALE/Pong-v5",
        400_000,
        DQN(
            gamma=0.99,
            learning_rate=1e-4,
            batch_size=32,
            buffer_capacity=50_000,
            warmup_env_steps=10_000,
            env_steps_per_turn=4,
            opt_steps_per_turn=1,
            target_interval=1_000,
            exploration_fraction=0.1,
            exploration_final=0.01,
            net_arch=None,
        ),
    ),
)
