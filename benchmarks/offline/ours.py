"""palestra: `python -m benchmarks.offline.ours WORK`. All seconds are those of the processor.

WORK: {"kind": one of WORKS, "seed": ..., "timed_seconds": ..., "num_threads": ...}, and what the kind needs.
"""

import ctypes
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

import palestra
from benchmarks.measuring import status_kib
from benchmarks.offline.settings import BATCH_SIZE, COLUMNS, HIDDEN, NUM_ACTIONS, NUM_NUMBERS, words_of
from benchmarks.peers.floor import Product, forward, input_gradients, weight_gradients
from benchmarks.peers.script import Work, answer, versions_of
from palestra.buffers.data_set import DataSetReplay
from palestra.buffers.replay import ReplayBuffer, UniformReplayConfig
from palestra.commands.starting import starting_config
from palestra.evaluation.episodes import play_episodes
from palestra.games.world import WorldGame
from palestra.kinds.games.collecting import collect_play, write_columns
from palestra.kinds.games.stored import open_to_play
from palestra.run.kinds import read_config
from palestra.runtime.intervals import count

QUIET = ("output.save=null", "output.recorders=[]", "output.display=quiet", "stop.after=1000000000")
CPU = torch.device("cpu")


def write_rows(file: Path, num: int, episode_length: int = 200) -> None:
    """Random rows of Hopper's shapes, with true next observations; every second episode is cut off."""
    generator, places = np.random.default_rng(0), np.arange(num)
    is_last, is_cut = places % episode_length == episode_length - 1, places // episode_length % 2 == 1
    columns = {
        "observation.observation": generator.standard_normal((num, NUM_NUMBERS), dtype=np.float32),
        "action": generator.uniform(-1.0, 1.0, (num, NUM_ACTIONS)).astype(np.float32),
        "reward": generator.standard_normal(num, dtype=np.float32),
        "terminated": is_last & ~is_cut,
        "truncated": is_last & is_cut,
        "episode": places // episode_length,
        "next_observation.observation": generator.standard_normal((num, NUM_NUMBERS), dtype=np.float32),
    }
    np.savez(file, **columns)


def config_of(algorithm: str, rows: str, *changes: str) -> Any:
    name, *words = words_of(algorithm, rows)
    return starting_config(name, [*words, *QUIET, *changes])


def make_trainer(algorithm: str, rows: str, *changes: str) -> Any:
    return palestra.make_trainer(config_of(algorithm, rows, *changes))


def rate(do: Callable[[], int], timed_seconds: float) -> dict[str, Any]:
    """Let `do` work, which says how much, until the seconds have passed; its first call warms up."""
    do()
    num, began = 0, time.process_time()
    while (seconds := time.process_time() - began) < timed_seconds:
        num += do()
    return {"opt_steps": num, "cpu_seconds": seconds}


# ---- opt steps -------------------------------------------------------------------------------------------


def opt_steps(work: Work) -> dict[str, Any]:
    """Those of the whole trainer ("fit"), or of the algorithm alone ("bare"), with the draw of their batches."""
    trainer = make_trainer(work["algorithm"], work["rows"], f"seed={work['seed']}")
    player = trainer.players["agent"]
    trainer.fit(200, "opt_steps")

    def bare() -> int:
        for _ in range(20):
            player.algorithm.opt_step(player.replay_buffer.sample(BATCH_SIZE))
            count(player, opt_steps=1)
        return 20

    def fit() -> int:
        before = trainer.opt_steps
        trainer.fit(1, "epochs")
        return int(trainer.opt_steps - before)

    return rate(bare if work["loop"] == "bare" else fit, work["timed_seconds"])


def products_of(algorithm: str) -> list[Product]:
    """The matrix products of two opt steps. What reaches no weight (the gradient of an observation) is left out."""
    policy, value = (NUM_NUMBERS, *HIDDEN, NUM_ACTIONS), (NUM_NUMBERS, *HIDDEN, 1)
    critic = (NUM_NUMBERS + NUM_ACTIONS, *HIDDEN, 1)

    def learned(sizes: tuple[int, ...]) -> list[Product]:
        return [each for products in (forward, weight_gradients) for each in products(BATCH_SIZE, sizes)] + (
            input_gradients(BATCH_SIZE, sizes[1:])
        )

    seen, judged = forward(BATCH_SIZE, policy), forward(BATCH_SIZE, critic)
    if algorithm == "bc":
        return 2 * learned(policy)
    if algorithm == "iql":  # the target critics, V(s'), and all that learn
        return 2 * [
            *judged,
            *judged,
            *forward(BATCH_SIZE, value),
            *learned(value),
            *(2 * learned(critic)),
            *learned(policy),
        ]
    if algorithm == "awac":  # the policy and target critics at s', critics of the policy's own actions at s
        return 2 * [*seen, *(4 * judged), *(2 * learned(critic)), *learned(policy)]
    of_policy = [*judged, *input_gradients(BATCH_SIZE, critic), *learned(policy)]  # in every second step
    return [*(2 * [*seen, *judged, *judged, *learned(critic), *learned(critic)]), *of_policy]


