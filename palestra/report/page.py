"""The report of runs: one HTML page that holds all it shows, and no script."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from palestra.config import under
from palestra.recording.results import label, printable
from palestra.recording.values import Media, values_of
from palestra.report.blocks import Block, Heading, Note, Picture, Section, Strip
from palestra.report.comparison import comparison_section
from palestra.report.evaluation_tables import evaluations_section
from palestra.report.figures import Figures
from palestra.report.groups import Group, group_runs
from palestra.report.learning import curves_section, metrics_section, scores_section
from palestra.report.overview import checkpoints_section, runs_section, setting_section
from palestra.report.reading import RunData, read_runs
from palestra.report.timings import time_section, updates_section
from palestra.run.kinds import kinds
from palestra.storage.disk import Folder, write_file

HERE = Path(__file__).parent


def write_report(runs: Sequence[Path], out: Path | None) -> Path:
    """Write the report of runs atomically, and give its path.

    out: the file; None: report.html in the folder of a single run, else in the working directory. Raises RunFolderError
    for a folder that is no run, and if the page cannot be written.
    """
    groups = group_runs(read_runs(runs))
    path = out or (runs[0] if len(runs) == 1 else Path()) / "report.html"
    write_file(path, render_page(groups))
    return path


def render_page(groups: Sequence[Group]) -> str:
    """Return the page as HTML."""
    figures = Figures()
    trained = [group for group in groups if not group.runs[0].is_tournament]
    sections = (
        _sections_of_training(groups, figures) if trained else [evaluations_section(groups), setting_section(groups)]
    )
    lead = list(dict.fromkeys(_lead(group) for group in groups))
    return render_sections(", ".join(group.label for group in groups), lead, sections)


def render_sections(title: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    """Return a page of sections as HTML. lead: lines below the title."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, finalize=_shown, trim_blocks=True
    )
    return environment.get_template("page.html").render(
        title=title,
        lead=lead,
        sections=sections,
        style=Markup((HERE / "style.css").read_text()),
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        version=version("palestra"),
    )


def _sections_of_training(groups: Sequence[Group], figures: Figures) -> list[Section]:
    own = {kind: [group for group in groups if issubclass(group.runs[0].kind, kind.config)] for kind in kinds()}
    return [
        runs_section(groups),
        curves_section(groups, figures),
        *scores_section(groups, figures),
        *updates_section(groups, figures),
        *([comparison_section(groups)] if len(groups) > 1 else []),
        evaluations_section(groups),
        *(part for kind, those in own.items() for part in kind.sections(those, figures)),
        *media_section(groups),
        time_section(groups, figures),
        metrics_section(groups, figures),
        checkpoints_section(groups),
        setting_section(groups),
    ]


def _shown(value: Any) -> Any:
    """Remove the control characters of a text, which a page may not hold; its lines stay."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return "\n".join(map(printable, value.split("\n")))


def _lead(group: Group) -> str:
    """Describe a group, as "dqn-polyhedra: polyhedra, host by dqn, agent by dqn"."""
    run = group.runs[0]
    facts = [run.subject or "unknown", *(run.learning if not run.players else ())]
    for name, entry in run.players.items():
        keys = (("algorithm", "name"), ("scripted",), ("from_run",), ("torch_module",), ("from_model",))
        facts += [f"{name} by {what}" for each in keys if (what := under(entry, *each))][:1]
    facts += [f"{len(group.runs)} runs"] if len(group.runs) > 1 else []
    return f"{group.label}: {', '.join(facts)}"


MOST_MOMENTS = 4  # of one name in one run
MOST_BYTES = 4 << 20  # of a file that the page holds
MOST_BYTES_OF_PAGE = 24 << 20
IMAGE_TYPES = {b"\x89PNG": "image/png", b"GIF8": "image/gif"}


def media_section(groups: Sequence[Group]) -> list[Section]:
    """Make the section of what the runs have recorded as images and videos; none if they have recorded none."""
    runs = [run for group in groups for run in group.runs]
    section, room = Section("media", "Recorded media"), MOST_BYTES_OF_PAGE
    for run in runs:
        blocks, room = _media(run, room)
        section.blocks += [Heading(run.name)] if blocks and len(runs) > 1 else []
        section.blocks += blocks
    return [section] if section.blocks else []


def _media(run: RunData, room: int) -> tuple[list[Block], int]:
    """Return what the page shows of a run, and how much room is left. room: for bytes of files."""
    found: dict[str, list[tuple[Mapping[str, Any], Media]]] = {}
    for record in (*run.training, *(each.record for each in run.evaluated)):
        for name, value in values_of(record, run.path):
            if isinstance(value, Media):
                found.setdefault(name, []).append((record, value))
    blocks: list[Block] = []
    for name, moments in sorted(found.items()):
        pictures = []
        for record, media in moments[-MOST_MOMENTS:]:
            *folders, file = PurePosixPath(media.name).parts
            content = b""
            with suppress(OSError):  # as of a file that is too large
                content = Folder(run.path, *folders).read(file, max_bytes=min(MOST_BYTES, room))
            if (image_type := IMAGE_TYPES.get(content[:4])) is None:
                blocks.append(Note(f"{media.path} is not shown: it is larger than {MOST_BYTES >> 20} MiB, or damaged."))
                continue
            room -= len(content)
            counted = {label(name).removesuffix("s"): record.get(name) for name in reversed(run.kind.axes)}
            steps = ", ".join(f"{unit} {count:,}" for unit, count in counted.items() if isinstance(count, int))
            source, text = f"data:{image_type};base64,{b64encode(content).decode()}", printable(f"{name}, {steps}")
            pictures.append(Picture(Markup('<img src="{}" alt="{}">').format(source, text), steps))
        kept = f", the last {MOST_MOMENTS} of {len(moments)}" if len(moments) > MOST_MOMENTS else ""
        blocks += [Strip(f"{name}{kept}", pictures)] if pictures else []
    return blocks, room
