"""Config files in a simple subset of YAML, and overrides `dotted.key=value`.

The loader reads `null`, `true` and `false`, decimal integers (`1_000_000` too) and floats (`3e-4`). All other plain
scalars are text: `on`, `yes`, `1:30`, `010`, `2024-01-01`. Keys are always text. Tags, anchors, aliases, merges and
duplicate keys raise ConfigError.
"""

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import yaml

from palestra.config.base import Config
from palestra.config.errors import GLUED, ConfigError, ConfigErrorItem, below, initials, likeness, shown, typed
from palestra.config.other_names import ours_of
from palestra.config.places import Place
from palestra.config.usual import in_full, lacking, with_another_name
from palestra.config.variants import ByKey

INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)")
FLOAT = re.compile(
    r"[-+]?((0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+|(0|[1-9][0-9]*)(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan"
)
ALIKE = 0.6  # the likeness that two keys need, so that one may be meant by the other
WORDS = {"null": None, "~": None, "": None, "true": True, "false": False}


def load_yaml(source: Path | str) -> dict[str, Any]:
    """The mapping in a YAML file (a Path) or in a YAML text (a str). Raises ConfigError, naming line and key."""
    where, text = ("config", source) if isinstance(source, str) else (str(source), _read(source))
    value = _parse(text, where)
    if not isinstance(value, dict):
        got = "nothing" if value is None else typed(value)
        raise ConfigError.at(where, f"expected a mapping of keys to values, got {got}")
    return value


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError.at(str(path), f"there is no such file in {path.parent.absolute()}") from None
    except OSError as error:
        raise ConfigError.at(str(path), f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError.at(str(path), f"expected UTF-8 text, got {error.reason} at byte {error.start}") from None


# ---- YAML ----------------------------------------------------------------------------------------


class _Loader(yaml.BaseLoader):
    """Composes nodes whose scalars are still text. Raises MarkedYAMLError on anchors, aliases and tags."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event, problem = self.peek_event(), None
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            problem = "expected plain values, got an anchor or alias; repeat the value"
        elif getattr(event, "tag", None):
            problem = "expected a plain value, got a tag"
        if problem is not None:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)


def _parse(text: str, where: str) -> Any:
    try:
        node = yaml.compose(text, Loader=_Loader)
        faults: list[ConfigErrorItem] = []
        value = None if node is None else _value(node, "", faults)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = f"invalid YAML{at}: {error.problem or error.context}"
        cannot_start = problem.endswith("that cannot start any token")
        quotes = "; a text that begins with it needs quotes" if cannot_start else ""
        raise ConfigError.at(where, f"{problem}{quotes}{_glued_line(text, mark)}") from None
    except yaml.reader.ReaderError as error:
        problem = f"invalid YAML: the character U+{error.character:04X} at {error.position}"
        raise ConfigError.at(where, problem) from None
    except RecursionError:
        raise ConfigError.at(where, "invalid YAML: nested too deeply") from None
    ConfigError.require_none(faults)
    return value


def _glued_line(text: str, mark: yaml.Mark | None) -> str:
    """A hint about the last line up to a fault in which a key's colon lacks its space; "" if there is none."""
    lines = text.splitlines()[: None if mark is None else mark.line + 1]
    for number in reversed(range(len(lines))):
        key = lines[number].strip().removeprefix("- ")
        if GLUED.fullmatch(key):
            return f"; line {number + 1}, {key!r}, needs a space after the colon"
    return ""


def _value(node: yaml.Node, path: str, faults: list[ConfigErrorItem]) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return node.value if node.style else resolve(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, f"{path}{index}.", faults) for index, item in enumerate(node.value)]
    lines, mapping = dict[str, int](), {}
    for key_node, value_node in node.value:
        key, line = key_node.value, key_node.start_mark.line + 1
        if not isinstance(key, str) or (key == "<<" and not key_node.style):
            problem = "expected text as a key, got a list or a mapping"
            if isinstance(key, str):
                problem = "expected plain keys, got a merge (<<); repeat the keys"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
        if key in lines:
            message = f"expected each key once, got it in lines {lines[key]} and {line}"
            faults.append(ConfigErrorItem(path + key, message))
        if not key_node.style and GLUED.fullmatch(key) and value_node.value == "" and not value_node.style:
            message = f"expected a space after the colon of a key, got {key!r} in line {line}"
            faults.append(ConfigErrorItem(path + key.partition(":")[0], message))
        lines[key] = line
        mapping[key] = _value(value_node, f"{path}{key}.", faults)
    return mapping


