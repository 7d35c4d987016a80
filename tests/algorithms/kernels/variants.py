"""What hand-written kernels are compared with: the methods that they stand in for, of networks and of DQN. PPO's are in
ppo_variants.py; table.py lists all.

`make kernels` traces the same variants, to learn which functions these methods call.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn

from palestra.algorithms.dqn import DQN, DQNConfig
from palestra.algorithms.kernels import choices
from palestra.algorithms.kernels import dqn as dqn_kernels
from palestra.config import check
from palestra.games.spaces import Discrete, Space
from palestra.nets.kernels import plain
from palestra.nets.kernels.acting import acting_net
from palestra.nets.kernels.learning import Pass, learning_net
from palestra.nets.weights import flatten_weights
from palestra.players.player import Player
from palestra.randomness import fold, random_floats, random_normals
from palestra.rollouts.transitions import Transitions
from palestra.runtime.guard import Kernel, kernel_properties, reachable
from tests.nets.making import build, random_observations

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
    passed, gradient = Pass([learning], [learning.read(seen)]), torch.empty(len(learning.weights))
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
            partial(random_observations, spaces, torch.arange(NUM_ROWS)),
            net_by_hand,
            net_by_torch,
        )


# ---- networks of sets ----------------------------------------------------------------------------------


def boards(spaces: dict[str, Space], num: int = NUM_ROWS) -> dict[str, torch.Tensor]:
    """Of 0 to 4 points, at any of the places, some of them equal."""
    seen, keys = random_observations(spaces, torch.arange(num)), fold(torch.arange(num), 9)
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
    "target": {"name": "polyak", "tau": 0.25, "interval": 1},
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
        observation=random_observations(spaces, fold(keys, 0)),
        action=keys % 4,
        reward=10.0 ** (keys % 4 - 2) * noise[:, 0],
        next_observation=random_observations(spaces, fold(keys, 1)),
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
    return random_observations(spaces, keys), random_floats(fold(keys, 1), 4) < 0.5, keys


def chosen_by_hand(dqn: DQN, data: Any) -> Numbers:
    assert dqn.acting_kernel is not None
    return {f"action at {epsilon}": dqn.acting_kernel(*data, epsilon) for epsilon in (0.0, 0.3, 1.0)}


def chosen_by_torch(dqn: DQN, data: Any) -> Numbers:
    return {f"action at {epsilon}": dqn.config.exploration.choose(*data, epsilon) for epsilon in (0.0, 0.3, 1.0)}


def greedy_variants() -> Iterator[Variant]:
    for (name, spaces), layers in product(SPACES.items(), ([16], [16, "b"], [16, "l"])):
        make = partial(make_dqn, spaces=spaces, net={"name": "mlp", "net_arch": layers, "activation": "tanh"})

        def data(make: Any = make, spaces: Any = spaces) -> Any:
            seen, *rest = choice_data(spaces)
            with torch.no_grad():
                return make().values(seen), *rest

        yield Variant(choices.GREEDY, f"{name}, {layers}", make, data, chosen_by_hand, chosen_by_torch)
