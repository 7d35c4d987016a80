"""What a run of many processes costs, from constants that one to four processes measure: docs/size.md says by which
formulas.

    python -m benchmarks.size [--quick] [--json FILE]
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.distributed import TCPStore

from palestra import make_trainer
from palestra.scaling.link import INLINE_BYTES, MOST_SENT_BYTES, Link, Notice
from palestra.scaling.means import Share, part_of
from palestra.scaling.ranks import Ranks
from palestra.scaling.states import digests, unshared
from palestra.storage.disk import Folder
from palestra.storage.stored_files import tensors_to_bytes
from palestra.training.lockstep import common_states

NODES, PER_NODE = (1, 16, 128, 1024), 8
NOTICE = Notice(False, 0.0)
QUIET = ["evaluations=[]", "best=null", "output.display=quiet", "output.recorders=[]", "output.save=null"]
# name: the config whose parameters, states and rows are counted, and its opt steps between two saves
WORKS = {"PPO on CartPole": "ppo-cartpole-batched", "DQN on Breakout": "dqn-breakout"}


@dataclass(frozen=True)
class Constants:
    """exchange_s, peer_s: of an exchange, and more for each further process. send_bytes_s: of long messages, by one
    process. digest_bytes_s: of states that are compared. write_bytes_s: of a checkpoint to the disk."""

    exchange_s: float
    peer_s: float
    send_bytes_s: float
    digest_bytes_s: float
    write_bytes_s: float


@dataclass(frozen=True)
class Work:
    """parameters: of all networks. shared_bytes, own_bytes: of a checkpoint's state: once, and for each replica.
    evaluation_share is not counted here: others wait for rank 0, unless `evaluators` names processes."""

    parameters: int
    shared_bytes: int
    own_bytes: int


def seconds_of(call: Callable[[], object], num: int) -> float:
    """The median time of a call."""
    found = []
    for _ in range(num):
        started = time.perf_counter()
        call()
        found.append(time.perf_counter() - started)
    return median(found)


def _measure(rank: int, num: int, port: int, num_calls: int, answer: Connection) -> None:
    said = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.environ.update(said | {"TORCHELASTIC_RUN_ID": "size"})
    torch.set_num_threads(1)
    link = Link(Ranks(rank, num, rank, num), 600.0, lambda: "measuring")
    link.open()
    long = part_of([Share(torch.ones(4_000_000), {}, None)])
    short = seconds_of(lambda: link.gather("nothing", None, NOTICE), 20 * num_calls)
    answer.send((short, seconds_of(lambda: link.sum(long, NOTICE), num_calls) - short))


def exchanges(num: int, num_calls: int) -> tuple[float, float]:
    """The seconds of an exchange of nothing, and those that 16 MB of gradients take longer."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context, (mine, theirs) = multiprocessing.get_context("spawn"), multiprocessing.Pipe()
    processes = [
        context.Process(target=_measure, args=(rank, num, store.port, num_calls, theirs)) for rank in range(num)
    ]
    for process in processes:
        process.start()
    found = [mine.recv() for _ in range(num)]
    for process in processes:
        process.join()
    return max(short for short, _ in found), max(long for _, long in found)


def constants(is_quick: bool) -> Constants:
    num_calls = 2 if is_quick else 20
    of_two, long = exchanges(2, num_calls)
    of_four, _ = exchanges(4, num_calls)
    peer_s = max(0.0, (of_four - of_two) / 2)
    state = {"weights": torch.rand(1_000_000 if is_quick else 16_000_000)}
    size = state["weights"].nbytes
    with tempfile.TemporaryDirectory() as place:
        folder = Folder(Path(place))
        write_s = seconds_of(lambda: folder.write("state", tensors_to_bytes(state)), 3)
    # both all-to-alls of two processes send half of the gradient
    sent = 2 * 16e6 / 2
    return Constants(
        of_two - 2 * peer_s, peer_s, sent / long, size / seconds_of(lambda: digests(state), 3), size / write_s
    )


def work_of(config: str) -> Work:
    with tempfile.TemporaryDirectory() as place:
        trainer = make_trainer(config, run=Path(place) / "run", overrides=[*QUIET, "stop.after=1"])
        state = trainer.state_dict()
        players: Any = trainer.learners
        num = sum(value.numel() for player in players for net in player.nets.values() for value in net.parameters())
        own = _size_of(unshared(state, common_states(trainer, state)))
        return Work(num, _size_of(state) - own, own)


def _size_of(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(_size_of, value.values()))
    return sum(map(_size_of, value)) if isinstance(value, list | tuple) else 8


def message_bytes(w: Work, num: int) -> int:
    """The length of each message of an exchange among `num` processes, where one mean is of all parameters."""
    most = max(256, MOST_SENT_BYTES // num)
    return 4 * w.parameters if INLINE_BYTES < 4 * w.parameters <= most else min(INLINE_BYTES, most)


def mean_s(w: Work, c: Constants, num: int) -> float:
    """The seconds of a mean of all parameters: one exchange if they fit into it, else three."""
    exchange_s, length = c.exchange_s + c.peer_s * num, message_bytes(w, num)
    if 4 * w.parameters <= length:
        return exchange_s + (num - 1) * length / c.send_bytes_s
    return 3 * exchange_s + 8 * w.parameters * (num - 1) / num / c.send_bytes_s


def lines_of(name: str, w: Work, c: Constants) -> Iterator[str]:
    """A line for each cost, with what it comes to on so many nodes."""
    for what, formula, unit in (
        ("an exchange", lambda W: 1e3 * (c.exchange_s + c.peer_s * W), "ms"),
        ("its messages, of each process", lambda W: W * message_bytes(w, W) / 1e6, "MB"),
        ("a mean", lambda W: 1e3 * mean_s(w, c, W), "ms"),
        ("a save: states compared", lambda W: w.shared_bytes / c.digest_bytes_s, "s"),
        ("a save: states to rank 0", lambda W: W * w.own_bytes / c.send_bytes_s, "s"),
        ("a save: written", lambda W: (w.shared_bytes + W * w.own_bytes) / c.write_bytes_s, "s"),
        ("a checkpoint, without replay rows", lambda W: (w.shared_bytes + W * w.own_bytes) / 1e6, "MB"),
        ("a resume: read by all processes", lambda W: W * (w.shared_bytes + W * w.own_bytes) / 1e9, "GB"),
    ):
        values = " | ".join(f"{formula(PER_NODE * nodes):.3g}" for nodes in NODES)
        yield f"| {name} | {what} | {unit} | {values} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: its figures mean nothing")
    parser.add_argument("--json", type=Path, help="write the constants to this file, too")
    arguments = parser.parse_args()
    found = constants(arguments.quick)
    works = {name: work_of(config) for name, config in list(WORKS.items())[: 1 if arguments.quick else None]}
    print("| work | cost | unit | " + " | ".join(f"{nodes:,} x {PER_NODE}" for nodes in NODES) + " |")
    print("|---|---|---|" + "---|" * len(NODES))
    for name, work in works.items():
        print(*lines_of(name, work, found), sep="\n")
    print("\n" + ", ".join(f"{name} {value:.3g}" for name, value in asdict(found).items()))
    if arguments.json is not None:
        data = {"constants": asdict(found), "works": {name: asdict(work) for name, work in works.items()}}
        arguments.json.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