def resolve(text: str) -> Any:
    """The value that a plain scalar means: null, a boolean, an integer, a float, or the text itself."""
    if text in WORDS:
        return WORDS[text]
    if INTEGER.fullmatch(text) and len(text) <= 4000:  # Python's limit for int(text) is 4300 digits
        return int(text)
    if FLOAT.fullmatch(text):
        return float(text.replace(".inf", "inf").replace(".nan", "nan"))
    return text


# ---- overrides -----------------------------------------------------------------------------------


def list_of_overrides(overrides: Iterable[str]) -> list[str]:
    """Overrides as a list. Raises ConfigError for a mapping, and for a single text, whose letters would count."""
    if isinstance(overrides, str | Mapping):
        raise ConfigError.at("overrides", f"expected a list of texts, such as ['seed=1'], got {typed(overrides)}")
    return list(overrides)


def apply_overrides(
    data: dict[str, Any], overrides: Iterable[str], model: type[Config] | None = None
) -> dict[str, Any]:
    """A copy of `data` with values replaced: `evaluations.0.num_games=3000`, the value read as in a file.

    An override replaces an existing value. It adds a key in three cases: if the model of the data has the key and the
    data lack it (an earlier override may have named a class of the user's own), in mappings whose keys no model knows
    (the arguments of an environment), and a whole player, whose name no model knows. The last words of a dotted key may
    stand for the whole key if no other key ends in them. With the model, a number stands for a constant schedule where
    the model expects a schedule, and a name for a part with its usual keys. Raises ConfigError with all errors at once.
    """
    data = copy.deepcopy(data)
    faults: list[ConfigErrorItem] = []
    for override in overrides:
        path, equals, text = override.partition("=")
        path = path.strip()
        if not equals:
            faults.append(ConfigErrorItem(override, "expected an override of the form dotted.key=value, got no '='"))
            continue
        try:
            value = _parse(text, path)
            if not _add(data, path, value, model):
                _require_present(data, path, model)
                _replace(data, full_key(data, path, model), value, model)
        except ConfigError as error:
            faults.extend(error.errors)
    ConfigError.require_none(faults)
    return data


def apply_fitting(data: dict[str, Any], overrides: Iterable[str], model: type[Config]) -> dict[str, Any]:
    """Apply the overrides that fit; of the others the user gets errors when the complete file is read."""
    for override in overrides:
        with suppress(ConfigError):
            data = apply_overrides(data, [override], model)
    return data


def _require_present(data: Any, path: str, model: type[Config] | None) -> None:
    """Raise ConfigError for a key that files of this model lack for a reason, such as `game` where nobody plays."""
    place, here = Place(Any if model is None else model), data
    for key in path.split("."):
        fields = place.model_of(here) if isinstance(here, dict) else None
        if (why := getattr(fields, "absent", {}).get(key)) is not None and find_key(data, path) is None:
            raise ConfigError.at(path, f"no such key: {why}")
        if fields is None or key not in here:
            return
        place, here = place.below_or_any(key, here), here[key]


def values_of(overrides: Iterable[str], data: dict[str, Any]) -> dict[str, Any]:
    """The values that overrides give, by their keys in full. Those that cannot be read are left out."""
    found = {}
    for path, equals, text in (override.partition("=") for override in overrides):
        with suppress(ConfigError):
            value = _parse(text, path)
            if equals:
                found[find_key(data, path.strip()) or path.strip()] = value
    return found


def replace_values(data: dict[str, Any], values: Mapping[str, Any], model: type[Config] | None) -> dict[str, Any]:
    """A copy of `data` with values replaced, by dotted paths that exist.

    As in an override, a number may stand for a constant schedule. Raises ConfigError.
    """
    data = copy.deepcopy(data)
    for path, value in values.items():
        _replace(data, full_key(data, path, model), copy.deepcopy(value), model)
    return data


def full_key(data: Any, path: str, model: type[Config] | None = None) -> str:
    """The dotted key that a path means: the path itself, or the one key that ends in it.

    Raises ConfigError if there is none, or if several keys end in the path. `policy_learning_rate`, too, counts as
    ending in `learning_rate`. model: that of the data, of whose keys the error may name one that the data lack.
    """
    if (found := find_key(data, path)) is not None:
        return found
    present, above = list(_paths(data)), path.rpartition(".")[0]
    if above in present and not isinstance(value := value_at(data, above), dict | list):
        if value is None:
            raise ConfigError.at(path, f"no such key, because {above} is null here; give all of it: {above}={{...}}")
        raise ConfigError.at(path, f"no such key; did you mean {above!r}, which is {shown(value)} here and no mapping?")
    known = [*present, *(() if model is None else lacking(data, Place(model)))]
    ours = ours_of(path, model)
    if meant := _meant_paths(known, path, ours):
        raise ConfigError.at(path, f"no such key; did you mean {' or '.join(map(repr, meant))}?")
    like = f"nor {' or '.join(ours)}, as it is called here" if ours else "and none like it"
    raise ConfigError.at(path, f"no such key, {like}; at the top there are {', '.join(map(str, data))}")


