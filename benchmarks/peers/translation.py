"""What the works of the benchmarks ask for, in the words of palestra's configs.

Where stable-baselines3 counts env steps, palestra's schedules and intervals count opt steps of the player: a turn of
palestra is a roll-out and an update of stable-baselines3, so one follows from the other.
"""

from typing import Any

from benchmarks.learning_settings import DQN, PPO, SAC, TD3, Hyperparameters

Section = dict[str, Any]


def constant(value: float) -> Section:
    return {"name": "constant", "value": value}


def adam(eps: float) -> Section:
    return {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": eps, "weight_decay": 0.0}


def mlp(net_arch: tuple[int, ...], activation: str) -> Section:
    return {"name": "mlp", "net_arch": list(net_arch), "activation": activation}


def num_worlds_of(h: Hyperparameters) -> int:
    return h.num_envs if isinstance(h, PPO | DQN) else 1


def num_opt_steps(h: Hyperparameters, env_steps: int) -> int:
    """What stable-baselines3 makes of so many env steps: it ends with the first turn that comes to them, and learns in
    every turn that ends after more env steps than its warm-up."""
    if isinstance(h, PPO):
        rollout = h.num_envs * h.rollout_length
        return -(-env_steps // rollout) * h.num_passes * (rollout // h.batch_size)
    per_turn, updates = (h.env_steps_per_turn, h.opt_steps_per_turn) if isinstance(h, DQN) else (1, 1)
    return (-(-env_steps // per_turn) - h.warmup_env_steps // per_turn) * updates


def algorithm_of(h: Hyperparameters, env_steps: int | None, deterministic: bool, has_box_actions: bool) -> Section:
    """The section `algorithm`. env_steps: of the whole training, which schedules look at; None: no end is planned, and
    they stand at their last value. has_box_actions: what PPO must know."""
    match h:
        case PPO():
            return ppo(h, env_steps, deterministic, has_box_actions)
        case DQN():
            return dqn(h, env_steps)
        case SAC():
            return sac(h, deterministic)
        case TD3():
            return td3(h)


def ppo(h: PPO, env_steps: int | None, deterministic: bool, has_box_actions: bool) -> Section:
    learning_rate = constant(h.learning_rate)
    if h.linear_decay:
        assert env_steps is not None, "a rate that falls to 0 at the end needs an end"
        num_steps = num_opt_steps(h, env_steps)
        learning_rate = {"name": "linear", "initial": h.learning_rate, "final": 0.0, "num_steps": num_steps}
    return {
        "name": "ppo",
        "gamma": h.gamma,
        "gae_lambda": h.gae_lambda,
        "rollout_length": h.rollout_length,
        "num_passes": h.num_passes,
        "num_minibatches": h.num_envs * h.rollout_length // h.batch_size,
        "objective": {"name": "clip", "epsilon": constant(h.clip_range)},
        "value_clip": None,
        "value_coefficient": h.value_coef,
        "entropy_coefficient": constant(h.entropy_coef),
        "max_grad_norm": h.max_grad_norm,
        "target_kl": None,
        "normalize_advantages": h.normalize_advantage,
        "body": {"name": "separate", "policy": mlp(h.net_arch, "tanh"), "value": mlp(h.net_arch, "tanh")},
        "centralized_critic": False,
        "initialization": {"name": "orthogonal", "hidden_gain": 2**0.5, "policy_gain": 0.01, "value_gain": 1.0},
        "box_actions": {"name": "clipped_gaussian", "initial_log_std": 0.0} if has_box_actions else None,
        "evaluation": "deterministic" if deterministic else "sampled",
        "optimizer": adam(1e-5),
        "learning_rate": learning_rate,
        "learning_rate_factors": {},
    }


def dqn(h: DQN, env_steps: int | None) -> Section:
    net: Section = {"name": "nature_cnn", "channels": [32, 64, 64], "kernels": [8, 4, 3], "strides": [4, 2, 1]}
    layout = "frames_once" if h.net_arch is None else "whole"  # of images, as the shipped configs say
    per_turn = h.env_steps_per_turn
    # copies that stable-baselines3 makes several times between two updates are one
    target_interval = max(h.target_interval, per_turn) * h.opt_steps_per_turn // per_turn
    return {
        "name": "dqn",
        "gamma": h.gamma,
        "double": False,
        "dueling": False,
        "value": {"name": "expected", "huber_delta": 1.0},
        "transitions": {"name": "one_step"},
        "rollout_length": per_turn // h.num_envs,
        "updates_per_turn": h.opt_steps_per_turn,
        "warmup_env_steps": h.warmup_env_steps + 1,
        "batch_size": h.batch_size,
        "target": {"name": "polyak", "tau": 1.0, "interval": target_interval},
        "max_grad_norm": h.max_grad_norm,
        "net": net | {"hidden_widths": [512]} if h.net_arch is None else mlp(h.net_arch, "relu"),
        "optimizer": adam(1e-8),
        "learning_rate": constant(h.learning_rate),
        "exploration": {"name": "epsilon_greedy", "epsilon": exploration(h, env_steps)},
        "replay_buffer": {"name": "uniform", "capacity": h.buffer_capacity, "layout": layout, "scratch_folder": None},
    }


def exploration(h: DQN, env_steps: int | None) -> Section:
    """Random play in the warm-up; then, for each turn, stable-baselines3's mean over the env steps of its roll-out.

    After `opt_steps` the next roll-out begins at env step start + opt_steps * per_turn / opt_steps_per_turn.
    """
    if env_steps is None:
        return _knots({0: 1.0, 1: h.exploration_final})
    per_turn, updates = h.env_steps_per_turn, h.opt_steps_per_turn
    start = h.warmup_env_steps // per_turn * per_turn
    middle = (per_turn - 1) / 2  # of a roll-out
    falling_env_steps = h.exploration_fraction * env_steps
    slope = (h.exploration_final - 1.0) / falling_env_steps
    last = round((falling_env_steps - start - middle) * updates / per_turn)
    first_value = 1.0 + slope * (start + per_turn + middle)
    return _knots({0: 1.0, updates: first_value, last: h.exploration_final})


def _knots(values: dict[int, float]) -> Section:
    return {"name": "piecewise", "knots": [{"step": step, "value": value} for step, value in values.items()]}


def sac(h: SAC, deterministic: bool) -> Section:
    return {
        "name": "sac",
        "entropy_coefficient": {
            "name": "automatic",
            "initial": 1.0,
            "target_entropy": {"name": "per_dimension", "factor": -1.0},
            "optimizer": adam(1e-8),
            "learning_rate": constant(h.learning_rate),
        },
        "log_std": {"min": -20.0, "max": 2.0},
        "evaluation": "deterministic" if deterministic else "sampled",
        "target": {"name": "polyak", "tau": h.tau, "interval": 1},
        **_actor_and_critics(h),
    }


def td3(h: TD3) -> Section:
    return {
        "name": "td3",
        "policy_interval": h.policy_interval,
        "smoothing": {"std": h.target_noise, "max_noise": h.target_noise_clip},
        "exploration": {"name": "gaussian", "std": constant(h.exploration_noise)},
        "target": {"name": "polyak", "tau": h.tau, "interval": h.policy_interval},
        **_actor_and_critics(h),
    }


def _actor_and_critics(h: SAC | TD3) -> Section:
    """What SAC and TD3 share: an opt step per env step, two critics, one rate for all."""
    parts: Section = {}
    for part in ("policy", "critic"):
        parts[f"{part}_net"] = mlp(h.net_arch, "relu")
        parts[f"{part}_optimizer"] = adam(1e-8)
        parts[f"{part}_learning_rate"] = constant(h.learning_rate)
    return parts | {
        "gamma": h.gamma,
        "num_critics": 2,
        "transitions": {"name": "one_step"},
        "rollout_length": 1,
        "updates_per_turn": 1,
        "warmup_env_steps": h.warmup_env_steps + 1,
        "batch_size": h.batch_size,
        "max_grad_norm": None,
        "replay_buffer": {"name": "uniform", "capacity": h.buffer_capacity, "layout": "whole", "scratch_folder": None},
    }
