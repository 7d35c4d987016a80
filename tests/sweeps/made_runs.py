"""Runs that are made in a moment in the place of trained ones, for tests of what happens around them."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from palestra.config import render
from palestra.runs.config import read_config
from palestra.storage.run_folder import RunFolder
from palestra.sweeps.places import Job, LocalPlace


class Over(Job):
    """A job that has ended well."""

    def poll(self) -> int | None:
        return 0

    def signal(self, number: int) -> None:
        pass


def make_run(path: Path, config: Path, seed: int) -> None:
    """A finished run: what `palestra train CONFIG seed=SEED --run PATH` would have made, as far as others look at it.
    Its value is 100 and the seed."""
    folder, checked = RunFolder.create_at(path), read_config(config, [f"seed={seed}"])
    folder.root.write("config.yml", render(checked, type(checked)).encode())
    folder.root.write("run.json", b"{}")
    pair = {"players": {"agent": "agent"}, "learned": ["agent"], "returns": {"agent": 100.0 + seed}}
    record = {"kind": "evaluation", "evaluation": "main", "env_steps": 1024, "opt_steps": 128, "pairs": [pair]}
    folder.root.write("records.jsonl", json.dumps(record).encode() + b"\n")
    folder.root.below("checkpoints", "00000001").make().write("weights", b"precious")
    folder.root.write("lock", b"")


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
