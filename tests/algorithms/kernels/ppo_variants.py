"""What PPO's kernels are compared with: the methods that they stand in for."""

import math
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch

from palestra.algorithms.kernels import choices
from palestra.algorithms.kernels import ppo as kernels
from palestra.algorithms.parts.action_heads import SAMPLED
from palestra.algorithms.parts.advantages import Experience, Sequences
from palestra.algorithms.ppo import PPO, PPOConfig
from palestra.config import check
from palestra.games.spaces import ActionSpace, Box, Discrete, MultiDiscrete, Space
from palestra.players.player import Player
from palestra.randomness import fold, random_floats, random_normals
from tests.algorithms.kernels.variants import CPU, DQN_CONFIG, SPACES, VECTOR, Numbers, Variant, numbered
from tests.nets.making import random_observations

PPO_CONFIG: dict[str, Any] = {
    "name": "ppo",
    "gamma": 0.9,
    "gae_lambda": 0.8,
    "rollout_length": 3,
    "num_passes": 2,
    "num_minibatches": 2,
    "objective": {"name": "clip", "epsilon": {"name": "constant", "value": 0.2}},
    "value_clip": None,
    "value_coefficient": 0.5,
    "entropy_coefficient": {"name": "constant", "value": 0.05},
    "max_grad_norm": None,
    "target_kl": None,
    "normalize_advantages": True,
    "body": {"name": "separate", "policy": DQN_CONFIG["net"], "value": DQN_CONFIG["net"]},
    "centralized_critic": False,
    "initialization": {"name": "stock"},
    "box_actions": None,
    "evaluation": "deterministic",
    "optimizer": DQN_CONFIG["optimizer"],
    "learning_rate": {"name": "constant", "value": 0.01},
    "learning_rate_factors": {},
}
BOX = Box((-1.0, -0.5), (1.0, 2.0))
BOX_ACTIONS = {name: {"name": name, "initial_log_std": -0.3} for name in ("clipped_gaussian", "squashed_gaussian")}
FOR_CRITICS = {
    "state": Space((2, 2), torch.float32, padded=False),
    "board": Space((4, 3), torch.float32, padded=True),
}
ACTIONS: dict[str, tuple[ActionSpace, dict[str, Any]]] = {
    "discrete": (Discrete(3), {}),
    "multi-discrete": (MultiDiscrete((3, 2)), {}),
    "clipped box": (BOX, {"box_actions": BOX_ACTIONS["clipped_gaussian"]}),
    "squashed box": (BOX, {"box_actions": BOX_ACTIONS["squashed_gaussian"]}),
}


def make_ppo(
    cls: type[PPO] = PPO,
    actions: str = "discrete",
    spaces: dict[str, Space] = VECTOR,
    by_hand: bool = True,
    critic_spaces: dict[str, Space] | None = None,
    roles: tuple[str, ...] = ("agent",),
    **changes: Any,
) -> PPO:
    """A player of its own, whose critic is shown more if `critic_spaces` say so."""
    space, more = ACTIONS[actions]
    player = Player("player", roles, spaces, space, CPU, seed=1, compile=False, by_hand=by_hand)
    player.critic_spaces = {"agent": critic_spaces or {}}
    more = more | {"centralized_critic": critic_spaces is not None}
    player.algorithm = ppo = cls(check(PPO_CONFIG | more | changes, PPOConfig), player)
    return ppo


@torch.no_grad()
def ppo_data(ppo: PPO, num: int = 900) -> tuple[Experience, torch.Tensor]:
    """Rows whose ratios and values lie on both sides of what is clipped, of which every fifth does not count; and the
    numbers of some of them, more than the kernel takes at once."""
    keys, flags = torch.arange(num), ppo.player.action_space.num_flags
    spaces = ppo.player.spaces | ppo.player.critic_spaces["agent"]
    observation, episode_start = random_observations(spaces, fold(keys, 1)), torch.zeros(1, num, dtype=torch.bool)
    legal = random_floats(fold(keys, 2), flags) < 0.7
    if flags:
        legal[:, 0] = legal[:, -1] = True
    outputs, values = ppo.net(observation, {}, episode_start).values()
    value = values[:, 0]
    action, drawn = ppo.net.head.draw(outputs.contiguous(), legal, fold(keys, 0))
    noise = random_normals(fold(keys, 3), 4)
    experience = Experience(
        observation=observation,
        memory={},
        episode_start=episode_start,
        legal=legal,
        action=drawn.get(SAMPLED, action),
        log_prob=drawn["log_prob"] + 0.5 * noise[:, 0],
        value=value + 0.3 * noise[:, 1],
        advantage=3.0 * noise[:, 2].contiguous(),
        value_target=value + noise[:, 3],
        weight=(keys % 5 > 0).float(),
        role=keys % 7 % len(ppo.player.roles),
    )
    return experience, keys[keys % 3 > 0]


def ppo_numbers(ppo: PPO) -> tuple[float, float, float]:
    """Clip range, KL coefficient, entropy coefficient."""
    return (0.2, 0.0, 0.05) if ppo.config.objective.name == "clip" else (math.inf, 0.5, 0.05)


