"""Reads the parameters of a request: each is taken by name, and what nobody has taken is refused."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from palestra.serving.errors import ApiError, named, quoted

T = TypeVar("T")


class Params:
    """The parameters of a request. Null is read as absent, and every error names its parameter.

    at: the path of the object that holds them, such as "method.dpo."; empty for the request itself.
    """

    def __init__(self, data: Mapping[str, Any], at: str = "") -> None:
        self.data, self.at = dict(data), at

    def take(self, name: str) -> Any:
        """Return a parameter as it is, None if it is absent."""
        return self.data.pop(name, None)

    def refuse(self, name: str, expected: str, got: object) -> ApiError:
        """Make the error of a parameter with a wrong value."""
        path = self.at + name
        return ApiError(f"{path}: expected {expected}, got {quoted(got)}", path, code="invalid_value")

    def missing(self, name: str) -> ApiError:
        path = self.at + name
        return ApiError(f"{path}: expected this parameter, got none", path, code="missing_required_parameter")

    def text(self, name: str) -> str:
        """Return a text that must be there."""
        if (value := self.take(name)) is None:
            raise self.missing(name)
        if not isinstance(value, str):
            raise self.refuse(name, "a text", value)
        return value

    def integer(self, name: str, low: int, high: int, default: T) -> int | T:
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refuse(name, f"an integer from {low} to {high}", value)
        return value

    def number(self, name: str, low: float, high: float, default: T) -> float | T:
        value = self.take(name)
        if value is None:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not low <= value <= high:  # as no nan is
            raise self.refuse(name, f"a number from {low:g} to {high:g}", value)
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.take(name)
        if not isinstance(value, bool | None):
            raise self.refuse(name, "true or false", value)
        return bool(value)

    def mapping(self, name: str) -> "Params":
        """Return the parameters of an object inside the request; none if it is absent."""
        value = self.take(name)
        if not isinstance(value, dict | None):
            raise self.refuse(name, "an object", value)
        return Params(value or {}, f"{self.at}{name}.")

    def end(self, without_effect: Mapping[str, Sequence[Any]]) -> None:
        """Refuse what nobody has taken. without_effect: by name, the values that change nothing, beside null."""
        for name, value in self.data.items():
            if value is None or any(
                type(value) is type(each) and value == each for each in without_effect.get(name, ())
            ):
                continue
            path = self.at + named(name)
            raise ApiError(f"{path}: this server knows no such parameter", path, code="unsupported_parameter")
