"""Environments that step together, each in a process of its own: gymnasium's AsyncVectorEnv, watched."""

import logging
import math
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import parent_process
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState, _async_worker

from palestra.config import failure
from palestra.config.own_modules import admit_sources
from palestra.games.gymnasium.faults import fault_of_step, raise_for
from palestra.games.gymnasium.memory import own_copy
from palestra.games.info import FieldReader, GathersInfo
from palestra.games.world import EnvironmentFailed
from palestra.runtime.signals import STOPPING, end_with_parent, exit_text

EXIT_TIMEOUT_S = 5.0  # within which the exit code of a process that closed its pipe is known
LOOK_S = 1.0  # how long the owner sleeps at most before it looks how long it has waited
TELL_S = 60.0  # after which a line tells for whom the owner waits
MAKE_S = 60.0  # what it may take at least to make the environments, whose processes may import libraries first
CLOSE_S = 60.0  # how long environments may take to close before their processes are killed

logger = logging.getLogger(__name__)


class WatchedVectorEnv(GathersInfo, AsyncVectorEnv):
    """Steps environments in processes of their own, and notices when one of them fails.

    Raises EnvironmentFailed if an environment raises, exits, returns an invalid value or takes too long, and if a
    process is lost; then all processes are killed, as they are when their owner ends, whatever ends it and whatever
    they are doing. None of them writes to the terminal.

    name: of the environments, for the line that tells after TELL_S which of them its owner waits for. step_within_s:
    how long a step or a reset of all of them may take; None: for ever. A reset that replays steps may take as long as
    these together. Time in which the owner itself is stopped does not count. first: the number by which messages call
    the first of them.
    """

    def __init__(
        self,
        makers: Sequence[Callable[[], gymnasium.Env]],
        name: str,
        step_within_s: float | None,
        first: int = 0,
        **options: Any,
    ) -> None:
        self.name, self.step_within_s, self._within_s, self.first = name, step_within_s, step_within_s, first
        self._look_s = LOOK_S if step_within_s is None else step_within_s / math.ceil(step_within_s / LOOK_S)
        self.processes = []
        with self._watched():
            super().__init__(makers, worker=_work, **options)

    def reset(self, **options: Any) -> Any:
        with self._watched():
            try:
                return super().reset(**options)
            finally:
                self._within_s = self.step_within_s

    def step(self, actions: Any) -> Any:
        with self._watched():
            return super().step(actions)

    def read_info(self, names: Sequence[str]) -> None:
        """From now on, let the infos of steps have these fields."""
        self.set_attr("read_fields", [FieldReader(names)] * self.num_envs)

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        with self._watched():
            return super().call(name, *args, **kwargs)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment. values: one for each."""
        with self._watched():
            for pipe, value in zip(self.parent_pipes, values, strict=True):
                pipe.send(("_setattr", (name, value)))
            self._receive()
        if name == "replay" and self.step_within_s is not None:  # the next reset takes these steps, too
            self._within_s = self.step_within_s * (1 + max(len(actions) for _, actions in values))

    def _check_spaces(self) -> None:
        """Wait until the environments are made, then check; gymnasium calls this once the processes are started."""
        # multiprocessing would wait for a stopped process when the interpreter ends
        Finalize(self, _kill, (self.processes,), exitpriority=0)
        self._has_answered = [_poll_of(pipe.fileno()) for pipe in self.parent_pipes]
        self._within_s = None if self.step_within_s is None else max(self.step_within_s, MAKE_S)
        self._receive()
        self._within_s = self.step_within_s
        super()._check_spaces()

    def _receive(self) -> None:
        """Wait until all processes have answered, without a result. Raises what an environment has raised."""
        self._poll_pipe_envs()
        self._raise_if_errors([pipe.recv()[1] for pipe in self.parent_pipes])

    def _poll_pipe_envs(self, timeout: float | None = None) -> bool:
        """Wait until all processes have answered; gymnasium calls this before it reads the answers."""
        waited_s, is_told, look_ms = 0.0, False, 1000.0 * self._look_s
        for has_answered in self._has_answered:
            while not has_answered(look_ms):
                waited_s += self._look_s
                if self._within_s is not None and waited_s >= self._within_s:
                    self._blame_the_late(waited_s, may_wait=False)
                if waited_s >= TELL_S and not is_told:
                    is_told = True
                    self._blame_the_late(waited_s, may_wait=True)
        return True

    def _blame_the_late(self, waited_s: float, may_wait: bool) -> None:
        """Say whose processes have not answered, if any have not. Raises EnvironmentFailed unless it may wait on."""
        late = [world for world, has_answered in enumerate(self._has_answered) if not has_answered(0)]
        if not late:
            return
        others = f", nor from those of {len(late) - 1} more worlds" if late[1:] else ""
        who, within_s = f"its process {self.processes[late[0]].pid}{others}", self._within_s
        if not may_wait:
            limit = f"within {within_s:g} s, because execution.step_within_s is {self.step_within_s:g}"
            raise EnvironmentFailed(f"expected an answer {limit}, got none from {who}", late[0])
        is_null = "for ever, because execution.step_within_s is null"
        end = is_null if within_s is None else f"until {within_s:g} s are over"
        start = f"{self.name}, world {self.first + late[0]}: no answer for {waited_s:g} s from"
        logger.warning(f"{start} {who}; the run waits {end}")

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            failed = self._failure_of(error)
            self.kill()
            raise failed from (None if failed is error else error)

    def _failure_of(self, error: Exception) -> EnvironmentFailed:
        if isinstance(error, EnvironmentFailed):
            return error
        if not isinstance(error, EOFError | ConnectionResetError | BrokenPipeError):
            return EnvironmentFailed(failure(error))  # infos that do not go together, spaces that differ
        ended = wait([process.sentinel for process in self.processes], timeout=EXIT_TIMEOUT_S)
        for world, process in enumerate(self.processes):
            if process.sentinel in ended:
                process.join(EXIT_TIMEOUT_S)
                if process.exitcode is not None:
                    return EnvironmentFailed(f"its process {exit_text(process.exitcode)}", world)
        return EnvironmentFailed("one of the processes has closed its pipe")

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Raise what processes have answered; gymnasium calls this, and its own version prints their tracebacks."""
        if errors := [self.error_queue.get() for is_success in successes if not is_success]:
            world, _, error, trace = min(errors, key=lambda one: one[0])
            failed = error if isinstance(error, EnvironmentFailed) else EnvironmentFailed(failure(error))
            failed.world = world
            failed.add_note(f"In the process of world {self.first + world}:\n{trace}")
            raise failed

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Let the environments close, and kill the processes; `close` calls this. terminate: kill them at once."""
        if not terminate and self._state is AsyncState.DEFAULT:  # else they are inside a step
            for pipe in self.parent_pipes:
                with suppress(OSError):  # of a process that is lost
                    pipe.send(("close", None))
            deadline = time.monotonic() + CLOSE_S
            for process in self.processes:
                process.join(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """Kill the processes, whatever they are doing."""
        _kill(self.processes)
        self.closed = True


def _poll_of(descriptor: int) -> Callable[[float], list[Any]]:
    """Make a function that waits, for so many milliseconds, until there is something to read; [] if there is not.

    It does the same as Connection.poll, which makes a selector at every call.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return poll.poll


