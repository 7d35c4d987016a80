"""Finds what each place of a config may hold, along a path through a model's types, and describes it in words.

The comments of fields are the strings below them, read from the source on demand: pydantic reads those of all models at
import, which would make every start slower.
"""

import ast
import inspect
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from palestra.config.base import Noun
from palestra.config.errors import ConfigError, listed
from palestra.config.variants import Variants, members_of

EXTRAS = "__pydantic_extra__"


class Place(NamedTuple):
    """A place of a config: the type that it holds, without its wrapping, constraints, and whether it may be null."""

    kind: Any
    constraints: tuple[Any, ...] = ()
    is_nullable: bool = False

    @property
    def variants(self) -> Variants | None:
        """The rule that chooses a member, if this place holds a union of config models; else None."""
        return next((item for item in self.constraints if isinstance(item, Variants)), None)

    @property
    def is_model(self) -> bool:
        return isinstance(self.kind, type) and issubclass(self.kind, BaseModel)

    @property
    def holds_anything(self) -> bool:
        """Whether this is a mapping with any keys and values, such as the arguments of a library's class."""
        return get_origin(self.kind) is dict and get_args(self.kind)[1] is Any

    def alternatives(self) -> tuple[Any, ...]:
        """The types of the union, or the one type if this is no union."""
        return get_args(self.kind) if _is_union(self.kind) else (self.kind,)

    def chosen(self, value: Any) -> "Place":
        """This place with a union of config models replaced by the member that `value` names."""
        if self.variants is None or value is None:
            return self
        return Place(self.variants.member(members_of(self.kind), value))

    def below(self, key: str | int, value: Any) -> "Place":
        """The place below this one, at a key of the mapping or an index of the list `value`."""
        here = self.chosen(value)
        if here.is_model:
            field = here.kind.model_fields.get(key)
            return place_of(kind_of_extras(here.kind)) if field is None else place_of_field(field)
        kinds, slot = get_args(here.kind), 0
        if get_origin(here.kind) is dict:
            slot = 1
        elif get_origin(here.kind) is tuple and kinds[-1] is not Ellipsis and isinstance(key, int):
            slot = key
        return place_of(kinds[slot]) if slot < len(kinds) else Place(Any)

    def below_or_any(self, key: str | int, value: Any) -> "Place":
        """The place below this one; one for any value if the types do not say what lies below, or `value` is wrong."""
        with suppress(ConfigError, PydanticCustomError):
            if self.variants is not None or len(self.alternatives()) == 1:
                return self.below(key, value)
        return Place(Any)

    def model_of(self, value: Any) -> type[BaseModel] | None:
        """The model of a mapping at this place; None if it has none, or if the mapping does not tell which."""
        with suppress(ConfigError, PydanticCustomError):
            place = self.chosen(value)
            return place.kind if place.is_model else None
        return None


def place_of(annotation: Any, constraints: tuple[Any, ...] = ()) -> Place:
    """The place that an annotation describes: without Annotated and without `| None`."""
    if get_origin(annotation) is Annotated:
        annotation, *metadata = get_args(annotation)
        return place_of(annotation, constraints + tuple(_flat(metadata)))
    if _is_union(annotation) and type(None) in get_args(annotation):
        rest = tuple(kind for kind in get_args(annotation) if kind is not type(None))
        return place_of(Union[rest], constraints)._replace(is_nullable=True)  # noqa: UP007
    return Place(annotation, constraints)


def kind_of_extras(model: type[BaseModel]) -> Any:
    """The type of the values of keys that a model allows beside its fields; Any where it says nothing of them."""
    declared = (inspect.get_annotations(base).get(EXTRAS) for base in model.__mro__ if base is not BaseModel)
    annotation = next(filter(None, declared), None)
    return get_args(annotation)[1] if get_origin(annotation) is dict else Any


def place_of_field(field: FieldInfo) -> Place:
    return place_of(field.annotation, tuple(_flat(field.metadata)))


def _flat(metadata: list[Any]) -> Iterator[Any]:
    for item in metadata:
        yield from item.metadata if isinstance(item, FieldInfo) else [item]


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


# ---- in words ------------------------------------------------------------------------------------

KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string", Any: "any value"}


def describe(place: Place) -> str:
    """Describe what is expected at a place: "an integer >= 1", "a list, each item a string", "a string or null"."""
    text = _describe(place)
    return f"{text} or null" if place.is_nullable else text


