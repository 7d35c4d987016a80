"""Retention: the latest, the best, the last k and every n-th are kept, and no deletion touches what a resume needs."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from palestra.run.checkpoints import Checkpoints, kept_numbers
from palestra.storage.disk import DISK
from palestra.storage.run_folder import RunFolder
from tests.run.mirroring import CAPACITY, ROWS_PER_SAVE, SEGMENT_ROWS, assert_sound, state_at
from tests.run.ring import NONE, Ring


class Killed(BaseException):
    """Nothing catches it: to the files, as good as kill -9."""


def save(checkpoints: Checkpoints, ring: Ring, number: int, kind: str) -> int:
    """Gives the next number. kind: due; best; stop: not due, for who stops there."""
    ring.add(ROWS_PER_SAVE * (number + 1) - ring.num_added)
    name = checkpoints.save(number, state_at(number), {}, {"host": ring}, NONE, is_due=kind != "stop")
    if kind == "best":
        checkpoints.mark_best(name)
    return number + (kind != "stop")


def assert_all_sound(checkpoints: Checkpoints) -> None:
    """Every checkpoint that is there loads, rows and all; so do the ones that the pointers name."""
    for number in checkpoints.numbers():
        assert_sound(checkpoints, number, Ring(CAPACITY))
    latest = assert_sound(checkpoints, "latest", Ring(CAPACITY))
    assert not latest.warnings
    if checkpoints.best() is not None:
        assert_sound(checkpoints, "best", Ring(CAPACITY))


KINDS = st.sampled_from(["due", "best", "stop"])
RULES = st.fixed_dictionaries({"keep_last": st.integers(1, 4), "keep_every": st.none() | st.integers(1, 5)})


@settings(max_examples=40)
@given(rules=RULES, kinds=st.lists(KINDS, min_size=1, max_size=12), in_use=st.sets(st.integers(0, 12)))
def test_exactly_what_the_config_names_is_kept_and_loads(
    rules: dict[str, Any], kinds: list[str], in_use: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = RunFolder.create(tmp_path_factory.mktemp("runs"), "run")
    checkpoints, ring = Checkpoints(run, **rules, segment_rows=SEGMENT_ROWS), Ring(CAPACITY)
    checkpoints.in_use = lambda: in_use  # by a mirror
    due: set[int] = set()  # and kept
    number, best = 0, None
    for kind in kinds:
        latest, number = number, save(checkpoints, ring, number, kind)
        stopped = latest if kind == "stop" else None
        due |= {latest} - {stopped}
        every = {n for n in due if rules["keep_every"] is not None and n % rules["keep_every"] == 0}
        due &= {*range(number - rules["keep_last"], number), best, *every, *in_use}
        assert checkpoints.numbers() == sorted(due | ({stopped} - {None}))
        best = latest if kind == "best" else best
        assert checkpoints.best() == best
    assert_all_sound(checkpoints)
    checkpoints.in_use = set
    there = checkpoints.numbers()
    assert checkpoints.between_dues(latest) == stopped
    checkpoints.remove_unkept(latest, stopped)
    assert set(checkpoints.numbers()) == kept_numbers(there, **rules, best=best, between_dues=stopped)
    assert_all_sound(checkpoints)


@contextmanager
def killed_at(number: int) -> Iterator[None]:
    """Just before the number-th time that a name in a folder is changed or goes."""
    calls = itertools.count(1)

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(calls) >= number:
                raise Killed
            return original(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("create", "rename", "remove", "make_folder", "remove_folder"):
            patch.setattr(DISK, name, watched(getattr(DISK, name)))
        yield


@settings(max_examples=60)
@example(rules={"keep_last": 1, "keep_every": 1}, kinds=["due"] * 3, kills=[15, 7, 1], goes_back=True)
@example(rules={"keep_last": 1, "keep_every": None}, kinds=["due"], kills=[4, 1, 1], goes_back=False)
@example(rules={"keep_last": 1, "keep_every": None}, kinds=["due", "stop", "due"], kills=[60, 1, 1], goes_back=False)
@example(rules={"keep_last": 1, "keep_every": None}, kinds=["due", "stop"], kills=[21, 9, 1], goes_back=False)
@example(rules={"keep_last": 1, "keep_every": None}, kinds=["stop"], kills=[8, 8, 1], goes_back=False)
@given(
    rules=RULES,
    kinds=st.lists(KINDS, min_size=1, max_size=10),
    kills=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    goes_back=st.booleans(),
)
def test_a_kill_at_any_deletion_leaves_all_that_was_saved_and_named(
    rules: dict[str, Any],
    kinds: list[str],
    kills: list[int],
    goes_back: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Several lives of a run, each killed somewhere; the next goes on from the latest, or from one further back."""
    run = RunFolder.create(tmp_path_factory.mktemp("runs"), "run")
    number = 0
    saved = tried = -1
    for kill in kills:
        with run.lock():
            checkpoints, ring = Checkpoints(run, **rules, segment_rows=SEGMENT_ROWS), Ring(CAPACITY)
            if checkpoints.numbers():
                assert_all_sound(checkpoints)
                latest = checkpoints.load("latest").state["number"]
                # the last tried, where the kill came after its rename; the one before, where it came before
                assert latest in (saved, tried)
                saved = latest
                number = min(checkpoints.numbers()) if goes_back else latest
                number += assert_sound(checkpoints, number, ring).manifest.is_due
            else:
                assert saved == -1
            try:
                with killed_at(kill):
                    for kind in kinds:
                        tried = number
                        number = save(checkpoints, ring, number, kind)
                        saved = tried
            except Killed:
                pass
    with run.lock():
        checkpoints = Checkpoints(run, **rules, segment_rows=SEGMENT_ROWS)
        if checkpoints.numbers():
            assert_all_sound(checkpoints)
