"""Makes a config from its model alone, with some valid value for each key, so that any class can be tried."""

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from palestra.config import Config, ConfigError, InBranch
from palestra.config.variants import Variants, members_of, names_of

CANDIDATES: tuple[Any, ...] = (0.05, 2, 0.5, 1, 0, False, None, "a", [], {})
BY_KEY = {"capacity": 256}  # of a replay buffer, which must hold a roll-out
NET = {"name": "mlp", "net_arch": [8], "activation": "tanh"}


def sample_config(model: type[Config], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return data that the model accepts.

    values: those of some keys. Raises ValueError if no value is found for another key.
    """
    data = {name: value for name, value in BY_KEY.items() if name in model.model_fields} | dict(values)
    for name, field in model.model_fields.items():
        if name not in data:
            metadata = [item for item in field.metadata if not isinstance(item, InBranch)]
            kind: Any = Annotated[field.annotation, *metadata] if metadata else field.annotation
            try:
                data[name] = _sample(kind)
            except ValueError:
                raise ValueError(
                    f"{name}: expected a value in `config`, because none can be made up, got none"
                ) from None
    return data


def _sample(kind: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated and any(isinstance(mark, Variants) for mark in arguments[1:]):
        return _sample_variant(members_of(arguments[0]))
    if origin is Literal:
        return arguments[0]
    if origin in (Union, UnionType) and NoneType in arguments:
        return None
    if isinstance(kind, type) and issubclass(kind, Config):
        return sample_config(kind, {})
    adapter = TypeAdapter(kind)
    for value in CANDIDATES:
        try:
            adapter.validate_python(value, strict=True)
        except (ValidationError, ConfigError):
            continue
        return value
    raise ValueError


def _sample_variant(members: tuple[type[Config], ...]) -> Any:
    """Return a small network if the union has one, else its first member."""
    by_name = names_of(members)
    return NET if NET["name"] in by_name else sample_config(next(iter(by_name.values())), {})
