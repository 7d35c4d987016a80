"""Functions that read constants of classes. They stand apart from the tests of the guard, because pytest compiles
these otherwise than they are written."""

from typing import ClassVar

from palestra.schedules import ConstantSchedule


class Base(ConstantSchedule):
    EPSILON: ClassVar[float] = 1e-8


class Scaled(Base):
    FACTORS: ClassVar[tuple[float, ...]] = (2.0, 3.0)

    def scale(self, x: float) -> float:
        return self.FACTORS[0] * x + self.EPSILON
