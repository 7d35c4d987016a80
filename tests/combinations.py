"""Every algorithm in all its variants, and games of every shape: what the proofs of resuming run over.

A combination names a level of every factor that matters in it: the algorithm's own choices, the kind of actions, the
game, and how it is played.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations as subsets
from itertools import product
from typing import Any, get_args

from conftest import LEARNER, PLAIN, TINY

from palestra.algorithms.algorithm import AlgorithmConfig
from palestra.kinds.games.config import AnyAlgorithm

Data = dict[str, Any]
Combination = dict[str, str]

# ---- algorithms ------------------------------------------------------------------------------------------

DQN: Data = LEARNER["algorithm"]
PPO: Data = {
    "name": "ppo",
    "gamma": 0.95,
    "gae_lambda": 0.9,
    "rollout_length": 3,
    "num_passes": 2,
    "num_minibatches": 2,
    "objective": {"name": "clip", "epsilon": {"name": "linear", "initial": 0.3, "final": 0.1, "num_steps": 20}},
    "value_clip": None,
    "value_coefficient": 0.5,
    "entropy_coefficient": {"name": "constant", "value": 0.01},
    "max_grad_norm": 0.5,
    "target_kl": None,
    "normalize_advantages": True,
    "body": {"name": "shared", "net": {"name": "mlp", "net_arch": [8], "activation": "tanh"}},
    "centralized_critic": False,
    "initialization": {"name": "stock"},
    "box_actions": None,
    "evaluation": "deterministic",
    "optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
    "learning_rate": {"name": "linear", "initial": 0.01, "final": 0.001, "num_steps": 10},
    "learning_rate_factors": {},
}
SAC: Data = {
    "name": "sac",
    "gamma": 0.95,
    "num_critics": 2,
    "transitions": {"name": "one_step"},
    "rollout_length": 1,
    "updates_per_turn": 2,
    "warmup_env_steps": 16,
    "batch_size": 8,
    "target": {"name": "polyak", "tau": 0.1, "interval": 3},
    "entropy_coefficient": {
        "name": "automatic",
        "initial": 0.5,
        "target_entropy": {"name": "number", "value": 0.3},
        "optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
        "learning_rate": {"name": "constant", "value": 0.01},
    },
    "log_std": {"min": -5.0, "max": 2.0},
    "max_grad_norm": 1.0,
    "policy_net": {"name": "mlp", "net_arch": [8, "b"], "activation": "relu"},
    "critic_net": {"name": "mlp", "net_arch": [8, "b"], "activation": "relu"},
    "policy_optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 0.0},
    "critic_optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
    "policy_learning_rate": {"name": "linear", "initial": 0.01, "final": 0.001, "num_steps": 10},
    "critic_learning_rate": {"name": "linear", "initial": 0.01, "final": 0.001, "num_steps": 20},
    "evaluation": "sampled",
    "replay_buffer": {"name": "uniform", "capacity": 40, "layout": "whole", "scratch_folder": None},
}
TD3: Data = {
    **{key: value for key, value in SAC.items() if key not in ("entropy_coefficient", "log_std", "evaluation")},
    "name": "td3",
    "policy_interval": 2,
    "smoothing": {"std": 0.2, "max_noise": 0.5},
    "exploration": {
        "name": "gaussian",
        "std": {"name": "linear", "initial": 0.5, "final": 0.1, "num_steps": 8},
    },
}
PRIORITIZED: Data = {
    "name": "prioritized",
    "capacity": 40,
    "layout": "whole",
    "scratch_folder": None,
    "alpha": 0.6,
    "beta": {"name": "linear", "initial": 0.4, "final": 1.0, "num_steps": 10},
    "eps": 1e-6,
}
C51: Data = {"name": "c51", "num_atoms": 11, "low": -1.0, "high": 1.0}
QUANTILE: Data = {"name": "quantile", "num_quantiles": 4, "huber_delta": 1.0}
IMPLICIT_QUANTILE: Data = {
    "name": "implicit_quantile",
    "num_quantiles": 3,
    "num_target_quantiles": 2,
    "num_acting_quantiles": 4,
    "num_cosines": 4,
    "embedding_dim": 8,
    "huber_delta": 1.0,
}
MLP: Data = {"name": "mlp", "net_arch": [8], "activation": "tanh"}
IMAGE_NET: Data = {"name": "impala_cnn", "channels": [2], "hidden_widths": [8]}
RECURRENT: Data = {
    "name": "recurrent",
    "encoder": {"name": "mlp", "net_arch": [], "activation": "tanh"},
    "encoder_width": 6,
    "cell": "lstm",
    "hidden_size": 5,
    "net_arch": [],
    "activation": "tanh",
}
CLIPPED: Data = {"box_actions": {"name": "clipped_gaussian", "initial_log_std": -0.5}}
KL_PENALTY: Data = {"name": "kl_penalty", "coefficient": 1.0, "target": 0.01}
CONSTANT: Data = {"name": "constant", "value": 0.01}
OF_LOSS = ("objective", "value_clip", "value_coefficient", "entropy_coefficient", "target_kl")
ON_POLICY: Data = {name: value for name, value in PPO.items() if name not in (*OF_LOSS, "gamma", "gae_lambda")} | {
    "name": "on_policy",
    "loss": {"name": "ppo"} | {key: PPO[key] for key in OF_LOSS},
    "estimator": {"name": "gae", "gamma": 0.95, "gae_lambda": 0.9},
}
OF_DQN = ("name", "double", "dueling", "value", "net")
OFF_POLICY: Data = {name: value for name, value in DQN.items() if name not in OF_DQN} | {
    "name": "off_policy",
    "loss": {"name": "q_learning", "double": True, "huber_delta": 1.0},
    "body": {"name": "separate", "q": DQN["net"]},
    "initialization": {"name": "stock"},
    "box_actions": None,
    "evaluation": "deterministic",
    "learning_rate_factors": {},
}
TORCHRL_SAC: Data = {
    "loss": {
        "name": "torchrl.objectives:SACLoss",
        "arguments": {
            "num_qvalue_nets": 2,
            "loss_function": "l2",
            "alpha_init": 0.5,
            "min_alpha": None,
            "max_alpha": None,
            "fixed_alpha": False,
            "target_entropy": "auto",
            "delay_actor": False,
            "delay_qvalue": True,
            "delay_value": True,
            "separate_losses": False,
            "reduction": "mean",
            "skip_done_states": False,
            "deactivate_vmap": True,
            "use_prioritized_weights": "auto",
            "scalar_output_mode": None,
        },
    },
    "body": {"name": "separate"} | dict.fromkeys(("policy", "critic_0", "critic_1"), MLP),
    "box_actions": {"name": "state_dependent_gaussian", "log_std": {"min": -5.0, "max": 2.0}},
    "exploration": None,
    "evaluation": "sampled",
}
IQL: Data = {
    "loss": {"name": "iql", "num_critics": 2, "expectile": 0.7, "temperature": 0.5, "max_weight": 10.0},
    "body": {"name": "separate"} | dict.fromkeys(("policy", "critic_0", "critic_1", "value"), MLP),
    "exploration": None,
}


REPLAY: dict[str, dict[str, Data]] = {
    "replay": {"uniform": {}, "prioritized": {"replay_buffer": PRIORITIZED}},
    "transitions": {"one step": {}, "3 steps": {"transitions": {"name": "n_step", "steps": 3}}},
}


@dataclass(frozen=True)
class Learner:
    """An algorithm's config, and the changes to it at every level of its factors; `actions` is one of them."""

    algorithm: Data
    actions: dict[str, Data]
    choices: dict[str, dict[str, Data]]


