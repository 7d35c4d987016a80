"""The section of what a run has asked of servers: its calls, what they have cost, and its fine-tuning jobs.

What a server has said is untrusted, as all of a stored run.
"""

from collections.abc import Mapping, Sequence

from palestra.report.blocks import Block, Cell, Facts, Heading, Note, Section, Table
from palestra.report.groups import Group
from palestra.report.reading import RunData
from palestra.storage.run_folder import RunFolder
from palestra.text.servers.job_lines import JobEntry, read_jobs
from palestra.text.servers.ledger import PICO

MOST_CHARACTERS = 200  # of what a server has said


def servers_section(groups: Sequence[Group]) -> list[Section]:
    """Make the section, of the first run of each group; none if no run has asked a server."""
    section = Section("servers", "Calls and jobs")
    for group in groups:
        run = group.runs[0]
        try:
            blocks = _of_run(run)
        except Exception as error:  # a damaged file, or anything else
            blocks = [Note(f"Its jobs cannot be shown: {error}")]
        several = len(groups) > 1 or len(group.runs) > 1
        section.blocks += [Heading(run.name), *blocks] if blocks and several else blocks
    return [section] if section.blocks else []


def _of_run(run: RunData) -> list[Block]:
    told = next((each["calls"] for each in reversed(run.training) if isinstance(each.get("calls"), Mapping)), None)
    blocks: list[Block] = []
    if told is not None:
        blocks.append(Facts([(str(name), _number(value)) for name, value in told.items()]))
    folder = RunFolder.open(run.path)
    if jobs := read_jobs(folder.root):
        head = ["job", "epoch", "attempt", "state", "model, or what went wrong", "tokens", "money"]
        blocks.append(Table("Jobs, the oldest first.", head, [_row(each, folder.facts().id) for each in jobs.values()]))
    return blocks


def _row(job: JobEntry, run: str) -> list[Cell]:
    end = job.end or {}
    spent = end.get("spent") or job.worst.line()
    at_most = "" if job.end else "at most "
    came = str(end.get("model") or end.get("why") or "")[:MOST_CHARACTERS]
    tokens, money = int(spent["tokens"]), int(spent["money"]) / PICO
    named = Cell(job.player, detail=job.job or job.key)
    costs = [Cell(f"{at_most}{tokens:,}", tokens), Cell(f"{at_most}{money:,.4g}", money)]
    return [
        named,
        Cell(str(job.epoch)),
        Cell(str(job.attempt)),
        Cell(job.state, detail="" if job.run == run else "of the run that it branches off"),
        Cell(came),
        *costs,
    ]


def _number(value: object) -> str:
    return f"{value:,.6g}" if isinstance(value, int | float) else str(value)[:MOST_CHARACTERS]
