"""What every hand-written kernel is compared with, in all its variants: the methods that it stands in for.

`make kernels` traces the same variants, to learn which functions these methods call.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn

from palestra.algorithms.dqn import DQN, DQNConfig
from palestra.algorithms.kernels import dqn as dqn_kernels
from palestra.algorithms.kernels import greedy
from palestra.algorithms.kernels import ppo as ppo_kernels
from palestra.algorithms.parts.actor_critic import SAMPLED
from palestra.algorithms.parts.advantages import Experience
from palestra.algorithms.ppo import PPO, PPOConfig
from palestra.config import check
from palestra.games.spaces import ActionSpace, Box, Discrete, MultiDiscrete, Space
from palestra.nets.inputs import made_up
from palestra.nets.kernels import plain
from palestra.nets.kernels.acting import acting_net
from palestra.nets.kernels.learning import Pass, learning_net
from palestra.nets.weights import flatten_weights
from palestra.players.player import Player
from palestra.randomness import fold, random_floats, random_normals
from palestra.rollouts.transitions import Transitions
from palestra.runtime.guard import Kernel, kernel_properties, reachable
from tests.nets.making import build

NUM_ROWS = 50
CPU = torch.device("cpu")
VECTOR = {"seen": Space((3,), torch.float32, padded=False)}
SEVERAL = {
    "board": Space((4, 3), torch.float32, padded=True),
    "picture": Space((2, 3, 1), torch.uint8, padded=False),
    "seen": Space((3,), torch.float32, padded=False),
}
SPACES = {"a vector": VECTOR, "several entries": SEVERAL}
SETS = {"a board": {"board": SEVERAL["board"]}, "a board and more": SEVERAL}
Numbers = Mapping[str, Any]


@dataclass(frozen=True)
class Variant:
    """A kernel, and an owner for it. make: the owner. data: what it computes with. by_hand, by_torch: the same numbers
    of owner and data, in both ways."""

    kernel: Kernel
    name: str
    make: Callable[[], Any]
    data: Callable[[], Any]
    by_hand: Callable[[Any, Any], Numbers]
    by_torch: Callable[[Any, Any], Numbers]

    def __str__(self) -> str:
        return f"{self.kernel.name}: {self.name}"


def without_kernels(owner: Any) -> Any:
    """The owner, of which from now on everything runs by torch."""
    for part in reachable(owner):
        for name in kernel_properties(type(part)):
            if name.endswith(("_kernel", "_nets")):
                vars(part)[name] = None
    return owner


def numbered(**named: Any) -> dict[str, Any]:
    """Without what is None, and with the entries of mappings by themselves."""
    numbers = {}
    for name, value in named.items():
        numbers |= (
            {f"{name}/{key}": each for key, each in value.items()} if isinstance(value, Mapping) else {name: value}
        )
    return {name: value for name, value in numbers.items() if value is not None}


# ---- plain mlps ----------------------------------------------------------------------------------------


def make_flat(spaces: dict[str, Space], **config: Any) -> nn.Module:
    net = build(config, spaces)
    flatten_weights(net)
    return net.eval()


def net_by_hand(net: nn.Module, seen: Any) -> Numbers:
    acting, learning = acting_net(net), learning_net(net)
    if learning is None:  # batch norm
        return {"outputs": acting(seen)}
    passed, gradient = Pass([learning], learning.read(seen)), torch.empty(len(learning.weights))
    passed.backward([2.0 * passed.outputs[0]], gradient.numpy())
    return {"outputs": acting(seen), "learned outputs": torch.from_numpy(passed.outputs[0]), "gradient": gradient}


def net_by_torch(net: nn.Module, seen: Any) -> Numbers:
    outputs = net(seen)
    if any(isinstance(layer, torch.nn.BatchNorm1d) for layer in net.modules()):
        return {"outputs": outputs.detach()}
    gradients = torch.autograd.grad(outputs.square().sum(), list(net.parameters()))
    gradient = torch.cat([each.flatten() for each in gradients])
    return {"outputs": outputs.detach(), "learned outputs": outputs.detach(), "gradient": gradient}


def mlp_variants() -> Iterator[Variant]:
    for (name, spaces), net_arch, activation in product(SPACES.items(), ([16, 8], [16, "b", 8]), ("relu", "tanh")):
        yield Variant(
            plain.KERNEL,
            f"{name}, {net_arch}, {activation}",
            partial(make_flat, spaces, name="mlp", net_arch=net_arch, activation=activation),
            partial(made_up, spaces, torch.arange(NUM_ROWS)),
            net_by_hand,
            net_by_torch,
        )


# ---- networks of sets ----------------------------------------------------------------------------------


def boards(spaces: dict[str, Space], num: int = NUM_ROWS) -> dict[str, torch.Tensor]:
    """Of 0 to 4 points, at any of the places, some of them equal."""
    seen, keys = made_up(spaces, torch.arange(num)), fold(torch.arange(num), 9)
    seen["board"] = (3.0 * random_floats(keys, 12)).floor().view(-1, 4, 3)
    seen["board"][random_floats(fold(keys, 1), 4) < 0.4] = -1.0
    return seen


SET_NETS = [{"name": name, "point_widths": [8, 6], "head_widths": [5]} for name in ("deep_sets", "newton_sets")]


def sets_variants() -> Iterator[Variant]:
    for (name, spaces), net in product(SETS.items(), SET_NETS):
        make, data = partial(make_flat, spaces, **net), partial(boards, spaces)
        yield Variant(plain.SETS, f"{name}, {net['name']}", make, data, net_by_hand, net_by_torch)


# ---- DQN -----------------------------------------------------------------------------------------------

DQN_CONFIG = {
    "name": "dqn",
    "gamma": 0.5,
    "double": True,
    "dueling": False,
    "value": {"name": "expected", "huber_delta": 1.0},
    "transitions": {"name": "one_step"},
    "rollout_length": 3,
    "updates_per_turn": 4,
    "warmup_env_steps": 0,
    "batch_size": NUM_ROWS,
    "target": {"name": "polyak", "tau": 0.25},
    "max_grad_norm": None,
    "net": {"name": "mlp", "net_arch": [16], "activation": "relu"},
    "optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
    "learning_rate": {"name": "constant", "value": 0.01},
    "exploration": {"name": "epsilon_greedy", "epsilon": {"name": "constant", "value": 0.3}},
    "replay_buffer": {"name": "uniform", "capacity": 1000, "layout": "whole", "scratch_folder": None},
}
PRIORITIZED = DQN_CONFIG["replay_buffer"] | {  # type: ignore[operator]
    "name": "prioritized",
    "alpha": 0.5,
    "beta": {"name": "constant", "value": 0.4},
    "eps": 1e-6,
}


def make_dqn(cls: type[DQN] = DQN, spaces: dict[str, Space] = VECTOR, by_hand: bool = True, **changes: Any) -> DQN:
    """A player of its own with four actions, whose target network is not the online one."""
    player = Player("player", ("agent",), spaces, Discrete(4), CPU, seed=1, compile=False, by_hand=by_hand)
    player.algorithm = dqn = cls(check(DQN_CONFIG | changes, DQNConfig), player)
    with torch.no_grad():
        dqn.target_net.weights.mul_(1.5)
    return dqn


def dqn_batch(spaces: dict[str, Space], extras: tuple[str, ...] = (), num: int = NUM_ROWS) -> Transitions:
    """Rows of which a third each is terminated, truncated, and neither; TD errors on both sides of the parabola."""
    keys = torch.arange(num)
    noise = random_normals(keys, 2)
    legal, next_legal = (random_floats(fold(keys, number), 4) < 0.6 for number in (3, 4))
    next_legal[:, 1] = True
    return Transitions(
        observation=made_up(spaces, fold(keys, 0)),
        action=keys % 4,
        reward=10.0 ** (keys % 4 - 2) * noise[:, 0],
        next_observation=made_up(spaces, fold(keys, 1)),
        next_legal=next_legal & (keys % 3 > 0).unsqueeze(1),
        terminated=keys % 3 == 0,
        truncated=keys % 3 == 1,
        valid=torch.ones_like(keys, dtype=torch.bool),
        extras={name: random_floats(fold(keys, 5 + number), 1)[:, 0] for number, name in enumerate(extras)},
        legal=legal,
    )


def dqn_variants() -> Iterator[Variant]:
    all_extras = ((), ("weight",), ("discount",), ("weight", "discount"))
    for double, extras, huber_delta in product((True, False), all_extras, (0.1, 1.0, 100.0)):
        buffer = PRIORITIZED if "weight" in extras else DQN_CONFIG["replay_buffer"]
        changes = {"double": double, "value": {"name": "expected", "huber_delta": huber_delta}, "replay_buffer": buffer}
        yield dqn_variant(f"double {double}, extras {extras}, delta {huber_delta}", extras, **changes)
    for (name, spaces), activation in product(SPACES.items(), ("relu", "tanh")):
        net = {"name": "mlp", "net_arch": [16, 8], "activation": activation}
        yield dqn_variant(f"{name}, {activation}", (), spaces, net=net)


def dqn_variant(name: str, extras: tuple[str, ...], spaces: dict[str, Space] = VECTOR, **changes: Any) -> Variant:
    make, data = partial(make_dqn, spaces=spaces, **changes), partial(dqn_batch, spaces, extras)
    return Variant(dqn_kernels.KERNEL, name, make, data, dqn_by_hand, dqn_by_torch)


def dqn_by_hand(dqn: DQN, batch: Transitions) -> Numbers:
    assert dqn.gradient_kernel is not None
    gradient, metrics, priorities = dqn.find_gradient(batch)
    return numbered(gradient=gradient, metrics=metrics, priorities=priorities if "weight" in batch.extras else None)


def dqn_by_torch(dqn: DQN, batch: Transitions) -> Numbers:
    gradient, metrics, priorities = dqn.gradient(batch)
    return numbered(gradient=gradient, metrics=metrics, priorities=priorities)


# ---- greedy choices ------------------------------------------------------------------------------------


def choice_data(spaces: dict[str, Space]) -> Any:
    keys = fold(torch.arange(300), 7)
    return made_up(spaces, keys), random_floats(fold(keys, 1), 4) < 0.5, keys


def chosen_by_hand(dqn: DQN, data: Any) -> Numbers:
    assert dqn.acting_kernel is not None
    return {f"action at {epsilon}": dqn.acting_kernel(*data, epsilon) for epsilon in (0.0, 0.3, 1.0)}


@torch.no_grad()
def chosen_by_torch(dqn: DQN, data: Any) -> Numbers:
    choose, (seen, legal, keys) = dqn.config.exploration.choose, data
    return {f"action at {epsilon}": choose(dqn.values(seen), legal, keys, epsilon) for epsilon in (0.0, 0.3, 1.0)}


def chosen_by_values(dqn: DQN, data: Any) -> Numbers:
    """By the choice alone; the values are the network's."""
    assert type(dqn.acting_kernel) is greedy.Greedy
    return chosen_by_hand(dqn, (data[0], *data[2:]))


