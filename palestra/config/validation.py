"""Checks plain data: gives the config, or all errors in the form "expected X, got Y"."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from palestra.config.base import Config
from palestra.config.errors import (
    ConfigError,
    ConfigErrorItem,
    comma_hint,
    initials,
    mapping_hint,
    moved,
    nearest,
    nearest_hint,
    shown,
    typed,
)
from palestra.config.files import apply_fitting, apply_overrides, list_of_overrides, load_yaml
from palestra.config.other_names import ours_of
from palestra.config.own_modules import is_stored, reading_stored
from palestra.config.places import Place, describe, place_of
from palestra.config.usual import completed, lacking, remedies
from palestra.config.variants import ByKey, members_of

M = TypeVar("M", bound=Config)
Model = type[M] | Callable[[Any], type[M]]
"""A model, or a function that finds it for plain data."""

PASSED_THROUGH = ("value_error", "assertion_error")
UNKNOWN_KEY = ("extra_forbidden", "invalid_key")
OUT_OF_RANGE = ("greater_than", "less_than", "multiple_of", "too_short", "too_long", "pattern_mismatch")


def load_config(path: str | Path, overrides: Sequence[str], model: Model[M]) -> M:
    """The config in a YAML file, with overrides `dotted.key=value`, checked. Raises ConfigError with all errors.

    A file in the folder of a run or a sweep is first read without the overrides, which are the user's own, as
    `load_stored_config` reads it.
    """
    if is_stored(Path(path)):
        config = load_stored_config(Path(path), model)
        if not overrides:
            return config
    return check_overridden(load_yaml(Path(path)), overrides, model)


def load_stored_config(path: Path, model: Model[M]) -> M:
    """The config of a stored run, which another person may have written, loaded as `load_config` does.

    Of the modules that it names, only those are imported that the user trusts. Raises UntrustedError if it names
    others.
    """
    with reading_stored(path):
        return check_overridden(load_yaml(path), (), model)


def check_overridden(data: dict[str, Any], overrides: Iterable[str], model: Model[M]) -> M:
    """The config that plain data describe after the overrides. Raises ConfigError with the errors of both together."""
    errors: list[ConfigErrorItem] = []
    for override in list_of_overrides(overrides):
        try:
            data = apply_overrides(data, [override], _model_of(data, model))
        except ConfigError as error:
            errors += error.errors
    try:
        chosen: type[M] = model if isinstance(model, type) else model(data)
        config = check(data, chosen)
    except ConfigError as error:
        unknown = tuple(each.path.removesuffix("name") for each in error.errors if each.path.endswith(".name"))
        errors = [each for each in errors if not each.path.startswith(unknown)]  # nobody knows the keys of these parts
        errors += error.errors
    ConfigError.require_none(errors)
    return config


def _model_of(data: dict[str, Any], model: Model[M]) -> type[M] | None:
    """The model of data before their overrides; None if the data do not tell it yet."""
    try:
        return model if isinstance(model, type) else model(data)
    except ConfigError:
        return None


def check(data: Any, model: type[M]) -> M:
    """The config that plain data (mappings, lists, scalars) describes. Raises ConfigError with all errors at once.

    A ValueError that a validator raises becomes an error at the path of its field or model, with the same message.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        faults = [_Fault.at(details, data, model) for details in error.errors(include_url=False)]
    raise ConfigError(_items(faults))


def checked(said: Any, union: Any) -> Any:
    """The config of a member of a union, completed with its usual values; None if keys are missing even then.

    said: what a first file says of it. Raises ConfigError.
    """
    place = place_of(union)
    data = completed(said, place)
    return None if any(lacking(data, place)) else check(data, place.chosen(data).kind)


def completed_part(key: str, said: Any, overrides: Iterable[str], model: type[Config]) -> Any:
    """The plain data at the one key of a model, with its usual values and the overrides that are about it. Checked.

    said: what a first file says of it; a usual value may depend on some of the overrides. Raises ConfigError.
    """
    own = [override for override in overrides if override.strip().startswith(f"{key}.")]
    data = completed(apply_fitting({key: said}, own, model), Place(model), None)
    data = apply_overrides(data, own, model)
    with remedies(data, model):
        check(data, model)
    return data[key]


class _Fault(NamedTuple):
    """One error as pydantic found it, with the place where it lies, the place above it, and the model of the file."""

    details: ErrorDetails
    path: tuple[str | int, ...]
    place: Place
    parent: Place
    root: type[Config]

    @classmethod
    def at(cls, details: ErrorDetails, data: Any, model: type[Config]) -> "_Fault":
        """Follow an error's location through the types. The path lacks what pydantic adds: tags of unions, '[key]'."""
        place = parent = Place(model)
        value, path = data, []
        for key in details["loc"]:
            if key == "[key]":
                place = place_of(get_args(parent.kind)[0])
                break
            if place.variants is None and len(place.alternatives()) > 1:
                if details["type"] not in PASSED_THROUGH:  # the value fits none of the types
                    details = ErrorDetails(type="union", loc=details["loc"], msg="", input=value)
                break
            parent, place = place.chosen(value), place.below(key, value)
            value = _value_at(value, key)
            path.append(key)
        return cls(details, tuple(path), place, parent, model)


