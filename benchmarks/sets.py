"""What packing the members of sets earns: the agent's network of configs/dqn-polyhedra.yml on boards of random play.

    python -m benchmarks.sets [--quick]

Boards are 256 at a time, as in an opt step. Padded sets compute all 20 places of a board, as they do on a GPU.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle

import torch
from torch import Tensor

from benchmarks.measuring import ROOT, Row, alternate, markdown, rate_of
from palestra import load_config
from palestra.algorithms.dqn import DQNConfig
from palestra.games.game import Observation, TensorGame
from palestra.nets import deep_sets, make_net
from palestra.nets.sets import PackedSets, PaddedSets
from palestra.players import make_script
from palestra.rollouts.fused import FusedGame

BATCH_SIZE, NUM_BATCHES = 256, 40


def boards() -> list[Observation]:
    """What the agent sees in random play."""
    game = load_config(ROOT / "configs" / "dqn-polyhedra.yml").game.build(torch.device("cpu"), "numba")
    assert isinstance(game, TensorGame)
    fused_game = FusedGame(game, {role: make_script("random", game) for role in game.roles})
    worlds = fused_game.new_worlds(BATCH_SIZE, 0, "benchmark")
    rows = [fused_game.collect(worlds, ("agent",), 1)["agent"] for _ in range(NUM_BATCHES + 10)]
    return [row.observation for row in rows[10:]]  # by then boards are of all ages


@contextmanager
def layout(kind: type[PackedSets | PaddedSets]) -> Iterator[None]:
    before = deep_sets.make_sets
    deep_sets.make_sets = kind
    try:
        yield
    finally:
        deep_sets.make_sets = before


def rows(num_threads: int, min_seconds: float, num_repeats: int) -> list[Row]:
    torch.set_num_threads(num_threads)
    config = load_config(ROOT / "configs" / "dqn-polyhedra.yml")
    game = config.game.build(torch.device("cpu"), "numba")
    algorithm = config.players["agent"].algorithm  # type: ignore[union-attr]
    assert isinstance(algorithm, DQNConfig)
    net = make_net(algorithm.net, game.spaces["agent"], 3, 0)
    batches, parameters = cycle(boards()), list(net.parameters())

    def forward() -> None:
        with torch.no_grad():
            net(next(batches))

    def gradient() -> None:
        loss: Tensor = net(next(batches)).square().mean()
        torch.autograd.grad(loss, parameters)

    def work(compute: Callable[[], None], kind: type[PackedSets | PaddedSets]) -> float:
        with layout(kind):
            compute()
        return 1.0

    found = []
    for name, compute in (("forward", forward), ("forward and backward", gradient)):
        contenders: dict[str, type[PackedSets | PaddedSets]] = {"padded": PaddedSets, "packed": PackedSets}
        measures = {key: rate_of(partial(work, compute, kind), min_seconds) for key, kind in contenders.items()}
        alternate(measures, 1)  # warm
        values = alternate(measures, num_repeats)
        found += Row.of("S1", f"newton_sets, {name}", "batches/s", num_threads, values, "padded")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: its figures mean nothing")
    quick = parser.parse_args().quick
    print(markdown([row for n in (1, 2) for row in rows(n, 0.0 if quick else 0.5, 1 if quick else 11)]))


if __name__ == "__main__":
    main()
