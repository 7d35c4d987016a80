"""The reference of configs: a table of keys for each model, with what is expected, what it means, and who reads it."""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from docs.website.commands import cell
from docs.website.layout import Pages, file_of, relative
from docs.website.reads import readers
from docs.website.sources import source_page
from palestra.config.places import Place, comment_of, describe, fields_under, kind_of_extras, place_of, place_of_field
from palestra.config.variants import ByName, OwnFunctionConfig, UserConfig, members_of
from palestra.kinds.games.tournament import TournamentConfig
from palestra.run.kinds import kind_named
from palestra.sweeps.config import SweepConfig

Model = type[BaseModel]
MOST_READERS = 4
MOST_PLACES = 3
INDEX = "reference/keys.md"
HEAD = """---
hide: [toc]
---

# Keys of YAML files

No key has a default. `palestra config` prints a complete file with a comment on each key, and `palestra check` says
what is wrong with one. In the tables of these pages, "read by" unfolds to the files of palestra that read a key, as far
as their code shows it.

| file | its keys |
|---|---|"""
FILES: dict[Model, str] = {
    kind_named("in_turn").config: "a run in which players play games",
    kind_named("fit").config: "a run in which a model learns from data",
    kind_named("text").config: "a run of players that write",
    TournamentConfig: "a tournament, in which nobody learns",
    SweepConfig: "a sweep",
}
"""the models of whole files, which `palestra check` reads"""


def models() -> dict[Model, list[str]]:
    """All models of configs, each with its keys."""
    found: dict[Model, list[str]] = {}
    for start in FILES:
        for model, key, _ in fields_under(start):
            keys = found.setdefault(model, [])
            if key not in keys:
                keys.append(key)
    return found


def place_in_site(model: Model) -> str:
    """Where the table of a model stands, as page#anchor."""
    room = model.__module__.split(".")[1]
    return f"reference/keys/{room}.md#{anchor(model)}"


def anchor(model: Model) -> str:
    return f"{model.__module__.removeprefix('palestra.')}.{model.__name__}"


def names_of(model: Model) -> list[str]:
    """The values of `name` by which a file chooses this model; none if it is chosen otherwise."""
    field = model.model_fields.get("name")
    return (
        [str(each) for each in get_args(field.annotation)] if field and get_origin(field.annotation) is Literal else []
    )


def places() -> dict[Model, list[str]]:
    """The places in files where each model stands, as dotted paths; names that the user chooses in capitals."""
    found: dict[Model, list[str]] = defaultdict(list)
    for start in FILES:
        waiting: list[tuple[Model, str]] = [(start, "")]
        seen = {start}
        for model, path in waiting:
            for key, field in model.model_fields.items():
                for below, ending in _below(field.annotation, key):
                    place = f"{path}.{key}{ending}".strip(".")
                    if place not in found[below]:
                        found[below].append(place)
                    if below not in seen:
                        seen.add(below)
                        waiting.append((below, place))
            for below, _ in _below(kind_of_extras(model), "name"):
                found[below].append(f"{path}.NAME".strip("."))
                if below not in seen:
                    seen.add(below)
                    waiting.append((below, f"{path}.NAME"))
    return found