def _value_at(value: Any, key: str | int) -> Any:
    try:
        return getattr(value, str(key)) if isinstance(value, Config) else value[key]
    except (KeyError, IndexError, AttributeError, TypeError):
        return None  # the data have no such key


def _items(faults: list[_Fault]) -> list[ConfigErrorItem]:
    """Put the faults into words, each once. A missing key and its misspelling are one error."""
    misspelt = _misspelt(faults)
    items: list[ConfigErrorItem] = []
    for fault in faults:
        path, cause = _dotted(fault.path), fault.details.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):
            items += moved(cause.errors, (path,))
        elif fault.details["type"] in UNKNOWN_KEY:
            items.append(ConfigErrorItem(path, _unknown_key(fault, misspelt.get(fault.path))))
        elif fault not in misspelt.values():
            items.append(ConfigErrorItem(path, _message(fault)))
    return list(dict.fromkeys(items))


def _misspelt(faults: list[_Fault]) -> dict[tuple[str | int, ...], _Fault]:
    """Find the missing key that each unknown key of the same mapping probably means, by the unknown key's path."""
    missing = [fault for fault in faults if fault.details["type"] == "missing"]
    meant = {}
    for fault in faults:
        if fault.details["type"] in UNKNOWN_KEY:
            siblings = {str(other.path[-1]): other for other in missing if other.path[:-1] == fault.path[:-1]}
            if (key := _meant_key(fault, siblings, at_least=0.75)) is not None:
                meant[fault.path] = siblings[key]
                missing.remove(siblings[key])
    return meant


def _unknown_key(fault: _Fault, meant: _Fault | None) -> str:
    if meant is not None:
        key = meant.path[-1]
        return f"unknown key; did you mean {key!r}, which is missing (expected {describe(meant.place)})?"
    known, key = list(fault.parent.kind.model_fields), str(fault.path[-1])
    if (why := getattr(fault.parent.kind, "absent", {}).get(key)) is not None:
        return f"unknown key: {why}"
    if (near := _meant_key(fault, known, at_least=0.6)) is not None:
        return f"unknown key; the nearest known key is {near!r}"
    ours = ours_of(key, fault.root)
    elsewhere = f"; elsewhere {key!r} stands for what is {' or '.join(ours)} here" if ours else ""
    return f"unknown key{elsewhere}; known keys: {', '.join(known)}"


def _meant_key(fault: _Fault, known: Iterable[str], at_least: float) -> str | None:
    """The known key that an unknown one probably means: by its name in other libraries, by its initials, or likeness.

    If another library's name means a key below others, such as `objective.epsilon`, the first of them is found that is
    not among the keys above the unknown one.
    """
    *above, key = map(str, fault.path)
    known, ours = list(known), [_next_key(above, each.split(".")) for each in ours_of(key, fault.root)]
    named = [each for each in known if each in ours] or [each for each in known if initials(each) == key]
    return named[0] if named else nearest(key, known, at_least)


def _next_key(above: list[str], keys: list[str]) -> str:
    """The first of dotted keys that does not stand in a path already: `b` of `a.b` below `x.a`."""
    return keys[next((num for num in range(len(keys) - 1, 0, -1) if above[-num:] == keys[:num]), 0)]


def _message(fault: _Fault) -> str:
    """Say what was expected, and what the config has instead."""
    kind, value, place = fault.details["type"], fault.details["input"], fault.place
    expected = f"expected {describe(place)}"
    if kind == "missing":
        return f"{expected}, but the key is missing"
    if kind == "no_key_of_a_member" and isinstance(place.variants, ByKey):
        keys = place.variants.expected(members_of(place.kind), _dotted(fault.path) + ".")
        return f"expected {keys}, but all of these keys are missing"
    if kind in PASSED_THROUGH:
        return str(fault.details["ctx"]["error"])
    if kind == "finite_number":
        return f"{expected}, got {shown(value)}, which is not finite"
    if kind == "literal_error" and isinstance(value, str):
        return f"{expected}, got {value!r}{nearest_hint(value, map(str, place.kind.__args__))}"
    if any(word in kind for word in OUT_OF_RANGE):
        return f"{expected}, got {f'one of length {len(value)}' if isinstance(value, list | dict) else shown(value)}"
    if kind == "int_type" and isinstance(value, float) and value.is_integer():
        expected += f" (write {int(value)})"
    hint = mapping_hint(value) if kind in ("model_type", "dict_type") else ""
    if kind in ("int_type", "float_type"):
        hint = comma_hint(value)
    if kind == "string_type" and isinstance(value, bool | int | float):
        hint = f"""; a text is quoted: "{shown(value)}", on a command line '"{shown(value)}"'"""
    return f"{expected}, got {typed(value)}{hint}"


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(str(key) for key in path)
