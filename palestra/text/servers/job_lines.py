"""The file jobs.jsonl of a run: what each fine-tuning job is, and what has come of it.

A job's line `intent` is on the disk before anything of it is sent. `uploaded`, `submitted` and at last `finished`,
`failed` or `cancelled` follow, each on the disk before the next step is taken.
"""

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from palestra.config import ConfigError, cut
from palestra.storage.disk import Folder, RunFolderError, writing
from palestra.storage.run_folder import JOBS, RunFolder
from palestra.text.servers.ledger import MOST, NOTHING, Cost

PLAIN_ID = r"[A-Za-z0-9_.:-]{1,200}"  # of a file or a job at a server
NOT_THERE = "the server has no such job (--job none)"


@dataclass(frozen=True)
class JobEntry:
    """What the lines of a job say.

    key: stands in the name of its file, and in its metadata. run: the id of the run that meant it. epoch: its number,
    or "imitate". request: the SHA-256 of all that is asked of the server. sha256: that of the file. worst: the most
    that the job can cost. state: the kind of its last line. file, job: the server's ids. submitted_at: seconds since
    1970. end: what the line says that ended it.
    """

    key: str
    run: str
    epoch: int | str
    player: str
    attempt: int
    request: str
    sha256: str
    worst: Cost
    state: str = "intent"
    file: str | None = None
    job: str | None = None
    submitted_at: float = 0.0
    end: Mapping[str, Any] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the job is neither finished nor lost."""
        return self.state not in ("finished", "failed", "cancelled")

    @property
    def in_ledger(self) -> tuple[str, int]:
        return self.key, self.attempt


class JobLines:
    """The jobs of a run, as its jobs.jsonl has them.

    root: the folder with the file. run: the id of the run, which stands in the keys of its own jobs. A branch also has
    the lines of the run that it comes from.
    """

    def __init__(self, root: Folder, run: str) -> None:
        self.root, self.run = root, run
        self.entries = read_jobs(root)

    def latest(self, epoch: int | str, player: str, request: str) -> JobEntry | None:
        """Return the last job of this run that asks for just this, or a finished one of the run that it comes from."""
        asked = (epoch, player, request)
        fits = [each for each in self.entries.values() if (each.epoch, each.player, each.request) == asked]
        own = [each for each in fits if each.run == self.run]
        return next(reversed(own), None) or next((each for each in fits if each.state == "finished"), None)

    def next(self, epoch: int | str, player: str, request: str, sha256: str, worst: Cost) -> JobEntry:
        """Return the next job of a player in an epoch, of which nothing is written yet."""
        before = [e.attempt for e in self.entries.values() if (e.run, e.epoch, e.player) == (self.run, epoch, player)]
        attempt = max(before, default=0) + 1
        is_plain = re.fullmatch(r"[A-Za-z0-9_]{1,40}", player)  # as a part of a file's name has to be
        name = player if is_plain else hashlib.sha256(player.encode()).hexdigest()[:16]
        key = f"palestra-{self.run}-{epoch}-{name}-{attempt}"
        return JobEntry(key, self.run, epoch, player, attempt, request, sha256, worst)

    def intend(self, entry: JobEntry) -> JobEntry:
        """Write down a job that begins."""
        names = ("key", "run", "epoch", "player", "attempt", "request", "sha256")
        said = {name: getattr(entry, name) for name in names}
        return self._write({"kind": "intent", **said, "worst": entry.worst.line()})

    def add(self, entry: JobEntry, line: Mapping[str, Any]) -> JobEntry:
        """Note what has come of a job."""
        return self._write({"key": entry.key, **line})

    def for_ledger(self) -> Iterator[dict[str, Any]]:
        """Yield what the jobs may cost and have cost, as `Ledger.replay` reads it."""
        for each in self.entries.values():
            of = {"call": each.key, "attempt": each.attempt, "run": each.run}
            yield {**of, "worst": each.worst.line()}
            if each.end is not None:
                yield {**of, "spent": each.end["spent"]}

    def _write(self, line: Mapping[str, Any]) -> JobEntry:
        """Add a line, and wait until it is on the disk. Raises RunFolderError."""
        with writing(self.root.path / JOBS), closing(self.root.append(JOBS)) as file:
            whole = b"".join(file.pieces(file.size)).rfind(b"\n") + 1
            if whole < file.size:  # a kill has torn the last line
                file.truncate(whole)
            file.append(json.dumps(line).encode() + b"\n")
            file.sync()
        _take(self.entries, line)
        return self.entries[line["key"]]


def read_jobs(root: Folder) -> dict[str, JobEntry]:
    """Read the jobs of a run by key, in the order in which they were meant; a torn last line does not count.

    Raises RunFolderError for a file that is damaged.
    """
    found: dict[str, JobEntry] = {}
    if root.kind(JOBS) is None:
        return found
    *lines, _ = root.read(JOBS).split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            _take(found, _checked(json.loads(line)))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise RunFolderError(f"{root.path / JOBS} is damaged, in line {number}: {cut(repr(error), 200)}") from error
    return found


def copy_jobs(origin: RunFolder, folder: RunFolder) -> None:
    """Give a branch the lines of the run that it comes from, if this has any. Raises RunFolderError."""
    with writing(folder.path):
        if origin.root.kind(JOBS) is not None:
            folder.root.write(JOBS, origin.root.read(JOBS))


def _checked(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a line. Raises ValueError for what is none: the file may be a stranger's."""
    match line:
        case {"kind": "intent", "key": str(), "run": str(), "epoch": int() | str(), "player": str(), **rest}:
            is_whole = rest.keys() == {"attempt", "request", "sha256", "worst"}
            is_whole = is_whole and isinstance(rest["attempt"], int) and _is_cost(rest["worst"])
            is_right = is_whole and isinstance(rest["request"], str) and isinstance(rest["sha256"], str)
        case {"kind": "uploaded", "key": str(), "file": str(server_id)}:
            is_right = re.fullmatch(PLAIN_ID, server_id) is not None
        case {"kind": "submitted", "key": str(), "job": str(server_id), "at": float() | int()}:
            is_right = re.fullmatch(PLAIN_ID, server_id) is not None
        case {"kind": "finished", "key": str(), "model": str(), "steps": int(steps), "loss": loss, "spent": spent}:
            is_right = 0 < steps < 2**31 and isinstance(loss, float | None) and _is_cost(spent)
        case {"kind": "failed" | "cancelled", "key": str(), "why": str(), "spent": spent}:
            is_right = _is_cost(spent)
        case _:
            is_right = False
    if not is_right:
        raise ValueError("expected a line on a job, got something else")
    return line


