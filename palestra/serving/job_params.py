"""Reads what a request for a fine-tuning job asks for."""

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from palestra.serving.errors import ApiError
from palestra.serving.params import Params
from palestra.serving.tuning import Method

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
