"""The thread that computes answers: what waits for the same model and is drawn alike becomes one batch."""

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from palestra.config import failure
from palestra.runtime.limits import lack
from palestra.serving.errors import ApiError
from palestra.serving.models import Models
from palestra.text.models.model import Answer, PromptBeyondContext, PromptRefused, Request, SamplingConfig

MOST_WAITING = 4096  # answers
MOST_CHARACTERS = 64 << 20  # of all prompts that wait
# For so long, or this share of the time of the batch before, a batch waits for those that were answered to come back,
# one by one. Else clients fall apart into groups that take turns.
GATHER_S, GATHER_SHARE = 0.01, 0.1
MOST_AT_ONCE = 64  # answers of a batch, but all answers of one request


@dataclass(frozen=True, eq=False)
class Waiting:
    """Requests for answers to one prompt, which are computed together."""

    model: str
    sampling: SamplingConfig
    requests: Sequence[Request]
    found: "Future[list[Answer]]" = field(default_factory=Future)

    @property
    def size(self) -> int:
        """The characters of its prompt."""
        return sum(len(message.content) for message in self.requests[0].prompt)


class Engine:
    """Answers requests in the order in which they came, in a thread of its own.

    exact: each is computed alone, so that what else waits changes no bit of it.
    """

    def __init__(self, models: Models, exact: bool) -> None:
        self.models, self.exact = models, exact
        self._queue: deque[Waiting] = deque()
        self._num_answers = self._size = 0  # of all that waits
        self._changed = threading.Condition()
        threading.Thread(target=self._work, name="engine", daemon=True).start()

    def ask(self, model: str, requests: Sequence[Request], sampling: SamplingConfig) -> "Future[list[Answer]]":
        """Let requests wait, and return where their answers will be. A cancelled one is not computed.

        Raises ApiError if too many wait.
        """
        waiting = Waiting(model, sampling, requests)
        with self._changed:
            if self._num_answers + len(requests) > MOST_WAITING or self._size + waiting.size > MOST_CHARACTERS:
                message = f"expected at most {MOST_WAITING} answers that wait, got more; try again soon"
                raise ApiError(message, status=429, code="rate_limit_exceeded", retry_after_s=1)
            self._queue.append(waiting)
            self._count(waiting, 1)
            self._changed.notify()
        return waiting.found

    def _count(self, waiting: Waiting, sign: int) -> None:
        self._num_answers += sign * len(waiting.requests)
        self._size += sign * waiting.size

    def _work(self) -> None:
        num_expected, seconds = 0, 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                if not self.exact:
                    patience_s = max(GATHER_S, GATHER_SHARE * seconds)
                    self._changed.wait_for(partial(self._is_waited_by, num_expected), patience_s)
                batch = self._take_batch()
            started_s = monotonic()
            self._answer(batch)
            num_expected, seconds = len(self._queue) + len(batch), monotonic() - started_s

    def _is_waited_by(self, num: int) -> bool:
        return len(self._queue) >= num

    def _take_batch(self) -> list[Waiting]:
        """Take the first one that waits, and those behind it that can be computed with it, out of the queue."""
        first = self._queue[0]
        batch: list[Waiting] = []
        num_rows = 0
        for each in list(self._queue):
            fits = not batch or (not self.exact and num_rows + len(each.requests) <= MOST_AT_ONCE)
            if fits and (each.model, each.sampling) == (first.model, first.sampling):
                self._queue.remove(each)
                self._count(each, -1)
                if each.found.set_running_or_notify_cancel():
                    batch.append(each)
                    num_rows += len(each.requests)
        return batch

    def _answer(self, batch: list[Waiting]) -> None:
        """Compute a batch. A prompt that the model cannot read leaves it, and the others are computed."""
        while batch:
            requests = [request for each in batch for request in each.requests]
            try:
                answers = iter(self.models.get(batch[0].model).sample(requests, batch[0].sampling))
            except PromptRefused as error:
                at = next(each for each in batch if requests[error.index] in each.requests)
                is_long = isinstance(error, PromptBeyondContext)
                code = "context_length_exceeded" if is_long else "invalid_value"
                at.found.set_exception(ApiError(f"messages: {error}", "messages", code=code))
                batch = [each for each in batch if each is not at]
            except BaseException as error:  # a stranger's model may raise anything; what Rust raises is no Exception
                refused = ApiError(f"the model failed: {lack(error) or failure(error)}", status=500)
                for each in batch:
                    each.found.set_exception(refused)
                return
            else:
                for each in batch:
                    each.found.set_result([next(answers) for _ in each.requests])
                return
