"""Lists the names that a config may use, by kind.

Each has a line, taken from its config model or class.
"""

from collections.abc import Mapping
from importlib import import_module
from itertools import chain
from typing import Any

from palestra.commands.failures import one_line_errors
from palestra.commands.shell import console, say

PARTS = (
    ("searches (sweep)", "palestra.sweeps.search", "AnySearchConfig"),
    ("pruning (sweep)", "palestra.sweeps.pruning", "AnyPruningConfig"),
    ("places (sweep)", "palestra.sweeps.config", "AnyPlaceConfig"),
)
"""those of sweeps, as Kind.parts has those of runs"""


def list_parts() -> None:
    """List the parts that a config may name, by kind, one line each."""
    with one_line_errors():
        for kind, entries in catalogue().items():
            console.print(kind, style="bold")
            width = max(map(len, entries))
            for name, line in entries.items():
                say(f"  {name:{width}}  {' '.join(line.split())}")


def catalogue() -> dict[str, dict[str, str]]:
    """Return the parts that a config can name, as {kind: {name: one line}}."""
    from palestra.run.kinds import kinds

    found: dict[str, dict[str, str]] = {}
    for kind, module, name in (*chain.from_iterable(each.parts for each in kinds()), *PARTS):
        found.setdefault(kind, {}).update(_lines(getattr(import_module(module), name)))
    return found


def _lines(parts: Any) -> dict[str, str]:
    from palestra.config import UserConfig
    from palestra.config.places import description_of
    from palestra.config.variants import members_of, names_of

    if isinstance(parts, Mapping):
        return {name: _first_paragraph(scripted) for name, scripted in parts.items()}
    members = members_of(parts)
    lines = {}
    for name, model in names_of(members).items():
        module, colon, _ = name.partition(":")  # torch.optim:Adam: one line for all classes of torch.optim
        lines[f"{module}:Class" if colon else name] = description_of(model, "name") or _first_paragraph(model)
    has_own = any(issubclass(model, UserConfig) for model in members)
    return lines | ({"package.module:Class": "a class of your own"} if has_own else {})


def _first_paragraph(thing: type) -> str:
    return " ".join((thing.__doc__ or "").strip().partition("\n\n")[0].split())