@torch.no_grad()
def chosen_by_torch_by_values(dqn: DQN, data: Any) -> Numbers:
    _, q, *rest = data
    return {f"action at {epsilon}": dqn.config.exploration.choose(q, *rest, epsilon) for epsilon in (0.0, 0.3, 1.0)}


def greedy_variants() -> Iterator[Variant]:
    for (name, spaces), layers in product(SPACES.items(), ([16], [16, "b"], [16, "l"])):
        make = partial(make_dqn, spaces=spaces, net={"name": "mlp", "net_arch": layers, "activation": "tanh"})
        data = partial(choice_data, spaces)
        if "l" not in layers:
            yield Variant(greedy.KERNEL, f"{name}, {layers}", make, data, chosen_by_hand, chosen_by_torch)
            continue

        def with_values(make: Any = make, data: Any = data) -> Any:
            seen, *rest = data()
            with torch.no_grad():
                return seen, make().values(seen), *rest

        ways = (chosen_by_values, chosen_by_torch_by_values)
        yield Variant(greedy.CHOICE, f"{name}, {layers}", make, with_values, *ways)


# ---- PPO -----------------------------------------------------------------------------------------------

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
    "initialization": {"name": "stock"},
    "box_actions": None,
    "evaluation": "deterministic",
    "optimizer": DQN_CONFIG["optimizer"],
    "learning_rate": {"name": "constant", "value": 0.01},
}
BOX = Box((-1.0, -0.5), (1.0, 2.0))
BOX_ACTIONS = {name: {"name": name, "initial_log_std": -0.3} for name in ("clipped_gaussian", "squashed_gaussian")}
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
    **changes: Any,
) -> PPO:
    """A player of its own."""
    space, more = ACTIONS[actions]
    player = Player("player", ("agent",), spaces, space, CPU, seed=1, compile=False, by_hand=by_hand)
    player.algorithm = ppo = cls(check(PPO_CONFIG | more | changes, PPOConfig), player)
    return ppo


