"""Follow three things through a real run, and print the files of palestra that they pass: `python -m docs.trace_walks`.

A walk has stops: functions that take the thing in hand. A file belongs to the walk if one of its functions is under way
when a stop is called for the first time, from the call of the walk's first function on. docs/architecture.md tells the
walks.
"""

import contextlib
import inspect
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from palestra import cli
from palestra.algorithms.dqn import DQN, DQNConfig
from palestra.buffers.replay import ReplayBuffer
from palestra.commands.train import train
from palestra.config.files import load_yaml
from palestra.config.validation import check
from palestra.games.polyhedra.game import PolyhedraGame
from palestra.optimizers.optimizer import Optimizer
from palestra.players.player import Player
from palestra.rollouts.n_step import OneStep
from palestra.rollouts.transitions import join_roles
from palestra.runs.records import RunRecords
from palestra.storage.disk import Disk
from palestra.storage.manifest import Manifest
from palestra.storage.segments import store_full_segments
from palestra.storage.states import encode
from palestra.training.training import Training

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "dqn-polyhedra.yml"
FEW_STEPS = ("stop.after=2", "evaluations=[]", "best=null", "output.display=quiet")


class Walk(NamedTuple):
    """The way of one thing through the house: where it begins, and the functions that take the thing in hand."""

    title: str
    first: Callable[..., Any]
    stops: tuple[Callable[..., Any], ...]


WALKS = (
    Walk("A value from YAML to the loss", train, (load_yaml, check, DQNConfig.build)),
    Walk(
        "A batch from a game's step to an opt step",
        DQN.learn,
        (PolyhedraGame.transition_in_place, join_roles, OneStep.__call__, ReplayBuffer.add, Optimizer.descend),
    ),
    Walk(
        "A checkpoint from a safe point to the disk",
        Training.save,
        (Player.state_dict, RunRecords.flush, encode, store_full_segments, Manifest.to_bytes, Disk.write),
    ),
)


def under_way(frame: FrameType | None, first: CodeType) -> list[str]:
    """Return the files of palestra whose functions are under way, from the call of `first` on; none outside of it."""
    found = list[str]()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT / "palestra"):
            found.append(str(path.relative_to(ROOT)))
        if frame.f_code is first:
            return found[::-1]
        frame = frame.f_back
    return []


@contextlib.contextmanager
def tracing() -> Iterator[dict[str, dict[str, None]]]:
    """Follow the walks through what runs inside, and give their files in the order in which they were met, by title."""
    stops = {inspect.unwrap(stop).__code__: walk for walk in WALKS for stop in walk.stops}
    files = {walk.title: dict[str, None]() for walk in WALKS}

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or (walk := stops.get(frame.f_code)) is None:
            return
        if met := under_way(frame, walk.first.__code__):
            files[walk.title] |= dict.fromkeys(met)
            del stops[frame.f_code]

    sys.setprofile(look)
    try:
        yield files
    finally:
        sys.setprofile(None)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, tracing() as walks:
        try:
            cli.main(["train", str(CONFIG), "--run", f"{folder}/run", *FEW_STEPS])
        except SystemExit as left:
            if left.code:
                raise
    for title, files in walks.items():
        print(f"{title}: {len(files)} files", *files, sep="\n  ")


if __name__ == "__main__":
    main()
