"""Fine-tuning jobs at servers: what is asked and can cost, of which none is submitted twice and none is lost.

What may have reached the server although its reply got lost is looked for there by its key, before anything is sent
again (palestra.text.servers.job_lines).
"""

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NoReturn

import torch

from palestra.text.servers.calls import MOST_TOKENS, Calls, sha256_of
from palestra.text.servers.client import is_final, reached
from palestra.text.servers.config import ServerConfig, ServerTuningConfig
from palestra.text.servers.job_lines import PLAIN_ID, JobEntry, JobLines
from palestra.text.servers.ledger import Cost, most_read, worst_of_job


@dataclass(frozen=True)
class FileJob:
    """One tuning of a model behind a server.

    content: the file of examples. method: what kind of file it is. parameters: those of the method, besides the keys of
    a ServerTuningConfig. begin_from: what is tuned: the model before, or the one that the config names.
    """

    content: bytes
    method: Literal["supervised", "dpo"]
    parameters: Mapping[str, float]
    begin_from: Literal["base", "before"]

    def state_dict(self) -> dict[str, Any]:
        """Return the job as plain data and a tensor."""
        file = torch.frombuffer(bytearray(self.content), dtype=torch.uint8)
        said = {"method": self.method, "parameters": dict(self.parameters), "begin_from": self.begin_from}
        return {"file": file, **said}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "FileJob":
        """Make again what `state_dict` gave."""
        return cls(state["file"].numpy().tobytes(), state["method"], state["parameters"], state["begin_from"])


@dataclass(frozen=True)
class JobOrder:
    """What is asked of a server: a job with everything that it depends on.

    model: the one that is tuned. seed: of the order of the examples.
    """

    epoch: int | str
    player: str
    server: ServerConfig
    model: str
    job: FileJob
    config: ServerTuningConfig
    seed: int

    def worst(self) -> Cost:
        """Return the most that the job can cost."""
        return worst_of_job(most_tokens(self.job.content), self.config.num_passes, self.server.exact_prices())

    def arguments(self) -> dict[str, Any]:
        """Return what the server is sent besides the file and the metadata."""
        parameters = {**self.config.hyperparameters(), **self.job.parameters}
        method = {"type": self.job.method, self.job.method: {"hyperparameters": parameters}}
        return {"model": self.model, "method": method, "seed": self.seed}

    def request(self) -> str:
        """Return the SHA-256 of all that is asked."""
        file = hashlib.sha256(self.job.content).hexdigest()
        return sha256_of({"url": self.server.url, "file": file, **self.arguments()})


@dataclass(frozen=True)
class TunedModel:
    """What has come of a job. model: its name. steps: opt steps, as the server counts them. loss: the last one told."""

    model: str
    steps: int
    loss: float | None


def most_tokens(content: bytes) -> int:
    """Return the most tokens that one pass through a file of examples may have, whatever the tokenizer.

    A prompt of a pair is read with both of its answers.
    """
    return sum(map(_tokens_of, map(json.loads, content.splitlines())))


def _tokens_of(example: Mapping[str, Any]) -> int:
    if "messages" in example:
        return most_read(message["content"] for message in example["messages"])
    read = example["input"]["messages"]
    pairs = ([*read, *example[name]] for name in ("preferred_output", "non_preferred_output"))
    return sum(most_read(message["content"] for message in messages) for messages in pairs)


LONGEST_PAUSE_S = 60.0  # between two looks at a job, unless poll_s is longer
PAUSE_GROWTH = 1.5
MOST_STEPS, MOST_LOSS = 2**31, 1e300  # that a server may report of a job
PAGE, MOST_LISTED = 100, 200_000  # files, jobs or events: of a page, and of all
BY_HAND = "go on with `palestra resume RUN --job ID`, or with --job none if the server has none"
CANNOT_LIST = (404, 405, 501)
GONE = (404, 410)  # of a job that the server has forgotten


class JobFailed(Exception):
    """A job that cannot go on. The message is one line with the server's words; a resumed run goes on from there."""


