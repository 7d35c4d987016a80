"""Reads the parameters of a request: each is taken by name, and what nobody has taken is refused."""

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from palestra.serving.errors import ApiError, named, quoted
from palestra.serving.jobs import Method

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


# ---- fine-tuning jobs -----------------------------------------------------------------------------------


MOST_PAIRS, LONGEST_KEY, LONGEST_VALUE = 16, 64, 512  # of metadata
AUTO = {"n_epochs": 1, "batch_size": 64, "learning_rate_multiplier": 1.0, "beta": 0.1}  # what "auto" means
WITHOUT_EFFECT: dict[str, Sequence[Any]] = {"integrations": ([],), "hyperparameters": ({},)}


def read_job(data: dict[str, Any]) -> dict[str, Any]:
    """Return the model, the training file, the method, the suffix and the metadata of a job. Raises ApiError."""
    params = Params(data)
    model, training_file = params.text("model"), params.text("training_file")
    suffix = params.take("suffix")
    if suffix is not None and not (isinstance(suffix, str) and re.fullmatch(r"[\w.-]{1,64}", suffix, re.ASCII)):
        raise params.refuse("suffix", "up to 64 letters, digits, dots, dashes and underscores", suffix)
    metadata = read_metadata(params)
    seed = params.integer("seed", 0, 2**63 - 1, secrets.randbits(31))
    method = _method(params, seed)
    params.end(WITHOUT_EFFECT)
    return {
        "model": model,
        "training_file": training_file,
        "method": method,
        "suffix": suffix,
        "metadata": metadata,
    }


def _method(params: Params, seed: int) -> Method:
    method = params.mapping("method")
    name: Any = method.take("type")
    name = "supervised" if name is None else name
    if name not in ("supervised", "dpo"):
        raise method.refuse("type", "supervised or dpo", name)
    own = method.mapping(name)
    # before there were methods, the request itself had those of a supervised one
    found = own.mapping("hyperparameters") if own.data else params.mapping("hyperparameters")
    values: Mapping[str, Any] = {
        "n_epochs": _or_auto(found, "n_epochs", Params.integer, 1, 10_000),
        "batch_size": _or_auto(found, "batch_size", Params.integer, 1, 100_000),
        "learning_rate_multiplier": _or_auto(found, "learning_rate_multiplier", Params.number, 1e-9, 1e9),
        "beta": _or_auto(found, "beta", Params.number, 1e-9, 1e9) if name == "dpo" else None,
    }
    for each in (found, own, method):
        each.end({})
    return Method(name=name, seed=seed, **values)


def _or_auto(params: Params, name: str, read: Any, low: float, high: float) -> Any:
    """Take a hyperparameter. "auto" and none are the same."""
    if params.data.get(name) == "auto":
        params.take(name)
    return read(params, name, low, high, AUTO[name])


def read_metadata(params: Params) -> dict[str, str] | None:
    """Take the texts by which a client finds a job again."""
    metadata = params.take("metadata")
    if metadata is None:
        return None
    expected = f"at most {MOST_PAIRS} texts of {LONGEST_VALUE} characters, by keys of {LONGEST_KEY}"
    if not isinstance(metadata, dict) or len(metadata) > MOST_PAIRS:
        raise params.refuse("metadata", expected, metadata)
    for key, value in metadata.items():
        is_text = isinstance(value, str) and _is_unicode(key) and _is_unicode(value)
        if not is_text or len(key) > LONGEST_KEY or len(value) > LONGEST_VALUE:
            raise ApiError(f"metadata: expected {expected}, got others", "metadata", code="invalid_value")
    return metadata


def _is_unicode(text: str) -> bool:
    """Tell whether a text has no halves of pairs of UTF-16, which nothing can encode."""
    return not re.search("[\ud800-\udfff]", text)
