"""Completes what a first file says of a part: each config model brings the usual values of its keys.

    class SGDConfig(Config):
        usual: ClassVar = {"momentum": 0.9, "weight_decay": 0.0}

    class SACConfig(AlgorithmConfig):
        @classmethod
        def usual(cls, said, about):
            return {"gamma": 0.99, "log_std": {"min": -20.0, "max": 2.0} if isinstance(about.action, Box) else None}

A value may be short, as in an override: a name stands for a part, a number for a constant schedule. A function is told
what the file says of the part already, and what the file is about: the spaces of a role for an algorithm and its parts,
the configs of the runs for a sweep. A key without a usual value has that of its union (`ByName(usual=...)`), or is null
where it may be. `palestra config` writes all of them into the file, and overrides that name a part alone do; no file
that is complete reads them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, get_origin

from pydantic import BaseModel

from palestra.config.base import Config
from palestra.config.errors import ConfigError, ConfigErrorItem, below, typed
from palestra.config.places import Place, kind_of_extras, place_of, place_of_field
from palestra.config.variants import UNSAID, ByName, members_of


def usual_of(model: type[BaseModel], said: Mapping[str, Any], about: Any = UNSAID) -> dict[str, Any]:
    """The usual values of a model's keys; its own replace those of its bases. about: UNSAID leaves out functions."""
    found: dict[str, Any] = {}
    for base in reversed(model.__mro__):
        own = vars(base).get("usual", {})
        if isinstance(own, classmethod):
            own = {} if about is UNSAID else own.__get__(None, model)(said, about)
        if not isinstance(own, Mapping):
            kinds = f"a mapping, or a class method that gives one, as {base.__qualname__}.usual"
            raise ConfigError.at("", f"expected {kinds}, got {typed(own)}")
        found |= own
    return found


def completed(value: Any, place: Place, about: Any = UNSAID, said: Mapping[str, Any] | None = None) -> Any:
    """Complete a value with everything that a first file says at its place and that the value lacks.

    value: UNSAID stands for none; short forms are written out. said: what the functions are told that the file says
    here; None: the value. Where nothing is usual the result is UNSAID, and a mapping lacks the key. Raises ConfigError.
    """
    variants = place.variants
    if value is UNSAID and place.is_nullable:
        return None
    if variants is None:
        value = {} if value is UNSAID and place.is_model else value
    else:
        if callable(member := getattr(variants, "usual", UNSAID)):
            member = UNSAID if about is UNSAID else member(about)
        if value is UNSAID or (isinstance(value, dict) and "name" not in value and member is not UNSAID):
            value = joined(member, value)
        value = variants.named(members_of(place.kind), value)
    if isinstance(value, list):
        return [completed(item, place.below_or_any(index, value), about) for index, item in enumerate(value)]
    if (model := place.model_of(value) if isinstance(value, dict) else None) is None:
        if isinstance(value, dict) and get_origin(place.kind) is dict:
            return {key: _below(key, item, place.below(key, value), about) for key, item in value.items()}
        return value
    places = {key: place_of_field(field) for key, field in model.model_fields.items()}
    usual = usual_of(model, value if said is None else said, about) if places.keys() - value.keys() else {}
    if model.model_config.get("extra") == "allow":
        places |= {key: place_of(kind_of_extras(model)) for key in usual | value if key not in places}
    said_of = {key: joined(usual.get(key, UNSAID), value.get(key, UNSAID)) for key in places}
    found = {key: _below(key, said_of[key], there, about) for key, there in places.items()}
    return value | {key: item for key, item in found.items() if item is not UNSAID}


def _below(key: str, item: Any, place: Place, about: Any) -> Any:
    """Complete an item of a mapping; errors name its key."""
    with below(key):
        return completed(item, place, about)


def joined(usual: Any, said: Any) -> Any:
    """Join what a file says with the usual values of keys that it leaves out, unless it names another part."""
    if said is UNSAID:
        return usual
    if isinstance(usual, str) and isinstance(said, dict):
        usual = {"name": usual}
    are_parts = isinstance(usual, dict) and isinstance(said, dict)
    if not are_parts or ("name" in said and said["name"] != usual.get("name")):
        return said
    return usual | {key: joined(usual.get(key, UNSAID), value) for key, value in said.items()}


def lacking(value: Any, place: Place, path: str = "") -> Iterator[str]:
    """The dotted keys of a config that plain data lack."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return
    model = place.model_of(value)
    yield from (f"{path}{key}" for key in (model.model_fields if model else ()) if key not in value)
    for key, item in value.items():
        yield from lacking(item, place.below_or_any(key, value), f"{path}{key}.")


# ---- in overrides ------------------------------------------------------------------------------------


def in_full(value: Any, place: Place) -> Any:
    """Write out the value of an override as a file must write it.

    A number or a name becomes the mapping that it may stand for, also inside mappings and lists; a mapping that names a
    part gets the usual keys that it lacks, if it is complete with these. A name stands for a
    part with its usual keys if the part is complete with these, and for a class of the user's own in any case.
    """
    if isinstance(value, dict):
        found = {key: in_full(item, place.below_or_any(key, value)) for key, item in value.items()}
        whole = completed(found, place) if "name" in found and place.variants is not None else found
        return found if any(lacking(whole, place)) else whole
    if isinstance(value, list):
        return [in_full(item, place.below_or_any(index, value)) for index, item in enumerate(value)]
    if place.variants is None:
        return value
    whole = completed(place.variants.named(members_of(place.kind), value), place)
    is_own = isinstance(place.variants, ByName) and place.variants.names_own_class(value)
    return whole if is_own or not any(lacking(whole, place)) else value


def with_another_name(value: dict[str, Any], place: Place) -> dict[str, Any]:
    """Bring a mapping whose `name` was replaced to the keys of the new part.

    Keys of the part before go, and usual ones of the new part come.
    """
    if (model := place.model_of(value)) is None:
        return value
    whole: dict[str, Any] = completed({key: item for key, item in value.items() if key in model.model_fields}, place)
    return {key: whole[key] for key in model.model_fields if key in whole}


def rebased(value: Any, before: Any, after: Any) -> Any:
    """Change a value that was made from `before` into what it would be if it had been made from `after`."""
    if before == after:
        return value
    if not (isinstance(value, dict) and isinstance(before, dict) and isinstance(after, dict)):
        return after
    kept = {key: item for key, item in value.items() if key not in before and key not in after}
    return kept | {
        key: rebased(value[key], before.get(key, UNSAID), item) if key in value else item for key, item in after.items()
    }


@contextmanager
def remedies(data: dict[str, Any], model: type[Config]) -> Iterator[None]:
    """A context in which errors about keys that have no usual value say how to give them."""
    try:
        yield
    except ConfigError as error:
        remedy = {path: f"; give it, as {path}=VALUE" for path in lacking(data, Place(model))}
        items = [ConfigErrorItem(each.path, each.message + remedy.get(each.path, "")) for each in error.errors]
        raise ConfigError(items) from error
