"""Runs that are made in a moment in the place of trained ones, for tests of what happens around them."""

import json
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from palestra.config import render
from palestra.run.checkpoints import Checkpoints
from palestra.run.kinds import read_config
from palestra.storage.facts import RunFacts
from palestra.storage.records_file import Measure
from palestra.storage.run_folder import RunFolder
from palestra.sweeps.places import Job, LocalPlace
from tests.records import evaluation_of, played_pair, returns_in


class Over(Job):
    """A job that has ended."""

    def __init__(self, code: int = 0) -> None:
        self.code = code

    def poll(self) -> int:
        return self.code

    def signal(self, number: int) -> None:
        pass


def evaluation(env_steps: int, value: float) -> str:
    """The line of an evaluation in a run's records."""
    pair = played_pair({"agent": "agent"}, ["agent"], {"return/agent": value}, 0.0)
    counters = {"env_steps": env_steps, "opt_steps": env_steps // 8}
    return json.dumps(evaluation_of([pair], returns_in("agent"), ["agent"], **counters)) + "\n"


def begin_run(path: Path, config: Path, seed: int) -> None:
    """A run without anything yet but its config and its facts."""
    folder, checked = RunFolder.create_at(path, ()), read_config(config, [f"seed={seed}"])
    folder.root.write("config.yml", render(checked, type(checked)).encode())
    names = ("trainer_in_python", "branched_from", "mirror", "checkpoint_folder")
    folder.write_facts(RunFacts.of_now(id=uuid.uuid4().hex, user_classes={}, set_in_python=[], **dict.fromkeys(names)))
    folder.root.write("lock", b"")


def end_run(path: Path, env_steps: int, value: float) -> None:
    """The last evaluation of a run that has begun, and the checkpoint beside it."""
    (path / "records.jsonl").write_text(evaluation(env_steps, value))
    counters = {"env_steps": env_steps, "opt_steps": env_steps // 8, "epochs": 0}
    Checkpoints(RunFolder(path), 1, None).save(0, {}, counters, {}, Measure([b""]).then())


def make_run(path: Path, config: Path, seed: int) -> None:
    """A finished run: what `palestra train CONFIG seed=SEED --run PATH` would have made, as far as others look at it.
    Its value is 100 and the seed."""
    begin_run(path, config, seed)
    end_run(path, 1024, 100.0 + seed)


def made_runs() -> tuple[list[list[str]], Callable[[LocalPlace, Sequence[str], Path], Job]]:
    """The arguments of all jobs as they come, and what takes the place of `LocalPlace.start` and makes runs at once."""
    started: list[list[str]] = []

    def start(place: LocalPlace, arguments: Sequence[str], log: Path) -> Job:
        started.append(list(arguments))
        if arguments[0] == "train":
            _, config, seed, _, run, _ = arguments
            make_run(Path(run), Path(config), int(seed.removeprefix("seed=")))
        return Over()

    return started, start


def tree(folder: Path) -> dict[str, bytes | str]:
    """Every entry below a folder, with what is in it; no link is followed."""
    found: dict[str, bytes | str] = {}
    for place, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(place) / name
            key = str(path.relative_to(folder))
            if path.is_symlink():
                found[key] = f"-> {os.readlink(path)}"
            else:
                found[key] = path.read_bytes() if path.is_file() else "a folder" if path.is_dir() else "other"
    return found
