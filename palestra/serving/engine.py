"""The models of a server, and the thread that computes their answers.

The model with which the server began is always in memory, and a few of those that jobs have made of it, which take
turns in the same memory. What waits for the same model and is drawn alike becomes one batch.
"""

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic

import torch

from palestra.config import failure
from palestra.runtime.limits import lack
from palestra.serving.errors import ApiError
from palestra.serving.jobs import Jobs
from palestra.serving.source import Source, fill
from palestra.text.models.local import LocalModel
from palestra.text.models.model import SamplingConfig
from palestra.text.models.network import Drawn

MOST_LOADED = 3  # beside the first one


class Models:
    """Models by the names that requests give; only the engine's thread asks for them. first: that of the source."""

    def __init__(self, source: Source, device: torch.device, tuned: Jobs, first: LocalModel) -> None:
        self.source, self.device, self.tuned, self.first = source, device, tuned, first
        self._loaded: dict[str, LocalModel] = {}  # the one that was not asked for longest comes first

    def get(self, name: str) -> LocalModel:
        """Return a model, loaded. Raises CheckpointError for weights that are missing or damaged."""
        if name == self.source.facts.name:
            return self.first
        if (model := self._loaded.pop(name, None)) is None:
            weights = self.tuned.weights(name)
            if len(self._loaded) < MOST_LOADED:
                model = self.source.build(self.device)
            else:
                model = self._loaded.pop(next(iter(self._loaded)))
            fill(model, weights)
        self._loaded[name] = model
        return model


MOST_WAITING = 4096  # answers
MOST_TOKENS = 4 << 20  # of all prompts that wait
# For so long, or this share of the time of the batch before, a batch waits for those that were answered to come back,
# one by one. Else clients fall apart into groups that take turns.
GATHER_S, GATHER_SHARE = 0.01, 0.1
MOST_AT_ONCE = 64  # answers of a batch, but all answers of one request


@dataclass(frozen=True, eq=False)
class Waiting:
    """A request for answers to one prompt, each drawn by a key. found: a cancelled one is not computed any more."""

    model: str
    sampling: SamplingConfig
    prompt: list[int]
    keys: Sequence[int]
    found: "Future[list[Drawn]]" = field(default_factory=Future)


class Engine:
    """Answers requests in the order in which they came, in a thread of its own.

    exact: each is computed alone, so that what else waits changes no bit of it.
    """

    def __init__(self, models: Models, exact: bool) -> None:
        self.models, self.exact = models, exact
        self._queue: deque[Waiting] = deque()
        self._num_answers = self._num_tokens = 0  # of all that waits
        self._changed = threading.Condition()
        threading.Thread(target=self._work, name="engine", daemon=True).start()

    def ask(
        self, model: str, prompt: list[int], keys: Sequence[int], sampling: SamplingConfig
    ) -> "Future[list[Drawn]]":
        """Let a prompt wait, which the model has read, and return where its answers will be.

        Raises ApiError if too many wait.
        """
        waiting = Waiting(model, sampling, prompt, keys)
        with self._changed:
            if self._num_answers + len(keys) > MOST_WAITING or self._num_tokens + len(prompt) > MOST_TOKENS:
                message = f"expected at most {MOST_WAITING} answers that wait, got more; try again soon"
                raise ApiError(message, status=429, code="rate_limit_exceeded", retry_after_s=1)
            self._queue.append(waiting)
            self._count(waiting, 1)
            self._changed.notify()
        return waiting.found

    def _count(self, waiting: Waiting, sign: int) -> None:
        self._num_answers += sign * len(waiting.keys)
        self._num_tokens += sign * len(waiting.prompt)

    def _work(self) -> None:
        num_expected, seconds = 0, 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                if not self.exact:
                    self._gather(num_expected, max(GATHER_S, GATHER_SHARE * seconds))
                batch = self._take_batch()
            started_s = monotonic()
            self._answer(batch)
            num_expected, seconds = len(self._queue) + len(batch), monotonic() - started_s

    def _gather(self, num: int, patience_s: float) -> None:
        self._changed.wait_for(lambda: len(self._queue) >= num, patience_s)

    def _take_batch(self) -> list[Waiting]:
        """Take the first one that waits, and those behind it that can be computed with it, out of the queue."""
        first = self._queue[0]
        batch: list[Waiting] = []
        num_rows = 0
        for each in list(self._queue):
            fits = not batch or (not self.exact and num_rows + len(each.keys) <= MOST_AT_ONCE)
            if fits and (each.model, each.sampling) == (first.model, first.sampling):
                self._queue.remove(each)
                self._count(each, -1)
                if not each.found.cancelled():
                    batch.append(each)
                    num_rows += len(each.keys)
        return batch

    def _answer(self, batch: list[Waiting]) -> None:
        """Compute a batch, as long as one of its clients waits. If it fails, each request is computed alone."""
        prompts = [each.prompt for each in batch for _ in each.keys]
        keys = [key for each in batch for key in each.keys]
        try:
            drawn = self.models.get(batch[0].model).draw(
                prompts, keys, batch[0].sampling, lambda: not all(each.found.cancelled() for each in batch)
            )
        except BaseException as error:  # a stranger's model may raise anything; what Rust raises is no Exception
            if len(batch) == 1:
                refused = ApiError(f"the model failed: {lack(error) or failure(error)}", status=500)
                if batch[0].found.set_running_or_notify_cancel():
                    batch[0].found.set_exception(refused)
            else:
                for each in batch:
                    self._answer([each])
        else:
            rows = iter(drawn)
            for each in batch:
                own = [next(rows) for _ in each.keys]
                if each.found.set_running_or_notify_cancel():
                    each.found.set_result(own)
