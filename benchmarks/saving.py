"""What it costs to save and to load replay buffers, as they grow: seconds, bytes written, memory.

    python -m benchmarks.saving [--quick] [--folder FOLDER]

One process fills a buffer, saves it for the first time, and again after 1,000 and after 10,000 more rows; another one
loads it. Seconds by the clock, in parentheses those of the processor; a peak is beyond the buffer's own memory.
`floats`: transitions of 17 floats and 6 actions. `images`: stacks of four 84x84 frames of chance in 8 worlds, episodes
of 500 steps. Linux only (peaks are read from /proc).
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from benchmarks.measuring import status_kib
from palestra.buffers.replay import Layout, ReplayBuffer, UniformReplayConfig
from palestra.run.checkpoints import Checkpoints
from palestra.storage.records_file import Measure
from palestra.storage.run_folder import RunFolder

CPU = torch.device("cpu")
MIB = 1 << 20
NUM_WORLDS, EPISODE = 8, 500
BUFFERS: list[tuple[str, Layout, int]] = [
    ("floats", "whole", 10_000),
    ("floats", "whole", 100_000),
    ("floats", "whole", 1_000_000),
    ("images", "whole", 10_000),
    ("images", "frames_once", 10_000),
    ("images", "frames_once", 100_000),
]
NEW_ROWS = (1_000, 10_000)
COLUMNS = (
    *("buffer", "layout", "rows", "its memory, MiB", "first save", "peak, MiB", "1,000 new rows", "10,000 new rows"),
    *("load", "peak, MiB", "load without rows"),
)
Add = Callable[[ReplayBuffer, int], None]


# ---- rows --------------------------------------------------------------------------------------------


def add_floats(buffer: ReplayBuffer, num: int) -> None:
    rng = np.random.default_rng(buffer.num_added)
    shapes = {"observation.observation": 17, "next_observation.observation": 17, "action": 6}
    for start in range(0, num, 1000):
        size = min(1000, num - start)
        rows = {name: torch.from_numpy(rng.random((size, width), dtype=np.float32)) for name, width in shapes.items()}
        buffer.add(rows | others(size), torch.ones(size, dtype=torch.bool))


class Film:
    """Adds stacks of frames round by round, as roll-outs of a wrapper that repeats an episode's first frame."""

    def __init__(self) -> None:
        self.stacks = np.zeros((NUM_WORLDS, 4, 84, 84), dtype=np.uint8)
        self.rng, self.round = np.random.default_rng(0), 0

    def __call__(self, buffer: ReplayBuffer, num: int) -> None:
        for _ in range(num // NUM_WORLDS):
            frames = np.frombuffer(self.rng.bytes(NUM_WORLDS * 84 * 84), dtype=np.uint8).reshape(NUM_WORLDS, 1, 84, 84)
            if self.round % EPISODE == 0:
                self.stacks[:] = frames
            next_stacks = np.concatenate([self.stacks[:, 1:], frames], axis=1)
            images = {"observation.observation": self.stacks, "next_observation.observation": next_stacks}
            rows = {name: torch.from_numpy(stacks) for name, stacks in images.items()}
            action = {"action": torch.zeros(NUM_WORLDS, dtype=torch.int64)}
            buffer.add(rows | action | others(NUM_WORLDS), torch.ones(NUM_WORLDS, dtype=torch.bool))
            self.stacks = next_stacks
            self.round += 1


def others(num: int) -> dict[str, Tensor]:
    never = torch.zeros(num, dtype=torch.bool)
    return {"reward": torch.zeros(num), "terminated": never, "truncated": never}


# ---- measuring ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """Seconds by the clock and of the processor, MiB handed to the disk, MiB in memory at most beyond those before."""

    seconds: float
    processor: float
    written: float
    peak: float

    def __str__(self) -> str:
        times = f"{self.seconds:.2f} s ({self.processor:.2f})"
        return f"{times}, {number(self.written)} MiB" if self.written >= 0.005 else times


def cost_of(work: Callable[[], object]) -> Cost:
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, written = status_kib("VmRSS"), bytes_written()
    started, processor = time.perf_counter(), time.process_time()
    work()
    seconds, processor = time.perf_counter() - started, time.process_time() - processor
    return Cost(seconds, processor, (bytes_written() - written) / MIB, (status_kib("VmHWM") - before) / 1024)


def bytes_written() -> int:
    """What this process has handed to the disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def make_buffer(layout: Layout, capacity: int) -> ReplayBuffer:
    config = UniformReplayConfig(name="uniform", capacity=capacity, layout=layout, scratch_folder=None)
    return ReplayBuffer(config, CPU, 0, "replay")


def fill_and_save(kind: str, layout: Layout, num: int, path: Path) -> tuple[float, list[Cost]]:
    """The memory of a buffer, in MiB; what it costs to save it for the first time, and after more rows."""
    warm, add = make_buffer(layout, 80), add_floats if kind == "floats" else Film()
    add(warm, 80)  # kernels are compiled, libraries loaded
    warm.packed_rows(0, 80)
    buffer = make_buffer(layout, num + sum(NEW_ROWS))
    before = status_kib("VmRSS")
    add(buffer, num)
    memory = (status_kib("VmRSS") - before) / 1024
    checkpoints = Checkpoints(RunFolder.create_at(path), keep_last=1, keep_every=None)
    costs = []
    for number, new in enumerate((0, *NEW_ROWS)):
        add(buffer, new)
        costs.append(cost_of(partial(checkpoints.save, number, {}, {}, {"agent": buffer}, Measure([b""]).then())))
    return memory, costs


def load(layout: Layout, num: int, path: Path) -> list[Cost]:
    """Of the buffer that was saved, with the memory beyond its own; and of the rest alone."""
    checkpoints, buffer = Checkpoints(RunFolder(path), 1, None), make_buffer(layout, num + sum(NEW_ROWS))
    before = status_kib("VmRSS")
    whole = cost_of(lambda: checkpoints.restore_buffers(checkpoints.load("latest"), {"agent": buffer}))
    own = (status_kib("VmRSS") - before) / 1024
    return [replace(whole, peak=whole.peak - own), cost_of(lambda: checkpoints.load("latest", check_rows=False))]


def cells(part: str, kind: str, layout: Layout, num: int, path: Path) -> list[str]:
    """The cells of a line that one process measures."""
    if part == "save":
        memory, (first, *later) = fill_and_save(kind, layout, num, path)
        return [number(memory), str(first), number(first.peak), *map(str, later)]
    whole, without_rows = load(layout, num, path)
    return [str(whole), number(max(whole.peak, 0.0)), str(without_rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small buffers: a smoke run, its figures mean nothing")
    parser.add_argument("--folder", type=Path, help="where to save; the system's temporary folder if left out")
    parser.add_argument("--part", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.part:
        part, kind, layout, num, path = arguments.part
        print("\n".join(cells(part, kind, layout, int(num), Path(path))))
        return
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for kind, layout, num in BUFFERS:
        size = num // 100 if arguments.quick else num
        line = [kind, layout, f"{size:,}"]
        with TemporaryDirectory(dir=arguments.folder) as folder:
            for part in ("save", "load"):
                command = ["--part", part, kind, layout, str(size), f"{folder}/run"]
                child = [sys.executable, "-m", "benchmarks.saving", *command]
                line += subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        print(f"| {' | '.join(line)} |", flush=True)


if __name__ == "__main__":
    main()
