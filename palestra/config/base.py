"""The base class of every config model, walks through a config, and the types of numbers that configs use."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

C = TypeVar("C", bound="Config")


class Config(BaseModel):
    """The base class of every config: frozen, strictly typed, without unknown keys, and without defaults.

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

    absent: ClassVar[Mapping[str, str]] = {}
    """keys that a file might say here in vain, each with the reason why there is none"""

    def user_names(self) -> list[str]:
        """The classes and functions of the user's own that this config itself names, as package.module:name."""
        return []

    def own_modules(self) -> list[str]:
        """The modules of the user's own that this config itself names."""
        return [name.partition(":")[0] for name in self.user_names()]

    def uses_outside(self) -> list[tuple[str, str]]:
        """The places outside of a run's folder that this config itself names, each with what it is used for."""
        return []


@dataclass(frozen=True)
class Noun:
    """The word by which errors call a value: "expected a discount between 0 and 1", not "a number between 0 and 1"."""

    word: str


def _in_64_bits(value: int) -> int:
    if value >= 2**63:
        raise ValueError(f"expected an integer below 2 to the power of 63, got {value:.3g}")
    return value


class InBranch(Enum):
    """An annotation of a config's field that says whether a branch of a run may change the field.

    It holds for everything below the field, too, except for fields with an annotation of their own. A field may change
    if neither it nor one above it has an annotation.
    """

    FIXED = "what a checkpoint consists of depends on it"
    SAME_PART = "the part stays the one that it is; its other keys may change"
    FREE = "it may change, although what it belongs to is fixed"


def under(data: Any, *keys: str) -> Any:
    """Return the value at some keys of nested mappings; None if there is none."""
    for key in keys:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def walk(value: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Give everything that a config is made of, each value with the keys that lead to it."""
    yield keys, value
    inside = dict(enumerate(value)) if isinstance(value, list | tuple) else value
    if isinstance(inside, Config | dict):
        for key, inner in dict(inside).items():
            yield from walk(inner, (*keys, str(key)))


def replaced(config: C, path: str, value: Any) -> C:
    """A copy of a config with another value at a dotted path. The value is not checked."""
    here: Any = config
    name, _, rest = path.partition(".")
    changed = {name: replaced(dict(here)[name], rest, value) if rest else value}
    return cast(C, here | changed if isinstance(here, dict) else here.model_copy(update=changed))


PositiveInt = Annotated[int, Field(ge=1), AfterValidator(_in_64_bits)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1), Noun("fraction")]
Decay = Annotated[float, Field(ge=0, lt=1)]  # of a running mean, which 1 would never change
Discount = Annotated[float, Field(ge=0, le=1), Noun("discount")]
NonEmptyStr = Annotated[str, Field(min_length=1)]
