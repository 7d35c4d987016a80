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
from palestra.config.own_modules import admit_sources, admitted
from palestra.games.gymnasium.faults import fault_of_step, raise_for
from palestra.games.gymnasium.info import FieldReader, GathersInfo
from palestra.games.gymnasium.memory import own_copy
from palestra.games.world import EnvironmentFailed
from palestra.runtime.signals import exit_text

EXIT_TIMEOUT_S = 5.0  # within which the exit code of a process that closed its pipe is known


class WatchedVectorEnv(GathersInfo, AsyncVectorEnv):
    """Raises EnvironmentFailed if an environment raises, exits or returns an invalid value, and if a process is lost;
    then all processes are killed. None of them writes to the terminal."""

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

    def read_info(self, names: Sequence[str]) -> None:
        """From now on, let the infos of steps have these fields."""
        self.set_attr("read_fields", FieldReader(names))

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
        """Called by gymnasium with the answers of the processes. Gymnasium's own version prints their tracebacks."""
        errors = [self.error_queue.get() for is_success in successes if not is_success]
        if errors:
            world, _, error, trace = min(errors, key=lambda one: one[0])
            failed = error if isinstance(error, EnvironmentFailed) else EnvironmentFailed(failure(error))
            failed.world = world
            failed.add_note(f"In the process of world {world}:\n{trace}")
            raise failed

    def kill(self) -> None:
        """Kill the processes, whatever they are doing."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        self.closed = True


def _work(
    index: int, make: Callable[[], gymnasium.Env], pipe: Any, parent_pipe: Any, memory: Any, errors: Any, *others: Any
) -> None:
    """The loop of a process: gymnasium's own, but a failure to make the environment is sent as an answer."""
    try:
        env = make()
    except EnvironmentFailed as error:
        parent_pipe.close()
        pipe.recv()  # the first request of the owner
        errors.put((index, EnvironmentFailed, error, traceback.format_exc()))
        pipe.send((None, False))
    else:
        _async_worker(index, lambda: env, pipe, parent_pipe, memory, errors, *others)


class CheckedSteps(gymnasium.Wrapper):
    """Raises EnvironmentFailed if a step raises, exits or returns an invalid value. Its info are the fields asked for,
    so that no others need to go through a pipe."""

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


class WorkerSignals:
    """Makes an environment. In a process of its own it first ignores SIGINT (Ctrl-C), which the owner handles, lets
    SIGTERM end the process, and admits the modules that its owner may import.

    A forked process would otherwise keep the handlers of its owner, which wait for a safe point that never comes; a
    spawned one would not know what its owner admitted.
    """

    def __init__(self, make: Any, *arguments: Any) -> None:
        self.make, self.arguments, self.owner, self.admitted = make, arguments, os.getpid(), admitted()

    def __call__(self) -> gymnasium.Env:
        if os.getpid() != self.owner:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            admit_sources(self.admitted)
        return self.make(*self.arguments)
