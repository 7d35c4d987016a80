"""Do two commits learn the same, to the bit? Trains every shipped config, and every combination of the proofs of
resuming, by the code and the config files of either, and compares all that the players have learned.

    python -m benchmarks.same_bits OLD NEW [--only PATTERN] [--cache FOLDER]

OLD, NEW: a commit, or a folder with a working tree, which is trained anew every time. Runs are shortened
(benchmarks/same_bits_side.py says how). Compared are the networks, target networks and optimizer states of the last
checkpoints. Exit code 1 if a run differs, fails, or if none was compared. --cache keeps what a commit has learned, so
that it is trained once.
"""

import argparse
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.measuring import ROOT

SIDE = Path(__file__).with_name("same_bits_side.py")


@dataclass(frozen=True)
class Side:
    """A tree to train in, and where its results lie."""

    label: str
    tree: Path
    results: Path
    numba_cache: Path

    def file(self, run: str) -> Path:
        return self.results / f"{re.sub('[^A-Za-z0-9.]+', '-', run)}.safetensors"

    def runs(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._ask(None).splitlines()]

    def train(self, runs: list[dict[str, Any]]) -> dict[str, str]:
        """Those that have no results yet; gives the tracebacks of the ones that failed, by name."""
        missing = [run | {"file": str(self.file(run["name"]))} for run in runs if not self.file(run["name"]).exists()]
        if not missing:
            return {}
        print(f"{self.label}: training {len(missing)} runs", file=sys.stderr, flush=True)
        answers = [json.loads(line) for line in self._ask(missing).splitlines()]
        return {answer["name"]: answer["error"] for answer in answers if answer["error"] is not None}

    def _ask(self, order: list[dict[str, Any]] | None) -> str:
        """The answer of same_bits_side in this tree, whose lines are shown as they come."""
        self.results.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            "PYTHONPATH": str(self.tree),
            "NUMBA_CACHE_DIR": str(self.numba_cache),
            "XDG_STATE_HOME": str(self.results),
        }
        command = [sys.executable, "-P", str(SIDE)]
        with subprocess.Popen(
            command, cwd=self.tree, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            json.dump(order, process.stdin)
            process.stdin.close()
            lines = []
            for line in process.stdout:
                lines.append(line)
                if order is not None:
                    print(f"{self.label}: {json.loads(line)['name']}", file=sys.stderr, flush=True)
        if process.returncode:
            raise SystemExit(f"{self.label}: training ended with exit code {process.returncode}")
        return "".join(lines)


def side_of(name: str, cache: Path, spare: Path) -> Side:
    """Of a folder, which is trained in as it stands, or of a commit, whose files are put into the cache."""
    if Path(name).is_dir():
        fresh = Path(mkdtemp(dir=spare))
        return Side(name, Path(name).resolve(), fresh / "results", fresh / "numba")
    commit = git("rev-parse", "--verify", f"{name}^{{commit}}").decode().strip()
    home = cache / commit
    if not (home / "tree").exists():
        home.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as archive:
            unfinished = Path(mkdtemp(dir=home))
            archive.extractall(unfinished, filter="data")
        unfinished.rename(home / "tree")
    how = hashlib.sha256(SIDE.read_bytes()).hexdigest()[:8]
    return Side(name, home / "tree", home / f"results-{how}", home / "numba")


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


# ---- comparing -------------------------------------------------------------------------------------------


def difference(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> str | None:
    """What differs, in words; None where all bits are the same. Tensors that were renamed are paired in their order."""
    lost, added = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    pairs = {name: name for name in sorted(old.keys() & new.keys())} | dict(zip(lost, added, strict=False))
    if len(lost) != len(added) or any(kind(old[a]) != kind(new[b]) for a, b in pairs.items()):
        return f"other tensors: {', '.join(lost) or 'none'} became {', '.join(added) or 'none'}"
    different = [(a, b) for a, b in pairs.items() if not torch.equal(bits(old[a]), bits(new[b]))]
    if not different:
        return None
    by_size = {a: float((old[a].double() - new[b].double()).abs().max()) for a, b in different}
    worst = max(by_size, key=lambda name: by_size[name])
    return f"{len(different)} of {len(pairs)} tensors, by up to {by_size[worst]:.3g} ({worst})"


def kind(tensor: Tensor) -> tuple[torch.dtype, torch.Size]:
    return tensor.dtype, tensor.shape


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def compare(old: Side, new: Side, runs: list[dict[str, Any]]) -> dict[str, str]:
    """What is to be said of each run, "same" where all is; the tracebacks go to stderr."""
    failures = {side.label: side.train(runs) for side in (old, new)}
    found = {}
    for run in runs:
        name = run["name"]
        failed = [label for label, errors in failures.items() if name in errors]
        for label in failed:
            print(f"---- {label}: {name}\n{failures[label][name]}", file=sys.stderr)
        if failed:
            found[name] = f"failed in {', '.join(failed)}"
        else:
            differs = difference(load_file(old.file(name)), load_file(new.file(name)))
            found[name] = "same" if differs is None else f"differs: {differs}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_bits", description=__doc__)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--only", default="", metavar="PATTERN", help="a regular expression that the run's name has")
    parser.add_argument("--cache", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    with ExitStack() as stack:
        spare = Path(stack.enter_context(TemporaryDirectory()))
        cache = spare if options.cache is None else options.cache.resolve()
        old, new = (side_of(name, cache, spare) for name in (options.old, options.new))
        if old.tree == new.tree:
            parser.error(f"expected two commits, got {options.old} twice")
        runs = [run for run in old.runs() if re.search(options.only, run["name"])]
        found = compare(old, new, runs)
    print("| run | |\n|---|---|")
    for name, outcome in found.items():
        print(f"| {name} | {outcome} |")
    num_same = sum(outcome == "same" for outcome in found.values())
    print(f"\n{num_same} of {len(found)} runs are the same to the bit in {options.old} and {options.new}.")
    sys.exit(0 if found and num_same == len(found) else 1)


if __name__ == "__main__":
    main()
