"""Unions of configs, whose members are told apart by their `name` or by their keys; and classes of the user's own.

    Optimizer = Annotated[AdamConfig | SGDConfig, ByName()]
    Reward = Annotated[WinConfig | UserConfig, ByName(user_class=rewards.Reward)]
    Player = Annotated[LearningPlayer | ScriptedPlayer, ByKey()]

A union that may be absent has `| None` outside: `Optimizer | None`.

Such a union is the register of the parts of one kind: with a line in it, a file can name the part. Each config stands
beside its part and makes it by its method `build`, with the arguments of its kind. A part may also be a class of the
user's own, named as package.module:Class: a subclass of `user_class` with its keys in its attribute `Config`, or itself
a config (a schedule, an exploration).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from palestra.config.base import Config
from palestra.config.errors import ConfigError, comma_hint, likeness, listed, mapping_hint, nearest, nearest_hint, typed
from palestra.config.library import LibraryClass
from palestra.config.own_classes import admits, load_class, load_function, load_named
from palestra.config.own_modules import IMPORT_PATH

C = TypeVar("C", bound=Config)
UNSAID: Any = ...  # stands for the value of a key of which nothing is said


class UserConfig(Config):
    """The base of the config model that a user's own class has as its attribute `Config`."""

    model_config = ConfigDict(defer_build=False)  # errors of the model appear where it is defined

    name: str
    """a class of your own, as package.module:Class"""

    def user_names(self) -> list[str]:
        return [self.name]

    @classmethod
    def model_of(cls, name: str, base: type) -> "type[UserConfig]":
        """The config model of the class that a name means, a subclass of `base`.

        It is the class's attribute `Config`, or the class itself, and a subclass of this one. Raises ValueError.
        """
        found: type = load_class(name, base)
        model = found if issubclass(found, cls) else getattr(found, "Config", None)
        if not (isinstance(model, type) and issubclass(model, cls)):
            expected = f"an attribute Config of {name!r}, a subclass of {cls.__module__}.{cls.__name__}"
            raise ValueError(f"expected {expected}, got {model!r}")
        builder = next(owner for owner in model.__mro__ if "build" in vars(owner))
        if not issubclass(builder, UserConfig):  # it would build the class that it stands beside, not the user's
            expected = f"class Config({cls.__name__}, {builder.__name__})"
            raise ValueError(f"expected {expected} in {name!r}, got one that builds another class")
        return model

    def build(self, *arguments: Any, **named: Any) -> Any:
        """An object of the user's class, called with this config and then the arguments of its kind."""
        made: Any = load_class(self.name, object)
        return made(self, *arguments, **named)


class UnreadConfig(UserConfig):
    """The section of a class that was not imported: the mapping as the file has it."""

    model_config = ConfigDict(extra="allow")


class OwnFunctionConfig(Config):
    """The base of the config of a function of the user's own, which a union by name holds beside its parts.

    Its mapping has no `name`, but the function at the key `key`, as package.module:function. A function, or a class in
    its place, may have further keys: those of its attribute `Config`, a subclass of this config.
    """

    key: ClassVar[str]

    def user_names(self) -> list[str]:
        return [getattr(self, self.key)]

    def function(self) -> Callable[..., Any]:
        """The function, imported if it may be. Raises ValueError."""
        name: str = getattr(self, self.key)
        found = load_named(name, "function")
        return found if isinstance(found, type) else load_function(name)

    @classmethod
    def model_of(cls, name: Any) -> "type[OwnFunctionConfig]":
        """The config model of the function that a value names. Raises ConfigError at `key`."""
        if not isinstance(name, str):
            message = f"expected a function of your own as 'package.module:function', got {typed(name)}"
            raise ConfigError.at(cls.key, message)
        try:
            if not admits(name):
                return UnreadFunctionConfig
            found = load_named(name, "function")
            model = getattr(found if callable(found) else load_function(name), "Config", cls)
        except ValueError as error:
            raise ConfigError.at(cls.key, str(error)) from error
        if not (isinstance(model, type) and issubclass(model, cls)):
            expected = f"as the attribute Config of {name!r} a subclass of {cls.__module__}.{cls.__name__}"
            raise ConfigError.at(cls.key, f"expected {expected}, got {typed(model)}")
        return model


class UnreadFunctionConfig(OwnFunctionConfig):
    """The section of a function that was not imported: the mapping as the file has it."""

    model_config = ConfigDict(extra="allow")

    def user_names(self) -> list[str]:
        return []


def has_unread(config: Config | None) -> bool:
    """Whether a section, or one in it, is of a class that was not imported."""
    if config is None or isinstance(config, UnreadConfig):
        return config is not None
    return any(has_unread(value) for _, value in config if isinstance(value, Config))


