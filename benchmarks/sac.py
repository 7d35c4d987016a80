"""One update of SAC beside torch's products of its matrices: by hand, by autograd, and compiled; one run, one table.

    python -m benchmarks.sac [--threads N] [--seconds S] [--repeats N] [--json FILE]

The sizes are those of HalfCheetah, the settings those of configs/sac-halfcheetah.yml. An update is all of an opt step:
the sample from the replay memory, the noise, critics, policy, entropy coefficient and targets. The ratio is the share
of the floor: the time that the products alone take, over that of the update.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import learning_settings
from benchmarks.measuring import Row, alternate, markdown, rate_of
from benchmarks.peers.floor import products_of_update
from palestra.algorithms.sac import SAC, SACConfig
from palestra.config import load_config
from palestra.games.spaces import Box, Space
from palestra.kinds.games.config import RunConfig
from palestra.players.player import Player
from palestra.runtime.threads import limited_threads

CONFIG = Path(__file__).parents[1] / "configs" / "sac-halfcheetah.yml"
OBSERVATION_SIZE, ACTION_SIZE = 17, 6
NUM_STORED = 100_000
CPU = torch.device("cpu")


def make_sac(by_hand: bool, is_compiled: bool) -> SAC:
    """The algorithm of the shipped config, with random transitions in its memory."""
    config = load_config(CONFIG, (), RunConfig).players["agent"].algorithm  # type: ignore[union-attr]
    assert isinstance(config, SACConfig)
    spaces = {"observation": Space((OBSERVATION_SIZE,), torch.float32, padded=False)}
    actions = Box((-1.0,) * ACTION_SIZE, (1.0,) * ACTION_SIZE)
    sac = config.build(Player("agent", ("agent",), spaces, actions, CPU, seed=0, compile=is_compiled, by_hand=by_hand))
    no_flags, never = torch.ones(NUM_STORED, 0, dtype=torch.bool), torch.zeros(NUM_STORED, dtype=torch.bool)
    rows = {
        "observation.observation": torch.randn(NUM_STORED, OBSERVATION_SIZE),
        "next_observation.observation": torch.randn(NUM_STORED, OBSERVATION_SIZE),
        "extras.legal": no_flags,
        "action": 2.0 * torch.rand(NUM_STORED, ACTION_SIZE) - 1.0,
        "reward": torch.randn(NUM_STORED),
        "next_legal": no_flags,
        "terminated": never,
        "truncated": never,
    }
    sac.buffer.add(rows, ~never)
    return sac


def updates(sac: SAC) -> Callable[[], float]:
    """Does one opt step."""

    def update() -> float:
        sac.opt_step(sac.buffer.sample(sac.config.batch_size))
        sac.player.opt_steps += 1
        return 1.0

    return update


def bare_products() -> Callable[[], float]:
    """Does the matrix products of one opt step."""
    products = products_of_update(learning_settings.SAC_MUJOCO, OBSERVATION_SIZE, ACTION_SIZE)
    factors = [(torch.rand(m, k), torch.rand(k, n), torch.empty(m, n)) for m, k, n in products]

    def multiply() -> float:
        for left, right, out in factors:
            torch.mm(left, right, out=out)
        return 1.0

    return multiply


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="threads of the CPU")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per measurement")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each")
    parser.add_argument("--json", type=Path, help="where every value of every repeat goes")
    arguments = parser.parse_args()
    works = {
        "matrix products": bare_products(),
        "palestra": updates(make_sac(by_hand=True, is_compiled=False)),
        "palestra, by autograd": updates(make_sac(by_hand=False, is_compiled=False)),
        "palestra, by autograd, compiled": updates(make_sac(by_hand=False, is_compiled=True)),
    }
    with limited_threads(arguments.threads):
        for work in works.values():
            for _ in range(20):
                work()
        contenders = {name: rate_of(work, arguments.seconds) for name, work in works.items()}
        values = alternate(contenders, arguments.repeats)
    rows = Row.of("P7", "one update of SAC", "updates/s", arguments.threads, values, "matrix products")
    print(markdown(rows))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([row.to_json() for row in rows], indent=1))


if __name__ == "__main__":
    main()
