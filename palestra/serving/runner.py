"""Computes the jobs of a server one after the other, each in a process of its own."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from palestra.config import failure
from palestra.runtime.signals import exit_text, start_leashed
from palestra.serving.jobs import JobFacts, Jobs, Status, read_examples
from palestra.storage.disk import Folder
from palestra.storage.secrets import redacted
from palestra.storage.stored_files import CheckpointError
from palestra.text.servers.job_files import JobFileError, read_pairs, read_supervised

COMMAND = [sys.executable, "-P", "-m", "palestra.serving.work"]
MOST_STARTS = 4  # of the process of a job, in the life of a server
PAUSE_S = 10.0  # before a job is tried again on a disk that refuses
KEY = "PALESTRA_SERVE_KEY"  # which no job needs


class Runner:
    """Two threads: one reads the files of new jobs, the other one lets jobs be computed.

    folder: of the server. of_model: the name of the model with which it began. A job that was running when the server
    ended comes first, and goes on.
    """

    def __init__(self, folder: Folder, jobs: Jobs, of_model: str) -> None:
        self.folder, self.jobs, self.of_model = folder, jobs, of_model
        self.is_stopped = False
        self._worker: Worker | None = None
        self._spare: Worker | None = None  # which waits for a job
        self._computed: str | None = None  # the id of the job of the first
        loops: list[tuple[Callable[[JobFacts], None], tuple[Status, ...]]] = [
            (self._validate, ("validating_files",)),
            (self._compute, ("running", "queued")),
        ]
        self._threads = [threading.Thread(target=self._loop, args=loop, daemon=True) for loop in loops]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the process of a running job, which goes on when a server is started again on the folder."""
        with self.jobs.changed:
            self.is_stopped = True
            self._kill()
            self.jobs.changed.notify_all()
        for thread in self._threads:
            thread.join()
        if self._spare is not None:
            self._spare.process.kill()
            self._spare.end()

    def cancel(self, job_id: str) -> JobFacts:
        """Cancel a job. Raises ApiError for one that is over."""
        with self.jobs.changed:
            facts = self.jobs.cancel(job_id)
            if self._computed == job_id:
                self._kill()
            else:
                self.jobs.tidy(job_id)
        return facts

    def _kill(self) -> None:
        if self._worker is not None:
            self._worker.process.kill()

    # ---- in the threads ----------------------------------------------------------------------------------

    def _loop(self, work: Callable[[JobFacts], None], statuses: tuple[Status, ...]) -> None:
        """Do the work of all jobs with some statuses, the oldest first."""
        while True:
            with self.jobs.changed:
                self.jobs.changed.wait_for(lambda: self.is_stopped or self.jobs.first(*statuses))
                job = self.jobs.first(*statuses)
            if self.is_stopped or job is None:
                return
            try:
                try:
                    work(job)
                except Exception as error:  # of its files, or a lack of memory or processes: the next job may find more
                    is_plain = isinstance(error, CheckpointError | OSError)
                    self.jobs.fail(job.id, str(error) if is_plain else failure(error))
                self.jobs.tidy(job.id)
            except OSError as error:  # a full disk, on which not even this can be noted
                print(redacted(f"the job {job.id} waits: {error}"), file=sys.stderr)
                time.sleep(PAUSE_S)

    def _validate(self, job: JobFacts) -> None:
        try:
            content = read_examples(self.jobs.folder.below(job.id), job)
            num = sum(1 for _ in (read_supervised(content) if job.method.name == "supervised" else read_pairs(content)))
        except JobFileError as error:
            return self.jobs.fail(job.id, f"the training file: {error}")
        self.jobs.change(job.id, f"The training file holds {num} examples; the job is queued", status="queued")

    def _compute(self, job: JobFacts) -> None:
        """Compute a job. A process that ends without a word, as one that is killed, is followed by another one."""
        if job.status == "queued":
            self.jobs.change(job.id, "Fine-tuning job started", status="running")
        for number in range(1, MOST_STARTS + 1):
            last, code = self._run(job)
            if self.is_stopped or self.jobs.get(job.id).status != "running":
                return
            if "trained_tokens" in last:
                return self.jobs.succeed(job.id, self.of_model, last["trained_tokens"])
            if "failed" in last:
                return self.jobs.fail(job.id, last["failed"])
            why = f"process {exit_text(code)}"
            if number < MOST_STARTS:
                self.jobs.change(job.id, f"The job's {why}; another one goes on from the last save", "warn")
        return self.jobs.fail(job.id, f"its {why}, as those before it; {MOST_STARTS} were started")

    def _run(self, job: JobFacts) -> tuple[dict[str, Any], int]:
        """Let a process compute a job, and note the opt steps of which it tells.

        Returns the last that it has told, and its exit code.
        """
        worker = self._start(job)
        last: dict[str, Any] = {}
        try:
            worker.compute(job.id)
            for last in worker.messages():
                if "step" in last:
                    message = f"Step {last['step']}/{last['total_steps']}: training loss={last['train_loss']}"
                    self.jobs.change(job.id, message, data=last)
        except BaseException:
            worker.process.kill()
            raise
        finally:
            code = worker.end()
            with self.jobs.changed:
                self._worker = self._computed = None
                if not self.is_stopped:
                    with suppress(OSError):  # of a machine without more processes; the next job may find one
                        self._spare = Worker(self.folder)
        return last, code

    def _start(self, job: JobFacts) -> "Worker":
        """Return the process for a job: the one that waits already, if there is one."""
        with self.jobs.changed:
            spare, self._spare = self._spare, None
            if spare is not None and spare.process.poll() is not None:
                spare.end()
                spare = None
            self._worker = spare or Worker(self.folder)
            self._computed = job.id
            if self.is_stopped or self.jobs.get(job.id).status != "running":
                self._kill()
            return self._worker


class Worker:
    """A process that computes one job (palestra.serving.work), which the system ends when this one ends.

    It begins without its job: what it imports takes seconds, so that after each job one waits for the next.
    """

    def __init__(self, folder: Folder) -> None:
        """Start the process. folder: of the server. Raises OSError."""
        environment = {name: value for name, value in os.environ.items() if name != KEY}
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process, self._life = start_leashed(COMMAND, [str(folder.path)], environment, **streams)

    def compute(self, job_id: str) -> None:
        """Let it begin with its job."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as told:  # of one that has ended, as `end` tells
            told.write(f"{job_id}\n".encode())

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield what it tells, until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError):  # of half a line, whose process was killed
                yield json.loads(line)

    def end(self) -> int:
        """Wait for its end, and return its exit code."""
        with self.process:  # closes its pipes
            code = self.process.wait()
        os.close(self._life)
        return code
