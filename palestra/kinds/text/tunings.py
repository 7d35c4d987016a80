"""The calls of a training of text players to servers, and its jobs, which tune players in this process and there."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from palestra.config import cut
from palestra.models.model import Terms
from palestra.randomness import base_key, fold_number
from palestra.recording.aggregates import Aggregates
from palestra.runtime.intervals import count
from palestra.text.algorithms.algorithm import JobConfig
from palestra.text.models.model import Job, Tuning
from palestra.text.players import TextPlayer
from palestra.text.servers.calls import Calls
from palestra.text.servers.config import ServerTuningConfig
from palestra.text.servers.job_lines import JobLines
from palestra.text.servers.jobs import FileJob, JobOrder, ServerJob, TunedModel
from palestra.text.servers.ledger import Cost
from palestra.text.servers.model import MOST_SEED, ServerModel, check_servers

LOOK_S = 0.25  # between two safe points while a server is awaited


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
        found = self.calls.costs()
        share = self.training.config.stop.share(self.training.counters)
        expected = {"expected": found["money"] / share} if share and found["money"] else {}
        return {"calls": {**found, **expected}}

    def _most_drain_s(self) -> float:
        return float(self.training.config.output.stop_within_s) / 2


class Tunings:
    """What a TextTrainer does for the jobs of an epoch.

    current: the job in this process that is under way, and whose it is. num_done: jobs of this epoch that are done.
    terms: of the losses, by player.
    """

    def __init__(self, training: Any) -> None:
        self.training, self.players = training, training.players
        self.current: tuple[str, Tuning] | None = None
        self.num_done = 0
        self.terms = {name: Aggregates(training.config.output.statistics) for name in self.players}

    def forget(self) -> None:
        """Begin with none."""
        self.current, self.num_done = None, 0

    def await_all(self, jobs: Mapping[str, Job | FileJob]) -> None:
        """Tune the players, as `TextTrainer.await_jobs` says."""
        left = list(jobs.items())[self.num_done :]
        for name, job in left:
            if isinstance(job, FileJob):
                tuning = self._job_config(name).tuning
                assert isinstance(tuning, ServerTuningConfig)
                epoch = "imitate" if self.training.is_imitating else self.training.epochs
                self.training.servers.begin(self.players[name], job, tuning, epoch, self._order_key(name))
        for name, job in left:
            if isinstance(job, FileJob):
                self._await(name)
            else:
                if self.current is None:
                    self.current = name, self._tuning(name, job)
                self._tune(*self.current)
            self.current, self.num_done = None, self.num_done + 1

    def _await(self, name: str) -> None:
        """Wait for the job of a player at its server, with safe points."""
        player, tuned = self.players[name], None
        while tuned is None:
            self.training.run.time_log.switch("update")
            if (tuned := self.training.servers.tuned(player, LOOK_S)) is None:
                self.training.safe_point()
        terms = {} if tuned.loss is None else {"loss": torch.tensor(tuned.loss)}
        self._count_steps(player, tuned.steps, terms)
        self.training.log(f"{name!r} is now {cut(repr(tuned.model), 200)}")
        self.training.after_step(player, terms)

    def _count_steps(self, player: TextPlayer, num: int, terms: Terms) -> None:
        self.terms[player.name].add(terms)
        count(self.training, opt_steps=num)
        count(player, opt_steps=num)
        self.training.epoch_counts["updates"] += num

    def _tune(self, name: str, tuning: Tuning) -> None:
        player = self.players[name]
        while not tuning.is_done:
            self.training.run.time_log.switch("update")
            self.training.before_step(player)
            terms = tuning.step()
            self._count_steps(player, 1, terms)
            self.training.after_step(player, terms)
            self.training.safe_point()
        self.training.require_finite(with_parameters=True)  # else the next answers are drawn of nothing

    def _tuning(self, name: str, job: Job) -> Tuning:
        return self.players[name].model.tuning(job, self._job_config(name).tuning, self._order_key(name))

    def _job_config(self, name: str) -> JobConfig:
        player = self.players[name].config
        config: JobConfig | None = player.imitate if self.training.is_imitating else player.algorithm
        assert config is not None
        return config

    def _order_key(self, name: str) -> int:
        """Return the key of the order in which a job goes through its examples."""
        stream = "imitation order" if self.training.is_imitating else "order"
        return fold_number(base_key(self.training.config.seed, f"text/{stream}/{name}"), self.training.epochs)

    def state_dict(self) -> dict[str, Any]:
        return {
            "tuning": None if self.current is None else self.current[1].state_dict(),
            "num_tuned": self.num_done,
            "terms": {name: terms.state_dict() for name, terms in self.terms.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave, once the training has its jobs, players and epoch."""
        self.num_done = state["num_tuned"]
        for name, terms in self.terms.items():
            terms.load_state_dict(state["terms"][name], self.training.device)
        if state["tuning"] is not None:
            name, job = list(self.training.jobs.items())[self.num_done]
            self.current = name, self._tuning(name, job)
            self.current[1].load_state_dict(state["tuning"])


def local_first(jobs: Mapping[str, Job | FileJob]) -> dict[str, Job | FileJob]:
    """Return jobs with those of this process first, which are made while servers are at theirs."""
    return dict(sorted(jobs.items(), key=lambda item: isinstance(item[1], FileJob)))
