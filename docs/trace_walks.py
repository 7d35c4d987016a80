"""Count what runs in some walks through the house, with the files in their order: `python -m docs.trace_walks`.

A walk is one call in a real run, or what happens from one safe point to the next. Of what runs meanwhile in this thread
every function of palestra counts once. The display is told nothing in between, which would depend on the clock.
docs/architecture.md tells the walks.
"""

import math
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple
from unittest import mock

from palestra import cli
from palestra.kinds.text.trainer import TextTrainer
from palestra.training.training import Training

ROOT = Path(__file__).parents[1]
HOUSE = str(ROOT / "palestra")
QUIET = ("output.display=quiet",)
EARLY = ("players.host.algorithm.warmup_env_steps=0",)
DQN = ("dqn-polyhedra", "stop.after=8", *EARLY, "evaluations=[]", "best=null", *QUIET)
FIT = ("fit", "classifier", "nip", "witness", "stop.after=3", "evaluations=[]", "best=null", *QUIET)
TEXT = ("expert_iteration-claims", "num_questions=8", "num_rollouts=2", "stop.after=2", "evaluations=[]", "best=null")


class Walk(NamedTuple):
    """Where a walk begins and ends in a run: in a call of a method, or from its end to the end of its next call.

    words: those of `palestra train`. number: of the call, from 1 on.
    """

    title: str
    words: tuple[str, ...]
    of: type
    method: str
    number: int
    until_next: bool = False


WALKS = (
    Walk("a save", DQN, Training, "save", 2),
    Walk("a roll-out of DQN", DQN, Training, "safe_point", 9, until_next=True),
    Walk("an opt step of DQN", DQN, Training, "safe_point", 7, until_next=True),
    Walk("a step of a fit", FIT, Training, "safe_point", 2, until_next=True),
    Walk("an epoch of text", (*TEXT, *QUIET), TextTrainer, "_train", 2),
)


def functions_in(walk: Walk) -> list[CodeType]:
    """Make the run, and return the functions of palestra that ran in the walk, in the order of their first calls."""
    found: dict[CodeType, None] = {}
    num_calls = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        is_named = not frame.f_code.co_name.startswith("<")  # no comprehension
        if event == "call" and is_named and frame.f_code.co_filename.startswith(HOUSE):
            found.setdefault(frame.f_code)

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal num_calls
            num_calls += 1
            if num_calls == walk.number and not walk.until_next:
                sys.setprofile(note)
            try:
                return method(*arguments, **named)
            finally:
                sys.setprofile(note if walk.until_next and num_calls == walk.number else None)

        return call

    watched = mock.patch.object(walk.of, walk.method, counted(getattr(walk.of, walk.method)))
    never = mock.patch("palestra.run.run.SHOW_INTERVAL_S", math.inf)
    with tempfile.TemporaryDirectory() as folder, suppress(SystemExit), watched, never:
        cli.main(["train", *walk.words, "--run", f"{folder}/run"])
    return list(found)


def main() -> None:
    for walk in WALKS:
        functions = functions_in(walk)
        files = dict.fromkeys(str(Path(each.co_filename).relative_to(ROOT)) for each in functions)
        print(f"{walk.title}: {len(files)} files, {len(functions)} functions", *files, sep="\n  ")


if __name__ == "__main__":
    main()