def _kill(processes: Sequence[BaseProcess]) -> None:
    """Kill processes of `_work` and what their environments have started."""
    for process in processes:
        if process.pid is not None and process.exitcode is None:  # else the number may belong to another process by now
            with suppress(OSError):  # it does not lead a group yet
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
    for process in processes:
        if process.pid is not None:  # else it was not started
            process.join()


def _work(
    index: int, make: Callable[[], gymnasium.Env], pipe: Any, parent_pipe: Any, memory: Any, errors: Any, *others: Any
) -> None:
    """Run the loop of a process: gymnasium's own, after an answer that says whether the environment was made.

    The process leads a group of its own, which ends with the owner.
    """
    owner = parent_process()
    assert owner is not None
    os.setpgid(0, 0)
    # forked processes hold this pipe open for those before them, but end in the same way
    end_with_parent(owner.sentinel)
    try:
        env = make()
    except EnvironmentFailed as error:
        errors.put((index, EnvironmentFailed, error, traceback.format_exc()))
        pipe.send((None, False))
    else:
        pipe.send((None, True))
        _async_worker(index, lambda: env, pipe, parent_pipe, memory, errors, *others)


class CheckedSteps(gymnasium.Wrapper):
    """Raises EnvironmentFailed if a step raises, exits or returns an invalid value.

    Its info are the fields asked for, so that no others need to go through a pipe.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.read_fields = FieldReader()

    def step(self, action: Any) -> Any:
        try:
            outcome = self.env.step(action)
        except BaseException as error:
            raise EnvironmentFailed(failure(error)) from error
        raise_for(fault_of_step(self.observation_space, outcome))
        observation, reward, terminated, truncated, info = outcome
        if terminated or truncated:  # a reset may come before it is read
            observation = own_copy(observation)
        return observation, reward, terminated, truncated, self.read_fields(info)

    def close(self) -> None:
        with suppress(Exception):  # a failure to close harms nothing
            self.env.close()


def make_in_worker(owner: int, sources: Any, make: Callable[..., gymnasium.Env], *arguments: Any) -> gymnasium.Env:
    """Make an environment.

    In a process of its own, not that of the owner's id, it first ignores what a terminal or a batch system sends to
    both, as SIGINT (Ctrl-C), lets SIGTERM end the process, and admits the modules that its owner may import
    (`sources`).

    A forked process would otherwise keep the handlers of its owner, which wait for a safe point that never comes; a
    spawned one would not know what its owner admitted.
    """
    if os.getpid() != owner:
        for number in set(STOPPING) - {signal.SIGTERM}:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        admit_sources(sources)
    return make(*arguments)
