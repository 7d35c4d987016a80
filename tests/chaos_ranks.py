"""Kill -9 and SIGSTOP of the processes of one run, and of the launcher that has started them, at random moments.

    python tests/chaos_ranks.py --kills 50

Fails if the others do not end, if a process is left, if more is lost than what lies between two saves, or if the run
comes to other bits than one that was left alone in one process.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from combinations import LEARNERS, combinations_of, config_of
from resuming import assert_same_bits, fit

from palestra.kinds.games.trainer import Trainer
from palestra.storage.manifest import numbers_in
from palestra.storage.run_folder import RunFolder
from tests.forked import Forked
from tests.ranked import Ranked

PATIENCE_S, TIMEOUT_S = 120.0, 3.0
SAVE_INTERVAL, NUM_SAVES = 4, 30
KILLS_OF_A_RUN = 5


def config_for(algorithm: str) -> dict[str, Any]:
    config = config_of(algorithm, combinations_of(algorithm)[0]) | {"num_replicas": 4}
    config["stop"] = {"after": SAVE_INTERVAL * NUM_SAVES, "unit": "opt_steps"}
    config["output"] |= {"save": {"every": SAVE_INTERVAL, "unit": "opt_steps"}}
    config["execution"] |= {"timeout_s": TIMEOUT_S}
    return config


def last(run: Path) -> int:
    """The number of the last checkpoint; -1 if there is none."""
    return max(numbers_in(RunFolder(run).checkpoints), default=-1) if (run / "run.json").exists() else -1


def until(condition: Any, what: str) -> bool:
    """Wait for something. Fails after a long while."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.003)
    return True


def kill_a_rank(run: Path, config: dict[str, Any], rng: random.Random) -> str | None:
    """Kill or stop one of several processes; returns how, None if the run had ended before."""
    num, how = rng.choice((2, 4)), rng.choice((signal.SIGKILL, signal.SIGSTOP))
    begin, number = last(run), rng.randint(1, 4)
    ranks = Ranked(num, lambda rank: fit(run, None if begin >= 0 else config), run.parent / "said")
    victim = ranks.pids[rng.randrange(num)]
    until(lambda: last(run) >= begin + number or has_ended(victim), "no checkpoint was saved")
    time.sleep(rng.random() * 0.05)
    if has_ended(victim):
        assert ranks.wait() == [0] * num
        return None
    os.kill(victim, how)
    others = [pid for pid in ranks.pids if pid != victim]
    until(lambda: all(map(has_ended, others)), f"the others of {how.name} did not end")
    os.kill(victim, signal.SIGKILL)
    codes = ranks.wait()
    assert all(codes), f"expected that all fail, got {codes}"
    return f"{how.name} of a rank"


def has_ended(pid: int) -> bool:
    """Whether a child of this process has ended; it stays there to be waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill_the_launcher(run: Path, config: dict[str, Any], rng: random.Random) -> str | None:
    """Kill the command that has started the processes; returns how, None if the run had ended before."""
    begin, number = last(run), rng.randint(1, 4)
    file = run.parent / "config.yml"
    file.write_text(json.dumps(config | {"execution": config["execution"] | {"num_processes": 2}}))
    words = ["resume", str(run), "execution.num_processes=2"] if begin >= 0 else ["train", str(file), "--run", str(run)]
    with (
        (run.parent / "launcher.txt").open("ab") as said,
        Forked([sys.executable, "-m", "palestra", *words], stdout=said, stderr=said) as launcher,
    ):
        until(lambda: last(run) >= begin + number or launcher.poll() is not None, "no checkpoint was saved")
        ranks = children(launcher.pid)
        if launcher.poll() is not None or not ranks:
            launcher.wait(PATIENCE_S)
            return None
        launcher.kill()
    until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in ranks), f"processes {ranks} are left")
    return "SIGKILL of the launcher"


def children(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except FileNotFoundError:
        return []


def kill_again_and_again(algorithm: str, place: Path, rng: random.Random, num: int) -> Counter[str]:
    """Kill processes of one run so many times, or until it ends; then compare it with one that was left alone."""
    config, run, told = config_for(algorithm), place / "run", Counter[str]()
    place.mkdir()
    for _ in range(num):
        kill = kill_the_launcher if rng.random() < 0.2 else kill_a_rank
        before = last(run)
        if (how := kill(run, config, rng)) is None:
            break
        told[how] += 1
        assert last(run) >= before, "a checkpoint was lost"
    if last(run) >= 0:
        trainer = Trainer.load(run, overrides=["execution.num_processes=1"])
        trainer.fit()
    else:
        fit(run, config)
    fit(place / "whole", config)
    assert_same_bits(run, place / "whole")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="at least")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    arguments = parser.parse_args()
    rng, told, number = random.Random(arguments.seed), Counter[str](), 0
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-ranks-") as place:
        while told.total() < arguments.kills:
            algorithm = sorted(LEARNERS)[number % len(LEARNERS)]
            told += kill_again_and_again(algorithm, Path(place) / str(number), rng, KILLS_OF_A_RUN)
            number += 1
            print(f"{number} runs: {dict(told)}", flush=True)
    print(f"{told.total()} kills in {number} runs; no bit differs, and no process is left")


if __name__ == "__main__":
    main()