LEARNERS: dict[str, Learner] = {
    "dqn": Learner(
        DQN,
        {"discrete": {}},
        {
            "value": {
                "expected": {},
                "c51": {"value": C51},
                "quantile": {"value": QUANTILE},
                "implicit_quantile": {"value": IMPLICIT_QUANTILE},
            },
            **REPLAY,
            "dueling": {"no": {}, "yes": {"dueling": True}},
        },
    ),
    "ppo": Learner(
        PPO,
        {"discrete": {}, "box": CLIPPED},
        {
            "objective": {"clip": {}, "kl_penalty": {"objective": KL_PENALTY}},
            "body": {
                "shared": {},
                "separate": {"body": {"name": "separate", "policy": MLP, "value": MLP}},
                "recurrent": {"body": {"name": "shared", "net": RECURRENT}},
                "two recurrent": {
                    "body": {"name": "separate", "policy": RECURRENT, "value": RECURRENT | {"cell": "gru"}}
                },
            },
        },
    ),
    "on_policy": Learner(
        ON_POLICY,
        {"discrete": {}, "box": CLIPPED},
        {
            "loss": {
                "ppo": {},
                "kl_penalty": {"loss": ON_POLICY["loss"] | {"objective": KL_PENALTY}},
                "whole games": {
                    "loss": {"name": "reinforce", "critic": {"coefficient": 0.5}, "entropy_coefficient": CONSTANT},
                    "estimator": {"name": "reward_to_go", "gamma": 0.95, "at_truncation": "bootstrap"},
                    "num_passes": 1,
                },
            },
            "body": {
                "shared": {},
                "separate": {"body": {"name": "separate", "policy": MLP, "value": MLP}},
                "two recurrent": {
                    "body": {"name": "separate", "policy": RECURRENT, "value": RECURRENT | {"cell": "gru"}}
                },
            },
        },
    ),
    "off_policy": Learner(
        OFF_POLICY,
        {"discrete": {}, "box": TORCHRL_SAC},
        {
            **REPLAY,
            "interval": {"1": {}, "3": {"target": {"name": "polyak", "tau": 0.5, "interval": 3}}},
            "loss": {"its own": {}, "iql": IQL},
        },
    ),
    "sac": Learner(
        SAC,
        {"discrete": {"log_std": None}, "box": {}},
        {"entropy": {"automatic": {}, "fixed": {"entropy_coefficient": {"name": "fixed", "value": 0.1}}}, **REPLAY},
    ),
    "td3": Learner(TD3, {"box": {}}, {"policy_interval": {"2": {}, "1": {"policy_interval": 1}}, **REPLAY}),
    "td3_bc": Learner(TD3 | {"name": "td3_bc", "alpha": 2.5}, {"box": {}}, {}),
}