def keys_ending_in(data: Any, path: str) -> list[str]:
    """The dotted keys of the data that end in a path, or in _ and the path."""
    return [key for key in _paths(data) if key.endswith((f".{path}", f"_{path}"))]


def find_key(data: Any, path: str) -> str | None:
    """The dotted key that a path means, as in `full_key`; None if there is no such key."""
    known = list(_paths(data))
    if path in known:
        return path
    if not any(key.endswith(f".{path}") for key in known):
        return None
    candidates = keys_ending_in(data, path)
    if len(candidates) > 1:
        raise ConfigError.at(path, f"expected a key in full, for several end so: {', '.join(candidates)}")
    return candidates[0]


def _replace(data: Any, path: str, value: Any, model: type[Config] | None) -> None:
    *above, slot = _steps(data, path)
    container, place = _at(data, above, model)
    with below(path):
        container[slot] = in_full(value, place.below_or_any(slot, container))
    if slot == "name" and place.variants is not None:
        whole = dict(with_another_name(container, place))
        container.clear()
        container.update(whole)


def _at(data: Any, steps: Iterable[str | int], model: type[Config] | None) -> tuple[Any, Place]:
    """The value to which keys and indices lead, and its place."""
    place = Place(Any if model is None else model)
    for slot in steps:
        place, data = place.below_or_any(slot, data), data[slot]
    return data, place


def _add(data: Any, path: str, value: Any, model: type[Config] | None) -> bool:
    """Add a key that the data lack and that their model has, or allows, such as an argument of an environment.

    Gives whether the key was added.
    """
    above, _, key = path.rpartition(".")
    if model is None or not above or find_key(data, path) is not None:
        return False
    found = None
    with suppress(ConfigError):  # several end so
        found = find_key(data, above)
    if found is None:
        return False
    here, place = _at(data, _steps(data, found), model)
    fields = place.model_of(here) if isinstance(here, dict) else None
    entry = place.below_or_any(key, here)
    is_player = isinstance(here, dict) and isinstance(value, dict) and isinstance(entry.variants, ByKey)
    if not (place.holds_anything or is_player or (fields is not None and key in fields.model_fields)):
        return False
    with below(path):
        here[key] = in_full(value, entry)
    return True


def value_at(data: Any, path: str) -> Any:
    """The value at a dotted path, as `full_key` gives it."""
    return reduce(getitem, _steps(data, path), data)


def _steps(data: Any, path: str) -> Iterator[str | int]:
    """The keys and indices that lead to a dotted path that exists. A key may contain dots, as in a sweep's space."""
    while path:
        if isinstance(data, list):
            name, _, path = path.partition(".")
            slot: str | int = int(name)
        else:
            key = max((key for key in data if f"{path}.".startswith(f"{key}.")), key=len)
            slot, path = key, path[len(key) + 1 :]
        yield slot
        data = data[slot]


def _meant_paths(paths: Sequence[str], path: str, ours: Sequence[str]) -> list[str]:
    """The paths, out of `paths`, that were probably meant by an unknown one.

    These are the paths of `ours`, our keys for what another library calls by this name; else those of keys with these
    initials (`lr`); else the most similar path, compared in full and by as many last keys, and all that end as it does.
    Of similar paths, one that ends in the same key is preferred.
    """
    *above, last = path.split(".")

    def ending(known: str) -> str:
        return ".".join(known.split(".")[-len(above) - 1 :])

    def rank(known: str) -> float:
        return max(likeness(path, known), likeness(path, ending(known))) + 0.5 * (known.rpartition(".")[2] == last)

    keys = list(ours) or [key for known in paths if initials(key := known.rpartition(".")[2]) == last]
    if not keys and (best := max(paths, key=rank, default=None)) is not None and rank(best) >= ALIKE:
        if best.count(".") < len(above):
            return [best]
        keys = [ending(best)]
    ends = tuple(f"{mark}{key}" for key in keys for mark in "._")
    found = [known for known in paths if f".{known}".endswith(ends)]
    return [known for known in found if {*above} <= {*known.split(".")}] or found


def _paths(data: Any) -> Iterator[str]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield str(key)
        yield from (f"{key}.{below}" for below in _paths(value))