def _below(annotation: Any, key: str) -> Iterator[tuple[Model, str]]:
    """The models in an annotation, each with what stands between the key and its own keys."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, ""
        return
    ending = {dict: f".{key.removesuffix('s').upper()}", list: ".0", tuple: ".0"}.get(get_origin(annotation), "")
    for part in get_args(annotation):
        for model, rest in _below(part, key):
            yield model, ending + rest


def places_of_keys(known: dict[Model, list[str]]) -> dict[str, str]:
    """Where each key is explained: by itself if it is no plain word, and with the key above it.

    A key of several models leads to the list of all keys.
    """
    owners: dict[str, set[str]] = defaultdict(set)
    for model, stands_at in (places() | {file: [""] for file in FILES}).items():
        for key in known[model]:
            place = f"{place_in_site(model)}.{key}"
            if "_" in key:
                owners[key].add(place)
            for above in stands_at:
                parts = [part for part in above.split(".") if part and not part.isdigit()]
                for number in range(len(parts)):
                    owners[".".join([*parts[number:], key])].add(place)
    return {
        key: places.pop() if len(places) == 1 else f"{INDEX}#{key.rpartition('.')[2]}"
        for key, places in owners.items()
        if len(places) == 1 or not key.endswith(".name")
    }


def pages() -> Pages:
    """A page for each room that has models, and the list of all keys."""
    known, stands = models(), places()
    rooms: dict[str, list[Model]] = defaultdict(list)
    for model in known:
        rooms[place_in_site(model).partition("#")[0]].append(model)
    written = {INDEX: index(known)}
    for page, members in sorted(rooms.items()):
        room = page.rpartition("/")[2].removesuffix(".md")
        sections = [section(model, stands[model], page) for model in sorted(members, key=anchor)]
        written[page] = "\n\n".join([f"# Keys: {room}", *sections]) + "\n"
    return written


def index(known: dict[Model, list[str]]) -> str:
    """The list of files and of all keys: each has a heading, because the search finds headings first."""
    lines = [HEAD]
    lines += [f"| {said} | {link(model, INDEX)} |" for model, said in FILES.items()]
    lines += ["", "## All keys", ""]
    by_key: dict[str, list[Model]] = defaultdict(list)
    for model, keys in known.items():
        for key in keys:
            by_key[key].append(model)
    for key, owners in sorted(by_key.items()):
        if key == "name":
            continue
        lines += [f"### `{key}` {{#{key}}}", ""]
        for model in sorted(owners, key=lambda each: each.__name__):
            lines.append(f"- {link(model, INDEX, key)}: {(comment_of(model, key) or '').replace('<', '&lt;')}")
        lines.append("")
    return "\n".join(lines) + "\n"


def link(model: Model, page: str, key: str = "") -> str:
    """A link to the table of a model, or to one of its keys."""
    target = relative(place_in_site(model), page) + (f".{key}" if key else "")
    return f"[{title(model)}]({target})"


def title(model: Model) -> str:
    """The name by which files know the model, or else that of its class."""
    names = names_of(model)
    return ", ".join(names) if names else model.__name__


def section(model: Model, stands_at: list[str], page: str) -> str:
    """The part on one model."""
    names = names_of(model)
    head = f"{', '.join(names)} ({model.__name__})" if names else model.__name__
    source = file_of(model)
    parts = [f"## {head} {{#{anchor(model)}}}"]
    if model.__doc__ and model.__doc__ is not BaseModel.__doc__:
        parts.append("\n".join(line.strip() for line in model.__doc__.strip().splitlines()))
    where = ", ".join(f"`{place}`" for place in sorted(stands_at, key=len)[:MOST_PLACES])
    more = ", ..." if len(stands_at) > MOST_PLACES else ""
    said = f"{FILES[model]}: a whole file" if model in FILES else f"At {where}{more}"
    parts.append(f"{said}. Declared in [`{source}`]({relative(source_page(source), page)}).")
    last_keys = {key for place in stands_at for key in place.split(".")[-2:] if not key.isdigit()}
    rows = ["| key | expected | meaning |", "|---|---|---|"]
    for key, field in model.model_fields.items():
        mark = f'<span id="{anchor(model)}.{key}"></span>'
        expected = cell(expectation(place_of_field(field), page))
        files = [
            f"[`{file.removeprefix('palestra/')}`]({relative(source_page(file, line), page)})"
            for file, line in readers(model, key, last_keys).items()
        ]
        read_by = ", ".join(files[:MOST_READERS]) + (", ..." if len(files) > MOST_READERS else "")
        folded = f" <details><summary>read by</summary>{read_by}</details>" if files else ""
        rows.append(f"| {mark}`{key}` | {expected} | {cell(comment_of(model, key) or '')}{folded} |")
    parts.append("\n".join(['<div class="keys" markdown>', "", *rows, "", "</div>"]))
    return "\n\n".join(parts)


def expectation(place: Place, page: str) -> str:
    """What is expected at a place, in the words of errors; models are links."""
    text = _expectation(place, page)
    return f"{text} or `null`" if place.is_nullable else text


def _expectation(place: Place, page: str) -> str:
    if place.variants is not None:
        members = members_of(place.kind)
        links = [link(each, page) for each in members if not issubclass(each, UserConfig | OwnFunctionConfig)]
        own = isinstance(place.variants, ByName) and place.variants.user_class is not None
        functions = [
            f"a function of your own ({link(each, page)})" for each in members if issubclass(each, OwnFunctionConfig)
        ]
        return " or ".join([*links, *(["a class of your own"] if own else []), *functions])
    if place.is_model:
        return link(place.kind, page)
    origin, inner = get_origin(place.kind), get_args(place.kind)
    if len(place.alternatives()) > 1:
        return " or ".join(expectation(place_of(each), page) for each in place.alternatives())
    if origin is dict:
        return f"a mapping, each value {expectation(place_of(inner[1]), page)}"
    if origin is list or (origin is tuple and inner[-1] is Ellipsis):
        limits = describe(place._replace(is_nullable=False)).partition(", each item ")[0]
        return f"{limits}, each item {expectation(place_of(inner[0]), page)}"
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in inner)
    said = describe(place._replace(is_nullable=False))
    return re.sub(r"that matches '(.*)'$", r"that matches `\1`", said)
