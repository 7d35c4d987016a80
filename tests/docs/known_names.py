"""What documents may name: keys of a run's config and of a sweep, commands, shipped configs, names in Python."""

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from palestra.algorithms.algorithm import AlgorithmConfig
from palestra.cli import app
from palestra.config.places import _models_in, fields_under, kind_of_extras
from palestra.run.kinds import kinds
from palestra.run.shipped import shipped_configs
from palestra.sweeps.config import SweepConfig
from palestra.text.algorithms.algorithm import JobConfig

Model = type[BaseModel]
KINDS_OF_RUN = frozenset(kind.config for kind in kinds())
FILES = KINDS_OF_RUN | {SweepConfig}


@cache
def models() -> frozenset[Model]:
    return frozenset(model for kind in KINDS_OF_RUN for model, _, _ in fields_under(kind))


@cache
def variants() -> frozenset[str]:
    """The values of every `name`, or of another key with a list of words."""
    found = (get_args(field.annotation) for kind in KINDS_OF_RUN for _, _, field in fields_under(kind))
    return frozenset(value for values in found for value in values if isinstance(value, str))


def is_key(path: str) -> bool:
    """Whether a dotted path is a key of a run or a sweep, from the top of its file or below a player's `algorithm`."""
    algorithms = {model for model in models() if issubclass(model, AlgorithmConfig | JobConfig)}
    return any(_leads(path.split("."), start) for start in (FILES, algorithms))


def _leads(path: list[str], start: Iterable[Model]) -> bool:
    """Whether a path leads from one of these models to a field. The keys of dicts and of lists may be anything."""
    here, is_free = set(start), False
    for key in path:
        if is_free:
            is_free = False
            continue
        annotations = [model.model_fields[key].annotation for model in here if key in model.model_fields]
        extras = [] if annotations else [kind_of_extras(model) for model in here]  # as the networks of body, by head
        annotations += [kind for kind in extras if kind is not Any]
        if not annotations:
            return False
        is_free = any(_is_container(annotation) for annotation in annotations)
        here = {model for annotation in annotations for model in _models_in(annotation)}
    return True


def _is_container(annotation: Any) -> bool:
    if get_origin(annotation) in (dict, list):
        return True
    return any(_is_container(each) for each in get_args(annotation))


def is_command(line: str) -> bool:
    """Whether a line begins with a command of palestra."""
    names = {str(command.name) for command in (*app.registered_commands, *app.registered_groups)}
    words = line.split()
    return words[0] == "palestra" and words[1].lstrip("-") in {*names, "version"}


def is_shipped(name: str) -> bool:
    return name in shipped_configs()


def is_in_python(name: str) -> bool:
    """Whether a dotted name, `palestra.x.Y.z`, is that of something."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            found = getattr(found, part, None) or getattr(found, "__dataclass_fields__", {}).get(part)
        return found is not None
    return False
