"""Environments that hang, and processes that are stopped: who waits says so, waits no longer than it may, and leaves no
process behind, whatever ends it."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from palestra.games.gymnasium import GymnasiumWorld, workers
from palestra.games.world import EnvironmentFailed
from tests.forked import Forked
from tests.games.gym_worlds import gym_game

ROOT = Path(__file__).parents[3]
GENEROUS_S = 15.0  # nothing here takes more than a second, unless it hangs
NAME = "tests.gym_oddities:Breaking-v0"


def world_of(how: str, at: int, step_within_s: float | None, num_worlds: int = 1) -> GymnasiumWorld:
    """Worlds that hang in their `at`th step or reset."""
    game = gym_game("async", "disabled", id=NAME, arguments={"how": how, "at": at})
    game.step_within_s = step_within_s
    return game.make_world(num_worlds, 3, training=True)


def play(world: GymnasiumWorld, num_steps: int) -> None:
    for _ in range(num_steps):
        world.step(torch.zeros(world.num_worlds, dtype=torch.int64), torch.zeros(world.num_worlds, dtype=torch.int64))


def failing(world: GymnasiumWorld, num_steps: int = 20) -> EnvironmentFailed:
    with pytest.raises(EnvironmentFailed) as caught:
        play(world, num_steps)
    return caught.value


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + GENEROUS_S
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, f"{list(filter(is_alive, pids))} of {pids} are still there"
        time.sleep(0.02)


# ---- how long a step may take ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["spin", "gil", "stop"])
def test_a_step_that_takes_too_long_is_told_with_its_world_and_no_process_is_left(how: str) -> None:
    world = world_of(how, 3, 0.2, num_worlds=2)
    play(world, 1)
    processes = list(world.vector.processes)
    failed = failing(world)
    assert str(failed).startswith(f"{NAME}, world {failed.world}, step ")
    said = "expected an answer within 0.2 s, because execution.step_within_s is 0.2, got none from its process "
    assert failed.fault.startswith(f"{said}{processes[failed.world or 0].pid}")
    assert not any(process.is_alive() for process in processes)
    world.close()


def test_a_reset_that_takes_too_long_is_told_as_one() -> None:
    failed = failing(world_of("reset sleep", 2, 0.2))
    assert str(failed).startswith(f"{NAME}, world 0, the reset after episode 0: expected an answer within 0.2 s")


def test_an_environment_that_takes_too_long_to_be_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MAKE_S", 0.3)
    failed = failing(world_of("make sleep", 0, 0.2))
    assert str(failed).startswith(f"{NAME}, world 0, when it is made: expected an answer within 0.3 s")


def test_a_replay_may_take_as_long_as_its_steps() -> None:
    """Of three steps of a fifth of a second each none takes too long, and neither does their replay."""
    game = gym_game("async", "next_step", id="tests.gym_oddities:Dawdling-v0", arguments={"step_s": 0.2})
    game.step_within_s = 0.5
    world = game.make_world(1, 3, training=True)
    play(world, 3)
    world.close()
    play(world, 1)
    assert world.exact
    world.close()


def test_an_environment_that_does_not_close_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "CLOSE_S", 0.2)
    world = world_of("close sleep", 0, None)
    play(world, 1)
    [process] = world.vector.processes
    world.close()
    assert not process.is_alive()


def test_who_is_waited_for_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(workers, "TELL_S", 0.2)
    monkeypatch.setattr(workers, "LOOK_S", 0.1)
    game = gym_game("async", "next_step", id="tests.gym_oddities:Dawdling-v0", arguments={"step_s": 0.7})
    world = game.make_world(3, 3, training=True)
    with caplog.at_level(logging.WARNING):
        play(world, 1)
        caplog.clear()  # its start may have taken long, too
        play(world, 1)
    [line] = [record.getMessage() for record in caplog.records]
    pid, name = world.vector.processes[0].pid, "tests.gym_oddities:Dawdling-v0"
    who = f"{name}, world 0: no answer for 0.2 s from its process {pid}, nor from those of 2 more worlds"
    assert line == f"{who}; the run waits for ever, because execution.step_within_s is null"
    play(world, 1)
    assert len(caplog.records) == 2
    world.close()


# ---- the end of the owner --------------------------------------------------------------------------------

OWNER = """
import os, signal, sys
from tests.games.gymnasium.test_gym_hangs import play, world_of
world = world_of(sys.argv[1], 2, None, num_worlds=3)
play(world, 1)
pids = [process.pid for process in world.vector.processes]
print(*pids, flush=True)
if sys.argv[2] == "raise":
    os.kill(pids[1], signal.SIGSTOP)
    raise KeyError
play(world, 1)
"""

looks_for_processes = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


def owner_of_worlds(how: str, end: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A process that steps three environments, and the processes of these, which all hang in the second step."""
    command = [sys.executable, "-c", OWNER, how, end]
    process = Forked(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 3
    return process, pids


@looks_for_processes
@pytest.mark.parametrize("how", ["gil", "child"])
def test_processes_that_hang_or_are_stopped_end_with_an_owner_that_is_killed(how: str) -> None:
    process, pids = owner_of_worlds(how, "kill")
    os.kill(pids[1], signal.SIGSTOP)
    deadline = time.monotonic() + GENEROUS_S
    while how == "child" and len(children := [*children_of(pids[0]), *children_of(pids[2])]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pids += children if how == "child" else []
    time.sleep(0.5)  # until all of them are in the second step
    assert all(map(is_alive, pids))
    process.kill()
    process.wait()
    assert_gone(pids)


@looks_for_processes
def test_a_process_that_is_stopped_does_not_hold_up_an_owner_that_ends() -> None:
    process, pids = owner_of_worlds("sleep", "raise")
    assert process.wait(GENEROUS_S) == 1
    assert_gone(pids)
