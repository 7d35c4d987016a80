"""The calls of a run: asked for within its budget, kept on the disk, and answered once.

A call is identified by the decisions that it is for and by all that is asked, so a run that goes on after a kill finds
the answers that it has paid for, and other prompts, another sampling or another model never meet an old answer.
"""

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any, Literal, NamedTuple

from palestra.storage.disk import Folder, RunFolderError, writing
from palestra.storage.lock import take_or_refuse
from palestra.storage.manifest import ONCE
from palestra.storage.stored_files import StoredFile
from palestra.text.servers.client import Background, CallFailed, Client, OneAtATime, is_final, reached, texts_of
from palestra.text.servers.config import ServerConfig
from palestra.text.servers.ledger import NOTHING, BudgetReached, Cost, Journal, Key, Ledger, Line, Prices, Usage, sum_of

WARN_S = 60.0  # between two warnings
MOST_TOKENS = 2**40  # that a server may report of a call


@dataclass(frozen=True)
class Call:
    """A request for answers to one prompt.

    decisions: whose answers they are, one for each. player: who asks. body: all that the server is sent. worst: the
    most that it can cost. alone: the same of a call for one of the answers.
    """

    decisions: Sequence[Sequence[int | str]]
    player: str
    body: dict[str, Any]
    worst: Cost
    alone: Cost
    prices: Prices

    def each(self) -> Iterator["Call"]:
        """Yield a call for each answer alone."""
        for place, decision in enumerate(self.decisions):
            body = {**self.body, "n": 1, "seed": (self.body["seed"] + place) % 2**31}
            yield replace(self, decisions=[decision], body=body, worst=self.alone)


class Reply(NamedTuple):
    """What a server has answered to a call.

    texts: the answers, each with why it ended. num_tokens: those that it has written in all; None if it does not say.
    """

    texts: Sequence[tuple[str, Literal["stop", "length"]]]
    num_tokens: int | None


class _Left(Exception):
    """The run leaves, so that nothing more is sent."""


