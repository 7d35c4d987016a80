"""The process that plays evaluations beside training: `python -m palestra.training.evaluator_worker RUN PIPE`.

It reads requests from its standard input, and writes its progress and its answers as lines of JSON to its standard
output. palestra.training.evaluator_processes starts it. If an evaluation raises, it answers with the error, and ends.
"""

import json
import os
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any, BinaryIO

from palestra.runtime.signals import end_with_parent

if TYPE_CHECKING:
    from palestra.run.stored import Stored

REPORT_INTERVAL_S = 0.5


def serve(run: "Stored", requests: BinaryIO, answers: BinaryIO) -> None:
    """Play the requested evaluations until there are no more requests."""
    from palestra.storage.states import from_bytes

    while line := requests.readline():
        evaluation, num, with_scripted, state = from_bytes(requests.read(int(line)))
        run.restore(state)
        started = time.perf_counter()
        report = Progress(answers)
        result = run.judge(evaluation, num, with_scripted, report)
        send(answers, {"result": result, "seconds": time.perf_counter() - started})


class Progress:
    """Sends how many games are over and how many rounds the longest one has had, at most every REPORT_INTERVAL_S."""

    def __init__(self, answers: BinaryIO) -> None:
        self.answers, self.reported_at_s = answers, 0.0

    def __call__(self, num_over: int, num_rounds: int) -> None:
        now_s = time.monotonic()
        if now_s - self.reported_at_s > REPORT_INTERVAL_S:
            self.reported_at_s = now_s
            send(self.answers, {"num_over": num_over, "num_rounds": num_rounds})


def send(answers: BinaryIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message).encode() + b"\n")
    answers.flush()


def main() -> None:
    run, pipe = sys.argv[1:]
    end_with_parent(int(pipe))  # before the imports, which take seconds
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what environments print goes to the log
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        from palestra.runtime.threads import limited_threads
        from palestra.training.stored_training import StoredRun

        stored = StoredRun.open(run)
        with limited_threads(stored.config.execution.num_threads):
            serve(stored, requests, answers)
    except Exception as error:  # whatever an environment raises
        from palestra.runtime.console import visible
        from palestra.storage.secrets import redacted

        print(visible(redacted(traceback.format_exc()), kept="\n"), file=sys.stderr)
        text = redacted(str(error)).strip().partition("\n")[0]
        send(answers, {"error": f"{type(error).__name__}: {text}"})
        sys.exit(1)


if __name__ == "__main__":
    main()
