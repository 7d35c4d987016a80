"""The jobs of a training of text players: they tune the players, in this process and at servers."""

from collections.abc import Mapping
from typing import Any

import torch

from palestra.models.model import Terms
from palestra.randomness import base_key, fold_number
from palestra.recording.aggregates import Aggregates
from palestra.runtime.counter import count
from palestra.text.algorithms.algorithm import JobConfig
from palestra.text.models.model import Job, Tuning
from palestra.text.players import TextPlayer
from palestra.text.servers.config import ServerTuningConfig
from palestra.text.servers.jobs import FileJob

LOOK_S = 0.25  # between two safe points while a server is awaited


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
                self._begin_at_server(name, job)
        for name, job in left:
            if isinstance(job, FileJob):
                self._await(name)
            else:
                if self.current is None:
                    self.current = name, self._tuning(name, job)
                self._tune(*self.current)
            self.current, self.num_done = None, self.num_done + 1

    def _begin_at_server(self, name: str, job: FileJob) -> None:
        tuning = self._job_config(name).tuning
        assert isinstance(tuning, ServerTuningConfig)
        epoch = "imitate" if self.training.is_imitating else self.training.epochs
        self.training.servers.begin(self.players[name], job, tuning, epoch, self._order_key(name))

    def _await(self, name: str) -> None:
        """Wait for the job of a player at its server, with safe points."""
        player, tuned = self.players[name], None
        while tuned is None:
            self.training.run.time_log.switch("update")
            if (tuned := self.training.servers.tuned(player, LOOK_S)) is None:
                self.training.safe_point()
        terms = {} if tuned.loss is None else {"loss": torch.tensor(tuned.loss)}
        self._count_steps(player, tuned.steps, terms)
        self.training.log(f"{name!r} is now {tuned.model!r:.200}")
        for callback in self.training.callbacks:
            callback.after_step(self.training, player, terms)

    def _count_steps(self, player: TextPlayer, num: int, terms: Terms) -> None:
        self.terms[player.name].add(terms)
        count(self.training, opt_steps=num)
        count(player, opt_steps=num)
        self.training.epoch_counts["updates"] += num

    def _tune(self, name: str, tuning: Tuning) -> None:
        player = self.players[name]
        while not tuning.is_done:
            self.training.run.time_log.switch("update")
            for callback in self.training.callbacks:
                callback.before_step(self.training, player)
            terms = tuning.step()
            self._count_steps(player, 1, terms)
            for callback in self.training.callbacks:
                callback.after_step(self.training, player, terms)
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