class Calls:
    """Makes the calls of one run, in a thread of its own. What comes back is taken from the main thread.

    is_leaving: whether a signal asks the run to leave; nothing is sent from then on. session: changes with each
    `opened` and `let_go`; tickets of an earlier one are never answered. num_out: attempts that are being answered.
    tally: counts of this run's calls since it began: `answered`, `attempts`, `failed` (attempts), and tokens `input`,
    `cached`, `output`.
    """

    def __init__(self, is_leaving: Callable[[], bool]) -> None:
        self.ledger, self.is_leaving = Ledger(Cost(None, None)), is_leaving
        self.background = Background()
        self.session, self.num_out, self._num_asked = 0, 0, 0
        self.tally: Counter[str] = Counter()
        self.last_failure: str | None = None
        self._warned_s = -WARN_S
        self._folder: Folder | None = None
        self._run = ""
        self._journals: dict[str, Journal] = {}
        self._answers: dict[str, dict[str, Reply]] = {}  # by journal and call
        self._attempts: Counter[str] = Counter()  # of each call
        self._stage = ""
        self._clients: dict[ServerConfig, Client] = {}
        self._results: SimpleQueue[tuple[int, Reply | Exception]] = SimpleQueue()
        self._arrived: dict[int, Reply] = {}  # which nobody has taken yet, by ticket
        self._is_stopping = False
        self._until: float | None = None  # when what is out is awaited no more
        self._settled: asyncio.Event | None = None

    # ---- of the main thread --------------------------------------------------------------------------------

    @contextmanager
    def opened(self, folder: Folder, run: str, limit: Cost, within_s: float) -> Iterator[None]:
        """A context in which calls can be made, and kept in a folder.

        run: its id. limit: of what it may spend. within_s: how long calls that are out are awaited at the end. Raises
        RunFolderError for a damaged folder, and if another process spends the same budget.
        """
        with _alone(folder, limit):
            self.ledger, self._folder, self._run, self._until = Ledger(limit), folder, run, None
            self._begin_session()
            self._journals, self._answers = {}, {}
            self._attempts.clear()
            self.tally.clear()
            self._read_new()
            try:
                yield
            finally:
                self.drain(within_s)
                self.background.cancel()
                for client in self._clients.values():
                    client.close()
                self.background.close()
                self._clients = {}
                for journal in self._journals.values():
                    journal.close()
                self._folder = None

    def _begin_session(self) -> None:
        self.session += 1
        self._is_stopping, self._settled = False, None
        self._results, self._arrived = SimpleQueue(), {}

    def let_go(self) -> None:
        """Forget all that was asked for and has not come, after BudgetReached; from now on calls can be made again."""
        self.background.cancel()
        self._begin_session()

    @property
    def is_open(self) -> bool:
        return self._folder is not None

    def _read_new(self) -> None:
        """Read the journals that were not there before: all of them at first, then those that a branch has copied."""
        assert self._folder is not None
        out = set(self.ledger.reserved)
        for name in filter(ONCE["calls"].fullmatch, self._folder.names()):
            if name not in self._journals:
                self.ledger.replay(map(self._counted, self._journal(name).lines()), self._run)
        for key in self.ledger.reserved.keys() - out:  # a kill has lost it
            self.ledger.lose(key)

    def _counted(self, line: Line) -> Line:
        """Count a line of a journal, which is this run's own if its call was."""
        self._attempts[line["call"]] = max(self._attempts[line["call"]], line["attempt"] + 1)
        if line["kind"] == "asked" and line["run"] == self._run:
            self.tally["attempts"] += 1
        elif (line["call"], line["attempt"]) in self.ledger.reserved:
            self._tell(line)
        return line

    def _tell(self, line: Line) -> None:
        self.tally["answered" if line["kind"] == "answered" else "failed"] += 1
        for name, number in (line.get("usage") or {}).items():
            self.tally[name] += number

    def _journal(self, name: str) -> Journal:
        if name not in self._journals:
            assert self._folder is not None, "calls are made inside `opened`"
            self._journals[name] = Journal(self._folder, name)
        return self._journals[name]

    @contextmanager
    def kept_in(self, stage: str) -> Iterator[None]:
        """A context in which calls are kept in the journal of this name, where the answers that it has are found."""
        before, self._stage, name = self._stage, stage, f"{stage}.jsonl"
        if self.is_open and name not in self._answers:
            self._answers[name] = {
                line["call"]: _reply([(each["text"], each["stop"]) for each in line["choices"]], line.get("usage"))
                for line in self._journal(name).lines()
                if line["kind"] == "answered"
            }
        try:
            yield
        finally:
            self._stage = before

    def forget(self, stage: str) -> None:
        """Keep the answers of a stage that is over on the disk alone."""
        self._answers.pop(f"{stage}.jsonl", None)

    def stored(self) -> dict[str, StoredFile]:
        """Return the journals as they are on the disk, by name."""
        if self.is_open:
            self._read_new()
        found = {name: journal.stored() for name, journal in self._journals.items()}
        return {name: each for name, each in found.items() if each.size}

    def client(self, config: ServerConfig) -> Client:
        """Return the client of a model's server, which models with the same keys share. Raises ConfigError."""
        if config not in self._clients:
            self._clients[config] = Client(config, self.background)
        return self._clients[config]

    def ask(self, client: Client, call: Call) -> int:
        """Ask for answers, and return a ticket, by which `take` gives them."""
        self._num_asked += 1
        name = f"{self._stage}.jsonl"
        own = f"{self._stage}/{sha256_of([client.config.url, call.body, call.decisions])[:32]}"
        known = self._answers[name].get(own)
        if known is not None and len(known.texts) == len(call.decisions):
            self._results.put((self._num_asked, known))
        else:
            self.background.start(self._answer(self._num_asked, client, call, own, name))
        return self._num_asked

    def take(self, tickets: Collection[int], wait_s: float) -> dict[int, Reply]:
        """Return what has come of these tickets; wait at most so long if nothing has.

        Raises CallFailed, BudgetReached, RunFolderError, whatever ticket is concerned.
        """
        until = time.monotonic() + wait_s
        while True:
            while not self._results.empty():
                self._keep(*self._results.get())
            if found := [ticket for ticket in self._arrived if ticket in tickets]:
                return {ticket: self._arrived.pop(ticket) for ticket in found}
            if (left := until - time.monotonic()) <= 0:
                return {}
            with suppress(Empty):
                self._keep(*self._results.get(timeout=left))

    def _keep(self, ticket: int, result: Reply | Exception) -> None:
        if isinstance(result, Exception):
            raise result
        self._arrived[ticket] = result

    def drain(self, within_s: float) -> None:
        """Send nothing more, and wait until what is out has been answered, but not for longer than this in all."""
        self._is_stopping = True
        if self._until is None:
            self._until = time.monotonic() + within_s
        while self.num_out and time.monotonic() < self._until:
            time.sleep(0.02)

    def warning(self) -> str | None:
        """Return a line on attempts that have failed since the last one, at most once a minute."""
        if self.last_failure is None or time.monotonic() < self._warned_s + WARN_S:
            return None
        line = f"attempts of calls that have failed so far: {self.tally['failed']}; the last one: {self.last_failure}"
        self._warned_s, self.last_failure = time.monotonic(), None
        return line

    def costs(self) -> dict[str, float]:
        """Return what a record says of calls: counts, tokens, and money where there are prices."""
        spent = sum_of([self.ledger.spent, *self.ledger.reserved.values()])
        counts = {name: self.tally[name] for name in ("answered", "attempts", "failed", "input", "output")}
        return {**counts, "tokens": spent.tokens or 0, "money": spent.in_money()}

    # ---- of the client's thread ------------------------------------------------------------------------------

    async def reserve(self, key: Key, worst: Cost) -> None:
        """Let an attempt begin once it fits into the budget. Raises BudgetReached if it never will."""
        while not self.ledger.reserve(key, worst):
            if not self.ledger.reserved:
                raise BudgetReached("the budget leaves no room for the worst case of the next call or job")
            if self._settled is None or self._settled.is_set():
                self._settled = asyncio.Event()
            await self._settled.wait()

    def settle(self, key: Key, cost: Cost) -> None:
        """Count what an attempt has cost, and let those go on that wait for room."""
        self.ledger.settle(key, cost)
        if self._settled is not None:
            self._settled.set()

    async def _answer(self, ticket: int, client: Client, call: Call, own: str, name: str) -> None:
        """Make a call, and put what comes of it where `take` finds it."""
        try:
            async with AsyncExitStack() as slot:
                await slot.enter_async_context(client.slots)
                result: Reply | Exception = await self._replied(client, slot, call, own, name)
        except _Left:
            return
        except Exception as error:
            is_disk = isinstance(error, OSError)
            result = RunFolderError(f"{self._journal(name).path} cannot be written: {error}") if is_disk else error
            self._is_stopping = True  # the run ends
        else:
            assert not isinstance(result, Exception)
            if name in self._answers:
                self._answers[name][own] = result
        self._results.put((ticket, result))

    async def _replied(self, client: Client, slot: AsyncExitStack, call: Call, own: str, name: str) -> Reply:
        """Make a call, or, at a server that gives one answer to a request, one for each answer."""
        if len(call.decisions) == 1 or not client.is_one_at_a_time:
            try:
                return await self._attempt_all(client, slot, call, own, self._journal(name))
            except OneAtATime:
                client.is_one_at_a_time = True
        await slot.aclose()
        found: list[Reply] = []
        for place, each in enumerate(call.each()):
            key, known = f"{own}/{place}", self._answers.get(name, {})
            if key not in known:
                async with AsyncExitStack() as again:
                    await again.enter_async_context(client.slots)
                    known[key] = await self._attempt_all(client, again, each, key, self._journal(name))
            found.append(known[key])
        tokens = [each.num_tokens for each in found if each.num_tokens is not None]
        texts = [text for each in found for text in each.texts]
        return Reply(texts, sum(tokens) if len(tokens) == len(found) else None)

    async def _attempt_all(self, client: Client, slot: AsyncExitStack, call: Call, own: str, journal: Journal) -> Reply:
        for number in range(client.num_attempts):
            key = (own, self._attempts[own])
            self._attempts[own] += 1
            self._require_staying()
            await self.reserve(key, call.worst)
            self.num_out += 1
            try:
                result = await self._attempt(client, slot, call, key, journal)
            finally:
                self.num_out -= 1
            if not isinstance(result, Exception):
                return result
            self.last_failure = why = client.words(result)
            if number + 1 < client.num_attempts:
                await client.pause(result, number, own)
        raise CallFailed(f"{client.config.url}: {why}; {client.num_attempts} attempts were made (num_attempts)")

    async def _attempt(
        self, client: Client, slot: AsyncExitStack, call: Call, key: Key, journal: Journal
    ) -> Reply | Exception:
        """Make one attempt; return the answers, or why another one may be made."""
        try:
            self._require_staying()
            asked = {"kind": "asked", "call": key[0], "attempt": key[1], "run": self._run, "player": call.player}
            request = sha256_of([client.config.url, call.body])
            asked |= {"decisions": call.decisions, "request": request, "worst": call.worst.line()}
            await journal.write(asked)
        except BaseException:
            self.settle(key, NOTHING)
            raise
        self.tally["attempts"] += 1
        if self._is_asked_to_stop():
            await self._end(journal, key, NOTHING, "failed", why="it was not sent")
            raise _Left
        try:
            reply = await client.complete(call.body)
        except client.errors as error:
            spent = call.worst if reached(error) == "perhaps" else NOTHING
            await self._end(journal, key, spent, "failed", why=client.words(error))
            if getattr(error, "status_code", None) in (400, 422) and len(call.decisions) > 1:
                raise OneAtATime from None  # if that is not why, the server says so again
            if is_final(error):
                raise CallFailed(f"{client.config.url}: {client.words(error)}") from None
            return error
        usage = _usage(reply)
        spent = call.worst if usage is None else usage.cost(call.prices)
        try:
            texts = [(client.hide(text), stop) for text, stop in texts_of(reply, len(call.decisions))]
        except (ValueError, OneAtATime) as error:
            why = client.shortened(error)
            await self._end(journal, key, spent, "failed", why=why)
            if isinstance(error, OneAtATime):
                raise
            raise CallFailed(f"{client.config.url}: {why}") from None
        # already now: one sync serves this answer and the next call, which is sent when both are kept
        await slot.aclose()
        choices = [{"text": text, "stop": stop} for text, stop in texts]
        own = None if usage is None else usage._asdict()
        await self._end(journal, key, spent, "answered", choices=choices, usage=own)
        return _reply(texts, own)

    async def _end(self, journal: Journal, key: Key, spent: Cost, kind: str, **said: Any) -> None:
        """Write down how an attempt has ended, and count what it has cost."""
        line = {"kind": kind, "call": key[0], "attempt": key[1], **said, "spent": spent.line()}
        await journal.write(line)
        self._tell(line)
        self.settle(key, spent)

    def _is_asked_to_stop(self) -> bool:
        return self._is_stopping or self.is_leaving()

    def _require_staying(self) -> None:
        if self._is_asked_to_stop():
            raise _Left


def _reply(texts: Sequence[tuple[str, Literal["stop", "length"]]], usage: Mapping[str, int] | None) -> Reply:
    return Reply(texts, usage["output"] if usage else None)


@contextmanager
def _alone(folder: Folder, limit: Cost) -> Iterator[None]:
    """A context in which no other process spends what the same run may spend. Raises RunFolderError."""
    refusal = f"{folder.path}: another process spends the budget of the run; wait until it ends"
    with ExitStack() as lock:
        if limit != Cost(None, None):
            with writing(folder.path):
                lock.enter_context(take_or_refuse(folder.make(), "lock", refusal))
        yield


def _usage(reply: Any) -> Usage | None:
    """Return the tokens that a server reports; None if it reports none."""
    told = reply.get("usage") if isinstance(reply, dict) else None
    if not isinstance(told, dict):
        return None
    details = told.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    numbers: list[Any] = [told.get("prompt_tokens"), cached or 0, told.get("completion_tokens")]
    is_told = all(type(each) is int and 0 <= each < MOST_TOKENS for each in numbers)
    return Usage(*numbers) if is_told else None


def sha256_of(data: Any) -> str:
    """Return the SHA-256 of data as JSON."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
