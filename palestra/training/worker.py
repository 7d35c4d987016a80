"""A process that works for a training: `python -m palestra.training.worker PIPE RUN MODULE:FUNCTION SOURCES`.

The function gets the run's folder, and returns what answers requests. The process reads these from its standard input,
and writes messages, lines of JSON, to its standard output; the bytes of an answer may follow. palestra.training.workers
starts it. If something raises, it answers with the error, and ends. SOURCES: the modules of the user's own that the
training may import, in JSON.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from palestra.runtime.signals import end_with_parent

REPORT_INTERVAL_S = 0.5

Message = dict[str, Any]
Serve = Callable[[Any, BinaryIO], Message | bytes]
"""answers a request: by a message, or by the bytes of a tree of state; it may write messages before"""


def evaluator(run: Path) -> tuple[int, Serve]:
    """Plays evaluations. Returns the number of threads, and what answers."""
    from palestra.training.stored_training import StoredRun

    stored = StoredRun.open(run)

    def play(request: Any, answers: BinaryIO) -> Message:
        evaluation, num, with_scripted, state = request
        stored.restore(state)
        started = time.perf_counter()
        result = stored.judge(evaluation, num, with_scripted, Progress(answers))
        return {"result": result, "seconds": time.perf_counter() - started}

    return stored.config.execution.num_threads, play


def serve(answer: Serve, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more."""
    from palestra.storage.stored_files import from_bytes

    while line := requests.readline():
        found = answer(from_bytes(requests.read(int(line))), answers)
        if isinstance(found, bytes):
            send(answers, {"num_bytes": len(found)}, found)
        else:
            send(answers, found)


class Progress:
    """Sends how many games are over and how many rounds the longest one has had, at most every REPORT_INTERVAL_S."""

    def __init__(self, answers: BinaryIO) -> None:
        self.answers, self.reported_at_s = answers, 0.0

    def __call__(self, num_over: int, num_rounds: int) -> None:
        now_s = time.monotonic()
        if now_s - self.reported_at_s > REPORT_INTERVAL_S:
            self.reported_at_s = now_s
            send(self.answers, {"num_over": num_over, "num_rounds": num_rounds})


def send(answers: BinaryIO, message: Message, content: bytes = b"") -> None:
    answers.write(json.dumps(message).encode() + b"\n")
    answers.write(content)
    answers.flush()


def main() -> None:
    pipe, run, server, sources = sys.argv[1:]
    end_with_parent(int(pipe))  # before the imports, which take seconds
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what environments print goes to the log
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        from palestra.config.own_modules import Source, admit_sources
        from palestra.runtime.threads import limited_threads

        admit_sources(Source(**each) for each in json.loads(sources))
        module, function = server.split(":")
        num_threads, answer = getattr(import_module(module), function)(Path(run))
        with limited_threads(num_threads):
            serve(answer, requests, answers)
    except Exception as error:  # whatever an environment raises
        from palestra.games.world import EnvironmentFailed
        from palestra.runtime.console import visible
        from palestra.storage.secrets import redacted

        print(visible(redacted(traceback.format_exc()), kept="\n"), file=sys.stderr)
        text = redacted(str(error)).strip().partition("\n")[0]
        message: Message = {"error": f"{type(error).__name__}: {text}"}
        if isinstance(error, EnvironmentFailed):
            message["failed"] = [redacted(error.fault), error.world, error.place]
        send(answers, message)
        sys.exit(1)


if __name__ == "__main__":
    main()
