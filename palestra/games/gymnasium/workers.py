"""Environments that step together, each in a process of its own: gymnasium's AsyncVectorEnv, watched."""

import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.async_vector_env import _async_worker

from palestra.config import failure
from palestra.games.gymnasium.faults import fault_of_step, raise_for
from palestra.games.world import EnvironmentFailed
from palestra.runtime.signals import exit_text

GONE_S = 5.0  # for the kernel to say how a process has ended whose pipe is closed


class WatchedVectorEnv(AsyncVectorEnv):
    """Raises EnvironmentFailed where an environment raises, exits or gives something wrong, and where a process is
    lost; then all processes are killed, and none has written to the terminal."""

    def __init__(self, makers: Sequence[Callable[[], gymnasium.Env]], **options: Any) -> None:
        self.processes = []
        with self._watched():
            super().__init__(makers, worker=_work, **options)

    def reset(self, **options: Any) -> Any:
        with self._watched():
            return super().reset(**options)

    def step(self, actions: Any) -> Any:
        with self._watched():
            return super().step(actions)

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        with self._watched():
            return super().call(name, *args, **kwargs)

    def set_attr(self, name: str, values: Any) -> None:
        with self._watched():
            super().set_attr(name, values)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            told = self._told(error)
            self.kill()
            raise told from (None if told is error else error)

    def _told(self, error: Exception) -> EnvironmentFailed:
        if isinstance(error, EnvironmentFailed):
            return error
        if not isinstance(error, EOFError | ConnectionResetError | BrokenPipeError):
            return EnvironmentFailed(failure(error))  # infos that do not go together, spaces that differ
        gone = wait([process.sentinel for process in self.processes], timeout=GONE_S)
        for world, process in enumerate(self.processes):
            if process.sentinel in gone:
                process.join(GONE_S)
                if process.exitcode is not None:
                    return EnvironmentFailed(f"its process {exit_text(process.exitcode)}", world)
        return EnvironmentFailed("one of the processes has closed its pipe")

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Called by gymnasium with what the processes have answered; its own prints their tracebacks."""
        failed = [self.error_queue.get() for is_success in successes if not is_success]
        if failed:
            world, _, error, trace = min(failed, key=lambda one: one[0])
            told = error if isinstance(error, EnvironmentFailed) else EnvironmentFailed(failure(error))
            told.world = world
            told.add_note(f"In the process of world {world}:\n{trace}")
            raise told

    def kill(self) -> None:
        """End the processes, whatever they do."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        self.closed = True


def _work(
    index: int, make: Callable[[], gymnasium.Env], pipe: Any, parent_pipe: Any, memory: Any, errors: Any, *others: Any
) -> None:
    """What a process does: gymnasium's own loop, but an environment that cannot be made is an answer, too."""
    try:
        env = make()
    except EnvironmentFailed as error:
        parent_pipe.close()
        pipe.recv()  # what the owner asks first
        errors.put((index, EnvironmentFailed, error, traceback.format_exc()))
        pipe.send((None, False))
    else:
        _async_worker(index, lambda: env, pipe, parent_pipe, memory, errors, *others)


class CheckedSteps(gymnasium.Wrapper):
    """Raises EnvironmentFailed where a step raises, exits or gives something wrong."""

    def step(self, action: Any) -> Any:
        try:
            outcome = self.env.step(action)
        except BaseException as error:
            raise EnvironmentFailed(failure(error)) from error
        raise_for(fault_of_step(self.observation_space, outcome))
        return outcome

    def close(self) -> None:
        with suppress(Exception):  # nobody waits for it
            self.env.close()


class WorkerSignals:
    """Makes an environment, also in a process of its own: there Ctrl-C is its owner's business, and SIGTERM ends it.

    A forked process would otherwise keep the handlers of its owner, which wait for a safe point that never comes.
    """

    def __init__(self, make: Any, *arguments: Any) -> None:
        self.make, self.arguments, self.owner = make, arguments, os.getpid()

    def __call__(self) -> gymnasium.Env:
        if os.getpid() != self.owner:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return self.make(*self.arguments)
