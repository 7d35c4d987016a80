"""Brings a run of an older format to the present one, in a copy beside it.

The format in run.json counts for all that a run's folder holds. A change after which older runs cannot be read (another
key of a config, another file, another field of a record or of a checkpoint) raises RUN_FORMAT, and adds to MIGRATIONS
what it does to the files of an older run. If nothing can be done, it adds nothing, and older runs are refused in a line
that says which version reads them.
"""

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from palestra.storage.disk import Folder, RunFolderError
from palestra.storage.facts import RUN_FORMAT, RunFacts, fault_in_words, to_json
from palestra.storage.lock import in_use, is_held

Migration = Callable[[Folder], None]
"""changes the files of a run's copy into those of the next format; raises RunFolderError if they are damaged"""

MIGRATIONS: dict[int, Migration] = {}
"""by the format that each reads; empty until there is a format after that of the first release"""

FACTS, OWNER, LOCK = "run.json", "owner.json", "lock"


class Migrated(NamedTuple):
    """A copy in our format: its folder, and the format that the run has."""

    place: Path
    number: int


def was_url(path: Path) -> bool:
    """Whether a path was meant as a URL, such as s3://bucket/runs/mine."""
    return bool(path.parts) and path.parts[0].endswith(":")


def require_our_format(path: Path | str, facts: Any) -> None:
    """Raise RunFolderError, which says what reads it, for a run of another format than ours.

    path: of its folder, or the URL of its mirror. facts: the content of its run.json. What is damaged there shows when
    it is needed.
    """
    number = _format_in(facts)
    if number is None or number == RUN_FORMAT:
        return
    versions = facts.get("versions")
    version = versions.get("palestra") if isinstance(versions, Mapping) else None
    remedy = "use the version that wrote it"
    if number > RUN_FORMAT:
        remedy += ", or a later one"
    elif isinstance(path, str):
        remedy += f", which brings it back into a folder by palestra resume {shlex.quote(path)}"
        if _steps_from(number) is not None:
            remedy += "; palestra migrate copies that folder into our format"
    elif _steps_from(number) is not None:
        remedy = f"palestra migrate {shlex.quote(str(path))} makes a copy in that format"
    raise RunFolderError(
        f"{path} is a run of format {number}, written by palestra {version}; this palestra reads format {RUN_FORMAT}: "
        f"{remedy}"
    )


def _format_in(facts: Any) -> int | None:
    """The format that a run.json names, 0 where it names none; None if it is damaged."""
    number = facts.get("format", 0) if isinstance(facts, Mapping) else None
    return number if type(number) is int else None


def _steps_from(number: int) -> list[Migration] | None:
    """The migrations that lead from an older format to ours, in order; None if one of them is missing."""
    formats = range(number, RUN_FORMAT)
    return [MIGRATIONS[each] for each in formats] if all(each in MIGRATIONS for each in formats) else None


def migrate(path: Path, place: Path | None = None) -> Migrated:
    """Copy a run of an older format, and bring the copy to ours. The run itself is only read.

    Checkpoints and replay rows come along, also from a folder elsewhere. If the run has a mirror, that of the copy will
    lie beside it. place: the copy's folder, which must not exist; None: `<path>-format-<ours>`. Raises RunFolderError
    if there is no run of an older format, if no migrations lead to ours, if the run is in use or damaged, and if the
    disk refuses.
    """
    run = Folder(path)
    facts = _read_facts(run)
    number = _format_in(facts)
    if number == RUN_FORMAT:
        raise RunFolderError(f"{path} is a run of format {number}, which this palestra reads as it is")
    steps = None if number is None or number > RUN_FORMAT else _steps_from(number)
    if number is None or steps is None:
        require_our_format(path, facts)
        raise RunFolderError(f"{path / FACTS} is damaged: expected an integer as format, got {facts['format']!r:.80}")
    named = path if path.name not in ("", "..") else path.resolve()
    place = named.with_name(f"{named.name}-format-{RUN_FORMAT}") if place is None else place
    unfinished = place.with_name(f".{place.name}.migrating")
    for taken, remedy in ((place, "--run DIR puts the copy elsewhere"), (unfinished, "a kill has left it: remove it")):
        if os.path.lexists(taken):
            raise RunFolderError(f"{taken} exists already; {remedy}")
    try:
        if is_held(run, LOCK):
            raise RunFolderError(in_use(run))
        unfinished.mkdir(parents=True)
        try:
            copy = Folder(unfinished)
            _copy_run(run, facts, copy, place.resolve().name)
            for each, migration in enumerate(steps, start=number):
                migration(copy)
                copy.write(FACTS, to_json(_read_facts(copy) | {"format": each + 1}).encode())
            RunFacts.model_validate(_read_facts(copy))
            os.rename(unfinished, place)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        Folder(place.parent).sync()
    except ValidationError as error:
        raise RunFolderError(f"{path / FACTS} is damaged: {fault_in_words(error)}") from error
    except RunFolderError:
        raise
    except OSError as error:
        raise RunFolderError(f"{path} cannot be copied to {place}: {error}") from error
    return Migrated(place, number)


def _copy_run(run: Folder, facts: dict[str, Any], copy: Folder, name: str) -> None:
    """Copy a run's files, with those of its checkpoint folder, and let run.json say where they and the mirror are now.

    name: that of the copy's folder. A link in the place of a file or folder raises RefusedPathError.
    """
    _copy_files(run, copy, {LOCK})
    if isinstance(elsewhere := facts.get("checkpoint_folder"), str):
        large = Folder(Path(elsewhere))
        if _read_object(large, OWNER).get("id") != facts.get("id"):
            raise RunFolderError(f"{run.path / FACTS} names the checkpoint folder {elsewhere} of another run")
        _copy_files(large, copy, {OWNER})
        facts = facts | {"checkpoint_folder": None}
    if isinstance(mirror := facts.get("mirror"), str):
        facts = facts | {"mirror": f"{mirror.rpartition('/')[0]}/{name}"}
    copy.write(FACTS, to_json(facts).encode())


def _copy_files(source: Folder, target: Folder, without: set[str]) -> None:
    """Copy all files and folders below a folder, except for some names in the folder itself."""
    waiting = [(source, target, set(source.names()) - without)]
    while waiting:
        source, target, names = waiting.pop()
        for name in sorted(names):
            if source.kind(name) == "folder":
                inner = source.below(name)
                waiting.append((inner, target.below(name).make(), set(inner.names())))
            else:
                with source.reading(name) as file:
                    target.write_pieces(name, file.pieces(file.size))


def _read_facts(run: Folder) -> dict[str, Any]:
    """The content of run.json, of whatever format. Raises RunFolderError if there is no run."""
    if not run.path.is_dir() or run.kind(FACTS) is None:
        why = f"{run.path / FACTS} is missing"
        if was_url(run.path):
            why = "expected a folder, got a URL; the version that wrote the run brings it back by palestra resume URL"
        raise RunFolderError(f"{run.path} is not a run: {why}")
    return _read_object(run, FACTS)


def _read_object(folder: Folder, name: str) -> dict[str, Any]:
    """The object in a JSON file. Raises RunFolderError if it cannot be read."""
    try:
        content = json.loads(folder.read(name))
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(f"{folder.path / name} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise RunFolderError(f"{folder.path / name} is damaged: expected an object, got {content!r:.80}")
    return content
