"""Reads the parameters of a request: their names and types are those of a model, and what it has not is refused."""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from palestra.serving.errors import ApiError, quoted, unknown_parameter
from palestra.serving.jobs import Method


class Params(BaseModel):
    """The parameters of a request, or of an object in one. Null is read as absent, and every error names its parameter.

    without_effect: by name, the values that change nothing, beside null.
    """

    model_config = ConfigDict(frozen=True, strict=True)
    without_effect: ClassVar[Mapping[str, Sequence[Any]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _said(cls, data: Any) -> Any:
        """Leave out what changes nothing. Of unknown names only the first is told, since there may be a million."""
        if not isinstance(data, dict):
            raise ValueError(f"expected an object, got {quoted(data)}")
        nothing = [(name, type(value), value) for name, values in cls.without_effect.items() for value in values]
        said = {n: value for n, value in data.items() if value is not None and (n, type(value), value) not in nothing}
        if (unknown := next((name for name in said if name not in cls.model_fields), None)) is not None:
            raise PydanticCustomError("unknown", "a parameter that is unknown", {"unknown": [unknown]})
        return said

    @classmethod
    def read(cls, data: Any) -> Self:
        """Read the parameters of a request. Raises ApiError, which names one that cannot be."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
        told = fault.get("ctx", {})
        path = ".".join(map(str, [*fault["loc"], *told.get("unknown", ())]))
        if "unknown" in told:
            raise unknown_parameter(path)
        if fault["type"] == "missing":
            raise ApiError(f"{path}: expected this parameter, got none", path, code="missing_required_parameter")
        raise ApiError(f"{path}: {told['error']}", path, code="invalid_value")


def expected(
    what: str, is_right: Callable[[Any], object] = lambda value: True, most: float = math.inf
) -> WrapValidator:
    """Return an annotation by which a value of another type, or one that is not right, is refused in words.

    most: entries of a list or an object, counted before they are looked at, since there may be a million.
    """

    def check(value: Any, read: Callable[[Any], Any]) -> Any:
        with suppress(ValidationError):
            if not (isinstance(value, list | dict) and len(value) > most) and is_right(found := read(value)):
                return found
        raise ValueError(f"expected {what}, got {quoted(value)}")

    return WrapValidator(check)


def within(low: float, high: float) -> WrapValidator:
    """Return an annotation for an integer, or a number if the bounds are floats, of a range."""
    what = f"an integer from {low} to {high}" if isinstance(low, int) else f"a number from {low:g} to {high:g}"
    return expected(what, lambda value: low <= value <= high)


Text = Annotated[str, expected("a text")]


# ---- fine-tuning jobs -----------------------------------------------------------------------------------


MOST_PAIRS, LONGEST_KEY, LONGEST_VALUE = 16, 64, 512  # of metadata
BETA = 0.1  # of a job that says none
BETAS = "a number from 1e-09 to 1e+09"
SUFFIX = "up to 64 letters, digits, dots, dashes and underscores"
METADATA = f"at most {MOST_PAIRS} texts of {LONGEST_VALUE} characters, by keys of {LONGEST_KEY}"
Key = Annotated[str, Field(max_length=LONGEST_KEY)]
Value = Annotated[str, Field(max_length=LONGEST_VALUE)]
Metadata = Annotated[dict[Key, Value], expected(METADATA, most=MOST_PAIRS)]


class Hyperparameters(Params):
    """How a job tunes. "auto" is read as absent; beta belongs to the method dpo alone."""

    without_effect: ClassVar = dict.fromkeys(("n_epochs", "batch_size", "learning_rate_multiplier"), ("auto",))

    n_epochs: Annotated[int, within(1, 10_000)] = 1
    batch_size: Annotated[int, within(1, 100_000)] = 64
    learning_rate_multiplier: Annotated[float, within(1e-9, 1e9)] = 1.0
    beta: Annotated[float | Literal["auto"], expected(BETAS, lambda b: b == "auto" or 1e-9 <= b <= 1e9)] | None = None


class OwnParams(Params):
    hyperparameters: Hyperparameters | None = None


class MethodParams(Params):
    type: Annotated[Literal["supervised", "dpo"], expected("supervised or dpo")] = "supervised"
    supervised: OwnParams | None = None
    dpo: OwnParams | None = None


class JobParams(Params):
    """The parameters of a job. metadata: the texts by which a client finds it again."""

    without_effect: ClassVar = {"integrations": ([],), "hyperparameters": ({},)}

    model: Text
    training_file: Text
    suffix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$"), expected(SUFFIX)] | None = None
    metadata: Metadata | None = None
    seed: Annotated[int, within(0, 2**63 - 1)] = Field(default_factory=lambda: secrets.randbits(31))
    method: MethodParams = MethodParams()
    hyperparameters: Hyperparameters | None = None

    def tuning(self) -> Method:
        """Return how the job tunes. Raises ApiError for what belongs to another method, or is said in two places."""
        name, by_method = self.method.type, {"supervised": self.method.supervised, "dpo": self.method.dpo}
        method = by_method.pop(name)
        own = method and method.hyperparameters
        # before there were methods, the request itself had those of a supervised one
        found = own or self.hyperparameters or Hyperparameters()
        others: dict[str, object] = {f"method.{other}": said for other, said in by_method.items()}
        others["hyperparameters"] = own and self.hyperparameters
        others[f"method.{name}.hyperparameters.beta" if own else "hyperparameters.beta"] = name != "dpo" and found.beta
        for path, said in others.items():
            if said:
                raise unknown_parameter(path)
        beta = (BETA if found.beta in (None, "auto") else found.beta) if name == "dpo" else None
        return Method(name=name, seed=self.seed, **found.model_dump() | {"beta": beta})
