"""Save checkpoints in a child process, SIGKILL it at a random moment, load and check what is left, go on; many times.

Prints the number of kills, of checkpoints saved, and of kills that left an unfinished save. Fails if anything loaded is
not exactly what was saved, or if a checkpoint whose save had returned was lost.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from palestra.run.checkpoints import Checkpoints
from palestra.run.loaded_checkpoint import LoadedCheckpoint
from palestra.storage.run_folder import RunFolder
from tests.run.ring import NONE, Ring

NUM_KILLS = 60
ROWS_PER_SAVE = 7
CAPACITY = 40


def make_checkpoints(run: RunFolder) -> Checkpoints:
    return Checkpoints(run, keep_last=2, keep_every=10, segment_rows=16)


def state_at(number: int) -> dict[str, Any]:
    return {"number": number, "weights": torch.arange(2000) + number, "nested": [{"x": number / 7}]}


def restore(checkpoints: Checkpoints, ring: Ring) -> LoadedCheckpoint:
    loaded = checkpoints.load("latest")
    assert not loaded.warnings, loaded.warnings
    number = loaded.state["number"]
    expected = state_at(number)
    assert torch.equal(loaded.state.pop("weights"), expected.pop("weights"))
    assert loaded.state == expected
    checkpoints.restore_buffers(loaded, {"host": ring})
    whole = Ring(CAPACITY)
    whole.add(number * ROWS_PER_SAVE)
    assert (ring.num_added, ring.held) == (whole.num_added, whole.held)
    return loaded


def save_until_killed(run: RunFolder, begun: Path, returned: int) -> None:
    with run.lock():
        checkpoints = make_checkpoints(run)
        ring = Ring(CAPACITY)
        number = restore(checkpoints, ring).state["number"] if checkpoints.numbers() else 0
        while True:
            number += 1
            ring.add(ROWS_PER_SAVE)
            with open(begun, "ab") as file:
                file.write(b".")
            name = checkpoints.save(number, state_at(number), {}, {"host": ring}, records=NONE)
            os.pwrite(returned, name.encode(), 0)
            if number % 4 == 0:
                checkpoints.mark_best(name)


def main(folder: Path) -> None:
    torch.set_num_threads(1)  # a fork must not inherit a pool of threads
    rng = random.Random(0)
    run = RunFolder.create(folder, "run")
    returned = os.open(folder / "returned", os.O_RDWR | os.O_CREAT)  # the last checkpoint whose save returned
    begun = folder / "begun"  # a byte for each save that began
    begun.touch()
    last = num_in_the_middle = 0
    for _ in range(NUM_KILLS):
        awaited = begun.stat().st_size + rng.randint(1, 3)
        child = os.fork()
        if child == 0:
            try:
                save_until_killed(run, begun, returned)
            finally:
                os._exit(1)
        while begun.stat().st_size < awaited:
            time.sleep(0.001)
        time.sleep(rng.uniform(0.0, 0.02))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the child failed before it was killed"
        num_in_the_middle += any(path.name.startswith(".") for path in run.checkpoints.path.iterdir())
        saved = max(last, int(os.pread(returned, 8, 0) or 0))
        if make_checkpoints(run).numbers():
            last = restore(make_checkpoints(run), Ring(CAPACITY)).state["number"]
        assert saved <= last <= saved + 1, f"checkpoint {saved} was saved, {last} was loaded"
    print(NUM_KILLS, last, num_in_the_middle)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
