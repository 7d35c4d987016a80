"""What calls and jobs have cost a run, and what those that are out may still cost: exact, and never beyond the budget.

Before an attempt begins, its worst case is reserved; once it is over, what it has cost takes that place. What a kill
has lost counts as the worst case. The ledger itself is kept nowhere: it follows from the lines of journals, in
which `worst` opens an attempt and `spent` closes it.
"""

import asyncio
import fcntl
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Any, NamedTuple

from palestra.config import cut
from palestra.storage.disk import Folder, OpenFile, RunFolderError
from palestra.storage.records_file import lines_of
from palestra.storage.stored_files import StoredFile
from palestra.text.models.model import Prompt

PICO = 10**12  # money is counted in such parts of the currency: a price of a millionth per million tokens is 1
MOST = 10**200  # tokens or parts of money in a line of a file: far more than there is, and sums are still floats
PER_MESSAGE, PER_PROMPT = 32, 64  # tokens that a chat template adds: a role and marks around each message; a preamble

Key = tuple[str, int]
"""a call or a job, and the number of its attempt, from 0"""

Line = Mapping[str, Any]
Waiting = tuple[bytes, asyncio.Future[None]]
"""a line that is to be written, and who waits for it"""


class BudgetReached(Exception):
    """A call or a job could pass the budget of the run, and nothing is out whose cost would make room for it."""


class Cost(NamedTuple):
    """Tokens, and money in parts of 1/PICO. As a limit: None where there is none."""

    tokens: int | None
    money: int | None

    def plus(self, other: "Cost") -> "Cost":
        return Cost((self.tokens or 0) + (other.tokens or 0), (self.money or 0) + (other.money or 0))

    def within(self, limit: "Cost") -> bool:
        return all(most is None or (own or 0) <= most for own, most in zip(self, limit, strict=True))

    def line(self) -> dict[str, int]:
        """Return the cost as journals have it."""
        return {"tokens": self.tokens or 0, "money": self.money or 0}

    def in_money(self) -> float:
        return (self.money or 0) / PICO


NOTHING = Cost(0, 0)


class Prices(NamedTuple):
    """What one token costs, in parts of 1/PICO."""

    input: int
    cached: int
    output: int
    trained: int


class Usage(NamedTuple):
    """The tokens of a call as a server reports them. input: of the prompt, the cached ones included."""

    input: int
    cached: int
    output: int

    def cost(self, prices: Prices) -> Cost:
        cached = min(self.cached, self.input)
        money = (self.input - cached) * prices.input + cached * prices.cached + self.output * prices.output
        return Cost(self.input + self.output, money)


def worst_of_call(prompt: Prompt, num_answers: int, max_tokens: int, prices: Prices) -> Cost:
    """Return the most that a call can cost."""
    return worst_of_prompt(prompt, prices).plus(worst_of_answers(num_answers, max_tokens, prices))


def worst_of_prompt(prompt: Prompt, prices: Prices) -> Cost:
    """Return the most that it can cost to let a prompt be read: a token stands for at least one byte of text."""
    read = most_read(each.content for each in prompt)
    return Cost(read, read * max(prices.input, prices.cached))


def worst_of_answers(num: int, max_tokens: int, prices: Prices) -> Cost:
    """Return the most that it can cost to let answers be written."""
    return Cost(num * max_tokens, num * max_tokens * prices.output)


def worst_of_job(num_tokens: int, num_passes: int, prices: Prices) -> Cost:
    """Return the most that a job can cost. num_tokens: the most that one pass through its examples may have."""
    return Cost(num_tokens * num_passes, num_tokens * num_passes * prices.trained)


def most_read(contents: Iterable[str]) -> int:
    """Return the most tokens that a chat with these messages can be: a token stands for at least one byte of text."""
    return sum(len(each.encode(errors="surrogatepass")) + PER_MESSAGE for each in contents) + PER_PROMPT


class Ledger:
    """What was spent, and what is reserved.

    limit: of both together. spent: by attempts that are over. reserved: the worst cases of those that are not.
    """

    def __init__(self, limit: Cost) -> None:
        self.limit, self.spent = limit, NOTHING
        self.reserved: dict[Key, Cost] = {}

    def could_begin(self, worst: Cost) -> bool:
        """Tell whether an attempt might still begin, if those that are out cost nothing."""
        return self.spent.plus(worst).within(self.limit)

    def reserve(self, key: Key, worst: Cost) -> bool:
        """Let an attempt begin if it, and all that are out, stay within the limit at worst. Returns whether it did."""
        if not sum_of([self.spent, *self.reserved.values(), worst]).within(self.limit):
            return False
        self.reserved[key] = worst
        return True

    def settle(self, key: Key, cost: Cost) -> None:
        """Count what an attempt has cost, which is over."""
        del self.reserved[key]
        self.spent = self.spent.plus(cost)

    def lose(self, key: Key) -> None:
        """Count the worst case of an attempt of which nothing more is known."""
        self.settle(key, self.reserved[key])

    def take_back(self, key: Key, worst: Cost) -> None:
        """Reserve again what was counted as lost, because the attempt goes on after all."""
        tokens, money = (
            own - lost for own, lost in zip(self.spent.line().values(), worst.line().values(), strict=True)
        )
        self.spent, self.reserved[key] = Cost(tokens, money), worst

    def replay(self, lines: Iterable[Mapping[str, Any]], run: str) -> None:
        """Take over the attempts of a run from the lines of a journal; those without a cost stay reserved.

        Each line has `call` and `attempt`, and one with `worst` the id of its `run`, too: lines of another run, which a
        branch has taken along, cost nothing here.
        """
        for line in lines:
            key = line["call"], line["attempt"]
            if "worst" in line and line["run"] == run:
                self.reserved[key] = Cost(**line["worst"])
            elif "spent" in line and key in self.reserved:
                self.settle(key, Cost(**line["spent"]))

    def lose_all(self) -> None:
        """Count all that is reserved: a kill has lost it."""
        for key in list(self.reserved):
            self.lose(key)