def members_of(union: Any) -> tuple[type[Config], ...]:
    """The config models that a union (or a single model) is made of; it may stand in its annotation."""
    if get_origin(union) is Annotated:
        union = get_args(union)[0]
    members = (union,) if isinstance(union, type) else get_args(union)
    for member in members:
        if not (isinstance(member, type) and issubclass(member, Config)):
            raise TypeError(f"expected config models in the union (write `| None` outside of it), got {member}")
    return members


class Variants(ABC):
    """An annotation on a union of config models that chooses the member a mapping means.

    It replaces pydantic's own unions, which write their tags into the paths of errors.
    """

    @abstractmethod
    def choose(self, members: tuple[type[Config], ...], value: dict[str, Any]) -> type[Config]:
        """The member that a mapping means. Raises ConfigError, with paths relative to the mapping, if there is none."""

    @abstractmethod
    def describe(self, members: tuple[type[Config], ...]) -> str:
        """Say what is expected, for an error message."""

    def named(self, members: tuple[type[Config], ...], value: Any) -> Any:
        """The mapping that a short value stands for in an override; any other value as it is."""
        return value

    def hint(self, members: tuple[type[Config], ...], value: Any) -> str:
        """A hint at what to write in place of a value that is no mapping; empty if that is not plain."""
        return mapping_hint(value)

    def member(self, members: tuple[type[Config], ...], value: Any) -> type[Config]:
        """The member that a value means; for a config object, its class. Raises ConfigError."""
        if isinstance(value, members):
            for name in value.user_names():
                admits(name)
            return type(value)
        if not isinstance(value, dict):
            message = f"expected {self.describe(members)}, got {typed(value)}{self.hint(members, value)}"
            raise ConfigError.at("", message)
        return self.choose(members, value)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        members = members_of(source)
        self.describe(members)  # raises where the union is defined if its members cannot be told apart
        return core_schema.no_info_plain_validator_function(
            lambda value: self.member(members, value).model_validate(value)
        )


@dataclass(frozen=True)
class ByName(Variants):
    """Chooses by `name: Literal[...]`.

    With `user_class`, a name may also be `package.module:Class`: a subclass of `user_class`, but not of `but_not`. In
    an override a name alone stands for the class, or for the member, with its `usual` keys; with `of_number`, a number
    stands there for the member of that name with the number as its `value`; the path of a class of a library stands for
    it, with the library's own values (palestra.config.library). usual: the part of a first file, or a function of what
    the file is about that gives it.
    """

    user_class: type | None = None
    but_not: type | None = None
    of_number: str | None = None
    usual: Any = UNSAID

    def named(self, members: tuple[type[Config], ...], value: Any) -> Any:
        if isinstance(value, str) and (library := library_of(members, value)) is not None:
            return library.in_full(value)
        if isinstance(value, str) and (value in names_of(members) or self.names_own_class(value)):
            return {"name": value}
        return {"name": self.of_number, "value": value} if self._stands_for_member(value) else value

    def names_own_class(self, value: Any) -> bool:
        """Whether a value is the name of a class of the user's own."""
        is_path = isinstance(value, str) and IMPORT_PATH.fullmatch(value) and not value.startswith("name:")
        return bool(is_path) and self.user_class is not None

    def hint(self, members: tuple[type[Config], ...], value: Any) -> str:
        if self.of_number is not None and (comma := comma_hint(value)):
            return comma
        if self._stands_for_member(value):
            return f"; write {{name: {self.of_number}, value: {value}}}"
        if (member := names_of(members).get(value) if isinstance(value, str) else None) is None:
            return super().hint(members, value)
        others = [f"{key}: ..." for key in member.model_fields if key != "name"]
        return f"; write {{{', '.join([f'name: {value}', *others[:3], *['...'][: len(others[3:])]])}}}"

    def _stands_for_member(self, value: Any) -> bool:
        return self.of_number is not None and isinstance(value, int | float) and not isinstance(value, bool)

    def choose(self, members: tuple[type[Config], ...], value: dict[str, Any]) -> type[Config]:
        by_name = names_of(members)
        for own in those_of(members, OwnFunctionConfig):
            if own.key in value and "name" not in value:
                return own.model_of(value[own.key])
        if "name" not in value:
            if (key := nearest("name", map(str, value), at_least=0.75)) is not None:
                raise ConfigError.at(key, f"unknown key; did you mean 'name' (expected {self.expected(by_name)})?")
            raise ConfigError.at("name", f"expected {self.expected(by_name)}, but the key is missing")
        name = value["name"]
        if not isinstance(name, str):
            raise ConfigError.at("name", f"expected {self.expected(by_name)}, got {typed(name)}")
        if (found := by_name.get(name) or library_of(members, name)) is not None:
            return found
        if self.user_class is not None and ":" in name:
            if not admits(name):
                return UnreadConfig
            try:
                named = load_named(name)
                for library in those_of(members, LibraryClass):
                    if library.has_made(named) and not issubclass(named, self.user_class):
                        return library
                model = next((m for m in members if issubclass(m, UserConfig)), UserConfig).model_of(
                    name, self.user_class
                )
            except ValueError as error:
                raise ConfigError.at("name", str(error)) from error
            if self.but_not is not None and isinstance(named, type) and issubclass(named, self.but_not):
                kind = f"a {self.user_class.__name__} that is no {self.but_not.__name__}"
                raise ConfigError.at("name", f"expected {kind}, got {name!r}")
            return model
        known = sorted(by_name, key=lambda other: -likeness(name, other))
        raise ConfigError.at("name", f"expected {self.expected(known)}, got {name!r}{nearest_hint(name, by_name)}")

    def describe(self, members: tuple[type[Config], ...]) -> str:
        functions = those_of(members, OwnFunctionConfig)
        own = "".join(f", or a mapping with `{each.key}`, a function of your own" for each in functions)
        return f"a mapping with `name`, {self.expected(names_of(members))}{own}"

    def expected(self, names: Any) -> str:
        own = "" if self.user_class is None else ", or a class of your own as 'package.module:Class'"
        return f"one of {listed(names)}{own}" if names else own.removeprefix(", or ")


