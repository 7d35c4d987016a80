"""Kill -9 at random moments: every algorithm trains in child processes that are killed again and again, many of them
inside a save, and what the last one leaves is compared with a run that was never interrupted.

    python tests/chaos.py --kills 200

Fails if a bit differs, or if a kill loses more than what lies between two saves. Children are forked, so that a kill
costs milliseconds and not an interpreter's start; tests/test_resume.py kills processes of their own.
"""

import argparse
import mmap
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from combinations import LEARNERS, Combination, combinations_of, config_of
from resuming import assert_same_bits, fit

import palestra.run.run
from palestra.kinds.games.trainer import Trainer
from palestra.run.checkpoints import Checkpoints
from palestra.storage.run_folder import RunFolder
from palestra.training.training import Training
from tests import leagues
from tests.kinds.games.test_given_data import GAMES, NO_PLAY, record_play
from tests.kinds.games.test_given_data import config_of as config_from_data
from tests.text.runs import RUNS, made_folder, registered_text_algorithms

TEXT = sorted(registered_text_algorithms())
FROM_DATA = "recorded play"  # from which any algorithm learns
LEAGUES = "leagues"  # of players that meet others, and past selves
SAVE_INTERVAL = 4  # opt steps
PATIENCE_S = 120.0
POLL_S = 0.0003


class Watch:
    """What a child tells its parent as it trains, through memory that both see: the last words outlive a kill."""

    FIELDS = ("safe_points", "saves_begun", "saves_ended", "opt_steps", "save_ns")

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 8 * len(self.FIELDS))

    def __getitem__(self, name: str) -> int:
        return struct.unpack_from("q", self.memory, 8 * self.FIELDS.index(name))[0]

    def __setitem__(self, name: str, value: int) -> None:
        struct.pack_into("q", self.memory, 8 * self.FIELDS.index(name), value)

    def forget(self) -> None:
        for name in ("safe_points", "saves_begun", "saves_ended", "opt_steps"):
            self[name] = 0

    @property
    def is_saving(self) -> bool:
        return self["saves_begun"] > self["saves_ended"]


@dataclass
class Tally:
    """What was done so far."""

    runs: int = 0
    kills: int = 0
    in_a_save: int = 0
    before_the_first_checkpoint: int = 0
    most_lost: int = 0
    by_algorithm: dict[str, int] = field(default_factory=dict)

    def count(self, algorithm: str, watch: Watch, is_first: bool) -> None:
        self.kills += 1
        self.in_a_save += watch.is_saving
        self.before_the_first_checkpoint += is_first
        self.by_algorithm[algorithm] = self.by_algorithm.get(algorithm, 0) + 1


# ---- the child -------------------------------------------------------------------------------------------


def let_trainings_tell(watch: Watch) -> None:
    """Let every training of this process and of its children tell how far it is."""
    safe_point, save = Training.safe_point, Training.save

    def telling_safe_point(training: Any) -> None:
        watch["opt_steps"] = training.opt_steps
        watch["safe_points"] += 1
        safe_point(training)

    def telling_save(training: Any, is_due: bool = True) -> None:
        watch["saves_begun"] += 1
        started = time.perf_counter_ns()
        save(training, is_due)
        watch["save_ns"] = time.perf_counter_ns() - started
        watch["saves_ended"] += 1

    Training.safe_point, Training.save = telling_safe_point, telling_save  # type: ignore[method-assign]


Begin = dict[str, Any] | Callable[[Path], Training]  # what a run begins with: its config, or what makes it


def train(run: Path, begin: Begin) -> None:
    """Begin the run, or go on with it."""
    if (run / "run.json").exists():
        fit(run)
    elif callable(begin):
        begin(run).fit()
    else:
        fit(run, begin)


