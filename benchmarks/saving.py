"""What it costs to save and to load replay buffers, as they grow: seconds, bytes written, memory.

    python -m benchmarks.saving [--quick] [--folder FOLDER]

Each buffer is measured in a process of its own, which fills it, saves it for the first time, saves it again after 1,000
and after 10,000 more rows, and loads it. `floats`: transitions of 17 floats and 6 actions. `images`: stacks of four
84x84 frames of chance in 8 worlds, episodes of 500 steps. Linux only (peaks are read from /proc).
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from palestra.buffers.replay import Layout, ReplayBuffer, UniformReplayConfig
from palestra.storage import Checkpoints, RunFolder

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
HEADER = (
    "| buffer | layout | rows | its memory, MiB | first save, s | MiB written | peak, MiB "
    "| 1,000 new rows: s | MiB written | 10,000 new rows: s | MiB written | load, s | peak, MiB | without rows, s |"
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


def status(name: str) -> float:
    """A line of /proc/self/status in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def written() -> float:
    """What this process has handed to the disk, in MiB."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) / MIB for line in lines if line.startswith("wchar"))


def measure(work: Callable[[], object]) -> tuple[float, float, float]:
    """Seconds, MiB written, and MiB that the process had at most beyond those before."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, written_before, started = status("VmRSS"), written(), time.perf_counter()
    work()
    return time.perf_counter() - started, written() - written_before, status("VmHWM") - before


def make_buffer(layout: Layout, capacity: int) -> ReplayBuffer:
    config = UniformReplayConfig(name="uniform", capacity=capacity, layout=layout, scratch_folder=None)
    return ReplayBuffer(config, CPU, 0, "replay")


def measure_saving(kind: str, layout: Layout, num: int, run: RunFolder) -> list[float]:
    """The columns from the buffer's memory to the last of MiB written."""
    warm, add = make_buffer(layout, 100), add_floats if kind == "floats" else Film()
    add(warm, 80)  # kernels are compiled, libraries loaded
    warm.packed_rows(0, 80)
    buffer = make_buffer(layout, num + 2 * sum(NEW_ROWS))
    before = status("VmRSS")
    add(buffer, num)
    columns = [status("VmRSS") - before]
    checkpoints = Checkpoints(run, keep_last=1, keep_every=None)
    save: Callable[[int], object] = lambda number: checkpoints.save(number, {}, {}, {"agent": buffer}, 0)  # noqa: E731
    columns += measure(lambda: save(0))
    for number, new in enumerate(NEW_ROWS):
        add(buffer, new)
        columns += measure(lambda number=number: save(number + 1))[:2]  # type: ignore[misc]
    return columns


def measure_loading(layout: Layout, num: int, run: RunFolder) -> list[float]:
    """The columns that tell of loading. The peak is beyond the buffer that is filled."""
    checkpoints, buffer = Checkpoints(run, keep_last=1, keep_every=None), make_buffer(layout, num + 2 * sum(NEW_ROWS))
    before = status("VmRSS")
    seconds, _, peak = measure(lambda: checkpoints.restore_buffers(checkpoints.load("latest"), {"agent": buffer}))
    return [seconds, peak - (status("VmRSS") - before), measure(lambda: checkpoints.load("latest"))[0]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small buffers: a smoke run, its figures mean nothing")
    parser.add_argument("--folder", type=Path, help="where to save; the system's temporary folder if left out")
    parser.add_argument("--part", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        what, kind, layout, num, folder = arguments.part
        run = RunFolder.create_at(Path(folder)) if what == "save" else RunFolder(Path(folder))
        done = measure_saving(kind, layout, int(num), run) if what == "save" else measure_loading(layout, int(num), run)
        print(json.dumps(done))
        return
    print(HEADER)
    print("|" + "---|" * (HEADER.count("|") - 1))
    for kind, layout, num in BUFFERS:
        size = num // 100 if arguments.quick else num
        with TemporaryDirectory(dir=arguments.folder) as folder:
            columns: list[float] = []
            for what in ("save", "load"):
                command = [what, kind, layout, str(size), str(Path(folder) / "run")]
                child = [sys.executable, "-m", "benchmarks.saving", "--part", *command]
                columns += json.loads(subprocess.run(child, check=True, capture_output=True, text=True).stdout)
        numbers = " | ".join(f"{column:,.2f}" if column < 10 else f"{column:,.0f}" for column in columns)
        print(f"| {kind} | {layout} | {size:,} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
