"""How a training of text players tunes them: by jobs, in this process and at servers."""

from collections.abc import Mapping

import torch

from palestra.models.model import Terms
from palestra.randomness import base_key, fold_number
from palestra.recording.aggregates import Aggregates
from palestra.runtime.counter import count
from palestra.text.algorithms.algorithm import JobConfig
from palestra.text.models.model import Job, Tuning
from palestra.text.players import TextPlayer
from palestra.text.servers.job_order import FileJob
from palestra.text.servers.tuning import ServerTuningConfig
from palestra.training.text_servers import TextServers

LOOK_S = 0.25  # between two safe points while a server is awaited


class TextTuning(TextServers):
    """The part of a TextTrainer that tunes the players.

    players: by name. tuning: the job in this process that is under way, and whose it is. num_tuned: jobs of this epoch
    that are done. is_imitating: whether players still learn what scripted ones say. terms: of the losses, by player.
    """

    players: Mapping[str, TextPlayer]
    tuning: tuple[str, Tuning] | None
    num_tuned: int
    is_imitating: bool
    terms: Mapping[str, Aggregates]

    def await_jobs(self, jobs: Mapping[str, Job | FileJob]) -> None:
        """Tune the players.

        Servers are given all of their jobs first. Meanwhile the players of this process are tuned, one after the other,
        with a safe point after each opt step; while a server is awaited there are several in each second.
        """
        left = list(jobs.items())[self.num_tuned :]
        for name, job in left:
            if isinstance(job, FileJob):
                self._begin_at_server(name, job)
        for name, job in left:
            if isinstance(job, FileJob):
                self._await(name)
            else:
                if self.tuning is None:
                    self.tuning = name, self._tuning(self.players[name], job)
                self._tune(*self.tuning)
            self.tuning, self.num_tuned = None, self.num_tuned + 1

    def _begin_at_server(self, name: str, job: FileJob) -> None:
        tuning = self._job_config(name).tuning
        assert isinstance(tuning, ServerTuningConfig)
        epoch = "imitate" if self.is_imitating else self.epochs
        self.servers.begin(self.players[name], job, tuning, epoch, self._order_key(name))

    def _await(self, name: str) -> None:
        """Wait for the job of a player at its server, with safe points."""
        player, tuned = self.players[name], None
        while tuned is None:
            self.run.time_log.switch("update")
            if (tuned := self.servers.tuned(player, LOOK_S)) is None:
                self.safe_point()
        terms = {} if tuned.loss is None else {"loss": torch.tensor(tuned.loss)}
        self._count_steps(player, tuned.steps, terms)
        self.log(f"{name!r} is now {tuned.model!r:.200}")
        for callback in self.callbacks:
            callback.after_step(self, player, terms)

    def _count_steps(self, player: TextPlayer, num: int, terms: Terms) -> None:
        self.terms[player.name].add(terms)
        count(self, opt_steps=num)
        count(player, opt_steps=num)
        self.epoch_counts["updates"] += num

    def _tune(self, name: str, tuning: Tuning) -> None:
        player = self.players[name]
        while not tuning.is_done:
            self.run.time_log.switch("update")
            for callback in self.callbacks:
                callback.before_step(self, player)
            terms = tuning.step()
            self._count_steps(player, 1, terms)
            for callback in self.callbacks:
                callback.after_step(self, player, terms)
            self.safe_point()
        self.require_finite(with_parameters=True)  # else the next answers are drawn of nothing

    def _tuning(self, player: TextPlayer, job: Job) -> Tuning:
        return player.model.tuning(job, self._job_config(player.name).tuning, self._order_key(player.name))

    def _job_config(self, name: str) -> JobConfig:
        player = self.players[name].config
        config = player.imitate if self.is_imitating else player.algorithm
        assert config is not None
        return config

    def _order_key(self, name: str) -> int:
        """Return the key of the order in which a job goes through its examples."""
        stream = "imitation order" if self.is_imitating else "order"
        return fold_number(base_key(self.config.seed, f"text/{stream}/{name}"), self.epochs)


def local_first(jobs: Mapping[str, Job | FileJob]) -> dict[str, Job | FileJob]:
    """Return jobs with those of this process first, which are made while servers are at theirs."""
    return dict(sorted(jobs.items(), key=lambda item: isinstance(item[1], FileJob)))
