"""Prints a config as the YAML text of a whole file, each key with its comment."""

import math
import re
import textwrap
from typing import Any

import yaml

from palestra.config.base import Config
from palestra.config.places import Place, comment_of
from palestra.config.validation import check

WIDTH = 100
RESOLVER, TEXT = yaml.resolver.Resolver(), yaml.resolver.BaseResolver.DEFAULT_SCALAR_TAG
WORD = re.compile(r"[A-Za-z_][\w./-]*(:[\w./-]+)*", re.ASCII)


def render(config: Config | dict[str, Any], model: type[Config]) -> str:
    """The full YAML text of a config, or of data that describes one: keys in the model's order, each commented.

    `load_yaml` reads it back to equal data. Raises ConfigError if the data do not fit the model.
    """
    if not isinstance(config, Config):
        check(config, model)
    data = config.model_dump() if isinstance(config, Config) else config
    return "\n".join(_mapping(data, Place(model), 0)) + "\n"


def _mapping(data: dict[str, Any], place: Place, indent: int) -> list[str]:
    place = place.chosen(data)
    fields = place.kind.model_fields if place.is_model else {}
    lines = []
    for key in [*(key for key in fields if key in data), *(key for key in data if key not in fields)]:
        comment = comment_of(place.kind, key) if key in fields else None
        lines += _entry(f"{' ' * indent}{scalar(key)}:", comment, data[key], place.below(key, data), indent)
    return lines


def _entry(key: str, comment: str | None, value: Any, place: Place, indent: int) -> list[str]:
    """One key with its comment and its value: in one line if they fit, otherwise the value below the key."""
    text = inline(value)
    fits = text is not None and len(key) + 1 + len(text) <= WIDTH
    has_lines = isinstance(value, dict | list | tuple) and bool(value)  # lines that may stand below the key
    line = key if has_lines and not fits else f"{key} {text}"
    below = [] if line != key else _block(value, place, indent + 2)
    if comment is None:
        return [line, *below]
    if len(line) + len(comment) + 4 <= WIDTH:
        return [f"{line}  # {comment}", *below]
    margin = " " * indent + "# "
    above = textwrap.wrap(
        comment, WIDTH, initial_indent=margin, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
    )
    return [*above, line, *below]


def _block(value: Any, place: Place, indent: int) -> list[str]:
    if isinstance(value, dict):
        return _mapping(value, place, indent)
    lines = []
    for index, item in enumerate(value):
        text, margin = inline(item), " " * indent
        if text is not None:
            lines.append(f"{margin}- {text}")
            continue
        below = _block(item, place.below(index, value), indent + 2)
        first = next(number for number, line in enumerate(below) if not line.lstrip().startswith("#"))
        lines += [line[2:] for line in below[:first]]  # comments go above the dash
        lines += [f"{margin}- {below[first].lstrip()}", *below[first + 1 :]]
    return lines


def inline(value: Any) -> str | None:
    """A value written in one line: a scalar, an empty mapping, or a list of such; None for anything else."""
    if isinstance(value, dict):
        return None if value else "{}"
    if isinstance(value, list | tuple):
        items = [inline(item) for item in value]
        return None if None in items else f"[{', '.join(str(item) for item in items)}]"
    return scalar(value)


def inline_flow(value: Any) -> str:
    """Any value in one line, mappings in braces."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{scalar(key)}: {inline_flow(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(inline_flow, value))}]"
    return scalar(value)


def scalar(value: Any) -> str:
    """A scalar as YAML text that every YAML reader reads back equal."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return repr(value)
    if isinstance(value, float):
        mantissa, e, exponent = repr(value).partition("e")  # not 1e-08: to YAML 1.1, without a point it is text
        point = "" if "." in mantissa else ".0"
        return f"{mantissa}{point}e{int(exponent):+}" if e else mantissa
    if WORD.fullmatch(value) and RESOLVER.resolve(yaml.ScalarNode, value, (True, False)) == TEXT:
        return str(value)
    return yaml.dump(value, default_style='"', allow_unicode=True, width=math.inf).rstrip("\n")