def registered_algorithms() -> set[str]:
    """The names of all algorithms that a config can ask for."""
    members = get_args(get_args(AnyAlgorithm)[0])
    ours = [member for member in members if issubclass(member, AlgorithmConfig)]
    return {name for member in ours for name in get_args(member.model_fields["name"].annotation)}


# ---- games -----------------------------------------------------------------------------------------------


def gymnasium(env_id: str, **arguments: Any) -> Data:
    return {
        "name": "gymnasium",
        "id": env_id,
        "arguments": arguments,
        "wrappers": [{"name": "gymnasium.wrappers:TimeLimit", "arguments": {"max_episode_steps": 4}}],
        "observation": {"normalize": {"eps": 1e-8}, "clip": 5.0, "channels": None},
        "reward": {"normalize": {"gamma": 0.99, "eps": 1e-8}, "clip": 5.0},
        "action_mask": None,
    }


# By name, then by the kind of actions. Host and agent of the polyhedra game learn by different algorithms; one player
# sits in both seats of Nim. Two of the farmers are one player; PPO's critics are centralized where they may be.
GAMES: dict[str, dict[str, Data]] = {
    "polyhedra": {"discrete": TINY["game"]},
    "nim": {"discrete": {"name": "nim", "num_heaps": 2, "max_stones": 3, "observation": PLAIN}},
    "harvest": {
        "discrete": {
            "name": "harvest",
            "num_farmers": 3,
            "num_kinds": 2,
            "num_rounds": 2,
            "luck": 3.0,
            "observation": PLAIN,
        },
    },
    "classic control": {
        "discrete": {
            "name": "cartpole",
            "max_rounds": 5,
            "initial_low": -0.2,
            "initial_high": 0.2,
            "sutton_barto_reward": False,
            "observation": PLAIN,
        },
        "box": {
            "name": "pendulum",
            "max_rounds": 5,
            "g": 10.0,
            "initial_angle": 3.0,
            "initial_speed": 1.0,
            "observation": PLAIN,
        },
    },
    "gymnasium": {
        "discrete": gymnasium("tests.gym_probes:Walk-v0"),
        "box": gymnasium("Pendulum-v1", max_episode_steps=200, g=10.0),
    },
    "images": {
        "discrete": gymnasium("tests.gym_probes:Pixels-v0")
        | {"observation": {"normalize": None, "clip": None, "channels": "first"}}
    },
}
AUTORESETS = ("next_step", "same_step", "disabled")
OBSERVATIONS: dict[str, Data] = {"as they are": PLAIN, "normalized": {"normalize": {"eps": 1e-8}, "clip": 5.0}}
# How a game is played: who learns when, what is done with observations, how environments step.
PLAYED: dict[str, dict[str, tuple[str, ...]]] = {
    "polyhedra": {"trainer": ("in_turn", "together"), "observations": tuple(OBSERVATIONS)},
    "nim": {"observations": tuple(OBSERVATIONS)},
    "harvest": {"trainer": ("in_turn", "together"), "observations": tuple(OBSERVATIONS)},
    "classic control": {"observations": tuple(OBSERVATIONS)},
    "gymnasium": {"vectorization": ("sync", "async"), "autoreset": AUTORESETS},
    "images": {"vectorization": ("sync",), "autoreset": AUTORESETS},
}