@torch.no_grad()
def products(work: Work) -> dict[str, Any]:
    found = products_of(work["algorithm"])
    factors = [(torch.rand(m, k), torch.rand(k, n), torch.empty(m, n)) for m, k, n in found]

    def multiply() -> int:
        for left, right, out in factors:
            torch.mm(left, right, out=out)
        return 2

    return rate(multiply, work["timed_seconds"])


# ---- the memory --------------------------------------------------------------------------------------------


def batches(work: Work) -> dict[str, Any]:
    """Batches of a uniform buffer ("uniform"), or half of a data set with the same rows, and half of own ones."""
    data = make_trainer("iql", work["rows"]).players["agent"].replay_buffer.data
    rows: dict[str, Tensor] = data.rows(0, len(data))
    every = torch.ones(len(data), dtype=torch.bool)
    if work["memory"] == "uniform":
        keys = {"name": "uniform", "capacity": len(data), "layout": "whole", "scratch_folder": None}
        buffer = ReplayBuffer(UniformReplayConfig.model_validate(keys), CPU, 0, "replay")
    else:
        changes = ("replay_buffer.share_of_data=0.5", f"replay_buffer.capacity={len(data)}")
        both = make_trainer("iql", work["rows"], *changes).players["agent"].replay_buffer
        assert isinstance(both, DataSetReplay)
        buffer = both
    buffer.add(rows, every)

    def draw() -> int:
        for _ in range(100):
            buffer.sample(BATCH_SIZE)
        return 100

    return rate(draw, work["timed_seconds"])


def ready(work: Work) -> dict[str, Any]:
    """Seconds in which a file is read and hashed ("hash"), loaded by NumPy ("load"), or ready to learn from ("ready").

    Without those that a training with few rows needs. It also gives the bytes in memory, for each byte of the file.
    """
    file = Path(work["rows"])

    def hashed() -> None:
        with file.open("rb") as content:
            hashlib.file_digest(content, "sha256")

    def loaded() -> None:
        with np.load(file, allow_pickle=False) as columns:
            for name in columns.files:
                columns[name]

    def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
        began = time.process_time()
        kept = call()
        return time.process_time() - began, kept

    if work["what"] != "ready":
        hashed()  # the file lies in the system's cache from now on
        return {"cpu_seconds": seconds_of(hashed if work["what"] == "hash" else loaded)[0]}
    own = "replay_buffer." + COLUMNS.partition(".")[2].replace(
        "next_observation: null", "next_observation: {observation: [next_observation.observation]}"
    )
    with TemporaryDirectory() as place:
        write_rows(few := Path(place) / "few.npz", 1000)
        with_few = config_of("iql", str(few), own)
        palestra.make_trainer(with_few)
        without, _ = seconds_of(lambda: palestra.make_trainer(with_few))
        config = read_config(with_few.model_dump(), [f"replay_buffer.file={file}"])
        hashed()
        before = status_kib("VmRSS")
        seconds, trainer = seconds_of(lambda: palestra.make_trainer(config))
    data = trainer.players["agent"].replay_buffer.data
    ctypes.CDLL(None).malloc_trim(0)  # what was freed, and is kept for later, does not count
    resident, num_bytes = 1024 * (status_kib("VmRSS") - before), file.stat().st_size
    peak = 1024 * (status_kib("VmHWM") - before)
    assert len(data) == work["num_rows"]
    memory = {"resident_per_byte": resident / num_bytes, "peak_per_byte": peak / num_bytes}
    return {"cpu_seconds": seconds - without, **memory}


# ---- recording ---------------------------------------------------------------------------------------------


def collect(work: Work) -> dict[str, Any]:
    """Seconds per row of `palestra data collect` ("collect"), or of an evaluation with as many worlds ("play")."""
    num_rows = work["num_rows"]
    with TemporaryDirectory() as place:
        changes = [
            "warmup_env_steps=0",
            "stop.after=100",
            "evaluations=[]",
            "best=null",
            "output.recorders=[]",
            "execution.compile=false",
        ]
        run = Path(place) / "run"
        palestra.make_trainer(starting_config("sac-hopper", [*changes, "output.display=quiet"]), run=run).fit()
        stored = open_to_play(run)
        stored.load("latest")
        policy, game = stored.players["agent"].policy(explore=False), stored.game
        assert isinstance(game, WorldGame)
        play_episodes(game, policy, 3, 1, 1000, 0)
        began = time.process_time()
        if work["what"] == "collect":
            columns = collect_play(stored, {}, None, num_rows, 0)
            write_columns(Path(place) / "rows.npz", columns)
            num = len(columns["reward"])
        else:
            num = 0
            while num < num_rows:
                num += int(play_episodes(game, policy, 100, 1, 1000, 0).lengths.sum())
        return {"opt_steps": num, "cpu_seconds": time.process_time() - began}


WORKS = {each.__name__: each for each in (opt_steps, products, batches, ready, collect)}


def measure(work: Work) -> dict[str, Any]:
    torch.set_num_threads(work["num_threads"])
    return WORKS[work["kind"]](work) | {"versions": versions_of("palestra", "gymnasium", "torch", "numpy")}


if __name__ == "__main__":
    answer(measure)
