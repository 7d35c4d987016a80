"""The reference of Python: which names are in it, on which page.

mkdocstrings fills in what each of them says.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import palestra
from docs.website.layout import ROOT, Pages, file_of, relative

FENCE = re.compile(r"^( *)```python\n(.*?)^\1```", re.S | re.M)


def guides() -> Iterator[str]:
    """The Python of all guides: blocks of pages, examples, the notebook's cells."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        yield from (inspect.cleandoc(f"\n{code}") for _, code in FENCE.findall(page.read_text()))
    for example in sorted((ROOT / "docs" / "examples").glob("*.py")):
        yield example.read_text()


def imported() -> set[str]:
    """The full names that guides import from palestra, as they write them."""
    found = set()
    for code in guides():
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("palestra."):
                found |= {f"{node.module}.{each.name}" for each in node.names}
    return found


def thing_of(name: str) -> Any:
    """What a full name means."""
    module, _, last = name.rpartition(".")
    return getattr(import_module(module), last)


def public() -> dict[str, Any]:
    """The things of the reference by the names to import them by: of several, the shortest.

    They are what `palestra` offers, what guides import, and the bases of these, which say what a subclass inherits.
    """
    found: dict[int, tuple[str, Any]] = {}
    names = [*(f"palestra.{each}" for each in palestra.__all__), *imported()]
    for name in sorted(names, key=lambda each: (each.count("."), each)):
        if not inspect.ismodule(thing := thing_of(name)):
            found.setdefault(id(thing), (name, thing))
    for _, thing in [*found.values()]:
        for base in thing.__mro__[1:] if inspect.isclass(thing) else ():
            if base.__module__.startswith("palestra.") and not base.__name__.startswith("_"):
                found.setdefault(id(base), (f"{base.__module__}.{base.__name__}", base))
    return dict(sorted(found.values(), key=lambda each: each[0]))


def page_of(name: str) -> str:
    """The page of a name: one for each room, and one for what `palestra` itself offers."""
    parts = name.split(".")
    return f"reference/python/{parts[1] if len(parts) > 2 else 'palestra'}.md"


def places(things: dict[str, Any]) -> dict[str, str]:
    """Where each name is explained: by its full name, and by its last part where that is no plain word."""
    found = {}
    for name in sorted(things, key=lambda each: -each.count(".")):
        last = name.rpartition(".")[2]
        found[name] = f"{page_of(name)}#{name}"
        if "_" in last or not last.islower():
            found[last] = found[name]
    return found


def pages(things: dict[str, Any], keys: dict[type, str]) -> Pages:
    """The pages. keys: the place of the table of keys of each config model, as a path in the site."""
    by_page: dict[str, list[str]] = {}
    for name in things:
        by_page.setdefault(page_of(name), []).append(name)
    return {page: written(page, names, things, keys) for page, names in by_page.items()}


def written(page: str, names: list[str], things: dict[str, Any], keys: dict[type, str]) -> str:
    room = Path(page).stem
    lines = [f"# {'palestra' if room == 'palestra' else f'palestra.{room}'}", ""]
    for name in names:
        lines += [f"::: {name}"]
        place = keys.get(things[name]) if inspect.isclass(things[name]) else None
        if place is not None:
            lines += [
                "    options:",
                "      members: false",
                "",
                f"Its keys: [{name.rpartition('.')[2]}]({relative(place, page)})",
            ]
        lines += [""]
    return "\n".join(lines)


def files(things: dict[str, Any]) -> set[str]:
    """The files that define the things, which the reference links to."""
    return {file_of(thing) for thing in things.values() if getattr(thing, "__module__", "").startswith("palestra")}