# ---- combinations ----------------------------------------------------------------------------------------


def combinations_of(algorithm: str) -> list[Combination]:
    """All of them, in which an algorithm learns."""
    learner = LEARNERS[algorithm]
    factors = {name: tuple(levels) for name, levels in learner.choices.items()}
    found = []
    for game, actions in GAMES.items():
        kinds = tuple(kind for kind in actions if kind in learner.actions)
        whole = {"game": (game,), "actions": kinds, **PLAYED.get(game, {}), **factors}
        found += [dict(zip(whole, levels, strict=True)) for levels in product(*whole.values())]
    return found


def pairwise(candidates: list[Combination]) -> list[Combination]:
    """A few of the candidates in which all pairs of levels occur that occur in any; the greediest first."""
    pairs = [set(subsets(sorted(candidate.items()), 2)) for candidate in candidates]
    missing = set().union(*pairs)
    chosen = []
    while missing:
        best = max(range(len(candidates)), key=lambda i: len(pairs[i] & missing))
        missing -= pairs[best]
        chosen.append(candidates[best])
    return chosen


def config_of(algorithm: str, combination: Combination) -> Data:
    """A whole run, tiny."""
    game_name, actions = combination["game"], combination["actions"]
    game = copy.deepcopy(GAMES[game_name][actions])
    if "observations" in combination:
        game["observation"] = OBSERVATIONS[combination["observations"]]
    if "autoreset" in combination:
        game["vectorization"] = {"name": combination["vectorization"], "autoreset": combination["autoreset"]}
    learner = LEARNERS[algorithm]
    learns = learner.algorithm | learner.actions[actions]
    for factor, levels in learner.choices.items():
        learns = learns | levels[combination[factor]]
    if game_name == "harvest" and "centralized_critic" in learns and learns["body"]["name"] == "separate":
        learns |= {"centralized_critic": True}
    if game_name == "images":
        learns = _with_image_nets(learns)
    # Of environments in processes, few; and the last evaluation plays in those of the others.
    num_worlds, num_games, num_last = (2, 1, 1) if combination.get("vectorization") == "async" else (4, 4, 5)
    config = copy.deepcopy(TINY) | {"game": game, "num_worlds": num_worlds} | _seats(game_name, algorithm, learns)
    if combination.get("trainer") == "together":
        config["trainer"] = {"name": "together"}
        for other in config["players"].values():
            other["algorithm"]["rollout_length"] = learns["rollout_length"]
    config["stop"] = {"after": 16, "unit": "opt_steps"}
    config["output"] |= {"record": {"every": 3, "unit": "opt_steps"}, "save": {"every": 4, "unit": "opt_steps"}}
    games = {"num_games": num_games, "final_num_games": num_last}
    evaluation = {"interval": {"every": 6, "unit": "opt_steps"}} | games
    config["evaluations"][0] |= evaluation | {"pairings": [config["roles"]]}
    config["best"] |= {"pairing": 0, "measure": f"return/{next(iter(config['roles']))}"}
    return copy.deepcopy(config)


def _seats(game: str, algorithm: str, learns: Data) -> Data:
    """Who learns, and where."""
    player = {"algorithm": learns, "warm_start": None, "updates": {"name": "constant"}, "meets": None}
    if game == "polyhedra":
        others = [name for name, learner in LEARNERS.items() if "discrete" in learner.actions]
        other = LEARNERS[others[(others.index(algorithm) + 1) % len(others)]]
        rival = {
            "algorithm": other.algorithm | other.actions["discrete"],
            "warm_start": None,
            "updates": {"name": "constant"},
            "meets": None,
        }
        return {"roles": {"host": "host", "agent": "agent"}, "players": {"host": player, "agent": rival}}
    roles = {
        "nim": {"first": "both", "second": "both"},
        "harvest": {"farmer_0": "two", "farmer_1": "two", "farmer_2": "other"},
    }.get(game, {"agent": "agent"})
    return {"roles": roles, "players": dict.fromkeys(roles.values(), player)}


def _with_image_nets(value: Any) -> Any:
    """With a network for images in the place of every other one."""
    if isinstance(value, Mapping):
        is_net = value.get("name") == "mlp"
        return IMAGE_NET if is_net else {key: _with_image_nets(item) for key, item in value.items()}
    return value
