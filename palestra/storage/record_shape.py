"""Checks that a record holds what its readers rely on. Another person or a broken disk may have written it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Interval = Annotated[list[float | None], Field(min_length=2, max_length=2)]
Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class _Section(BaseModel):
    """A mapping of a record; it may have further keys."""

    model_config = ConfigDict(strict=True)


class _Clock(_Section):
    train_seconds: Seconds = 0.0
    time: dict[str, Seconds] = {}


class _Record(_Section):
    """A record of any kind."""

    kind: str = ""
    env_steps: Count = 0
    opt_steps: Count = 0
    items: Count = 0
    epochs: Count = 0
    episodes: Count = 0
    clock: _Clock = _Clock()


class _PlayerMetrics(_Section):
    episodes: dict[str, Any] = {}


class _Training(_Record):
    players: dict[str, _PlayerMetrics] = {}


class _DeclaredScore(_Section):
    name: Annotated[str, Field(min_length=1)]
    meaning: str
    unit: str
    high_for: list[str]
    low_for: list[str]
    shown: bool


class _Pair(_Section):
    model_config = ConfigDict(strict=True, extra="allow")

    players: Annotated[dict[str, str], Field(min_length=1)]
    learned: list[str]
    same_as: dict[str, str] | None = None
    truncated: Count = 0
    scores: dict[str, float | None]
    intervals: dict[str, Interval]

    @model_validator(mode="after")
    def _check_learned(self) -> Self:
        if not set(self.learned) <= self.players.keys():
            raise ValueError("expected roles of players in learned, got others")
        return self


class _Evaluation(_Record):
    evaluation: Annotated[str, Field(min_length=1)]
    opt_steps: Count
    roles: list[str]
    declared_scores: list[_DeclaredScore]
    counted: str = "games"
    pairs: list[_Pair]

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        names = {score.name for score in self.declared_scores}
        for pair in self.pairs:
            if pair.players.keys() != set(self.roles) or pair.scores.keys() != names:
                raise ValueError("expected the evaluation's roles and declared scores in each pair, got others")
            if type(number := (pair.model_extra or {}).get(self.counted)) is not int or number < 0:
                raise ValueError(f"expected a number of {self.counted} in each pair, got {number!r:.80}")
        return self


def require_shape(record: Mapping[str, Any]) -> None:
    """Raise ValueError, which names the key, if a record lacks what its kind has, or holds a value of another type."""
    is_evaluation = record.get("kind") == "evaluation" or "pairs" in record
    model = _Training if record.get("kind") == "training" else _Evaluation if is_evaluation else _Record
    try:
        model.model_validate(record)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"{key}: {_in_words(first)}" if key else _in_words(first)) from None


def _in_words(fault: "ErrorDetails") -> str:
    if fault["type"] == "missing":
        return "expected a value, got none"
    told = fault["msg"].replace("Input should", "expected it to").removeprefix("Value error, ")
    return f"{'expected a mapping' if fault['type'] == 'model_type' else told}, got {fault['input']!r:.80}"
