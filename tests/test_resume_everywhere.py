"""Every algorithm in every kind of game, stopped again and again and resumed, ends in the bits of an uninterrupted run.

Pairwise: any two levels of any two factors (tests/combinations.py) occur together, and the algorithm is one of these
factors; `pytest -m slow` tries the full product. Whoever adds an algorithm adds it to LEARNERS there, which is all that
this proof asks.
"""

import os
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import combinations as subsets
from pathlib import Path
from typing import Any

import pytest
from combinations import LEARNERS, Combination, combinations_of, config_of, pairwise, registered_algorithms
from resuming import Killed, ask_to_leave, assert_same_bits, at_call, fit, kill, send_signal

from palestra.evaluation.evaluations import Evaluations
from palestra.kinds.games.trainer import Trainer
from palestra.run.branching import tree_differences


@dataclass(frozen=True)
class Stop:
    """A phase in which a run is stopped: just before the first to `latest`-th call of a function, drawn at random."""

    owner: Any
    function: str
    first: int
    latest: int
    deeds: tuple[Callable[..., None], ...]

    def drawn(self, rng: random.Random, num_left: int) -> AbstractContextManager[list[int]]:
        """num_left: how many calls of the function the run has yet to make; the stop is one of these."""
        number = min(rng.randint(self.first, self.latest), max(num_left, 1))
        return at_call(self.owner, self.function, number, rng.choice(self.deeds))

    def counted(self) -> AbstractContextManager[list[int]]:
        return at_call(self.owner, self.function, 0, kill)


STOPS = {
    "warm-up": Stop(Trainer, "safe_point", 1, 3, (ask_to_leave, kill)),
    "roll-out": Stop(Trainer, "_play", 1, 2, (kill,)),
    "update": Stop(Trainer, "safe_point", 2, 5, (ask_to_leave,)),
    "evaluation": Stop(Evaluations, "_play", 1, 1, (send_signal,)),
    "save": Stop(os, "fsync", 1, 9, (kill,)),
}


ALGORITHM = "algorithm"  # the factor beside those of a combination
CANDIDATES = [{ALGORITHM: algorithm, **each} for algorithm in LEARNERS for each in combinations_of(algorithm)]
FEW = pairwise(CANDIDATES)


def label(candidate: Combination) -> str:
    algorithm, *levels = candidate.values()
    return f"{algorithm}: {', '.join(levels)}"


def cases() -> list[Any]:
    """Pairwise, and the rest as slow."""
    return [pytest.param(each, id=label(each), marks=[] if each in FEW else [pytest.mark.slow]) for each in CANDIDATES]


def test_every_algorithm_that_a_config_can_ask_for_takes_part() -> None:
    assert set(LEARNERS) == registered_algorithms(), "add the new algorithm to LEARNERS in tests/combinations.py"


def test_every_pair_of_levels_occurs() -> None:
    assert len(FEW) < len(CANDIDATES)
    for pair in {frozenset(pair) for each in CANDIDATES for pair in subsets(each.items(), 2)}:
        assert any(pair <= each.items() for each in FEW)


@pytest.mark.parametrize("candidate", cases())
def test_a_run_stopped_in_three_phases_ends_in_the_same_bits(candidate: Combination, tmp_path: Path) -> None:
    config, run, rng = config_of(candidate[ALGORITHM], candidate), tmp_path / "run", random.Random(label(candidate))
    num_stops = 0
    with ExitStack() as stack:
        calls = {phase: stack.enter_context(stop.counted()) for phase, stop in STOPS.items()}
        uninterrupted = fit(tmp_path / "uninterrupted", config)
        whole = {phase: len(counted) for phase, counted in calls.items()}
        for phase in ["warm-up", *rng.sample(list(STOPS)[1:], 2)]:
            with STOPS[phase].drawn(rng, 2 * whole[phase] - len(calls[phase])):
                try:
                    num_stops += not fit(run, None if run.exists() else config).finished
                except Killed:
                    num_stops += 1
    trainer = fit(run)
    assert num_stops >= 2, "the run was over before it was stopped"
    assert trainer.finished
    assert list(tree_differences(uninterrupted.state_dict(), trainer.state_dict())) == []
    assert_same_bits(run, tmp_path / "uninterrupted")
