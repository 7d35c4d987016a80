"""What real processes hand to each other: all values, exact sums, and errors that name who is missing or elsewhere."""

import atexit
import math
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist

from palestra.scaling.link import INLINE_BYTES, MOST_SENT_BYTES, Link, Notice, RankLost
from palestra.scaling.means import LockstepError, Share, part_of
from palestra.scaling.ranks import Ranks
from palestra.scaling.states import equal
from palestra.storage.stored_files import from_bytes, to_bytes
from tests.ranked import Ranked

NOTICE = Notice(False, 0.0)


def opened(timeout_s: float = 60.0) -> Link:
    link = Link(Ranks.here(), timeout_s, lambda: "opt step 7")
    link.open()
    return link


def share(index: int, length: int, weight: float | None) -> Share:
    values = torch.randn(length, generator=torch.Generator().manual_seed(index))
    return Share(values, {"loss": float(values.sum())}, weight)


def test_all_values_reach_all_processes_in_their_order(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        link = opened()
        values, notices = link.gather("numbers", {"rank": rank}, Notice(rank == 1, 3.0 + rank))
        assert values == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
        assert notices == [(False, 3.0), (True, 4.0), (False, 5.0)]
        long = torch.arange(rank * INLINE_BYTES)  # one is short, and two are longer than one message
        assert [len(each) for each in link.gather("tensors", long, NOTICE)[0]] == [k * INLINE_BYTES for k in range(3)]
        given, _ = link.gather("tensors", long, NOTICE, to_first=True)
        assert len(given) == (0 if rank else 3)
        assert rank or torch.equal(given[2], torch.arange(2 * INLINE_BYTES))

    assert Ranked(3, body, tmp_path).wait() == [0, 0, 0]


def test_what_is_handed_over_keeps_its_types_and_its_order() -> None:
    tensors = torch.tensor([math.nan, -0.0]), torch.ones(2, 3).T, torch.tensor(1 + 2j)
    value = {"b": (1, None, True, "\udcff"), "a": [math.nan, -0.0, -math.inf, 1 << 70], "$int": {3: {}, 1: ()}}
    found = from_bytes(to_bytes([value, tensors]))
    assert repr(found[0]) == repr(value)
    assert equal(found[1], tensors)


def test_a_value_that_no_checkpoint_could_hold_is_refused_with_its_name_before_it_is_sent() -> None:
    with pytest.raises(TypeError, match=r"state \(my value\)/0: expected tensors, numbers, .*, got PosixPath"):
        Link(Ranks(0, 2, 0, 2), 60.0, lambda: "").gather("my value", [Path()], NOTICE)


# messages: of the first mean, and of the next one of its length
@pytest.mark.parametrize(
    ("length", "num", "messages"),
    [(5, 2, [1, 1]), (INLINE_BYTES // 4 + 3, 2, [2, 1]), (MOST_SENT_BYTES // 16 + 3, 4, [3, 3])],
    ids=["short", "longer", "long"],
)
@pytest.mark.parametrize("weights", [None, [3.0, 0.0, 1.0, 2.0], [0.0, 0.0, 1.0, 2.0], [0.0] * 4])
def test_a_sum_has_the_same_bits_in_one_process_and_in_several(
    length: int,
    num: int,
    messages: list[int],
    weights: list[float] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = [share(index, length, None if weights is None else weights[index]) for index in range(4)]
    whole = part_of(shares)

    def body(rank: int) -> None:
        link = opened()
        num_here = len(shares) // num
        for num_messages in messages:
            with monkeypatch.context() as patch:
                send = Mock(wraps=dist.all_to_all_single)
                patch.setattr("torch.distributed.all_to_all_single", send)
                total, _ = link.sum(part_of(shares[num_here * rank : num_here * (rank + 1)]), NOTICE)
            assert send.call_count == num_messages
            assert total[:2] == whole[:2]
            assert torch.equal(total.numbers, whole.numbers)
            assert torch.equal(total.gradient, whole.gradient)

    assert Ranked(num, body, tmp_path).wait() == [0] * num


def fails(body: Callable[[int], None], error: type[Exception], expected: str, folder: Path) -> Ranked:
    """Expect that rank 0 gets an error."""

    def caught(rank: int) -> None:
        if rank:
            body(rank)
            return
        with pytest.raises(error, match=expected):
            body(rank)

    ranks = Ranked(2, caught, folder)
    codes = ranks.wait()
    assert codes[0] == 0, ranks.said(0)
    return ranks


def test_processes_that_exchange_different_things_are_told_apart(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        opened().gather("an epoch" if rank else "a mean", None, NOTICE)

    ranks = fails(body, LockstepError, "got a mean by rank 0, an epoch by rank 1", tmp_path)
    assert "got a mean by rank 0, an epoch by rank 1" in ranks.said(1)


def test_metrics_that_one_process_alone_has_are_an_error_in_both(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        link, own = opened(), Share(torch.ones(3), {"loss": 1.0, **({"entropy": 2.0} if rank else {})}, None)
        link.sum(part_of([own]), NOTICE)

    fails(body, LockstepError, "expected the same metrics, got loss; loss, entropy", tmp_path)


def test_a_process_that_ends_is_named_with_what_it_did_last(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        link = opened()
        link.gather("numbers", rank, NOTICE)
        if rank:
            time.sleep(1.2)  # until its state is known
            os.kill(os.getpid(), signal.SIGKILL)
        link.gather("more numbers", rank, NOTICE)

    fails(body, RankLost, r"rank 1 has ended \(what rank 1 did last: numbers, opt step 7\)", tmp_path)


def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        link = opened()
        if rank:
            link.fail("the loss is nan", has_failed=True)
            time.sleep(30.0)
        link.gather("numbers", rank, NOTICE)

    ranks = Ranked(2, lambda rank: body(rank), tmp_path)
    codes = ranks.wait(1)
    ranks.kill(1)
    assert codes == [1]
    assert "RankLost: the loss is nan" in ranks.said(0)


def test_a_late_process_is_named_unless_the_others_are_to_wait_for_it(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        link = opened(timeout_s=0.5)
        busy = link.busy if rank else nullcontext
        with busy():
            with busy():  # a part of it that is over does not end the whole
                time.sleep(1.2 * rank)  # until it is known that this one is busy
            link.gather("numbers", rank, NOTICE)
            if rank:
                time.sleep(5.0)
            link.gather("more numbers", rank, NOTICE)
        if rank:
            time.sleep(1.2)  # until it is known what it did last
            os.kill(os.getpid(), signal.SIGSTOP)
        link.gather("the rest", rank, NOTICE)

    ranks = Ranked(2, body, tmp_path)
    codes = ranks.wait(1)
    ranks.kill(1)
    assert codes == [1]
    late = "rank 1 did not come within execution.timeout_s = 0.5 s (what rank 1 did last: more numbers, opt step 7)"
    assert late in ranks.said(0)


def test_a_process_that_fails_before_it_begins_says_why(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        if rank:
            Ranks.here().tell_failure(ValueError("no such game"))
            os._exit(0)
        with pytest.raises(RankLost) as caught:
            opened()
        assert str(caught.value) == "rank 1 has failed: ValueError: no such game"
        assert caught.value.has_failed

    ranks = Ranked(2, body, tmp_path)
    assert ranks.wait() == [0, 0], ranks.said(0)


def test_a_launcher_that_is_not_there_is_told(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        os.environ["MASTER_PORT"] = "1"
        opened(timeout_s=0.5)

    assert Ranked(1, body, tmp_path).wait() == [1]
    assert "RankLost: the launcher of rank 0 is not there: " in (tmp_path / "0.txt").read_text()


def test_a_process_that_never_comes_is_named(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        if rank == 0:
            opened(timeout_s=0.5)

    fails(body, RankLost, "rank 1 did not begin within execution.timeout_s = 0.5 s", tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which threads of a process there are")
def test_threads_of_a_link_end_before_the_interpreter_which_they_would_abort(tmp_path: Path) -> None:
    def names() -> set[str]:
        return {file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")}

    def body(rank: int) -> None:
        before = names(), threading.enumerate()
        link, forgotten = opened(), opened()
        for each in (link, forgotten):
            each.gather("numbers", rank, NOTICE)
        assert any("gloo" in name for name in names())
        known = weakref.ref(forgotten)
        del each, forgotten
        for _ in range(100):  # its thread has it in its hands once a second
            if known() is not None:
                time.sleep(0.05)
        assert known() is None
        atexit._run_exitfuncs()
        assert names() <= before[0]
        assert threading.enumerate() == before[1]

    ranks = Ranked(2, body, tmp_path)
    assert ranks.wait() == [0, 0], ranks.said(0)
