"""What hand-written kernels earn: updates and choices with and without each of them, measured alternately.

To run: python -m benchmarks.kernels
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from palestra.algorithms.dqn import DQN, DQNConfig
from palestra.algorithms.kernels.greedy import Greedy
from palestra.config import check, load_yaml
from palestra.games.spaces import Discrete, Space
from palestra.nets.inputs import made_up
from palestra.players.player import Player
from palestra.rollouts.transitions import Transitions
from palestra.runtime.guard import kernel_properties, reachable
from palestra.runtime.threads import limited_threads

NUM_REPEATS, SECONDS = 21, 0.1
WIDTHS = [64], [256, 256]
SPACES = {"observation": Space((4,), torch.float32, padded=False)}


def make_dqn(without: tuple[str, ...], net_arch: list[int]) -> DQN:
    """The player of dqn-cartpole with layers of these widths, some of whose kernels are missing."""
    config = load_yaml(Path("configs/dqn-cartpole.yml"))["players"]["agent"]["algorithm"]
    config["net"]["net_arch"] = net_arch
    player = Player("agent", ("agent",), SPACES, Discrete(2), torch.device("cpu"), seed=0, compile=False, by_hand=True)
    dqn = DQN(check(config, DQNConfig), player)
    for part in reachable(dqn):
        for name in kernel_properties(type(part)):
            if name in without:
                vars(part)[name] = None
    return dqn


def batch_of(num: int) -> Transitions:
    keys = torch.arange(num)
    legal = torch.ones(num, 2, dtype=torch.bool)
    return Transitions(
        observation=made_up(SPACES, keys),
        action=keys % 2,
        reward=torch.ones(num),
        next_observation=made_up(SPACES, keys + num),
        next_legal=legal,
        terminated=keys % 7 == 0,
        truncated=torch.zeros(num, dtype=torch.bool),
        valid=torch.ones(num, dtype=torch.bool),
        extras={},
        legal=legal,
        always_legal=True,
    )


def seconds(call: Callable[[], Any]) -> float:
    """Of one call, by as many as fill a moment."""
    start, num = perf_counter(), 0
    while perf_counter() - start < SECONDS:
        call()
        num += 1
    return (perf_counter() - start) / num


def tell(what: str, ways: dict[str, Callable[[], Any]]) -> None:
    """The median time of every way, and its ratio to the first one's in the same repeat."""
    repeats = [{name: seconds(call) for name, call in ways.items()} for _ in range(NUM_REPEATS)]
    first, *_ = ways
    for name in ways:
        time, ratio = median(r[name] for r in repeats), median(r[name] / r[first] for r in repeats)
        print(f"{what:>32} {name:<36} {time * 1e6:8.1f} us  {ratio:.2f}")


def updates(widths: list[int]) -> dict[str, Callable[[], Any]]:
    rows = batch_of(64).rows()
    dqns = {
        "by hand": make_dqn((), widths),
        "without gradient_kernel": make_dqn(("gradient_kernel",), widths),
        "by autograd": make_dqn(("gradient_kernel", "learning_mlps"), widths),
    }
    return {name: partial(dqn.opt_step, rows) for name, dqn in dqns.items()}


def choices(num_worlds: int) -> dict[str, Callable[[], Any]]:
    keys = torch.arange(num_worlds)
    legal = torch.ones(num_worlds, 2, dtype=torch.bool)
    by_hand, in_two, without = make_dqn((), WIDTHS[-1]), make_dqn((), WIDTHS[-1]), make_dqn((), WIDTHS[-1])
    vars(in_two)["acting_kernel"], vars(without)["acting_kernel"] = Greedy(in_two.values), None
    dqns = {"by hand": by_hand, "in two kernels": in_two, "without acting_kernel": without}
    return {name: partial(choose, dqn, made_up(SPACES, keys), legal, keys) for name, dqn in dqns.items()}


def choose(dqn: DQN, seen: dict[str, torch.Tensor], legal: torch.Tensor, keys: torch.Tensor) -> None:
    dqn.policy(explore=True).act(seen, legal, keys, {})


def main() -> None:
    for widths in WIDTHS:
        tell(f"DQN update, widths {widths}", updates(widths))
    for num_worlds in (8, 1024):
        tell(f"DQN choice, {num_worlds} worlds", choices(num_worlds))


if __name__ == "__main__":
    with limited_threads(1):
        main()