def _describe(place: Place) -> str:
    kind, origin = place.kind, get_origin(place.kind)
    if place.variants is not None:
        return place.variants.describe(members_of(kind))
    if place.is_model:
        return f"a mapping with the keys {', '.join(kind.model_fields)}"
    if origin is Literal:
        values = get_args(kind)
        return f"one of {listed(values)}" if len(values) > 1 else listed(values)
    if _is_union(kind):
        return " or ".join(describe(place_of(alternative)) for alternative in get_args(kind))
    if origin in (list, tuple, dict):
        return _describe_container(place, origin)
    noun = next((item.word for item in place.constraints if isinstance(item, Noun)), None)
    text = KINDS.get(kind, str(kind)) if noun is None else f"a {noun}"
    limits = bounds(place)
    return f"{text} {limits}" if limits else text


def _describe_container(place: Place, origin: Any) -> str:
    kinds, limits = get_args(place.kind), bounds(place)
    if origin is dict:
        return f"a mapping{f' {limits}' if limits else ''}, each value {describe(place_of(kinds[1]))}"
    if origin is tuple and kinds[-1] is not Ellipsis:
        return f"a list of {len(kinds)}: {'; '.join(describe(place_of(kind)) for kind in kinds)}"
    return f"a list{f' {limits}' if limits else ''}, each item {describe(place_of(kinds[0]))}"


LIMITS = {"ge": ">= {}", "gt": "> {}", "le": "<= {}", "lt": "< {}"}
OTHERS = {
    "multiple_of": "a multiple of {}",
    "min_length": "of length >= {}",
    "max_length": "of length <= {}",
    "pattern": "that matches {!r}",
}


def bounds(place: Place) -> str:
    """The bounds of a place in words: ">= 1", "between 0 and 1", "of length >= 1"; empty without bounds."""
    pairs = ((key, getattr(item, key, None)) for key in LIMITS | OTHERS for item in place.constraints)
    found = {key: value for key, value in pairs if value is not None}
    limits = " and ".join(LIMITS[key].format(found[key]) for key in LIMITS if key in found)
    if found.keys() >= {"ge", "le"}:
        limits = f"between {found['ge']} and {found['le']}"
    others = (OTHERS[key].format(found[key]) for key in OTHERS if key in found)
    return ", ".join(filter(None, (limits, *others)))


# ---- what holds for every model -------------------------------------------------------------------


def comment_of(model: type[BaseModel], key: str) -> str | None:
    """The comment of a field: its description; for a `name` without one, the first line of its model's docstring."""
    if (description := description_of(model, key)) is None and key == "name" and model.__doc__:
        description = model.__doc__.strip().splitlines()[0]
    return " ".join(description.split()) if description else None


def fields_under(model: type[BaseModel]) -> Iterator[tuple[type[BaseModel], str, FieldInfo]]:
    """Every field of a model and of all models below it, each model once."""
    models: list[type[BaseModel]] = [model]
    for owner in models:  # grows during the loop
        for key, field in owner.model_fields.items():
            yield owner, key, field
            models.extend(found for found in _models_in(field.annotation) if found not in models)
        models.extend(found for found in _models_in(kind_of_extras(owner)) if found not in models)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def description_of(model: type[BaseModel], key: str) -> str | None:
    """The description of a field, or the string below it in the class that declares it; None if it has neither."""
    field = model.model_fields[key]
    if field.description is not None:
        return field.description
    owner: Any = next(base for base in model.__mro__ if key in inspect.get_annotations(base))
    module = sys.modules.get(owner.__module__)
    return None if module is None else _strings_in(module).get(f"{owner.__qualname__}.{key}")


@cache
def _strings_in(module: ModuleType) -> dict[str, str]:
    """The strings below the annotated names of all classes of a module, by qualified name; empty without its source."""
    with suppress(OSError, TypeError, SyntaxError):
        return dict(_walk(ast.parse(inspect.getsource(module)), ""))
    return {}


def _walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    for above, child in pairwise([node, *ast.iter_child_nodes(node)]):
        match above, child:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield prefix + name, inspect.cleandoc(text)
            case _, ast.ClassDef(name=name):
                yield from _walk(child, f"{prefix}{name}.")
            case _, ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from _walk(child, f"{prefix}{name}.<locals>.")
            case _, ast.stmt():
                yield from _walk(child, prefix)  # a class may be defined below an `if`
