"""Computes the jobs of a server one after the other, each in a process of its own."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from palestra.config import failure
from palestra.runtime.signals import exit_text
from palestra.serving.jobs import JobFacts, Jobs, Status
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
        self._process: subprocess.Popen[bytes] | None = None
        self._computed: str | None = None  # the id of the job of that process
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
        if self._process is not None:
            self._process.kill()

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
                except (CheckpointError, OSError) as error:  # of its files, or of a machine without more processes
                    self.jobs.fail(job.id, str(error))
                except Exception as error:  # such as MemoryError: the thread goes on with the next job
                    self.jobs.fail(job.id, failure(error))
                self.jobs.tidy(job.id)
            except OSError as error:  # a full disk, on which not even this can be noted
                print(redacted(f"the job {job.id} waits: {error}"), file=sys.stderr)
                time.sleep(PAUSE_S)

    def _validate(self, job: JobFacts) -> None:
        try:
            content = self.jobs.examples(job)
            num = sum(1 for _ in (read_supervised(content) if job.method.name == "supervised" else read_pairs(content)))
        except JobFileError as error:
            self.jobs.fail(job.id, f"the training file: {error}")
            return
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
        watched, life = os.pipe()
        try:
            process = self._start(job, watched)
            assert process.stdout is not None
            last: dict[str, Any] = {}
            for line in process.stdout:
                with suppress(ValueError):  # of half a line, whose process was killed
                    last = json.loads(line)
                if "step" in last:
                    message = f"Step {last['step']}/{last['total_steps']}: training loss={last['train_loss']}"
                    self.jobs.change(job.id, message, data=last)
            code = process.wait()
            process.stdout.close()
        finally:
            os.close(life)
            with self.jobs.changed:
                self._process = self._computed = None
        return last, code

    def _start(self, job: JobFacts, watched: int) -> "subprocess.Popen[bytes]":
        """Start the process of a job, which the system ends when this one ends (palestra.serving.work)."""
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # where the user's own classes are found
        environment = {name: value for name, value in os.environ.items() if name != KEY} | {"PYTHONPATH": path}
        with self.jobs.changed:
            try:
                self._process = subprocess.Popen(
                    [*COMMAND, str(watched), str(self.folder.path), job.id],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(watched,),
                    start_new_session=True,
                    env=environment,
                )
            finally:
                os.close(watched)
            self._computed = job.id
            if self.is_stopped or self.jobs.get(job.id).status != "running":
                self._kill()
            return self._process
