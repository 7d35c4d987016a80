"""Functions that read constants of classes. They stand apart from the tests of the guard, because pytest compiles
these otherwise than they are written."""

from typing import ClassVar

from palestra import schedules
from palestra.schedules import ConstantSchedule


class Base(ConstantSchedule):
    EPSILON: ClassVar[float] = 1e-8


class Scaled(Base):
    FACTORS: ClassVar[tuple[float, ...]] = (2.0, 3.0)

    def scale(self, x: float) -> float:
        return self.FACTORS[0] * x + self.EPSILON


class Settings(ConstantSchedule):
    LIMIT: ClassVar[float] = 1.0


def limited(x: float) -> float:
    return min(x, Settings.LIMIT)


def by_module(x: float) -> float:
    return min(x, schedules.MADE_UP_LIMIT)  # type: ignore[attr-defined, no-any-return]
