"""An extension of griffe, which mkdocstrings reads Python with: what prose.py finds becomes lists of arguments."""

import re
from pathlib import Path
from typing import Any

import griffe

from docs.website.layout import ROOT
from docs.website.prose import Prose, read


class ProseExtension(griffe.Extension):
    """Rewrites each docstring into the form that the parser of Google's style reads."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if func.docstring is not None:
            names = [parameter.name.lstrip("*") for parameter in func.parameters]
            func.docstring.value = in_sections(read(func.docstring.value, names), names, source(func))

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.docstring is not None:
            init = cls.members.get("__init__")
            arguments = [each.name for each in init.parameters] if isinstance(init, griffe.Function) else []
            names = {*cls.members, *arguments, *inherited(cls)}
            cls.docstring.value = in_sections(read(cls.docstring.value, names), arguments, source(cls))


def inherited(cls: griffe.Class) -> set[str]:
    """The names of the members of bases that are in the same file, as far as the file has been read."""
    found: set[str] = set()
    for base in cls.bases:
        other = cls.module.members.get(str(base).partition("[")[0])
        if isinstance(other, griffe.Class):
            found |= {*other.members, *inherited(other)}
    return found


def source(thing: griffe.Object) -> str:
    """A link to the page that shows the code of a class or function; of methods, that of their class is enough."""
    if not thing.parent or not thing.parent.is_module:
        return ""
    file = Path(str(thing.filepath)).relative_to(ROOT).as_posix()
    return f"Source: [`{file}`](../../source/{file}.md#__codelineno-0-{thing.lineno})"


def literal(text: str) -> str:
    """Text in which a star is no emphasis: (*keys.shape, num). In code it is none anyway."""
    return re.sub(r"(`[^`]*`)|\*", lambda found: found[1] or r"\*", text)


def in_sections(prose: Prose, arguments: list[str], source: str) -> str:
    """Google's form: the text, and a section for arguments, attributes and errors, where there are any."""
    sections = {
        "Args": {name: said for name, said in prose.names.items() if name in arguments},
        "Attributes": {name: said for name, said in prose.names.items() if name not in arguments},
        "Raises": prose.errors,
    }
    parts = [literal(prose.text), source]
    for title, items in sections.items():
        if items:
            parts.append(
                "\n".join(
                    (f"{title}:", *(f"    {name}: {literal(said) or 'see above'}" for name, said in items.items()))
                )
            )
    return "\n\n".join(filter(None, parts))
