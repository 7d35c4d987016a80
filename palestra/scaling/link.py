"""Link: what the processes of one run hand to each other, by torch.distributed, and how a lost one is found.

Every exchange is one message from each process to each, of a size that all know: what is exchanged, and the first bytes
of the value; a second one follows if some value is longer. So processes that come to different places of the program
know it at once.
"""

import atexit
import hashlib
import json
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from palestra.scaling.means import Part, common_names, told_apart, tree_sum
from palestra.scaling.ranks import Ranks, fail
from palestra.storage.stored_files import from_bytes, to_bytes

INLINE_BYTES = 4 << 10
"""of a value, that go along with the message which announces it, until a mean is longer"""
MOST_SENT_BYTES = 1 << 20
"""of such messages, by each process in one exchange"""
OTHER_BYTES = 1 << 10
"""of a mean's message, beside the gradient"""
HEADER = struct.Struct("<qqqd")
UNIT = 8
"""bytes; messages are as many times this long, so that gradients can be read in their place"""
FOR_EVER = timedelta(days=3650)
GROUPS: list[Any] = []
"""of all links that this process has opened; nothing else holds them, so that they end when this list is cleared"""
LOOK_S = 1.0  # between looks at the other processes while one waits
GRACE_S = 3.0  # for a process that has failed to say why


class RankLost(Exception):
    """Another process of the run has ended or failed, or it is late. has_failed: whether it has said why it failed."""

    def __init__(self, why: str, has_failed: bool = False) -> None:
        super().__init__(why)
        self.has_failed = has_failed


class Notice(NamedTuple):
    """What a process says of itself with everything that it hands in.

    wants_to_end: whether one of its replicas was asked to leave. minutes: of training, by its clock.
    """

    wants_to_end: bool
    minutes: float


