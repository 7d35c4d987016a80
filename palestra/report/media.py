"""Recorded images and films: of each name the last ones of each run, held by the page itself."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from markupsafe import Markup

from palestra.recording.results import label, printable
from palestra.recording.values import Media, values_of
from palestra.report.blocks import Block, Heading, Note, Picture, Section, Strip
from palestra.report.groups import Group
from palestra.report.reading import RunData
from palestra.storage.disk import Folder

MOST_MOMENTS = 4  # of one name in one run
MOST_BYTES = 4 << 20  # of a file that the page holds
MOST_BYTES_OF_PAGE = 24 << 20
KINDS = {b"\x89PNG": "image/png", b"GIF8": "image/gif"}


def media_section(groups: Sequence[Group]) -> list[Section]:
    """Make the section of what the runs have recorded as images and videos; none if they have recorded none."""
    runs = [run for group in groups for run in group.runs]
    section, room = Section("media", "Recorded media"), MOST_BYTES_OF_PAGE
    for run in runs:
        blocks, num_bytes = _media(run, room)
        room -= num_bytes
        section.blocks += [Heading(run.name)] if blocks and len(runs) > 1 else []
        section.blocks += blocks
    return [section] if section.blocks else []


def _media(run: RunData, room: int) -> tuple[list[Block], int]:
    """Return what the page shows of a run, and the bytes of its files. room: for how many bytes there is room."""
    found: dict[str, list[tuple[Mapping[str, Any], Media]]] = {}
    for record in (*run.training, *(each.record for each in run.evaluated)):
        for name, value in values_of(record, run.path):
            if isinstance(value, Media):
                found.setdefault(name, []).append((record, value))
    blocks: list[Block] = []
    left = room
    for name, moments in sorted(found.items()):
        pictures = []
        for record, media in moments[-MOST_MOMENTS:]:
            content = _read(run, media, min(MOST_BYTES, left))
            kind = KINDS.get(content[:4])
            if kind is None:
                blocks.append(Note(f"{media.path} is not shown: it is larger than {MOST_BYTES >> 20} MiB, or damaged."))
                continue
            left -= len(content)
            counted = {label(name).removesuffix("s"): record.get(name) for name in reversed(run.kind.axes)}
            steps = ", ".join(f"{unit} {count:,}" for unit, count in counted.items() if isinstance(count, int))
            source, text = f"data:{kind};base64,{b64encode(content).decode()}", printable(f"{name}, {steps}")
            pictures.append(Picture(Markup('<img src="{}" alt="{}">').format(source, text), steps))
        kept = f", the last {MOST_MOMENTS} of {len(moments)}" if len(moments) > MOST_MOMENTS else ""
        blocks += [Strip(f"{name}{kept}", pictures)] if pictures else []
    return blocks, room - left


def _read(run: RunData, media: Media, most: int) -> bytes:
    """Read the content of a file; empty if it has more than `most` bytes, or cannot be read."""
    *folders, file = PurePosixPath(media.name).parts
    try:
        return Folder(run.path, *folders).read(file, max_bytes=most)
    except OSError:
        return b""
