"""The base class of every config model, and the types of numbers that configs use."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


class Config(BaseModel):
    """Base class of every config: frozen, strictly typed, without unknown keys, and without defaults.

    A field that may be absent has the type `X | None`, and the file says `null`. The string below a field is its
    comment in printed files:

        gamma: Discount
        \"\"\"Discount per decision of the player.\"\"\"

    A float field accepts an integer, but no boolean, no string, no nan and no inf.
    """

    # defer_build: a run uses a few of a hundred models, and each is built on first use
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    usual: ClassVar[Any] = {}
    """what a first file says of this part (palestra.config.usual): values by key, or a function that gives them"""

    def user_names(self) -> list[str]:
        """The classes and functions of the user's own that this config itself names, as package.module:name."""
        return []

    def own_modules(self) -> list[str]:
        """The modules of the user's own that this config itself names."""
        return [name.partition(":")[0] for name in self.user_names()]


@dataclass(frozen=True)
class Noun:
    """What errors call a value: "expected a discount between 0 and 1" instead of "a number between 0 and 1"."""

    word: str


def _in_64_bits(value: int) -> int:
    if value >= 2**63:
        raise ValueError(f"expected an integer below 2 to the power of 63, got {value:.3g}")
    return value


class InBranch(Enum):
    """Whether a branch of a run may change a field of its config, as an annotation of the field.

    It holds for all that lies below, but for fields with an annotation of their own; a field without any, above or at
    it, may change.
    """

    FIXED = "what a checkpoint consists of depends on it"
    SAME_PART = "the part stays the one that it is; its other keys may change"
    FREE = "it may change, although what it belongs to is fixed"


PositiveInt = Annotated[int, Field(ge=1), AfterValidator(_in_64_bits)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1), Noun("fraction")]
Discount = Annotated[float, Field(ge=0, le=1), Noun("discount")]
NonEmptyStr = Annotated[str, Field(min_length=1)]
