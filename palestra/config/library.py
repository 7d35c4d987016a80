"""Classes of a library, which a file names by their path, with all the arguments that their signatures have.

    optimizer: {name: "torch.optim:RMSprop", arguments: {alpha: 0.99, eps: 1.0e-8, ...}}

A union of configs (palestra.config.variants) chooses such a config by the library's name, and for classes of the user's
own that derive from one of the library.
"""

import inspect
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

from palestra.config.base import Config
from palestra.config.errors import ConfigError, ConfigErrorItem, likeness, listed, nearest, nearest_hint, shown
from palestra.config.own_modules import IMPORT_PATH, import_own

# What a value must be for an annotation, as far as that is plain.
KINDS: dict[str, tuple[type, ...]] = {
    **{"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,), "None": (type(None),)},
    **{"tuple": (list, tuple), "Sequence": (list, tuple)},
    **{"ObsType": (), "torch.Tensor": ()},  # no file can write them
}


class LibraryClass(Config):
    """The base of the configs that name a class of a library. A subclass describes the fields `name` and `arguments`.

    library: the module with the classes. base: the class from which they derive, as package.module:Class. classes:
    those that a file may name; (): all. not_said: the arguments that a file may not say, each with the reason.
    """

    library: ClassVar[str]
    base: ClassVar[str]
    classes: ClassVar[tuple[str, ...]] = ()
    not_said: ClassVar[Mapping[str, str]] = {}

    name: str
    arguments: dict[str, Any]

    def user_names(self) -> list[str]:
        return [] if self.is_name(self.name) else [self.name]

    @classmethod
    def is_name(cls, name: str) -> bool:
        """Whether a name is the path of a class in the library's package. The class need not exist."""
        package = cls.library.partition(".")[0]
        return bool(IMPORT_PATH.fullmatch(name)) and name.startswith((f"{package}.", f"{package}:"))

    @classmethod
    def has_made(cls, found: Any) -> bool:
        """Whether a class of the user's own derives from one of the library."""
        bases = found.__mro__ if isinstance(found, type) else ()
        return any(f"{each.__module__}.".startswith(f"{cls.library}.") for each in bases)

    @classmethod
    def module(cls, name: str) -> Any:
        """A module of the library. Raises ImportError, or ConfigError at the key `name`."""
        return import_module(name)

    @classmethod
    def load(cls, name: str) -> Any:
        """The class that a name means. Raises ConfigError at the key `name`."""
        (base_place, _, base_name), (place, _, class_name) = cls.base.partition(":"), name.partition(":")
        base = getattr(cls.module(base_place), base_name)
        try:
            module = cls.module(place) if cls.is_name(name) else import_own(place)
        except ImportError as error:
            raise ConfigError.at("name", f"{error}; as in {cls.base}") from error
        found, known = getattr(module, class_name, None), cls.classes if cls.is_name(name) else ()
        if isinstance(found, type) and issubclass(found, base) and (not known or class_name in known):
            return found
        if known:
            names = sorted((f"{cls.library}:{each}" for each in known), key=lambda each: -likeness(name, each))
            expected = f"one of {listed(names)}"
        else:
            things = [key for key, each in vars(module).items() if isinstance(each, type) and issubclass(each, base)]
            names = [f"{place}:{key}" for key in things]
            expected = f"a class of {place} that derives from {base_name}"
        raise ConfigError.at("name", f"expected {expected}, got {name!r}{nearest_hint(name, names)}")

    @classmethod
    def parameters(cls, found: Any) -> dict[str, inspect.Parameter]:
        """The parameters that a file must say of a class, by name, with those of bases to which it hands **kwargs."""
        parameters: dict[str, inspect.Parameter] = {}
        for base in found.__mro__:
            init: Any = vars(base).get("__init__")
            own = {} if init is None else inspect.signature(init).parameters
            for name, each in own.items():
                if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD) and cls.is_said(each):
                    parameters.setdefault(name, each)
            if init is not None and not any(each.kind is each.VAR_KEYWORD for each in own.values()):
                break
        return parameters

    @classmethod
    def is_said(cls, parameter: inspect.Parameter) -> bool:
        """Whether a file must say an argument."""
        return parameter.name not in ("self", *cls.not_said)

    @classmethod
    def in_full(cls, name: str) -> dict[str, Any]:
        """The config that a name alone stands for in an override.

        It has the library's own values, and null for arguments that have none.
        """
        parameters = cls.parameters(cls.load(name)).values()
        return {"name": name, "arguments": {each.name: _usual(each) for each in parameters}}

    def called_with(self) -> dict[str, Any]:
        """The arguments with which the class is called; lists become tuples.

        Raises ConfigError if one is missing, unknown, or of a wrong type.
        """
        parameters, faults = self.parameters(self.load(self.name)), {}
        for key, parameter in parameters.items():
            if key not in self.arguments:
                usually = "" if parameter.default is parameter.empty else f" (usually {shown(_usual(parameter))})"
                faults[key] = f"expected a value{usually}, but the key is missing"
            elif (misfit := _misfit(self.arguments[key], _annotation(parameter))) is not None:
                place, wrong = misfit
                faults[f"{key}{place}"] = f"expected {_annotation(parameter)}, got {shown(wrong)}"
        for key in self.arguments.keys() - parameters.keys():
            near = nearest(key, parameters)
            hint = f"did you mean {near!r}?" if near else f"it has {listed(parameters) or 'none'}"
            faults[key] = f"unknown argument of {self.name}; {hint}"
            if (reason := self.not_said.get(key)) is not None:
                faults[key] = f"expected no such key, because {reason}"
        ConfigError.require_none(ConfigErrorItem(f"arguments.{key}", faults[key]) for key in sorted(faults))
        return {key: tuple(value) if isinstance(value, list) else value for key, value in self.arguments.items()}


def _usual(parameter: inspect.Parameter) -> Any:
    default = None if parameter.default is parameter.empty else parameter.default
    return list(default) if isinstance(default, tuple) else default


def _annotation(parameter: inspect.Parameter) -> str:
    said = parameter.annotation
    return said if isinstance(said, str) else inspect.formatannotation(said)


def _misfit(value: Any, annotation: str) -> tuple[str, Any] | None:
    """Find the first value that has none of the types that an annotation names: an argument, or an item of a list.

    Gives its place below the argument, such as ".0", and the value. Gives None if all values fit, or if the annotation
    names types that are not in KINDS.
    """
    outside, inside = re.sub(r"\[.*?\]", "", annotation), "".join(re.findall(r"\[(.*?)\]", annotation))
    values = {"": value} | ({f".{place}": each for place, each in enumerate(value)} if isinstance(value, list) else {})
    for place, each in values.items():
        names = re.findall(r"[\w.]+", (inside if place else outside).replace("...", ""))
        kinds = [kind for name in names for kind in KINDS.get(name, ())]
        if names and KINDS.keys() >= set(names) and type(each) not in kinds:
            return place, each
    return None
