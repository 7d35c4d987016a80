"""Kill -9 of a run, of the server that answers it, or of both, at random moments, with a proxy in between that counts.

    python tests/chaos_servers.py --kills 200

Fails if anything that was answered, and on the disk, is asked again; if a job is submitted twice or lost; or if the
roll-outs and the files of jobs differ from those of a run and a server that were left alone.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from palestra import make_trainer
from palestra.config import ConfigError
from palestra.kinds.text.trainer import TextTrainer
from palestra.text.rollouts import Rollouts
from tests.text.runs import made_folder
from tests.text.servers.runs import tuned_run

PATIENCE_S = 120.0
CONCURRENT = 4
VICTIMS, AGAIN = ("run", "server", "run and server"), "calls made again"
KEYS = {"max_concurrent": CONCURRENT, "num_attempts": 200, "timeout_s": 20.0}


def forked(deed: Callable[[], None]) -> int:
    """The process id of a child that does something, in a group of its own."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    try:
        os.setpgid(0, 0)
        deed()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@dataclass
class House:
    """A server on its folder, a proxy before it, and a run that asks through the proxy."""

    place: Path
    model: Path
    port: int = field(default_factory=free_port)
    outside: int = field(default_factory=free_port)
    server: int | None = None
    run: int | None = None
    proxy: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.place / "passed.jsonl"

    @property
    def folder(self) -> Path:
        return self.place / "run"

    def __enter__(self) -> "House":
        self.place.mkdir()
        arguments = [str(self.outside), f"http://127.0.0.1:{self.port}", str(self.log)]
        self.proxy = subprocess.Popen([sys.executable, "-m", "tests.serving.proxy", *arguments], start_new_session=True)
        self.serve()
        return self

    def __exit__(self, *error: object) -> None:
        assert self.proxy is not None
        self.proxy.kill()
        self.proxy.wait()
        for child in (self.server, self.run):
            if child is not None:
                kill(child)

    def serve(self) -> None:
        def deed() -> None:
            from palestra.commands.serve import serve

            os.dup2(os.open(self.place / "server.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
            serve(self.model, port=self.port, folder=self.place / "served", exact=True)

        self.server = forked(deed)

    def await_server(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models", timeout=5):
                    return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("the server does not begin: " + (self.place / "server.txt").read_text()[-2000:])

    def train(self, config: dict[str, Any]) -> None:
        self.run = forked(lambda: train(self.folder, config))

    def url(self) -> str:
        return f"http://127.0.0.1:{self.outside}/v1"


def train(run: Path, config: dict[str, Any]) -> None:
    """Begin the run, or go on with it. One that begins while the server is down ends at once, and begins again."""
    while True:
        trainer = TextTrainer.load(run) if (run / "run.json").exists() else make_trainer(config, run=run)
        try:
            trainer.fit()
        except ConfigError as error:
            if run.exists() or "expected a server that can be reached" not in str(error):
                raise
            time.sleep(0.1)
        else:
            assert trainer.finished
            return


def kill(child: int) -> bool:
    """Kill a child and its children. Returns whether it still ran."""
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        assert status in (0, signal.SIGKILL), f"a child failed with status {status}"
        return False
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


# ---- what must hold --------------------------------------------------------------------------------------


def read_lines(path: Path) -> list[dict[str, Any]]:
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def asked(log: Path) -> Counter[str]:
    """How often each call reached the proxy. A tuned model has another name at each server."""
    found = [json.loads(each["body"]) for each in read_lines(log) if each.get("path") == "/v1/chat/completions"]
    return Counter(json.dumps(each | {"model": each["model"][:3]}, sort_keys=True) for each in found)


def answered_on_disk(run: Path) -> int:
    """How many calls have an answer in the journals. Fails if one was asked again that had it."""
    answered: set[str] = set()
    for line in (line for path in sorted((run / "calls").glob("*.jsonl")) for line in read_lines(path)):
        assert line["call"] not in answered, "a call was asked again although its answer was on the disk"
        if line["kind"] == "answered":
            answered.add(line["call"])
    return len(answered)


def jobs_of(house: House) -> Counter[str]:
    """The jobs that the server has, by epoch, player and attempt."""
    with urllib.request.urlopen(f"http://127.0.0.1:{house.port}/v1/fine_tuning/jobs?limit=100", timeout=60) as reply:
        found = json.loads(reply.read())["data"]
    assert all(each["status"] == "succeeded" for each in found)
    return Counter(each["metadata"]["key"].split("-", 2)[2] for each in found)


def outcome(house: House) -> dict[str, Any]:
    """All that a run comes to but for names that the server gave: its decisions, and the files of its jobs."""
    rollouts = {}
    for path in sorted((house.folder / "rollouts").glob("*.parquet")):
        rows = Rollouts.from_parquet(path.read_bytes()).rows
        rollouts[path.name] = [(row.question, row.rollout, row.node, row.answer, row.reward) for row in rows]
    files = Counter(
        hashlib.sha256(path.read_bytes()).hexdigest() for path in (house.place / "served" / "files").glob("*.data")
    )
    assert files
    return {"rollouts": rollouts, "files": files}


def suffer(place: Path, model: Path, kills: int, epochs: int, rng: random.Random, tally: Counter[str]) -> None:
    """One run and its server, killed up to `kills` times, beside a pair that is left alone; the two are compared."""
    said = {"seed": rng.randrange(1000), "stop": {"after": epochs, "unit": "epochs"}}
    with House(place / "alone", model) as alone:
        alone.await_server()
        alone.train(tuned_run(alone.url(), KEYS, **said))
        assert alone.run is not None
        _, status = os.waitpid(alone.run, 0)
        alone.run = None
        assert status == 0, f"the run failed with status {status}"
        wanted, jobs = asked(alone.log), jobs_of(alone)
    with House(place / "killed", model) as house:
        config, repeated = tuned_run(house.url(), KEYS, **said), 0
        for _ in range(kills):
            victims = rng.choice(VICTIMS)
            if house.run is None:
                house.train(config)
            wait_for_progress(house, rng, wanted.total())
            before = answered_on_disk(house.folder)
            ended = "run" in victims and not stop_run(house)
            if "server" in victims:
                assert house.server is not None
                kill(house.server)
                house.serve()
            assert answered_on_disk(house.folder) >= before
            if ended:
                break
            tally[victims] += 1
            repeated += CONCURRENT
        if house.run is None:
            house.train(config)
        assert house.run is not None
        _, status = os.waitpid(house.run, 0)
        house.run = None
        assert status == 0, f"the last run failed with status {status}: {house.place}"
        assert not wanted - asked(house.log), "a call was never made"
        again = (asked(house.log) - wanted).total()
        assert again <= repeated, f"{again} calls were made again, and at most {repeated} were out at kills"
        tally[AGAIN] += again
        house.await_server()
        assert jobs_of(house) == jobs, "a job was submitted twice, or lost"
        assert answered_on_disk(house.folder) == answered_on_disk(alone.folder)
        assert outcome(house) == outcome(alone)
    tally["runs"] += 1


def stop_run(house: House) -> bool:
    assert house.run is not None
    was_running, house.run = kill(house.run), None
    if house.folder.exists() and not (house.folder / "run.json").exists():
        shutil.rmtree(house.folder)
    return was_running


def wait_for_progress(house: House, rng: random.Random, number: int) -> None:
    """Wait for a random number of further requests, or for a while."""
    seen, wanted = len(read_lines(house.log)), rng.randint(1, max(2, number // 3))
    deadline = time.monotonic() + rng.uniform(0.5, 8.0)
    while time.monotonic() < deadline and len(read_lines(house.log)) < seen + wanted:
        time.sleep(0.01)
    time.sleep(rng.uniform(0.0, 0.05))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=2, help="of each run")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started, rng, tally = time.monotonic(), random.Random(arguments.seed), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="palestra-chaos-") as folder:
        model = made_folder(Path(folder))
        while (killed := sum(tally[name] for name in VICTIMS)) < arguments.kills:
            place = Path(folder) / str(tally["runs"])
            place.mkdir()
            suffer(place, model, min(12, arguments.kills - killed), arguments.epochs, rng, tally)
            print(f"so far: {dict(tally)}", file=sys.stderr, flush=True)
    told, took_s = ", ".join(f"{name} {tally[name]}" for name in VICTIMS), time.monotonic() - started
    print(
        f"{killed} kills ({told}) in {tally['runs']} runs, {took_s:.0f} s; {tally[AGAIN]} calls that were out were "
        "made again, none that was answered; no job was submitted twice, and no decision differs"
    )


if __name__ == "__main__":
    main()