def sum_of(costs: Iterable[Cost]) -> Cost:
    costs = list(costs)
    return Cost(sum(each.tokens or 0 for each in costs), sum(each.money or 0 for each in costs))


class Journal:
    """A file of JSON lines that grows at its end, and is on the disk before anybody goes on.

    `write` is called in the client's thread; one sync serves all lines that wait for it.
    It is read before anything is added. The file is made with its first line; a line that a kill has cut goes first.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        self.folder, self.name, self.path = folder, name, folder.path / name
        self._file: OpenFile | None = None
        self._is_read = False
        self._waiting: list[Waiting] = []
        self._is_writing = False
        self._disk = ThreadPoolExecutor(1, "journal")  # its thread waits for the disk, and starts with the first line
        self._lock = Lock()
        self._size, self._sha256 = 0, hashlib.sha256()  # of what is synced

    def lines(self) -> Iterator[Line]:
        """Read the lines that are there. Raises RunFolderError for a damaged one."""
        is_first, self._is_read = not self._is_read, True
        if self.folder.kind(self.name) is None:
            return
        with self.folder.reading(self.name) as file:
            for number, line in enumerate(lines_of(file, file.size), start=1):
                if not line.is_whole:
                    break
                try:
                    found = _checked(json.loads(line.content or b""))
                except (ValueError, RecursionError) as error:
                    raise RunFolderError(f"{self.path} is damaged in line {number}: {cut(str(error), 200)}") from None
                if is_first:
                    self._note((line.content or b"") + b"\n")
                yield found

    def _note(self, content: bytes) -> None:
        with self._lock:
            self._size += len(content)
            self._sha256.update(content)

    def stored(self) -> StoredFile:
        """Return the size and the SHA-256 of what is on the disk for good."""
        with self._lock:
            return StoredFile(size=self._size, sha256=self._sha256.hexdigest())

    async def write(self, line: Line) -> None:
        """Write a line, and return once it is on the disk. Raises OSError, RunFolderError."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._waiting.append((json.dumps(line).encode() + b"\n", done))
        if not self._is_writing:
            self._is_writing = True
            loop.call_soon(self._begin, loop)  # when all that is ready now has added its lines
        await done

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let all lines that wait be written by the disk's thread."""
        taken, self._waiting = self._waiting, []
        self._disk.submit(self._commit, taken, loop)

    def _commit(self, taken: list[Waiting], loop: asyncio.AbstractEventLoop) -> None:
        failure: Exception | None = None
        try:
            self._append(b"".join(line for line, _ in taken))
        except Exception as error:
            failure = error
        loop.call_soon_threadsafe(self._end, taken, failure, loop)

    def _end(self, taken: list[Waiting], failure: Exception | None, loop: asyncio.AbstractEventLoop) -> None:
        """Wake those who wait for these lines, and go on with what has been added meanwhile."""
        for _, done in taken:
            if not done.done():
                done.set_result(None) if failure is None else done.set_exception(failure)
        if self._waiting:
            self._begin(loop)
        else:
            self._is_writing = False

    def _append(self, content: bytes) -> None:
        if self._file is None:
            self._file = self._opened()
        try:
            self._file.append(content)
            self._file.sync()
        except OSError:
            with suppress(OSError):
                self._file.truncate(self._size)
            raise
        self._note(content)

    def _opened(self) -> OpenFile:
        """Open the file for this process alone, and remove a line that a kill has cut."""
        assert self._is_read, "a journal is read before anything is added"
        file = self.folder.make().append(self.name)
        try:
            fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if any(b"\n" in piece for piece in file.pieces(file.size, self._size)):
                raise BlockingIOError
            file.truncate(self._size)
        except OSError as error:
            file.close()
            if isinstance(error, BlockingIOError):
                raise OSError("another process makes calls for the run") from None
            raise
        return file

    def close(self) -> None:
        self._disk.shutdown()
        if self._file is not None:
            self._file.close()
            self._file = None


def _checked(line: Line) -> Line:
    """Return a line of a journal. Raises ValueError for what is none: the file may be a stranger's."""
    match line:
        case {"kind": "asked", "call": str(), "attempt": int(), "run": str(), "worst": dict(cost)}:
            pass
        case {"kind": "answered", "call": str(), "attempt": int(), "choices": list(choices), "spent": dict(cost)}:
            for each in choices:
                if not isinstance(each, dict) or not isinstance(each.get("text"), str):
                    raise ValueError("expected the text of an answer, got none")
                if each.get("stop") not in ("stop", "length"):
                    raise ValueError(f"expected 'stop' or 'length', got {cut(repr(each.get('stop')), 40)}")
        case {"kind": "failed", "call": str(), "attempt": int(), "spent": dict(cost)}:
            pass
        case _:
            raise ValueError("expected a call that was asked, was answered or has failed, got something else")
    usage = line.get("usage") or dict.fromkeys(Usage._fields, 0)
    for numbers, names in ((cost, Cost._fields), (usage, Usage._fields)):
        if not isinstance(numbers, dict) or numbers.keys() != set(names):
            raise ValueError(f"expected numbers of {', '.join(names)}, got {cut(repr(numbers))}")
        if not all(type(each) is int and 0 <= each < MOST for each in numbers.values()):
            raise ValueError(f"expected whole numbers that are not negative, got {cut(repr(numbers))}")
    return line