@torch.no_grad()
def ppo_data(ppo: PPO, num: int = 600) -> tuple[Experience, torch.Tensor]:
    """Rows whose ratios and values lie on both sides of what is clipped, of which every fifth does not count; and the
    numbers of some of them."""
    keys, spaces, flags = torch.arange(num), ppo.player.spaces, ppo.player.action_space.num_flags
    observation, episode_start = made_up(spaces, fold(keys, 1)), torch.zeros(1, num, dtype=torch.bool)
    legal = random_floats(fold(keys, 2), flags) < 0.7
    if flags:
        legal[:, 0] = legal[:, -1] = True
    outputs, value = ppo.net(observation, {}, episode_start)
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
    )
    return experience, keys[keys % 3 > 0]


def ppo_numbers(ppo: PPO) -> tuple[float, float, float]:
    """Clip range, KL coefficient, entropy coefficient."""
    return (0.2, 0.0, 0.05) if ppo.config.objective.name == "clip" else (math.inf, 0.5, 0.05)


def ppo_by_hand(ppo: PPO, data: Any) -> Numbers:
    assert ppo.gradient_kernel is not None
    experience, index = data
    arrays = ppo.gradient_kernel.read(experience)
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


def ppo_variant(name: str, **changes: Any) -> Variant:
    make = partial(make_ppo, **changes)
    return Variant(ppo_kernels.KERNEL, name, make, lambda: ppo_data(make()), ppo_by_hand, ppo_by_torch)


def of_sets_variants() -> Iterator[Variant]:
    """Not traced: these networks have a guard of their own, and to edit them is no reason to do without kernels for
    others."""
    for (name, spaces), net in product(SETS.items(), SET_NETS):
        yield dqn_variant(f"{name}, {net['name']}", (), spaces, net=net)
        bodies = {"name": "separate", "policy": net, "value": net}, {"name": "shared", "net": net}
        for body in bodies:
            yield ppo_variant(f"{name}, {net['name']}, {body['name']}", spaces=spaces, body=body)


OF_SETS = [*of_sets_variants()]
VARIANTS = [*mlp_variants(), *sets_variants(), *dqn_variants(), *greedy_variants(), *ppo_variants()]
KERNELS = list(dict.fromkeys(variant.kernel for variant in VARIANTS))