class Link:
    """The connection of this process to the others of its run.

    timeout_s: seconds after which a process is late that has not come to an exchange. doing: says in a few words how
    far this process is. waited_s: seconds for which it has waited for others. is_busy: whether it does what the others
    wait for without a time limit. waiting: gives the context in which it waits. prints_apart: whether what it prints
    goes to a file.
    """

    _num_opened = 0

    def __init__(self, ranks: Ranks, timeout_s: float, doing: Callable[[], str]) -> None:
        self.ranks, self.timeout_s, self._doing = ranks, timeout_s, doing
        self.waited_s, self.is_busy, self.prints_apart = 0.0, False, False
        self.waiting: Callable[[], AbstractContextManager[object]] = nullcontext
        self._num, self._what = 0, "the beginning"
        self._most_inline = max(256, MOST_SENT_BYTES // ranks.num // UNIT * UNIT)
        self._inline = min(INLINE_BYTES, self._most_inline)
        self._closed = threading.Event()

    # ---- opening and failing ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect to all processes. Raises RankLost if one does not come, or fails before it does."""
        ranks = self.ranks
        Link._num_opened += 1  # all processes open theirs in the same order
        try:
            self._store, place = ranks.stores(Link._num_opened, self.timeout_s)
            arguments = weakref.ref(self), self._store, self._closed  # weak: a training that is over is freed
            beating = threading.Thread(target=_beat, args=arguments, daemon=True)
            beating.start()
            atexit.register(_end_beating, self._closed, beating)
            self._await_all()
        except (RuntimeError, OSError) as error:
            raise RankLost(f"the launcher of rank 0 is not there: {error}") from error
        self._on_gpu = torch.cuda.is_available() and ranks.num_local <= torch.cuda.device_count()
        backend = "cpu:gloo,cuda:nccl" if self._on_gpu else "gloo"
        limit = timedelta(seconds=self.timeout_s)
        try:
            if dist.is_initialized():
                GROUPS.append(dist.new_group(backend=backend, timeout=limit))
            else:
                dist.init_process_group(backend, timeout=limit, world_size=ranks.num, rank=ranks.rank, store=place)
                GROUPS.append(dist.group.WORLD)
        except RuntimeError as error:  # one has ended since it has said that it is there
            raise RankLost(f"the processes did not connect within execution.timeout_s: {error}") from error
        self._place = len(GROUPS) - 1
        if self._place == 0:
            atexit.register(_end_groups)
        self._group.set_timeout(FOR_EVER)  # exchanges have a limit of their own

    @property
    def _group(self) -> Any:
        return GROUPS[self._place]

    def _await_all(self) -> None:
        began = time.monotonic()
        keys = [f"beat-{rank}" for rank in range(self.ranks.num)]
        while missing := [rank for rank, key in enumerate(keys) if not self._store.check([key])]:
            if failure := self._failure():
                raise failure
            if time.monotonic() - began > self.timeout_s:
                raise RankLost(f"{_in_words(missing)} did not begin within execution.timeout_s = {self.timeout_s:g} s")
            time.sleep(0.05)

    def fail(self, why: str, has_failed: bool) -> None:
        """Let the others know why this process cannot go on. has_failed: itself, and not because one was lost."""
        with suppress(RuntimeError, OSError):  # the launcher may have ended
            fail(self._store, why, has_failed)
        self._closed.set()

    @property
    def state(self) -> str:
        """How many exchanges there were, whether others wait for this process, and what it does."""
        return f"{self._num}|{int(self.is_busy)}|{self._what}, {self._doing()}"

    @contextmanager
    def busy(self) -> Iterator[None]:
        """A context in which the others wait for what this process does, however long it takes."""
        was_busy, self.is_busy = self.is_busy, True
        try:
            yield
        finally:
            self.is_busy = was_busy

    # ---- exchanges -------------------------------------------------------------------------------------------

    def gather(self, what: str, value: Any, notice: Notice, to_first: bool = False) -> tuple[list[Any], list[Notice]]:
        """Return the values that all processes hand in, and what they say of themselves, in their order.

        to_first: let rank 0 alone have the values; the others get none. Raises LockstepError if others hand in
        something else, RankLost if one is late or has ended, TypeError for what no checkpoint could hold.
        """
        given, notices = self._swap(what, to_bytes(value, f" ({what})"), notice, to_first)
        return [from_bytes(each) for each in given], notices

    def sum(self, part: Part, notice: Notice) -> tuple[Part, list[Notice]]:
        """Return the sum of the parts of a mean over all processes, added in one tree. Raises as `gather`."""
        gradient = part.gradient
        needed = gradient.nbytes + OTHER_BYTES
        is_long = needed > self._most_inline
        line = json.dumps([part.is_present, part.names]).encode() + b"\n"
        own = b"".join([b"" if is_long else _bytes_of(gradient), line, _bytes_of(part.numbers)])
        given, notices = self._swap(f"a mean of {gradient.numel()} numbers", own, notice)
        if not is_long:  # all have come to this mean; the next such one is one message
            self._inline = max(self._inline, -(-needed // UNIT) * UNIT)
        rests = [bytes(each[0 if is_long else gradient.nbytes :]).partition(b"\n") for each in given]
        told = [json.loads(line) for line, _, _ in rests]
        names = common_names(told)
        zeros = bytes(8 * (1 + len(names)))
        addends = [rest[2] if is_present else zeros for (is_present, _), rest in zip(told, rests, strict=True)]
        numbers = tree_sum([torch.frombuffer(bytearray(each), dtype=torch.float64) for each in addends])
        if is_long:
            total = self._sum_long(gradient)
        else:  # read in place
            total = tree_sum([torch.frombuffer(each, dtype=gradient.dtype, count=gradient.numel()) for each in given])
        is_present = any(is_present for is_present, _ in told)
        return Part(is_present, names, numbers.to(part.numbers.device), total.to(gradient.device)), notices

    def _sum_long(self, gradient: Tensor) -> Tensor:
        """Add up long tensors: each process adds one part of all of them, and hands it to the others."""
        num, size = self.ranks.num, gradient.numel()
        place = gradient.device if self._on_gpu else torch.device("cpu")
        rows = torch.zeros(num, -(-size // num), dtype=gradient.dtype, device=place)
        rows.view(-1)[:size] = gradient
        own = tree_sum(self._all_to_all(rows).unbind())
        return self._all_to_all(own.expand(num, -1).contiguous()).view(-1)[:size].to(gradient.device)

    def _swap(
        self, what: str, value: bytes, notice: Notice, to_first: bool = False
    ) -> tuple[list[memoryview], list[Notice]]:
        self._num, self._what = self._num + 1, what
        message = bytearray(HEADER.size + self._inline)
        HEADER.pack_into(message, 0, _number_of(what), len(value), notice.wants_to_end, notice.minutes)
        begin = memoryview(value)[: self._inline]
        message[HEADER.size : HEADER.size + len(begin)] = begin
        sent = torch.frombuffer(message, dtype=torch.uint8).expand(self.ranks.num, -1).contiguous()
        received = [memoryview(each) for each in self._all_to_all(sent).numpy()]
        headers = [HEADER.unpack_from(each) for each in received]
        if len({kind for kind, *_ in headers}) > 1:
            text = what.encode()[:256].ljust(256)
            given = self._long(text, [len(text)] * self.ranks.num, to_first=False)
            raise told_apart([bytes(each).decode(errors="replace").strip() for each in given], "rank")
        sizes = [size for _, size, _, _ in headers]
        notices = [Notice(bool(wants), minutes) for _, _, wants, minutes in headers]
        if max(sizes) <= self._inline:
            values = [each[HEADER.size :][:size] for each, size in zip(received, sizes, strict=True)]
            return values if not to_first or self.ranks.rank == 0 else [], notices
        return self._long(value, sizes, to_first), notices

    def _long(self, value: bytes, sizes: Sequence[int], to_first: bool) -> list[memoryview]:
        """Hand bytes of any length to all processes, or to the first."""
        ranks = self.ranks
        own = torch.frombuffer(bytearray(value), dtype=torch.uint8)
        if to_first:
            sent, outward = own, [len(value), *[0] * (ranks.num - 1)]
            inward = list(sizes) if ranks.rank == 0 else [0] * ranks.num
        else:
            sent, outward, inward = own.repeat(ranks.num), [len(value)] * ranks.num, list(sizes)
        received = torch.empty(sum(inward), dtype=torch.uint8)
        self._await(dist.all_to_all_single(received, sent, inward, outward, group=self._group, async_op=True))
        return [memoryview(bytearray(each.numpy())) for each in received.split(inward) if len(each)]

    def _all_to_all(self, rows: Tensor) -> Tensor:
        """Hand row k to process k; return the rows that the others hand to this one, in their order."""
        received = torch.empty_like(rows)
        self._await(dist.all_to_all_single(received, rows, group=self._group, async_op=True))
        return received

    # ---- waiting, and who is late ----------------------------------------------------------------------------

    def _await(self, work: Any) -> None:
        began = time.perf_counter()
        try:
            with self.waiting():
                self._wait_for(work)
        except BaseException:
            atexit.unregister(_end_groups)  # a thread waits for somebody who may never come
            raise
        self.waited_s += time.perf_counter() - began

    def _wait_for(self, work: Any) -> None:
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                work.wait(timedelta(seconds=LOOK_S))
                return
            except RuntimeError as error:
                if work.is_completed():
                    raise self._why_broken() from error
            if failure := self._failure():
                raise failure
            if time.monotonic() > deadline and (late := self._late()):
                raise RankLost(late)

    def _failure(self) -> RankLost | None:
        """Return why another process cannot go on; None if none has said so."""
        if not self._store.check(["failed"]):
            return None
        told = self._store.get("failed").decode()
        return RankLost(told[1:], has_failed=told[0] == "1")

    def _states(self) -> list[list[str]]:
        """Return what each process has said last: a number that grows, exchanges, whether it is busy, and words."""
        return [self._store.get(f"beat-{rank}").decode().split("|", 3) for rank in range(self.ranks.num)]

    def _why_broken(self) -> RankLost:
        """Return which process has ended, once the connection to it is broken."""
        before = self._states()
        began = time.monotonic()
        while time.monotonic() - began < GRACE_S:
            if failure := self._failure():
                return failure
            time.sleep(0.1)
        now = self._states()
        ended = [rank for rank in range(self.ranks.num) if now[rank][0] == before[rank][0]]
        return RankLost(self._told("has ended", ended, now) if ended else "the connection to another rank is broken")

    def _late(self) -> str | None:
        """Say which process is late; None if only one is that does what all wait for."""
        before = self._states()
        time.sleep(2 * LOOK_S)
        now = self._states()
        late = [rank for rank, state in enumerate(now) if int(state[1]) < self._num]
        is_awaited = any(now[rank][2] == "1" and now[rank][0] != before[rank][0] for rank in late)
        if not late or is_awaited:
            return None
        return self._told(f"did not come within execution.timeout_s = {self.timeout_s:g} s", late, now)

    def _told(self, what: str, ranks: Sequence[int], states: Sequence[Sequence[str]]) -> str:
        last = "; ".join(f"what rank {rank} did last: {states[rank][3]}" for rank in ranks)
        return f"{_in_words(ranks)} {what}" + (f" ({last})" if last else "")


def _beat(link_ref: "weakref.ref[Link]", store: Any, closed: threading.Event) -> None:
    """Say once a second that this process lives, and what it does."""
    beat = 0
    while (link := link_ref()) is not None:
        beat += 1
        try:
            store.set(f"beat-{link.ranks.rank}", f"{beat}|{link.state}")
        except (RuntimeError, OSError):  # the launcher has ended, and ends this process, too
            return
        del link
        if closed.wait(LOOK_S):
            return


def _end_beating(closed: threading.Event, beating: threading.Thread) -> None:
    """Let the thread end before the interpreter does, which aborts the process if it finds it inside a store."""
    closed.set()
    beating.join(GRACE_S)


def _end_groups() -> None:
    """End the threads of all groups: one that is still at work when the interpreter has ended aborts the process."""
    GROUPS.clear()
    if dist.is_initialized():  # whoever has done it may have ended it
        dist.destroy_process_group()


@cache
def _number_of(what: str) -> int:
    return int.from_bytes(hashlib.sha256(what.encode()).digest()[:8], "little", signed=True)


def _bytes_of(values: Tensor) -> memoryview:
    return values.detach().cpu().contiguous().view(torch.uint8).numpy().data


def _in_words(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks)) or 'unknown'}"
