"""A search in generations (Jaderberg et al. 2017): its members, their parents, and the keys of children.

The trial of rank n is member n mod size of generation n div size. Choices depend on the sweep's seed, on ranks and on
the values of earlier generations alone, so that a sweep that is killed goes on to the same result.
"""

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from optuna.trial import FrozenTrial

from palestra.config import Failed
from palestra.sweeps.outcomes import state_of
from palestra.sweeps.search import EvolutionConfig, MutationConfig, Succession
from palestra.sweeps.space import ChoiceConfig, DimensionConfig, IntegerConfig, Point, Space, UniformConfig, drawn

MOST_DRAWS = 1000  # of a member, until one fulfils the constraints


class Member(NamedTuple):
    """What a trial is. parents: whose keys it has; its runs branch off those of the first; none in generation 0."""

    point: Point
    parents: Sequence[FrozenTrial]


class Evolution(Succession):
    """The members of all generations.

    space: has one base. allows: says whether a point fulfils the constraints. goal: max or min. seed: of the sweep.
    """

    def __init__(
        self, config: EvolutionConfig, space: Space, allows: Callable[[Point], bool], goal: str, seed: int
    ) -> None:
        self.config, self.allows, self.seed = config, allows, seed
        self.dimensions = space.dimensions
        self.sign = -1.0 if goal == "max" else 1.0
        self._last: tuple[int, Member] | None = None  # as it is asked for each key

    @property
    def size(self) -> int:
        return self.config.size

    def may_begin(self, rank: int, trials: Sequence[FrozenTrial]) -> bool:
        """As in Succession: a generation waits for the one before, and does not begin if nobody succeeded in it."""
        if rank < self.size or rank % self.size:
            return True
        states = [state_of(trial) for trial in trials[rank - self.size :]]
        return "running" not in states and "succeeded" in states

    def parent(self, trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
        rank = next(rank for rank, each in enumerate(trials) if each.number == trial.number)
        return next(iter(self.member(rank, trials).parents), None)

    def member(self, rank: int, trials: Sequence[FrozenTrial]) -> Member:
        """Return what the trial of a rank is. trials: by rank; all of the generation before have ended.

        Raises Failed if none of MOST_DRAWS draws fulfils the constraints.
        """
        if self._last is None or self._last[0] != rank:
            self._last = rank, self._member(rank, trials)
        return self._last[1]

    def _member(self, rank: int, trials: Sequence[FrozenTrial]) -> Member:
        generation, place = divmod(rank, self.size)
        draw = random.Random(hashlib.sha256(f"{self.seed}/{rank}".encode()).digest())
        if generation == 0:
            return self._allowed(rank, lambda: Member(self._drawn(draw), []))
        before = trials[(generation - 1) * self.size : generation * self.size]
        num = math.ceil(self.config.quantile * self.size)
        order = sorted(range(self.size), key=lambda n: self._order(before[n]))  # of equal ones the lower rank
        best = [before[n] for n in order[:num] if state_of(before[n]) == "succeeded"]
        own, goes_on = before[place], place in order[: self.size - num]
        if not num or (goes_on and state_of(own) == "succeeded"):
            return Member(own.params, [own])
        return self._allowed(rank, lambda: self._child(best, draw))

    def _order(self, trial: FrozenTrial) -> tuple[bool, float]:
        is_done = state_of(trial) == "succeeded"
        return not is_done, self.sign * (trial.value or 0.0) if is_done else 0.0

    def _allowed(self, rank: int, make: Callable[[], Member]) -> Member:
        """Return the first of some draws that fulfils the constraints."""
        for _ in range(MOST_DRAWS):
            if self.allows((member := make()).point):
                return member
        what = f"constraints: none of {MOST_DRAWS:,} draws fulfils them for member {rank % self.size}"
        raise Failed(f"{what} of generation {rank // self.size}; the sweep cannot go on")

    def _drawn(self, draw: random.Random) -> Point:
        return {key: drawn(dimension, draw) for key, dimension in self.dimensions.items()}

    def _child(self, best: Sequence[FrozenTrial], draw: random.Random) -> Member:
        """Draw a child of one of the best members or, with crossover, of two."""
        parents = draw.sample(best, min(2 if self.config.crossover else 1, len(best)))
        keys = {key: draw.choice(parents).params[key] for key in self.dimensions}
        mutation = self.config.mutation
        point = {key: mutated(value, self.dimensions[key], mutation, draw) for key, value in keys.items()}
        return Member(point, parents)


def mutated(value: Any, dimension: DimensionConfig, mutation: MutationConfig, draw: random.Random) -> Any:
    """Return what becomes of a parent's value, as the study stores both."""
    if draw.random() < mutation.redraw:
        return drawn(dimension, draw)
    if isinstance(dimension, ChoiceConfig):
        values = dimension.stored()
        place = values.index(value)
        return draw.choice([*values[max(place - 1, 0) : place], *values[place + 1 : place + 2]] or values)
    return multiplied(value, draw.choice(mutation.factors), dimension)


def multiplied(value: float, factor: float, dimension: Any) -> float:
    """Return a number times a factor, at the nearest step between the bounds of its dimension.

    An integer moves by a step at least, unless it lies at the bound, or the factor is 1.
    """
    target = value * factor
    if isinstance(dimension, UniformConfig | IntegerConfig) and dimension.step is not None:
        step = dimension.step
        place, before = round((target - dimension.low) / step), round((value - dimension.low) / step)
        if isinstance(dimension, IntegerConfig) and place == before and factor != 1:
            place += 1 if (factor > 1) == (value >= 0) else -1
        target = dimension.low + step * place
    return min(max(target, dimension.low), dimension.high)