def ppo_by_hand(ppo: PPO, data: Any) -> Numbers:
    assert ppo.gradient_kernel is not None
    experience, index = data
    arrays = ppo.gradient_kernel.read(experience)
    ppo.find_gradient(experience, index[:100], ppo_numbers(ppo), arrays)  # of which nothing stays
    gradient, metrics = ppo.find_gradient(experience, index, ppo_numbers(ppo), arrays)
    return numbered(gradient=gradient.clone(), metrics=metrics)


def ppo_by_torch(ppo: PPO, data: Any) -> Numbers:
    experience, index = data
    gradient, metrics = ppo.gradient(experience.minibatch(index), *torch.tensor(ppo_numbers(ppo)).unbind())
    return numbered(gradient=gradient, metrics=metrics)


def ppo_variants() -> Iterator[Variant]:
    shared = {"name": "shared", "net": DQN_CONFIG["net"]}
    penalty = {"name": "kl_penalty", "coefficient": 0.5, "target": None}
    settings: dict[str, dict[str, Any]] = {
        "clipped": {},
        "penalty": {"objective": penalty},
        "clipped value": {"value_clip": 0.1},
        "plain advantages": {"normalize_advantages": False},
        "shared": {"body": shared},
        "all at once": {"body": shared, "objective": penalty, "value_clip": 0.1, "normalize_advantages": False},
    }
    for actions, (name, changes) in product(ACTIONS, settings.items()):
        yield ppo_variant(f"{actions}, {name}", actions=actions, **changes)
    for name, activation in product(SPACES, ("relu", "tanh")):
        net = {"name": "mlp", "net_arch": [16, 8], "activation": activation}
        body = {"name": "separate", "policy": net, "value": net}
        yield ppo_variant(f"{name}, {activation}", spaces=SPACES[name], body=body)
    for actions in ACTIONS:
        yield ppo_variant(f"{actions}, centralized critic", actions=actions, critic_spaces=FOR_CRITICS)
        for name in ("clipped", "plain advantages", "all at once"):
            several = {"roles": ("agent", "other", "third"), **settings[name]}
            yield ppo_variant(f"{actions}, several roles, {name}", actions=actions, **several)


def ppo_variant(name: str, **changes: Any) -> Variant:
    make = partial(make_ppo, **changes)
    return Variant(kernels.GRADIENT, name, make, lambda: ppo_data(make()), ppo_by_hand, ppo_by_torch)


# ---- advantages ------------------------------------------------------------------------------------------


def sequences_of(num_steps: int, num: int) -> Sequences:
    """Rows of which some are terminated, truncated or do not count, also at the ends."""
    keys = torch.arange(num_steps * num)
    flags = random_floats(fold(keys, 1), 3).view(num_steps, num, 3)
    terminated = flags[..., 0] < 0.1
    numbers = random_normals(keys, 3).view(num_steps, num, 3).unbind(2)
    return Sequences(
        *(n.contiguous() for n in numbers), terminated, ~terminated & (flags[..., 1] < 0.1), flags[..., 2] > 0.2
    )


def advantages_by_hand(ppo: PPO, sequences: Sequences) -> Numbers:
    assert ppo.advantages_kernel is not None
    return dict(zip(("advantage", "value_target"), ppo.find_advantages(sequences), strict=True))


def advantages_by_torch(ppo: PPO, sequences: Sequences) -> Numbers:
    return dict(zip(("advantage", "value_target"), ppo.compute_advantages(sequences), strict=True))


def advantages_variants() -> Iterator[Variant]:
    for (num_steps, num), gae_lambda in product(((1, 5), (20, 1), (20, 6)), (0.0, 0.8, 1.0)):
        yield Variant(
            kernels.ADVANTAGES,
            f"{num_steps} steps of {num}, lambda {gae_lambda}",
            partial(make_ppo, gae_lambda=gae_lambda),
            partial(sequences_of, num_steps, num),
            advantages_by_hand,
            advantages_by_torch,
        )


# ---- draws -----------------------------------------------------------------------------------------------


def draw_data(num_flags: int, num: int = 300) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs, legal actions, among them none in some rows, and keys."""
    keys = fold(torch.arange(num), 3)
    return 2.0 * random_normals(keys, num_flags), random_floats(fold(keys, 1), num_flags) < 0.6, fold(keys, 2)


def drawn_by_hand(ppo: PPO, data: Any) -> Numbers:
    assert ppo.draw_kernel is not None
    action, extras = ppo.draw_kernel(*data)
    return numbered(action=action, extras=extras)


def drawn_by_torch(ppo: PPO, data: Any) -> Numbers:
    action, extras = ppo.net.head.draw(*data)
    return numbered(action=action, extras=extras)


def draw_variants() -> Iterator[Variant]:
    for actions, num_flags in (("discrete", 3), ("multi-discrete", 5)):
        make, data = partial(make_ppo, actions=actions), partial(draw_data, num_flags)
        yield Variant(choices.CATEGORICAL, actions, make, data, drawn_by_hand, drawn_by_torch)
