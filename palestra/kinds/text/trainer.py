"""The trainer of players that talk in words: they talk, and are then tuned on what they have said."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from numbers import Real
from typing import Any

import torch

from palestra.config import ConfigError, below, cut, failure
from palestra.data.columns import require_same_files
from palestra.kinds.text.config import BUDGET_IS_SPENT, TextConfig
from palestra.kinds.text.costs import TextCosts
from palestra.kinds.text.evaluations import TextEvaluations
from palestra.kinds.text.players import TrainedTextPlayer, copy_text_player, find_text_player
from palestra.kinds.text.rollout_files import RolloutFiles, read_prompts, write_prompts, write_rollouts
from palestra.kinds.text.tunings import ServerCalls, Tunings, local_first
from palestra.players import FromRunConfig
from palestra.randomness import base_key, fold_number, world_keys
from palestra.recording.results import Stage, Task
from palestra.run.checkpoints import CheckpointError, Checkpoints
from palestra.run.run import Standing
from palestra.run.warm_starts import errors_at
from palestra.runtime.intervals import Counter, Counters, Interval, count
from palestra.storage.disk import RunFolderError, writing
from palestra.storage.run_folder import RunFolder
from palestra.text.algorithms.algorithm import AlgorithmFailed
from palestra.text.dialogue import Question, TextDialogue
from palestra.text.models.extra import library
from palestra.text.models.local import LocalModel
from palestra.text.models.model import Job, PromptRefused
from palestra.text.players import TextPlayer, TextPlayerConfig, build_model
from palestra.text.rollouts import Rollouts, dialogue_statistics, returns_of
from palestra.text.scripts import TextScript, make_text_script, named_script
from palestra.text.servers.client import CallFailed
from palestra.text.servers.job_lines import copy_jobs
from palestra.text.servers.jobs import FileJob, JobFailed
from palestra.text.servers.ledger import BudgetReached
from palestra.text.waves import PromptTooLong, Waves, Writer
from palestra.training.async_evaluations import make_evaluating
from palestra.training.checks import check_ready
from palestra.training.stored_training import StoredTraining
from palestra.training.training import Training

PAUSE_S = 0.25  # between two safe points while answers of servers come in
STAGES = ("sample", "create_jobs", "await_jobs")


class StoredDialogues(StoredTraining):
    """A run of players that talk in words."""

    def file_rollouts(self, name: str, played: str) -> None:
        write_rollouts(self.results, name, played, self.config.output.transcripts)


class TextTrainer(Training):
    """Trains the players of a config, which talk in words.

    An epoch has three stages: `sample` plays dialogues, `create_jobs` chooses what each player learns from them, and
    `await_jobs` tunes the players. Each may be overridden, and ends in a safe point. Before the first epoch, players
    that imitate a scripted one are tuned on its answers.

    Arguments as for Training. game: makes dialogues. players: those with a model of this run, by name. seats: all of
    the file, by name. from_runs: what other runs have trained, by the players here. rollouts: the dialogues of this
    epoch, once they are sampled, and of those before where an algorithm learns from all epochs. filed: the numbers of
    these epochs, whose files have the dialogues. jobs: those of this epoch, by player. tunings: what is done for them.
    servers: the calls to models behind servers. costs: bounds of what they cost.
    """

    config: TextConfig  # more exact than that of Training
    run_config = TextConfig
    stored = StoredDialogues
    rated = ("tokens", "opt_steps", "env_steps")
    failures = (PromptTooLong, PromptRefused, AlgorithmFailed, JobFailed, CallFailed, BudgetReached)
    looks = (*Training.looks, Interval(every=1, unit="stages"))  # after imitation evaluations are due
    is_counted = True
    env_steps = Counter("text")
    opt_steps = Counter("text")
    tokens = Counter("text")
    stages = Counter("text")
    epochs = Counter("text")
    episodes = Counter("text")

    def _build(self) -> None:
        config = self.config
        with below("trainer"):
            library("pyarrow.parquet")  # by which roll-outs are written
        copies = self.run.copies
        with below("game"):
            self.game = config.game.build(None if copies is None else read_prompts(copies))
        self.servers = ServerCalls(self)
        self.seats: dict[str, TextPlayer | TextScript] = {}
        self.from_runs: dict[str, TrainedTextPlayer] = {}
        for name, each in config.players.items():
            with below(f"players.{name}"):
                self.seats[name] = self._make(name, each)
        with_models = {name: each for name, each in self.seats.items() if isinstance(each, TextPlayer)}
        own = {name for name, each in config.players.items() if isinstance(each, TextPlayerConfig)}
        self.players = {name: each for name, each in with_models.items() if name in own}
        self.learners = [self.players[name] for name in config.learners()]
        self.stage = 0  # of this epoch, the number of the next one
        self.is_imitating = any(self._imitators())
        self.waves: Waves | None = None
        self._counted: dict[str, int] = {}  # of the waves, what the counters have already
        self.rollouts, self.filed = Rollouts([]), list[int]()
        self.files = RolloutFiles(self.run, self.checkpoints)
        self.jobs: dict[str, Job | FileJob] = {}
        self.tunings = Tunings(self)
        self.statistics_of_epoch: dict[str, Any] = {}  # until they are recorded
        self.last_statistics: dict[str, Any] = {}  # those that the display shows
        self.judging = TextEvaluations(self)
        self.evaluating = make_evaluating(self.progress, self.checkpoints, self.judging)
        self.costs = TextCosts(config, self.game, {name: each.config for name, each in with_models.items()})

    def _make(self, name: str, config: Any) -> TextPlayer | TextScript:
        roles = [role for role, player in self.config.roles.items() if player == name]
        if isinstance(config, TextPlayerConfig):
            with below("model"):
                key = base_key(self.config.seed, f"model/{name}")
                model = build_model(config.model, name, key, self.device, self.servers.calls)
            if config.warm_start is not None:
                with errors_at("warm_start", "weights that fit the model"):
                    trained = self._of_another_run(name, config.warm_start)
                    trained.require_fits(config.model, model)
                    model.begin_with(trained.base, trained.weights)
            return TextPlayer(name, config, self.game, model, roles)
        if isinstance(config, FromRunConfig):
            with errors_at("from_run", "weights that fit the model"):
                trained = self._of_another_run(name, config)
                return TextPlayer(
                    name, trained.config, self.game, trained.build(self.device, self.servers.calls), roles
                )
        return make_text_script(config, self.game, roles)

    def _of_another_run(self, name: str, config: FromRunConfig) -> TrainedTextPlayer:
        copies = self.run.copies
        found = self.from_runs[name] = find_text_player(name, config, None if copies is None else copies.players)
        return found

    def before_train(self) -> None:
        for name, each in self.seats.items():
            if isinstance(each, TextPlayer) and (note := each.model.note()) is not None:
                self.log(f"players.{name}.model: {note}")
        for line in self.game.scenario.notes:
            self.log(line.strip())
        super().before_train()

    def _imitators(self) -> list[TextPlayer]:
        return [player for player in self.players.values() if player.config.imitate is not None]

    # ---- an epoch ----------------------------------------------------------------------------------------

    @classmethod
    def train_stage(cls, config: TextConfig) -> Stage:
        what = f"in each epoch the players talk about {config.num_questions:,} questions, and then learn from it"
        return Stage(what, config.stop.after, config.stop.unit)

    @classmethod
    def test_stage(cls, config: TextConfig) -> Stage:
        names = ", ".join(each.name for each in config.evaluations)
        return Stage(f"the final evaluations: {names}" if names else "no evaluation", None, "")

    def _train(self) -> None:
        try:
            if self.is_imitating:
                self._imitate()
            while self.stage < len(STAGES):
                getattr(self, f"_{STAGES[self.stage]}")()
                self.stage += 1
                count(self, stages=1)
                self.safe_point()
        except BudgetReached:
            self._count_waves()
            self._end_by_budget()
            self.safe_point()
        self.stage = 0

    def _names_due(self, before: Counters, now: Counters) -> list[str]:
        """As in Training; those of the start are due again once players have imitated."""
        due = super()._names_due(before, now)
        if self._imitators() and before["stages"] == 0 < now["stages"]:
            due = [name for name in self.evaluating.at_end() if name in {*due, *self.evaluating.at_start()}]
        return due

    def _imitate(self) -> None:
        """Tune the players that imitate a scripted one."""
        if not self.jobs:
            jobs = {player.name: player.imitation(self._imitated(player)) for player in self._imitators()}
            self.jobs = local_first({name: job for name, job in jobs.items() if job is not None})
        self.await_jobs(self.jobs)
        for player in self.players.values():
            player.model.keep_reference()
        self.is_imitating, self.jobs = False, {}
        self.tunings.forget()
        count(self, stages=1)
        self.safe_point()

    def _imitated(self, player: TextPlayer) -> Rollouts:
        """Play dialogues in which a scripted player sits in a player's roles; random ones sit in the others."""
        config = player.config.imitate
        assert config is not None
        key = base_key(self.config.seed, f"text/imitation/{player.name}")
        questions = self.game.questions(world_keys(key, config.num_questions, torch.device("cpu")), held_out=False)
        writers = {}
        for role, name in self.config.roles.items():
            script = player.imitated if name == player.name else named_script("random", self.game, [role])
            assert script is not None
            writers[role] = Writer(name, script)
        return Waves(self.game, writers, questions, 1, fold_number(key, 2**40), 0, 1).rollouts()

    def sample(self) -> Rollouts:
        """Play the dialogues of an epoch, with a safe point after each batch of answers; return their decisions."""
        if self.waves is None:
            self.waves, self._counted = self._make_waves(), {}
            self._count_waves()  # what scripted players have done before a model must answer
        waves = self.waves
        due_s = 0.0
        with self.servers.calls.kept_in(str(self.epochs)):
            while True:
                self.run.time_log.switch("play")
                is_on = waves.play_batch()
                if waves.is_waiting and time.monotonic() < due_s:
                    continue  # servers give one answer at a time
                self._count_waves()
                if not is_on:
                    break
                self.safe_point()
                due_s = time.monotonic() + PAUSE_S
        self.servers.calls.forget(str(self.epochs))
        return waves.rollouts()

    def sample_evaluation(self, name: str, waves: Waves, watch: Callable[[int], None]) -> Rollouts:
        """Play the dialogues of an evaluation, in which `sample` has no say; return the decisions that are judged.

        name: of the evaluation. watch: called with how many dialogues are over.
        """
        while waves.play_batch():
            watch(waves.num_over)
        return waves.rollouts()

    def _count_waves(self) -> None:
        """Let the counters have what was played since the last time."""
        if self.waves is not None:
            counts = self.waves.counts()
            count(self, **{name: number - self._counted.get(name, 0) for name, number in counts.items()})
            self._counted = counts

    def create_jobs(self, rollouts: Rollouts) -> dict[str, Job | FileJob]:
        """Return at most one job for each player that learns in this epoch, by its name. rollouts: `self.rollouts`."""
        found: dict[str, Job | FileJob] = {}
        for player in self.players.values():
            if player.algorithm is not None and player.config.updates.learns(self.epochs):
                key = fold_number(base_key(self.config.seed, f"text/examples/{player.name}"), self.epochs)
                if (job := player.job(rollouts, self.epochs, key)) is not None:
                    found[player.name] = job
                else:
                    self.warn(f"epoch {self.epochs} has no example from which {player.name!r} could learn")
        return found

    def rollouts_of(self, method: str, *arguments: Any) -> Rollouts:
        """Return what `sample` or `sample_evaluation` gives. Raises AlgorithmFailed for what are no roll-outs."""
        with self._telling(method):
            found = getattr(self, method)(*arguments)
            if not isinstance(found, Rollouts):
                raise AlgorithmFailed(f"{type(self).__name__}.{method}: expected Rollouts, got {cut(repr(found))}")
            if getattr(type(self), method) is not getattr(TextTrainer, method):
                Rollouts.from_parquet(found.to_parquet())  # raises for what no file of a run may hold
            return found

    def _sample(self) -> None:
        rollouts = self.rollouts_of("sample")
        with self._telling("statistics"):
            found = self.statistics_of_epoch = self.last_statistics = self.statistics(rollouts)
            for each in found.items() if isinstance(found, dict) else [found]:
                if not (isinstance(each, tuple) and isinstance(each[1], Real)):
                    expected = "expected a dict with a number for each name"
                    raise AlgorithmFailed(f"{type(self).__name__}.statistics: {expected}, got {cut(repr(each))}")
        self.files.write(str(self.epochs), rollouts, rollouts.to_parquet())
        if any(player.algorithm.all_epochs for player in self.learners):
            self.rollouts, self.filed = Rollouts([*self.rollouts.rows, *rollouts.rows]), [*self.filed, self.epochs]
        else:
            self.rollouts, self.filed = rollouts, [self.epochs]
        self.waves = None

    def _create_jobs(self) -> None:
        for player in self.players.values():
            player.chosen = []
        with self._telling("create_jobs"):
            jobs = self.create_jobs(self.rollouts)
        is_known = isinstance(jobs, dict) and jobs.keys() <= self.players.keys()
        if not is_known or not all(
            isinstance(job, FileJob) or (isinstance(job, Job) and job.examples) for job in jobs.values()
        ):
            expected = f"expected a dict with jobs of {', '.join(self.players)}, each with examples"
            raise AlgorithmFailed(f"{type(self).__name__}.create_jobs: {expected}, got {cut(repr(jobs))}")
        self.jobs = local_first(jobs)
        self.files.write_learned(self.epochs, {name: self.players[name].chosen for name in jobs})

    def await_jobs(self, jobs: Mapping[str, Job | FileJob]) -> None:
        """Tune the players.

        Servers are given all of their jobs first. Meanwhile the players of this process are tuned, one after the other,
        with a safe point after each opt step; while a server is awaited there are several in each second.
        """
        self.tunings.await_all(jobs)

    def _await_jobs(self) -> None:
        with self._telling("await_jobs"):
            self.await_jobs(self.jobs)
        self.jobs = {}
        self.tunings.forget()

    def before_step(self, player: TextPlayer) -> None:
        for callback in self.callbacks:
            callback.before_step(self, player)

    def after_step(self, player: TextPlayer, terms: Mapping[str, torch.Tensor]) -> None:
        for callback in self.callbacks:
            callback.after_step(self, player, terms)

    @contextmanager
    def _telling(self, method: str) -> Iterator[None]:
        """A context in which what a user's own class raises in a method becomes AlgorithmFailed, and names the method.

        Exceptions of palestra's own, which tell or end something, stay.
        """
        try:
            yield
        except Exception as error:
            is_own = getattr(type(self), method) is not getattr(TextTrainer, method)
            if type(error).__module__.startswith("palestra.") or not is_own:
                raise
            raise AlgorithmFailed(f"{type(self).__name__}.{method}: raises {failure(error)}") from error

    def _make_waves(self) -> Waves:
        config = self.config
        questions = self._questions()
        writers = {role: self._writer(config.roles[role]) for role in self.game.roles}
        dialogues = fold_number(fold_number(base_key(config.seed, "text/training"), self.epochs), 2**40)
        usual = (self.game, writers, questions, config.num_rollouts, dialogues, self.epochs, config.answers_at_once)
        return Waves(*usual, config.num_continuations())

    def _questions(self) -> list[Question]:
        """Draw the questions of this epoch."""
        key = fold_number(base_key(self.config.seed, "text/training"), self.epochs)
        return self.game.questions(world_keys(key, self.config.num_questions, torch.device("cpu")), held_out=False)

    def _writer(self, name: str) -> Writer:
        seat = self.seats[name]
        return seat.writer()._replace(teacher=seat.teacher) if isinstance(seat, TextPlayer) else Writer(name, seat)

    def _begin_run(self, folder: RunFolder) -> None:
        write_prompts(self.game.templates.files, folder)
        if self.run.copies is not None:
            copy_jobs(self.run.copies, folder)
        with writing(folder.path):
            for name, trained in self.from_runs.items():
                copy_text_player(name, trained, folder.players)

    def file_evaluation(self, record: dict[str, Any]) -> dict[str, Any]:
        return self.files.write_evaluation(record)

    # ---- servers, and the budget ---------------------------------------------------------------------------

    @classmethod
    def bounds(cls, config: TextConfig) -> list[str]:
        costs = TextCosts.of(config)
        return [*costs.game.scenario.notes, *costs.lines()]

    @classmethod
    def check(cls, config: TextConfig) -> None:
        """As in Training, without asking a server or for its key."""
        training = cls(config)
        check_ready(training)
        training.costs.require_affordable()
        training._require_readable()

    def require_ready(self) -> None:
        super().require_ready()
        if not self.run.resumed:
            self.costs.require_affordable()
            self._require_readable()
        if not self._has_nothing_left():
            self.servers.require_ready()

    def _require_readable(self) -> None:
        """Raise ConfigError if a model of this process cannot read what it reads first of the longest question.

        Questions are those of the first epoch, and of evaluations.
        """
        questions = self._questions()
        for name, each in self.judging.configs.items():
            questions += self.judging.questions(name, max(each.num_games, each.final_num_games))
        longest = max(questions, key=lambda each: sum(map(len, each.fields.values())))
        for variant in range(self.game.protocol.num_variants):
            dialogue = TextDialogue(self.game.protocol, longest, variant)
            while not dialogue.is_over and not dialogue.turns():
                dialogue = dialogue.after({})
            for role in dialogue.turns():
                seat = self.seats[name := self.config.roles[role]]
                if isinstance(seat, TextPlayer) and isinstance(seat.model, LocalModel):
                    try:
                        seat.model.read(self.game.prompt(dialogue, role, []))
                    except PromptRefused as error:
                        what = f"{error}, in what {role} reads first of question {longest.number}"
                        raise ConfigError.at(f"players.{name}.model", what) from error

    def require_repeatable(self) -> None:
        for name in self.servers.models():
            expected = "expected models in this process, whose answers can be repeated"
            raise RunFolderError(f"{self.run.folder.path}: {expected}, got player {name!r} behind a server")

    @contextmanager
    def train_context(self) -> Iterator[None]:
        """As in Training. A run that is over asks no server, and so needs no key."""
        with super().train_context(), self.servers.opened(self.is_between or not self._has_nothing_left()):
            yield

    def _has_nothing_left(self) -> bool:
        """Whether the run is over; before it is restored, its last checkpoint says so."""
        if self.run.resumed and not any(self.counts().values()) and self.servers.models():
            with suppress(CheckpointError):  # restoring it will say what is wrong
                latest = Checkpoints(self.run.folder, keep_last=1, keep_every=None).load("latest", check_rows=False)
                with latest.fitting():
                    return self.is_over(latest.state)
        return self.finished

    def safe_point(self) -> None:
        self.servers.before_safe_point()
        super().safe_point()

    def save(self, is_due: bool = True) -> None:
        if journals := self.servers.calls.stored():  # which the next checkpoint names
            self.checkpoints.stored.once["calls"] = journals
        super().save(is_due)

    def evaluate(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """As in Training. Where the budget leaves no room, the run ends, and what cannot be paid is left out."""
        try:
            return super().evaluate(names)
        except BudgetReached:
            self._leave_out(names)
            return []

    def _leave_out(self, names: Sequence[str]) -> None:
        self.warn(f"evaluation {', '.join(names)} is left out: {BUDGET_IS_SPENT}")
        self.is_cut = True
        self._end_by_budget()

    def _end_by_budget(self) -> None:
        """End the run, even one that is at its `stop`: with a larger budget it goes on right here."""
        self.servers.calls.let_go()  # evaluations that can still be paid are made
        if self.end_reason is None:
            self.end_reason = BUDGET_IS_SPENT
            self.log(BUDGET_IS_SPENT)

    def _test(self) -> None:
        for name in self.evaluating.at_end():
            left = self.servers.calls.ledger
            if self.end_reason == BUDGET_IS_SPENT and not left.could_begin(self.costs.evaluation(name, True).cost):
                self._leave_out([name])
            else:
                self.evaluate([name])

    def is_over(self, state: Mapping[str, Any]) -> bool:
        return super().is_over(state) and not self._has_more(state)

    def _has_more(self, state: Mapping[str, Any]) -> bool:
        """Whether the budget ended the run there, and is another one now."""
        return state["end_reason"] == BUDGET_IS_SPENT and state["budget"] != self._budget()

    def _budget(self) -> dict[str, Any] | None:
        return None if self.config.budget is None else self.config.budget.model_dump()

    # ---- what is recorded, and the state ---------------------------------------------------------------------

    def statistics(self, rollouts: Rollouts) -> dict[str, float]:
        """Return what a record says of an epoch's dialogues; an override may add to it."""
        return dialogue_statistics(rollouts, self.game.protocol)

    def recent_returns(self, role: str) -> list[float]:
        """Return what a role got in the last 100 dialogues of training, oldest first."""
        return returns_of(self.rollouts, role)[-100:]

    def _record_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"players": {name: terms.take() for name, terms in self.tunings.terms.items()}}
        statistics, self.statistics_of_epoch = self.statistics_of_epoch, {}
        return fields | ({"dialogues": statistics} if statistics else {}) | self.servers.costs()

    def fault(self, with_parameters: bool) -> str | None:
        for name, player in self.players.items():
            if not math.isfinite(loss := self.tunings.terms[name].total("loss")):  # a sum keeps a nan
                return f"players.{name}: the loss is {loss} at opt step {player.opt_steps}"
            if with_parameters and not player.model.is_finite():
                return f"players.{name}: a weight is no finite number at opt step {player.opt_steps}"
        return None

    def shown_metrics(self) -> Mapping[str, Mapping[str, float]]:
        names = ("accuracy", *(f"return/{role}" for role in self.game.roles))
        told = {name: self.last_statistics[name] for name in names if name in self.last_statistics}
        shown = {name: terms.shown() for name, terms in self.tunings.terms.items()}
        return shown | ({"dialogues": told} if told else {}) | self.servers.costs()

    def standing(self) -> Standing:
        """As in Training, with the present stage of the epoch as a task, and the stages of the epoch in the share."""
        standing = super().standing()
        if standing.stage != "train":
            return standing
        tasks = list(standing.tasks)
        if self.waves is not None:
            unit = "trees" if self.waves.num_continuations > 1 else "dialogues"
            tasks.insert(0, Task("talking", self.waves.num_over, len(self.waves.tables), unit))
        elif self.tunings.current is not None:
            name, tuning = self.tunings.current
            tasks.insert(0, Task(f"tuning {name}", tuning.num_done, tuning.num_steps, "opt steps"))
        tasks += [Task(f"job of {name}: {job.state}", 0, 1, "jobs") for name, job in self.servers.jobs.items()]
        share = standing.share
        if self.config.stop.unit == "epochs" and self.in_epoch:
            is_shown = self.waves is not None or self.tunings.current is not None
            part = (self.stage + (tasks[0].done / tasks[0].total if is_shown else 0.0)) / len(STAGES)
            share = min(share + min(part, 0.99) / self.config.stop.after, 1.0)  # an epoch is whole once it is counted
        return standing._replace(tasks=tasks, share=share)

    def state_dict(self) -> dict[str, Any]:
        own = {
            "files": dict(self.game.files),
            "players": {name: player.state_dict() for name, player in self.players.items()},
            "stage": self.stage,
            "is_imitating": self.is_imitating,
            "jobs": [[name, job.state_dict()] for name, job in self.jobs.items()],
            "waves": None if self.waves is None else self.waves.state_dict(),
            "filed": self.filed,
            "statistics": list(self.statistics_of_epoch.items()),  # a state keeps no order of keys
            "budget": self._budget(),
        }
        return super().state_dict() | own | self.tunings.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._has_more(state):
            state = state | {"end_reason": None, "finished": False}
        super().load_state_dict(state)
        with below("game"):
            require_same_files(state["files"], self.game.files)
        for name, player in self.players.items():
            player.load_state_dict(state["players"][name])
        self.stage, self.is_imitating = state["stage"], state["is_imitating"]
        self.filed, self.rollouts = state["filed"], self.files.read(state["filed"])
        self.statistics_of_epoch = dict(state["statistics"])
        if state["waves"] is not None:
            self.waves = self._make_waves()
            self.waves.load_state_dict(state["waves"])
            self._counted = self.waves.counts()
        self.jobs = {name: FileJob.from_state(j) if "file" in j else Job.from_state(j) for name, j in state["jobs"]}
        self.tunings.load_state_dict(state)