def forked(run: Path, begin: Begin) -> int:
    """The process id of a child that trains."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    try:
        train(run, begin)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


# ---- the parent ------------------------------------------------------------------------------------------


def has_ended(child: int) -> bool:
    """Whether the child is done. Fails where it failed."""
    pid, status = os.waitpid(child, os.WNOHANG)
    assert not (pid and status), f"the child failed with status {status}"
    return pid != 0


def kill_at_random(child: int, watch: Watch, rng: random.Random) -> bool:
    """Kill the child between two of its next safe points, or inside one of its next saves; False if it had ended."""
    inside_a_save, number = rng.random() < 0.6, rng.randint(1, 3)
    wanted = ("saves_begun", number) if inside_a_save else ("safe_points", 2 * number)
    deadline = time.monotonic() + PATIENCE_S
    while watch[wanted[0]] < wanted[1]:
        if has_ended(child):
            return False
        assert time.monotonic() < deadline, f"the child does not get on: {watch[wanted[0]]} of {wanted}"
        time.sleep(POLL_S)
    time.sleep(rng.uniform(0.0, 1.0) * (watch["save_ns"] or 5_000_000) / 1e9)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), f"the child failed with status {status}"
    return status == signal.SIGKILL


def last_saved(run: Path) -> int | None:
    """Opt steps of the checkpoint that the next process begins with; None: there is none."""
    folder = RunFolder(run)
    checkpoints = Checkpoints(folder, keep_last=1, keep_every=None)
    if not (run / "run.json").exists() or not checkpoints.numbers():
        return None
    loaded = checkpoints.load("latest")
    assert not loaded.warnings, loaded.warnings
    return loaded.counters["opt_steps"]


def suffer(
    algorithm: str,
    begin: Begin,
    folder: Path,
    kills: int,
    rng: random.Random,
    tally: Tally,
    watch: Watch,
) -> None:
    """One run, killed up to `kills` times, beside one that is left alone; the two are compared."""
    run = folder / "run"
    train(folder / "uninterrupted", begin)
    for _ in range(kills):
        watch.forget()
        if not kill_at_random(forked(run, begin), watch, rng):
            break
        saved = last_saved(run)
        lost = watch["opt_steps"] - (saved or 0)
        assert lost <= SAVE_INTERVAL, f"{algorithm}: a kill at opt step {watch['opt_steps']} goes back to {saved}"
        tally.most_lost = max(tally.most_lost, lost)
        tally.count(algorithm, watch, saved is None)
        if run.exists() and not (run / "run.json").exists():  # no run yet
            shutil.rmtree(run)
    else:
        _, status = os.waitpid(forked(run, begin), 0)
        assert status == 0, f"the last child failed with status {status}"
    assert_same_bits(run, folder / "uninterrupted")
    tally.runs += 1


Plan = tuple[Combination | str, Begin]


def plans(algorithm: str, num_opt_steps: int, rng: random.Random) -> Iterator[Plan]:
    """Combinations in which the algorithm learns, at random, as runs of that length."""
    candidates = [c for c in combinations_of(algorithm) if c.get("vectorization") != "async"]
    while True:
        combination = rng.choice(candidates)
        config = config_of(algorithm, combination)
        config["seed"] = rng.randrange(1000)
        config["stop"] = {"after": num_opt_steps, "unit": "opt_steps"}
        config["output"]["save"] = {"every": SAVE_INTERVAL, "unit": "opt_steps"}
        config["evaluations"][0]["interval"] = {"every": 10, "unit": "opt_steps"}
        yield combination, config


def league_plans(_: str, num_opt_steps: int, rng: random.Random) -> Iterator[Plan]:
    """The same, of players that meet others and past selves, some of them learning in turn."""
    while True:
        name, normalized, explores = rng.choice(list(leagues.LEARNERS)), rng.random() < 0.5, rng.random() < 0.5
        config = leagues.league(leagues.LEARNERS[name], normalized, explores, seed=rng.randrange(1000))
        config["stop"]["after"] = num_opt_steps
        config["output"]["save"]["every"] = SAVE_INTERVAL
        if in_turn := rng.random() < 0.5:
            for phase, player in enumerate(("main", "exploiter")):
                updates = {"name": "alternating_periodic", "period": 2, "phase": phase}
                config["players"][player]["updates"] = updates
        yield f"{name}, {normalized=}, {explores=}, {in_turn=}", config


def text_plans(algorithm: str, num_opt_steps: int, rng: random.Random) -> Iterator[Plan]:
    """The same, of players that talk in words, whose steps are fewer and longer."""
    with tempfile.TemporaryDirectory(prefix="palestra-chaos-") as models:
        folder = made_folder(Path(models))
        while True:
            name = rng.choice([name for name in RUNS if algorithm in name])
            config = RUNS[name](folder)
            config["seed"] = rng.randrange(1000)
            config["stop"] = {"after": num_opt_steps // 2, "unit": "opt_steps"}
            config["output"]["save"] = {"every": SAVE_INTERVAL, "unit": "opt_steps"}
            yield name, config


def data_plans(_: str, num_opt_steps: int, rng: random.Random) -> Iterator[Plan]:
    """The same, of players that learn from recorded play: alone, with rows of their own, and in a branch into play."""
    with tempfile.TemporaryDirectory(prefix="palestra-chaos-") as place:
        files = {game: f"{place}/{game}.npz" for game in set(GAMES.values())}
        for game, file in files.items():
            record_play(file, game)
        for number in range(1000):
            algorithm, end = rng.choice(list(GAMES)), f"stop.after={num_opt_steps}"
            save, file = f"output.save.every={SAVE_INTERVAL}", files[GAMES[algorithm]]
            buffer = {"held_out": {"fraction": 0.5, "seed": 1}, "capacity": 40, "share_of_data": 0.5}
            play = rng.choice([{}, NO_PLAY])
            whole = config_from_data(algorithm, file, (save, end), updates_per_turn=2, replay_buffer=buffer, **play)
            yield f"{algorithm}, {'alone' if play else 'with play'}", whole
            if play:
                train(run := Path(place) / f"{number}", whole)
                changes = ["players.agent.algorithm.rollout_length=2", f"stop.after={2 * num_opt_steps}"]
                yield (
                    f"{algorithm}, a branch",
                    lambda into, at=run / "checkpoints/latest", to=changes: Trainer.branch(at, to, into),
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="at least so many, spread over the algorithms")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--algorithms", nargs="+", default=[*LEARNERS, FROM_DATA, LEAGUES, *TEXT], help="of these alone"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a fork must not inherit a pool of threads
    palestra.run.run.plot_scores = lambda *_: None
    started, rng, tally = time.monotonic(), random.Random(arguments.seed), Tally()
    watch = Watch()
    let_trainings_tell(watch)
    wanted = -(-arguments.kills // len(arguments.algorithms))
    for algorithm in arguments.algorithms:
        make_plans = {FROM_DATA: data_plans, LEAGUES: league_plans, **dict.fromkeys(TEXT, text_plans)}.get(
            algorithm, plans
        )
        for plan, begin in make_plans(algorithm, min(80, 8 * wanted + 8), rng):
            missing = wanted - tally.by_algorithm.get(algorithm, 0)
            if missing <= 0:
                break
            with tempfile.TemporaryDirectory(prefix="palestra-chaos-") as folder:
                try:
                    suffer(algorithm, begin, Path(folder), missing, rng, tally, watch)
                except AssertionError:
                    print(f"seed {arguments.seed}, {algorithm}, {plan}: {tally}", file=sys.stderr)
                    raise
    assert tally.in_a_save > 0, "no kill came inside a save"
    print(
        f"{tally.kills} kills ({', '.join(f'{name} {num}' for name, num in tally.by_algorithm.items())}) in "
        f"{tally.runs} runs, {tally.in_a_save} of them inside a save, {tally.before_the_first_checkpoint} before the "
        f"first checkpoint, {time.monotonic() - started:.0f} s; no bit differs; at most {tally.most_lost} opt steps "
        f"were lost, saved every {SAVE_INTERVAL}"
    )


if __name__ == "__main__":
    main()