def _is_cost(found: Any) -> bool:
    is_cost = isinstance(found, dict) and found.keys() == {"tokens", "money"}
    return is_cost and all(type(each) is int and 0 <= each < MOST for each in found.values())


def _take(entries: dict[str, JobEntry], line: Mapping[str, Any]) -> None:
    key, kind = line["key"], line["kind"]
    match kind:
        case "intent":
            said = {name: value for name, value in line.items() if name != "kind"}
            entries[key] = JobEntry(**said | {"worst": Cost(**line["worst"])})
        case "uploaded":
            entries[key] = replace(entries[key], state=kind, file=line["file"])
        case "submitted":
            entries[key] = replace(entries[key], state=kind, job=line["job"], submitted_at=line["at"])
        case _:
            entries[key] = replace(entries[key], state=kind, end=line)


# ---- by hand -----------------------------------------------------------------------------------------------


def adopt_by_hand(root: Folder, run: str, said: Sequence[str]) -> None:
    """Take over jobs that a person has found at the server.

    said: ID, for the one job of the run that is not over, or KEY=ID; the ID none says that the server has no such job,
    which is then submitted anew. Raises ConfigError.
    """
    lines = JobLines(root, run)
    open_ = {key: each for key, each in lines.entries.items() if each.run == run and each.is_open}
    for each in said:
        key, _, job = each.rpartition("=")
        known = ", ".join(open_) or "none"
        if key not in open_ and (key or len(open_) != 1):
            expected = f"KEY=ID with the key of a job that is not over ({known})"
            raise ConfigError.at("--job", f"expected {expected}, got {each!r}")
        if not re.fullmatch(PLAIN_ID, job):
            raise ConfigError.at("--job", f"expected the id of a job, such as ftjob-abc123, got {cut(repr(job))}")
        entry = open_[key or next(iter(open_))]
        if job == "none":
            spent = NOTHING if entry.job is None else entry.worst  # what was there may have been paid for
            lines.add(entry, {"kind": "failed", "why": NOT_THERE, "spent": spent.line()})
        else:
            lines.add(entry, {"kind": "submitted", "job": job, "at": time.time()})
