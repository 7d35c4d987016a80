"""The calls of a run of text players to models behind servers: when they may be made, and what is told of them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from palestra.text.players import TextPlayer
from palestra.text.servers.calls import Calls
from palestra.text.servers.config import ServerTuningConfig
from palestra.text.servers.job_lines import JobLines
from palestra.text.servers.jobs import FileJob, JobOrder, ServerJob, TunedModel
from palestra.text.servers.ledger import Cost
from palestra.text.servers.model import MOST_SEED, ServerModel, check_servers


class ServerCalls:
    """The calls and jobs of a training. A run without models behind servers makes none, and has nothing of them.

    calls: makes them. jobs: those that are under way, by player.
    """

    def __init__(self, training: Any) -> None:
        self.training = training
        self.calls = Calls(lambda: training.run.signals.received is not None)
        self.jobs: dict[str, ServerJob] = {}
        self._lines: JobLines | None = None

    def models(self) -> dict[str, ServerModel]:
        """Return the models behind servers, by player."""
        models = {name: seat.model for name, seat in self.training.seats.items() if isinstance(seat, TextPlayer)}
        return {name: model for name, model in models.items() if isinstance(model, ServerModel)}

    def require_ready(self) -> None:
        """Raise ConfigError for a key that is not set; in a new run also for a server that does not have its model."""
        check_servers(self.models(), with_network=not self.training.run.resumed)

    @contextmanager
    def opened(self, will_ask: bool = True) -> Iterator[None]:
        """A context in which the models can be asked.

        will_ask: whether they may be; then it raises ConfigError for a key that is not set.
        """
        if self.calls.is_open or not (models := self.models()):
            yield
            return
        if will_ask:
            check_servers(models, with_network=False)
        folder, budget = self.training.run.folder, self.training.config.budget
        limit = Cost(None, None) if budget is None else budget.limit()
        run = folder.facts().id
        with self.calls.opened(folder.root.below("calls"), run, limit, self._most_drain_s()):
            self._lines = JobLines(folder.root, run)
            self.calls.ledger.replay(self._lines.for_ledger(), run)
            self.calls.ledger.lose_all()  # a job that is still under way takes back what it may cost
            try:
                yield
            finally:
                until = time.monotonic() + self._most_drain_s()
                for job in self.jobs.values():
                    job.leave(until)
                self.jobs = {}

    def begin(self, player: TextPlayer, job: FileJob, config: ServerTuningConfig, epoch: int | str, key: int) -> None:
        """Let a server tune a player, if it is not at it. epoch: its number, or imitate. key: of the order."""
        model = player.model
        assert isinstance(model, ServerModel)
        assert self._lines is not None
        if player.name not in self.jobs:
            base = model.base if job.begin_from == "base" else model.model
            order = JobOrder(epoch, player.name, model.config, base, job, config, key % MOST_SEED)
            self.jobs[player.name] = ServerJob(self.calls, self._lines, order)
            self.jobs[player.name].begin()

    def tuned(self, player: TextPlayer, wait_s: float) -> TunedModel | None:
        """Return what has come of a job, and let the player have the new model; None if it is not over.

        It waits at most so long. Raises JobFailed, BudgetReached.
        """
        if (found := self.jobs[player.name].outcome(wait_s)) is not None:
            assert isinstance(player.model, ServerModel)
            player.model.model = found.model
            del self.jobs[player.name]
        return found

    def before_safe_point(self) -> None:
        """Keep what servers still answer if a signal asks the run to leave, and tell of attempts that have failed."""
        if self.training.is_asked_to_leave():
            self.calls.drain(self._most_drain_s())
        if (line := self.calls.warning()) is not None:
            self.training.warn(line)

    def costs(self) -> dict[str, Any]:
        """Return what a record and the display say of calls, under `calls`.

        expected: the money of the whole training, if it goes on to cost as much as so far.
        """
        if not self.models():
            return {}
        found, share = self.calls.costs(), self.training.config.stop.share(self.training.counters)
        expected = {"expected": found["money"] / share} if share and found["money"] else {}
        return {"calls": {**found, **expected}}

    def _most_drain_s(self) -> float:
        return float(self.training.config.output.stop_within_s) / 2