@dataclass(frozen=True)
class ByKey(Variants):
    """Chooses by the keys of the mapping: any key that only one member has stands for that member.

    own_model: the model of a mapping that names a class of the user's own, and None for any other mapping.
    """

    own_model: Callable[[dict[str, Any]], type[Config] | None] | None = None

    def choose(self, members: tuple[type[Config], ...], value: dict[str, Any]) -> type[Config]:
        if self.own_model is not None and (model := self.own_model(value)) is not None:
            return model
        by_key = distinctive_keys(members)
        present = {by_key[key]: key for key in value if key in by_key}
        if len(present) == 1:
            return next(iter(present))
        if present:
            problem = f"expected {self.describe(members)}, got {' and '.join(map(repr, present.values()))}"
            raise ConfigError.at("", problem)
        for key in [key for key in value if not any(key in member.model_fields for member in members)]:
            if (near := nearest(str(key), by_key)) is not None:
                raise ConfigError.at(str(key), f"unknown key; did you mean {near!r}?")
        text = "expected {expected}, but all of these keys are missing"
        raise PydanticCustomError("no_key_of_a_member", text, {"expected": self.describe(members)})

    def describe(self, members: tuple[type[Config], ...]) -> str:
        return f"a mapping with {self.expected(members)}"

    def hint(self, members: tuple[type[Config], ...], value: Any) -> str:
        single = [key for each in members if len(each.model_fields) == 1 for key in each.model_fields]
        is_name = len(single) == 1 and isinstance(value, str)
        return f"; write {{{single[0]}: {value}}}" if is_name else super().hint(members, value)

    def expected(self, members: tuple[type[Config], ...], path: str = "") -> str:
        """The distinctive keys in words; as dotted paths if `path` names the place of the mapping."""
        by_key = distinctive_keys(members)
        kinds = [" and ".join(path + key for key in by_key if by_key[key] is member) for member in members]
        return f"either {' or '.join(kinds)}"


def those_of(members: tuple[type[Config], ...], kind: type[C]) -> list[type[C]]:
    """The members of a kind: those that stand for classes of a library, or for functions of the user's own."""
    return [member for member in members if issubclass(member, kind)]


def library_of(members: tuple[type[Config], ...], name: str) -> type[LibraryClass] | None:
    """The member that stands for a class of a library, by the path of the class; None if none does."""
    return next((each for each in those_of(members, LibraryClass) if each.is_name(name)), None)


def names_of(members: tuple[type[Config], ...]) -> dict[str, type[Config]]:
    """The members by each of their names, in the order of the union, without the user's own."""
    by_name: dict[str, type[Config]] = {}
    for member in members:
        if issubclass(member, UserConfig | OwnFunctionConfig):
            continue
        if issubclass(member, LibraryClass):
            by_name[f"{member.library}:Class"] = member
            continue
        kind: Any = member.model_fields["name"].annotation if "name" in member.model_fields else None
        if get_origin(kind) is not Literal:
            raise TypeError(
                f"expected a field `name: Literal[...]` in {member.__name__}, which is chosen by name, got none"
            )
        for name in get_args(kind):
            if by_name.setdefault(name, member) is not member:
                raise TypeError(
                    f"expected different names, got {name!r} for {member.__name__} and {by_name[name].__name__}"
                )
    return by_name


def distinctive_keys(members: tuple[type[Config], ...]) -> dict[str, type[Config]]:
    """The keys that exactly one of the members has, each with its member."""
    keys = [key for member in members for key in member.model_fields]
    by_key = {key: member for member in members for key in member.model_fields if keys.count(key) == 1}
    for member in members:
        if member not in by_key.values():
            raise TypeError(
                f"expected a key that only {member.__name__} has, got none: every other member has them all"
            )
    return by_key
