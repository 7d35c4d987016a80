"""The base of every config model, and the numbers that configs are made of."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Config(BaseModel):
    """Base of every config: frozen, strictly typed, closed to unknown keys, and without defaults.

    What can be absent is `X | None` and written `null`. The string below a field is its comment in printed files:

        gamma: Discount
        \"\"\"Discount per decision of the player.\"\"\"

    An integer may stand where a float is expected; a bool is never a number, a string neither; nan and inf are refused.
    """

    # defer_build: a run uses a few of a hundred models, and each is built on first use
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False, defer_build=True)


@dataclass(frozen=True)
class Noun:
    """What a value is called in errors: "1.2 is no discount" instead of "1.2 is out of range"."""

    word: str


PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1), Noun("fraction")]
Discount = Annotated[float, Field(ge=0, le=1), Noun("discount")]
NonEmptyStr = Annotated[str, Field(min_length=1)]
