"""The listing of what a run's folder says by keys, which no release may change without a new format.

`python -m tests.storage.run_keys` writes run_keys.txt anew. It refuses if runs of a release could no longer be read,
and RUN_FORMAT is still that of the release.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from palestra.config.places import fields_under, kind_of_extras, place_of
from palestra.config.variants import members_of
from palestra.kinds.games.tournament import TournamentConfig
from palestra.run.kinds import kinds
from palestra.storage.facts import RUN_FORMAT, RunFacts
from palestra.storage.manifest import Manifest

LISTING = Path(__file__).with_suffix(".txt")
CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"
STORED = (*(kind.config for kind in kinds()), TournamentConfig, RunFacts, Manifest)
FIRST = "none"

Models = dict[str, dict[str, frozenset[str]]]
"""the keys of each model, each with the kinds of value that it may hold"""


class Listing(NamedTuple):
    """format: RUN_FORMAT. release: the last release when that format came; later ones have it."""

    format: int
    release: str
    models: Models


def name_of(model: type[BaseModel]) -> str:
    return f"{model.__module__}.{model.__name__}".removeprefix("palestra.")


def models() -> Models:
    """What palestra reads today."""
    found: Models = {}
    for start in STORED:
        for model, key, field in fields_under(start):
            name = name_of(model)
            found.setdefault(name, {})[key] = frozenset(kinds(field.annotation))
            if (extras := kind_of_extras(model)) is not Any:
                found[name]["*"] = frozenset(kinds(extras))
    return found


def kinds(annotation: Any) -> Iterator[str]:
    """The kinds of value that an annotation allows, in words. Bounds are left out."""
    place = place_of(annotation)
    if place.is_nullable:
        yield "null"
    origin, inner = get_origin(place.kind), get_args(place.kind)
    if place.variants is not None:
        yield from map(name_of, members_of(place.kind))
    elif place.is_model:
        yield name_of(place.kind)
    elif origin is Literal:
        yield from map(repr, inner)
    elif len(place.alternatives()) > 1:
        for each in place.alternatives():
            yield from kinds(each)
    elif origin in (list, tuple, dict):
        of = [each for each in inner if each is not Ellipsis]
        yield from (f"{origin.__name__} of {each}" for part in of[origin is dict :] for each in kinds(part))
    else:
        yield getattr(place.kind, "__name__", str(place.kind))


def unreadable(before: Models, now: Models) -> list[str]:
    """Why runs with the keys of `before` are not read by a palestra with those of `now`: a line for each key."""
    lines = []
    for model, keys in before.items():
        if model not in now:
            lines.append(f"{model} is gone")
            continue
        lines += [f"{model} has the new key {key}" for key in now[model].keys() - keys.keys() if key != "*"]
        lines += [f"{model}.{key} is gone" for key in keys.keys() - now[model].keys()]
        for key in keys.keys() & now[model].keys():
            if lost := sorted(keys[key] - now[model][key]):
                lines.append(f"{model}.{key} no longer holds {', '.join(lost)}")
    return sorted(lines)


def last_release(changelog: str) -> str:
    """The newest version in a changelog; "none" before the first one."""
    return next(iter(re.findall(r"^## \[(\d[^\]]*)\]", changelog, re.M)), FIRST)


def renewed(listing: Listing, number: int, now: Models, release: str) -> Listing:
    """The listing of today. Raises ValueError if a release has the format of the listing, but cannot read its runs.

    number: RUN_FORMAT today. release: the last one today.
    """
    if number != listing.format:
        return Listing(number, release, now)
    if release != listing.release and (lines := unreadable(listing.models, now)):
        raise ValueError(
            f"Release {release} has runs of format {number} that this palestra cannot read:\n  "
            + "\n  ".join(lines)
            + "\nRaise RUN_FORMAT: such runs are then refused with the version that reads them."
            + "\nIf only a class was renamed, which changes no file, rename it in the listing, too."
        )
    return Listing(number, listing.release, now)


def written(listing: Listing) -> str:
    lines = [f"format {listing.format}, which no release has up to: {listing.release}"]
    for model, keys in sorted(listing.models.items()):
        lines += ["", model, *(f"  {key}: {' | '.join(sorted(held))}" for key, held in sorted(keys.items()))]
    return "\n".join(lines) + "\n"


def read(text: str) -> Listing:
    head, *lines = text.splitlines()
    number, release = re.fullmatch(r"format (\d+), which no release has up to: (\S+)", head).groups()  # type: ignore[union-attr]
    found: Models = {}
    for line in filter(None, lines):
        if line[0] != " ":
            keys = found[line] = {}
        else:
            key, _, held = line.strip().partition(": ")
            keys[key] = frozenset(held.split(" | "))
    return Listing(int(number), release, found)


if __name__ == "__main__":
    try:
        LISTING.write_text(
            written(renewed(read(LISTING.read_text()), RUN_FORMAT, models(), last_release(CHANGELOG.read_text())))
        )
    except ValueError as error:
        sys.exit(str(error))