class Refused(JobFailed):
    """A request that a server does not carry out. status: the number of its reply."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ServerJob:
    """A job that is under way: `begin` starts it in the client's thread, and `outcome` tells what came of it.

    state: where it stands, in a word.
    """

    def __init__(self, calls: Calls, lines: JobLines, order: JobOrder) -> None:
        """Prepare the job; nothing is sent. Raises ConfigError if the server's key is missing."""
        self.calls, self.lines, self.order = calls, lines, order
        self.client = calls.client(order.server)
        self._jobs = self.client.openai.fine_tuning.jobs
        self.state = "new"
        self._future: Future[TunedModel] | None = None
        self._is_sending = self._is_leaving = False

    # ---- of the main thread ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let the job go on by itself; once is enough."""
        if self._future is None:
            self._future = self.client.start(self._run())

    def outcome(self, seconds: float) -> TunedModel | None:
        """Wait for the end of the job, at most so long; None: it is not over. Raises JobFailed, BudgetReached."""
        assert self._future is not None
        try:
            return self._future.result(seconds)
        except TimeoutError:
            if self._future.done():
                raise
            return None

    def leave(self, until: float) -> None:
        """Let the job be, as it is at the server. until: the monotonic time up to which a reply is awaited."""
        self._is_leaving = True
        while self._is_sending and time.monotonic() < until:
            time.sleep(0.01)
        if self._future is not None:
            self._future.cancel()

    # ---- of the client's thread ----------------------------------------------------------------------------

    async def _run(self) -> TunedModel:
        order, lines = self.order, self.lines
        entry = lines.latest(order.epoch, order.player, order.request())
        is_new = entry is None or entry.state in ("failed", "cancelled")
        if entry is None or is_new:
            entry = await self._intend()
        elif entry.is_open:
            self.calls.ledger.take_back(entry.in_ledger, entry.worst)
        if entry.is_open and entry.job is None:
            entry = await self._submit(entry, is_new)
        if entry.is_open:
            entry = await self._wait(entry)
        assert entry.end is not None
        return TunedModel(entry.end["model"], entry.end["steps"], entry.end["loss"])

    async def _intend(self) -> JobEntry:
        """Write down what is to be bought, once the budget has room for its worst case. Raises BudgetReached."""
        order = self.order
        sha256 = hashlib.sha256(order.job.content).hexdigest()
        entry = self.lines.next(order.epoch, order.player, order.request(), sha256, order.worst())
        self.state = "waits for the budget"
        await self.calls.reserve(entry.in_ledger, entry.worst)
        return self.lines.intend(entry)

    # ---- submission ----------------------------------------------------------------------------------------

    async def _submit(self, entry: JobEntry, is_new: bool) -> JobEntry:
        """Upload the file and submit the job, or adopt those that the server has already.

        is_new: whether nothing of this job can have reached the server before.
        """
        self.state = "is submitted"
        job = await self._found_job(entry, must_list=not is_new)
        if job is None and entry.file is None:
            file = await self._found_file(entry, must_list=not is_new)
            if file is None:
                file = await self._sent(entry, lambda: self._upload(entry), lambda: self._found_file(entry, True))
            entry = self.lines.add(entry, {"kind": "uploaded", "file": file})
        if job is None:
            job = await self._sent(entry, lambda: self._create(entry), lambda: self._found_job(entry, True))
        return self.lines.add(entry, {"kind": "submitted", "job": job, "at": time.time()})

    async def _sent(
        self, entry: JobEntry, send: Callable[[], Awaitable[Any]], look: Callable[[], Awaitable[str | None]]
    ) -> str:
        """Send something that must not be sent twice, and return the id that it got; look for it before each repeat."""
        for number in range(self.client.num_attempts):
            if self._is_leaving:
                raise asyncio.CancelledError
            self._is_sending = True
            try:
                return self._id_of(await send())
            except Exception as error:
                failure = error
            finally:
                self._is_sending = False
            match reached(failure):
                case "refused":
                    await self._end(entry, "failed", self.client.words(failure), 0)
                case "never":
                    await self.client.pause(failure, number)
                case "perhaps":
                    for pause in (False, True):  # twice, because a slow server may take it a moment later
                        if pause:
                            await self.client.pause(failure, number)
                        if (found := await look()) is not None:
                            return found
        raise JobFailed(f"{self._named(entry)}: {self.client.words(failure)}")

    async def _upload(self, entry: JobEntry) -> Any:
        file = (f"{entry.key}.jsonl", self.order.job.content, "application/jsonl")
        return await self.client.openai.files.create(file=file, purpose="fine-tune")

    async def _create(self, entry: JobEntry) -> Any:
        said = {"key": entry.key, "sha256": entry.sha256}
        return await self._jobs.create(training_file=entry.file, metadata=said, **self.order.arguments())

    async def _found_job(self, entry: JobEntry, must_list: bool) -> str | None:
        """Return the id of the first job at the server that fits in key and SHA-256."""
        fits = [
            job
            for job in await self._all(entry, self._jobs.list, must_list)
            if _metadata(job).get("key") == entry.key and _metadata(job).get("sha256") == entry.sha256
        ]
        return min(fits, key=_age).id if fits else None

    async def _found_file(self, entry: JobEntry, must_list: bool) -> str | None:
        """Return the id of the first file at the server that has the name and the content."""
        found = await self._all(entry, self.client.openai.files.list, must_list)
        for file in sorted(found, key=_age):
            if await self._is_content(entry, file):
                return str(file.id)
        return None

    async def _is_content(self, entry: JobEntry, file: Any) -> bool:
        """Tell whether a file at the server is that of the job; one that the server does not give back, by its size."""
        content = self.order.job.content
        if getattr(file, "filename", None) != f"{entry.key}.jsonl" or getattr(file, "bytes", None) != len(content):
            return False
        try:
            read = await self._get(entry, lambda: self.client.openai.files.content(file.id))
        except JobFailed:
            return True
        return bool(read.content == content)

    async def _all(self, entry: JobEntry, list_page: Callable[..., Any], must_list: bool) -> list[Any]:
        """Return what a server lists, from all pages; [] if it cannot list, and need not."""
        found: dict[str, Any] = {}
        after: dict[str, str] = {}
        while True:
            try:
                page = await self._get(entry, partial(self._page, list_page, after))
            except Refused as error:
                if error.status not in CANNOT_LIST:
                    raise
                if not must_list:
                    return []
                told = f"the server cannot list what it has ({error}), so it may have the job {entry.key}, or not"
                raise JobFailed(f"{told}; {BY_HAND}") from None
            new = [each for each in page.data if each.id not in found]
            found |= {each.id: each for each in new}
            if not new or getattr(page, "has_more", None) is False:
                return list(found.values())
            if len(found) > MOST_LISTED:
                told = f"the server lists more than {MOST_LISTED:,} files, jobs or events"
                raise JobFailed(f"{self._named(entry)}: {told}")
            after = {"after": page.data[-1].id}

    # ---- waiting -------------------------------------------------------------------------------------------

    async def _wait(self, entry: JobEntry) -> JobEntry:
        """Ask how the job is, until it is over. Raises JobFailed if it has failed, or has been cancelled."""
        config, pause, is_late = self.order.config, self.order.config.poll_s, False
        while True:
            try:
                job = await self._get(entry, lambda: self._jobs.retrieve(entry.job))
            except Refused as error:
                raise error if error.status not in GONE else JobFailed(f"{error}; {BY_HAND}") from None
            if (key := _metadata(job).get("key")) not in (None, entry.key):
                other = self.client.shortened(key)[:200]
                raise JobFailed(f"expected {entry.job} to be the job {entry.key}, got the job {other!r}; {BY_HAND}")
            self.state = status = self.client.shortened(getattr(job, "status", "unknown"))[:40]
            if status == "succeeded":
                return await self._finish(entry, job)
            if status in ("failed", "cancelled") or is_late:
                kind = "failed" if status == "failed" else "cancelled"
                said = getattr(getattr(job, "error", None), "message", None) or "the server says no reason"
                late = f"it was not over after {config.timeout_s:g} s (timeout_s)"
                why = late if is_late and kind == "cancelled" else self.client.shortened(said)
                await self._end(entry, kind, why, _trained_tokens(job))
            if (left := entry.submitted_at + config.timeout_s - time.time()) <= 0:
                with suppress(Refused):  # it was over just before, as the next look tells
                    await self._get(entry, lambda: self._jobs.cancel(entry.job))
                is_late = True
                continue
            await asyncio.sleep(min(pause, left))
            pause = min(pause * PAUSE_GROWTH, max(config.poll_s, LONGEST_PAUSE_S))

    async def _finish(self, entry: JobEntry, job: Any) -> JobEntry:
        model = getattr(job, "fine_tuned_model", None)
        if not isinstance(model, str) or not model or not model.isprintable():
            await self._end(entry, "failed", "the server names no model", _trained_tokens(job))
        steps, loss = await self._progress(entry)
        said = {"model": self.client.hide(model), "steps": steps, "loss": loss}
        return self._settle(entry, {"kind": "finished", **said}, _trained_tokens(job))

    async def _progress(self, entry: JobEntry) -> tuple[int, float | None]:
        """Return how many opt steps the server reports, 1 if it reports none, and the last loss, if it tells one."""
        try:
            events = await self._all(entry, lambda **page: self._jobs.list_events(entry.job, **page), must_list=False)
        except JobFailed:
            return 1, None
        told = {}
        for event in events:
            data = getattr(event, "data", None)
            if isinstance(data, dict) and type(step := data.get("step")) is int and 0 < step < MOST_STEPS:
                told[step] = data.get("train_loss")
        if not told:
            return 1, None
        losses = [loss for _, loss in sorted(told.items()) if isinstance(loss, int | float) and abs(loss) < MOST_LOSS]
        return max(told), float(losses[-1]) if losses else None

    async def _end(self, entry: JobEntry, kind: str, why: str, trained: int | None) -> NoReturn:
        """Note that the job has come to nothing, and why. trained: tokens that cost something; None: nobody knows."""
        self._settle(entry, {"kind": kind, "why": why}, trained)
        raise JobFailed(f"{self._named(entry)} {'was cancelled' if kind == 'cancelled' else 'has failed'}: {why}")

    def _settle(self, entry: JobEntry, line: Mapping[str, Any], trained: int | None) -> JobEntry:
        """Note that a job is over, and what it has cost: its worst case, if the server does not say."""
        spent = entry.worst if trained is None else Cost(trained, trained * self.order.server.exact_prices().trained)
        after = self.lines.add(entry, {**line, "spent": spent.line()})
        self.calls.settle(entry.in_ledger, spent)
        return after

    # ---- requests ------------------------------------------------------------------------------------------

    async def _get(self, entry: JobEntry, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Make a request that may be made twice, as often as the config allows. Raises JobFailed."""
        for number in range(self.client.num_attempts):
            try:
                found = await ask()
                if isinstance(found, str) or found is None:  # a text in place of JSON
                    raise ValueError(f"expected JSON, got {found!r}")
                return found
            except Exception as error:
                failure = error
            told, status = f"{self._named(entry)}: {self.client.words(failure)}", getattr(failure, "status_code", 0)
            if is_final(failure) or status in CANNOT_LIST:
                raise Refused(told, status)
            await self.client.pause(failure, number)
        raise JobFailed(told)

    async def _page(self, list_page: Callable[..., Awaitable[Any]], after: Mapping[str, str]) -> Any:
        """Return a page of a list. Raises ValueError for a reply that is none."""
        page = await list_page(limit=PAGE, **after)
        if not isinstance(getattr(page, "data", None), list):
            raise ValueError(f"expected a page with a list, got {page!r}")
        for each in page.data:
            self._id_of(each)
        return page

    def _id_of(self, found: Any) -> str:
        """Return the id of a file, a job or an event. Raises ValueError for a reply without a plain one."""
        own = getattr(found, "id", None)
        if not isinstance(own, str) or not re.fullmatch(PLAIN_ID, own) or self.client.hide(own) != own:
            raise ValueError(f"expected an object with an id, got {found!r}")
        return own

    def _named(self, entry: JobEntry) -> str:
        return f"the job {entry.job or entry.key} of {entry.player!r} at {self.order.server.url}"


def _metadata(job: Any) -> Mapping[str, Any]:
    found = getattr(job, "metadata", None)
    return found if isinstance(found, Mapping) else {}


def _age(found: Any) -> tuple[int, str]:
    """Return what orders files or jobs by when they were made."""
    made = getattr(found, "created_at", None)
    return (made if isinstance(made, int) else 0), found.id


def _trained_tokens(job: Any) -> int | None:
    found = getattr(job, "trained_tokens", None)
    return found if type(found) is int and 0 <= found < MOST_TOKENS else None
