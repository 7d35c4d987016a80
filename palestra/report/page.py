"""The report of runs: one HTML page that holds all it shows, and no script."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from palestra.config import under
from palestra.recording.results import printable
from palestra.report.blocks import Section
from palestra.report.comparison_table import comparison_section
from palestra.report.evaluation_tables import evaluations_section
from palestra.report.figures import Figures
from palestra.report.game_scores import scores_section
from palestra.report.groups import Group, group_runs
from palestra.report.judged_items import judged_items_section
from palestra.report.learning import curves_section, metrics_section
from palestra.report.media import media_section
from palestra.report.overview import checkpoints_section, runs_section, setting_section
from palestra.report.reading import read_runs
from palestra.report.samples import samples_section
from palestra.report.server_jobs import servers_section
from palestra.report.text_analyses import analyses_section
from palestra.report.text_dialogues import dialogues_section
from palestra.report.timings import time_section
from palestra.report.updates import updates_section
from palestra.runs.base import BaseRunConfig
from palestra.runs.config import RunConfig
from palestra.runs.fit import FitConfig
from palestra.runs.text import TextConfig
from palestra.storage.disk import RunFolderError, write_bytes

HERE = Path(__file__).parent
OF_KINDS: list[tuple[type[BaseRunConfig], Callable[[Sequence[Group], Figures], list[Section]]]] = [
    (RunConfig, samples_section),
    (FitConfig, judged_items_section),
    (TextConfig, dialogues_section),
    (TextConfig, analyses_section),
]
"""the sections that only some kinds of run have"""


def write_report(runs: Sequence[Path], out: Path | None) -> Path:
    """Write the report of runs atomically, and give its path.

    out: the file; None: report.html in the folder of a single run, else in the working directory. Raises RunFolderError
    for a folder that is no run, and if the page cannot be written.
    """
    groups = group_runs(read_runs(runs))
    path = out or (runs[0] if len(runs) == 1 else Path()) / "report.html"
    write_page(path, render_page(groups))
    return path


def write_page(path: Path, content: str | bytes) -> None:
    r"""Write a text, or the content of a file, atomically. Bytes of names that are no UTF-8 are written as \\udcff.

    Raises RunFolderError if it cannot be written.
    """
    try:
        write_bytes(path, content if isinstance(content, bytes) else content.encode(errors="backslashreplace"))
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror or error}") from error


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
    return [
        runs_section(groups),
        curves_section(groups, figures),
        *scores_section(groups, figures),
        *updates_section(groups, figures),
        *([comparison_section(groups)] if len(groups) > 1 else []),
        evaluations_section(groups),
        *(part for kind, section in OF_KINDS for part in section(_of_kind(groups, kind), figures)),
        *servers_section(_of_kind(groups, TextConfig)),
        *media_section(groups),
        time_section(groups, figures),
        metrics_section(groups, figures),
        checkpoints_section(groups),
        setting_section(groups),
    ]


def _of_kind(groups: Sequence[Group], kind: type[BaseRunConfig]) -> list[Group]:
    return [group for group in groups if issubclass(group.runs[0].kind, kind)]


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
        kinds = [under(entry, *each) for each in keys]
        facts += [f"{name} by {kind}" for kind in kinds if kind][:1]
    facts += [f"{len(group.runs)} runs"] if len(group.runs) > 1 else []
    return f"{group.label}: {', '.join(facts)}"
