"""Trainer: the lifecycle of a run, its counters and intervals, its safe points.

Players learn by algorithms (palestra.algorithms, one file each); the trainer gives them their turns, and handles at
safe points what is the same for all: evaluation, records, checkpoints, signals, the end.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from rich.console import Console
from torch import Tensor, nn

from palestra.algorithms.algorithm import Turn
from palestra.buffers.memory import NoRoom
from palestra.callbacks import Callback, make_callback
from palestra.config import ConfigError, ConfigErrorItem, PartError, trusting
from palestra.evaluation.config import EvaluationConfig
from palestra.evaluation.evaluations import BestScore
from palestra.evaluation.evaluator import Interrupted
from palestra.games import make_game
from palestra.games.gymnasium import EnvironmentFailed
from palestra.players.player import Metrics, Player
from palestra.recording import make_recorders
from palestra.recording.recorders import Recorder, Status
from palestra.recording.values import Recordable
from palestra.rollouts import fuse
from palestra.rollouts.transitions import Transitions
from palestra.runs.async_evaluations import make_evaluating
from palestra.runs.branching import (
    begins_anew,
    branched_config,
    changes_since,
    note,
    require_same_experiment,
    run_of,
    stored_config,
    tree_differences,
)
from palestra.runs.config import RunConfig, read_config, read_stored_config
from palestra.runs.evaluations import COUNTERS, Occasion, steps_of
from palestra.runs.output import RunOutput, default_folder
from palestra.runs.parts import keep_players, make_players, warm_start
from palestra.runs.stored import make_evaluations
from palestra.runs.user_nets import give_nets
from palestra.runtime.clock import Mark, TrainingClock
from palestra.runtime.intervals import Agenda, Counters, Interval
from palestra.runtime.signals import StopSignals
from palestra.runtime.threads import CompilingNotice, frozen_garbage, limited_threads, memory_needed
from palestra.runtime.timing import Phase, TimeLog
from palestra.storage.checkpoints import CheckpointError, LoadedCheckpoint, checkpoint_folder
from palestra.storage.disk import RunFolderError, write_traceback
from palestra.storage.fetching import fetch, is_url
from palestra.storage.remote import RemoteError
from palestra.storage.run_folder import RunFolder
from palestra.training.checks import (
    check_checkpoint_folder,
    check_scratch_folders,
    fault_of_losses,
    fault_of_parameters,
)
from palestra.training.metrics import Gathered
from palestra.training.progress import View

LOOK_INTERVAL = Interval(every=256, unit="opt_steps")  # between looks at the loss: on a GPU each is a wait
PARTS = {
    "net": "nets",
    "optimizer": "optimizers",
    "lr_scheduler": "lr_schedule",
    "er_scheduler": "er_schedule",
    "replay_buffer": "replay_buffer",
}


class TrainingFailed(RuntimeError):
    """Training cannot go on (a loss that is no number, a disk without room, an environment that raised). The last
    checkpoint stands.

    why: what has happened. left: what stands, and where more is written.
    """

    def __init__(self, why: str, *left: str) -> None:
        super().__init__("; ".join([why, *left]))
        self.why = why


class TrainingEnds(Exception):
    """Raised by a safe point to leave the loops: the run is done, or a signal asked to leave."""


class PlayerTurn(Turn):
    """The trainer, as seen by the algorithm of the player whose turn it is."""

    def __init__(self, trainer: "Trainer", player: Player) -> None:
        super().__init__(player)
        self.trainer = trainer

    def collect(self, num_rounds: int) -> Transitions:
        return self.trainer._roll_out(self.player.roles[0], num_rounds)

    def before_step(self) -> None:
        self.trainer.before_step(self.player)

    def after_step(self, metrics: Metrics, num_opt_steps: int = 1) -> None:
        self.trainer._count_opt_steps(self.player, num_opt_steps - 1)  # the hook counts the last one
        self.trainer.after_step(self.player, metrics)
        if not self._open:
            self.safe_point()

    def safe_point(self) -> None:
        self.trainer.safe_point()


class Trainer:
    """Trains the players of a config.

    config: a path, a mapping or a RunConfig. run: the run's folder, which must not exist; None: runs/<name>-<n>.
    callbacks: more of them, beside the config's. origin: the checkpoint that the run branches off, as `branch` has it.

    May be overridden: `_train`, and every hook (`before_train`, `before_epoch`, `before_step`, `after_step`,
    `after_evaluation`, `after_epoch`, `after_train`); an override calls its parent. Nothing must be implemented.
    """

    time_log_type: ClassVar[type[TimeLog]] = TimeLog

    def __init__(
        self,
        config: str | Path | dict[str, Any] | RunConfig,
        run: str | Path | RunFolder | None = None,
        overrides: Sequence[str] = (),
        callbacks: Sequence[Callback] = (),
        console: Console | None = None,
        origin: Path | None = None,
    ) -> None:
        self.run, self.resumed = run, isinstance(run, RunFolder)
        self.origin = origin
        with trusting(not self.resumed and origin is None):  # who trains by a config of their own means what it names
            self.config = read_config(config, tuple(overrides))
        self.name = Path(config).stem if isinstance(config, str | Path) else "run"
        self.console = console or Console()
        self.output: RunOutput | None = None
        self._compiling = CompilingNotice(self._say)
        self.device = find_device(self.config.execution.device)
        self.time_log = self.time_log_type(self.device)
        self.game = make_game(self.config.game, self.device, self.config.execution.kernel)
        source = run if isinstance(run, RunFolder) else None if origin is None else run_of(origin)
        self.kept = None if source is None else source.players  # players of other runs, as they were when it began
        # orthogonal weights depend on the number of threads
        with limited_threads(self.config.execution.num_threads), self._compiling.given():
            self.players = make_players(self.config, self.game, self.kept)
        self.learners = [player for player in self.players.values() if player.learning]
        if source is None or (origin is None and begins_anew(source)):
            for player in self.learners:
                warm_start(player, self.config)
        self.fused_game: Any = fuse(self.game)  # a FusedGame or a SoloGame, each with worlds of its own kind
        for player in self.learners:
            with memory_needed("num_worlds"):
                player.worlds = self.fused_game.new_worlds(
                    self.config.num_worlds, self.config.seed, f"player/{player.name}/play"
                )
        self._share_time_log()
        self.callbacks = [*map(make_callback, self.config.callbacks), *callbacks]
        self.set_in_python: list[str] = []  # calls that gave objects which no config names
        self.loggers: dict[str, Recorder] = {}
        self.env_steps = self.opt_steps = self.epochs = self.episodes = 0
        self.turn = 0
        self.in_epoch = False
        self.epoch_counts = {"roll_outs": 0, "updates": 0}
        self.gathered = Gathered(self.config.output, self.learners)
        self.evaluations = make_evaluations(self.config, self.game, self.players)
        self.evaluating = make_evaluating(self.config, self.evaluations)
        self.best = None if self.config.best is None else BestScore(self.config.best, self.config.evaluations)
        self.finished = self._has_branched_off = False
        self.end_reason: str | None = None  # of an end before the config's `stop`
        self.clock, self.signals = TrainingClock(), StopSignals()
        self.save_failure: CheckpointError | None = None  # of the last save
        self._is_best = False
        self._told_inexact: set[str] = set()
        self.checked: Counters = self.counters
        output, intervals = self.config.output, [evaluation.interval for evaluation in self.config.evaluations]
        self._agenda = Agenda(self.config.stop, [*intervals, output.record, output.save, LOOK_INTERVAL])
        self._recorded = Mark(0.0, 0, 0)
        self.view = View(self)

    def set_model(self, role: str, nets: nn.Module | Mapping[str, nn.Module | Sequence[nn.Module]]) -> None:
        """Let the player in that seat learn with networks of your own, in place of those that the config names. Before
        `fit`, and again after `Trainer.load`; all of a player's at once. Not with `evaluators`, which build them again.

        nets: each maps an observation, a dict of tensors (B, ...), to (B, K), or is a RecurrentNet; by where their
        configs stand below the algorithm, as net, body.policy, critic_net (a list for several critics). A lone one
        takes the first place, that of the network which acts. They begin as they are. Raises ConfigError where they do
        not fit, ValueError for names that are no networks' and for players that do not learn.
        """
        self._require_unopened("set_model")
        if self.config.evaluators is not None:
            message = "another process cannot build networks that no config names; expected null"
            raise ConfigError([ConfigErrorItem("evaluators", message)])
        give_nets(self.player_of(role), self.config, nets)
        self._share_time_log()
        self._set_in_python(f"set_model({role!r}, ...)")

    def set_logger(self, recorder: Recorder) -> None:
        """Let a recorder of your own file the records, beside the config's. Before `fit`, and again after
        `Trainer.load`."""
        self._require_unopened("set_logger")
        name = type(recorder).__name__
        self.loggers[name] = recorder
        self._set_in_python(f"set_logger({name}(...))")

    def _require_unopened(self, call: str) -> None:
        if self.output is not None:
            raise RuntimeError(f"{call} comes too late: the run has begun; call it before fit()")

    def _set_in_python(self, call: str) -> None:
        self.set_in_python = sorted({*self.set_in_python, call})

    def _share_time_log(self) -> None:
        for player in self.learners:
            if player.replay_buffer is not None:
                player.replay_buffer.time_log = self.time_log

    # ---- the lifecycle ---------------------------------------------------------------------------------

    def fit(self) -> None:
        """Train until the config's `stop`, `end_run`, or until a signal asks to leave; `signals.received` tells which.

        A run that was loaded goes on where its last checkpoint stands. Raises TrainingFailed if a loss is no number or
        an environment fails (its traceback stands in the run's failure.txt), RunFolderError or CheckpointError where
        the disk refuses; if that was the last checkpoint, after all is done.
        """
        self.require_ready()
        self._has_left = False
        with self._no_failed_branch(), self._opened() as output:
            try:
                self.before_train()
                while not self.finished:
                    if not self.in_epoch:
                        self.in_epoch = True
                        self.epoch_counts = {"roll_outs": 0, "updates": 0}
                        self.before_epoch()
                    self._train()
                    self.epochs += 1
                    self.in_epoch = False
                    self.after_epoch()
                    self.safe_point()
            except TrainingEnds:
                self.after_train()
                self._note_end()
                output.finish(self._status())
                unsent = self._finish_mirror()
                output.conclude(self.view.progress(), with_plot=self.signals.received is None)
                failure = self.save_failure or unsent
                if failure is not None:
                    raise failure from None
            except NoRoom as error:
                raise TrainingFailed(str(error), self._what_stands()) from error
            except EnvironmentFailed as error:
                traceback = write_traceback(output.folder.root, error)
                raise TrainingFailed(str(error), self._what_stands(), traceback) from error

    def require_ready(self) -> None:
        """Raise ConfigError for what training would fail at, before anything is written."""
        check_scratch_folders(self.config)
        if not self.resumed:
            check_checkpoint_folder(self.config)
        self._check_callbacks()

    def _train(self) -> None:
        """One epoch: every learning player takes its turn. The attribute `turn` remembers whose it is."""
        while self.turn < len(self.learners):
            PlayerTurn(self, self.learners[self.turn]).run()
            self.turn += 1
        self.turn = 0

    def safe_point(self) -> None:
        """Do what is due: evaluate, record, save; then leave if the run is done or a signal came.

        Only called where all state lies in objects. Due is what has an interval of which a multiple was reached since
        the last safe point. A signal does not wait for an evaluation: the run is saved as it was before this safe
        point, and a resumed run begins with it.
        """
        self.time_log.switch("other")
        is_asked = self.signals.received is not None or self.end_reason is not None
        if not is_asked and self._agenda.waits(self.opt_steps, self.env_steps, self.epochs, self.clock):
            self.view.show()
            return
        config, before, now = self.config, self.checked, self.counters
        done = self.end_reason is not None or config.stop.share(now) >= 1.0
        self._check_finite()
        try:
            self.evaluate([each for each in config.evaluations if done or _due(each.interval, before, now)], done)
            if done or _due(config.output.record, before, now):
                self.record(self.end_reason if done else None)
            self.checked, self.finished = now, done
            self._agenda.set(now, self.evaluating.due())
            is_candidate = steps_of(self._counts()) in self.evaluating.candidates()
            due = done or self._is_best or is_candidate or _due(config.output.save, before, now)
        except Interrupted:
            due = False
        leaving = self.signals.received is not None  # asked once: who leaves has saved
        if config.output.save is not None and (due or leaving):
            self.save(due)
        elif config.output.save is not None:
            with self.clock.paused(), self.time_log.during("saving"):
                self._output().checkpoints.write_ahead(self._buffers())
        self.view.show()
        if self.finished or leaving:
            self._has_left = True
            raise TrainingEnds

    def end_run(self, reason: str) -> None:
        """End the run before its `stop`, as complete, at the next safe point; the first reason counts."""
        if self.end_reason is None and self.config.stop.share(self.counters) < 1.0:
            self.end_reason = reason
            self.log(reason)

    def _note_end(self) -> None:
        if self.finished and self.end_reason is not None:
            self._output().note_end(self.end_reason)

    def log(self, line: str) -> None:
        """Show a line that stays."""
        self._output().display.log(line)

    def _say(self, line: str) -> None:
        """The same, also before the run has an output."""
        if self.output is not None:
            self.log(line)
        elif self.config.output.display != "quiet":
            self.console.print(line, soft_wrap=True)

    def _status(self) -> Status:
        """How the run ends, where nothing was raised on the way."""
        if self.save_failure is not None:
            return "failed"
        return "complete" if self.finished else "interrupted"

    # ---- hooks -----------------------------------------------------------------------------------------

    def before_train(self) -> None:
        """Restore the last checkpoint, or evaluate once and write checkpoint 0. A second `fit` finds all in memory."""
        self.view.begin()
        output = self._output()
        for player in self.learners:
            assert player.algorithm is not None
            for line in player.algorithm.begin_run():
                output.display.log(f"players.{player.name}: {line}")
        is_fresh = self.opt_steps == 0 and self.env_steps == 0
        if output.checkpoints.numbers() and is_fresh:
            self.restore("latest")
        elif is_fresh:
            output.rewind(None)
            origin = output.origin()
            if origin is not None:
                self._branch_off(origin)
            elif self.resumed:
                output.display.log(f"{output.folder.path} has no checkpoint: it starts at 0")
        for callback in self.callbacks:
            callback.before_train(self)
        if self.finished:  # but a recorder may not have heard it
            self._note_end()
            output.feed({name: self._recorders[name] for name in output.unfiled() if name in self._recorders})
            output.finish(self._status())
            return
        output.feed(self._recorders)
        if is_fresh and not output.checkpoints.numbers():
            try:
                self.evaluate(self.config.evaluations, False)
            except Interrupted:
                raise TrainingEnds from None
            self._agenda.set(self.checked, self.evaluating.due())
            if self.config.output.save is not None:
                self.save()
        self.safe_point()

    def before_epoch(self) -> None:
        for callback in self.callbacks:
            callback.before_epoch(self)

    def before_step(self, player: Player) -> None:
        for callback in self.callbacks:
            callback.before_step(self, player)
        self.time_log.switch("update")

    def after_step(self, player: Player, metrics: Metrics) -> None:
        """Count an opt step and add up its metrics. Called once for a group of opt steps that were made at once."""
        self.time_log.switch("other")
        self._count_opt_steps(player, 1)
        self.gathered.metrics[player.name].add(metrics)
        for callback in self.callbacks:
            callback.after_step(self, player, metrics)

    def after_evaluation(self, record: Mapping[str, Any]) -> None:
        for callback in self.callbacks:
            callback.after_evaluation(self, record)

    def after_epoch(self) -> None:
        for callback in self.callbacks:
            callback.after_epoch(self)

    def after_train(self) -> None:
        for callback in self.callbacks:
            callback.after_train(self)

    # ---- what is done at safe points -------------------------------------------------------------------

    def evaluate(self, evaluations: Sequence[EvaluationConfig], is_final: bool) -> None:
        """Play evaluations apart from training, and write the records of those that count now. Raises Interrupted, and
        writes none, if a signal comes.

        Pairings of scripted players alone are played at the start and at the end: they do not change.
        """
        names, with_scripted = [each.name for each in evaluations], is_final or self.opt_steps == 0
        occasion = Occasion(names, with_scripted, is_final, self._counts())
        with self.clock.paused(), self.time_log.during("evaluation"):
            records = self.evaluating.results(occasion, self.view, lambda: self.signals.received is not None)
        for record in records:
            self._output().write(record)
            if record["kind"] == "evaluation":  # not one that has failed
                self._keep_best(record)
                self.after_evaluation(record)
        self.view.tell_news()

    def _keep_best(self, record: Mapping[str, Any]) -> None:
        """If it is better than all before, let the checkpoint of its players be the best: the one that is saved at this
        safe point, or an earlier one that was kept until now."""
        if self.best is None or not self.best.improves(record):
            return
        if steps_of(record) == steps_of(self._counts()):
            self._is_best = True
        elif self.config.output.save is not None:
            self._mark_best(self.best, steps_of(record))

    def _mark_best(self, best: BestScore, steps: Mapping[str, int]) -> None:
        """Let an earlier checkpoint be the best."""
        try:
            self._output().mark_best(steps)
        except CheckpointError as error:
            best.take_back()
            self._output().display.error(f"{error}; training goes on")

    def record(self, ended: str | None = None) -> None:
        """Write what has been gathered since the last record, and the training's own episodes.

        ended: why the run ends before its `stop`.
        """
        players = {}
        for player in self.learners:
            assert player.worlds is not None
            totals = self.fused_game.take_totals(player.worlds)
            episodes = totals.pop("episodes")
            self.episodes += int(episodes)
            means = {name: value / episodes for name, value in totals.items()} if episodes else {}
            players[player.name] = {
                "env_steps": player.env_steps,
                "opt_steps": player.opt_steps,
                **player.rates(),
                **self.gathered.take(player.name),
                "episodes": {"number": int(episodes), **means},
            }
            if not self.fused_game.is_exact(player.worlds):
                players[player.name]["inexact"] = True
                self._tell_inexact(player)
        rates = {f"{name}_per_s": rate for name, rate in self._recorded.rates(self._mark()).items()}
        clock = {"train_seconds": self.clock.seconds, **rates, "time": self.time_log.take()}
        self._recorded = self._mark()
        notes = self.gathered.notes.take()
        noted = {"notes": notes} if notes else {}
        why = {} if ended is None else {"ended": ended}
        told = {"players": players, **noted, **why, "clock": clock}
        self._output().write({"kind": "training", **self._counts(), **told})
        if self.episodes or self.config.stop.share(self.counters) >= 1.0 or why:  # many fields come at an end alone
            for line in self.gathered.news():
                self._output().display.error(line)

    def note(self, name: str, value: Recordable) -> None:
        """Put a value into the next record, as notes/NAME: a number (of several the statistics of `output.statistics`),
        an array (a histogram), a text, a date-time, an Image or a Video of palestra.recording (the last one). Raises
        TypeError or ValueError for what cannot be recorded."""
        self.gathered.notes.add({name: value})

    def _tell_inexact(self, player: Player) -> None:
        if player.name not in self._told_inexact:
            self._told_inexact.add(player.name)
            where = f"the environments of player {player.name!r} could not be brought back as they were"
            self._output().display.error(f"{where}: new episodes began, and equal bits are not promised")

    def save(self, is_due: bool = True) -> None:
        """Write a checkpoint; the best one, if the last evaluation was better than all before. Where the disk refuses,
        the display says so, and training goes on; a failed last save makes `fit` raise at the end.

        is_due: one that is not, since somebody stops here, uses up no number: the next one that is takes its place.
        """
        self._check_finite()
        self._raise_for(fault_of_parameters(self.learners, self.fused_game))
        output, is_best = self._output(), self._is_best
        self._is_best = False
        with self._apart("saving", "saving"):
            try:
                state = self.state_dict() | {"is_best": is_best, "config": stored_config(self.config)}
                output.save(state, self._counts(), self._buffers(), is_best, is_due)
                self.save_failure = None
            except CheckpointError as error:  # the disk may have room again by the next time
                self.save_failure = error
                if is_best and self.best is not None:
                    self.best.take_back()
                output.display.error(f"{error}; training goes on")

    def _finish_mirror(self) -> RemoteError | None:
        """Wait for the last upload, if there is a mirror; gives its error, if it failed."""
        if self._output().mirror is None:
            return None
        with self._apart("waiting for the mirror", "saving"):
            try:
                self._output().finish_mirror()
            except RemoteError as error:
                return error
        return None

    def _check_finite(self) -> None:
        self._raise_for(fault_of_losses(self.learners, self.gathered.metrics, self.fused_game))

    def _raise_for(self, fault: str | None) -> None:
        if fault is not None:
            raise TrainingFailed(fault, self._what_stands())

    def _check_callbacks(self) -> None:
        for callback in self.callbacks:
            try:
                callback.check(self)
            except PartError as error:
                raise error.within(self.config, "") from error

    def _what_stands(self) -> str:
        folder, numbers = self._output().folder.path, self._output().checkpoints.numbers()
        return f"checkpoint {numbers[-1]:08d} stands: palestra resume {folder}" if numbers else "nothing was saved"

    # ---- state -----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything but the rows of replay buffers."""
        # Players before the game: worlds open at the first look, and the game's statistics learn from their beginnings.
        players = {name: player.state_dict() for name, player in self.players.items() if player.algorithm is not None}
        return {
            "counters": self._counts(),
            "checked": {name: value for name, value in self.checked.items() if name != "minutes"},
            "turn": self.turn,
            "in_epoch": self.in_epoch,
            "epoch_counts": dict(self.epoch_counts),
            "gathered": self.gathered.state_dict(),
            "best_score": None if self.best is None else self.best.value,
            "is_best": self._is_best,
            "evaluating": self.evaluating.state_dict(),
            "finished": self.finished,
            "end_reason": self.end_reason,
            "game": self.game.state_dict(),
            "players": players,
            "callbacks": [callback.state_dict() for callback in self.callbacks],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("turn", "in_epoch", "epoch_counts"):
            setattr(self, name, state[name])
        self.checked = {**state["checked"], "minutes": self.clock.seconds / 60}
        self.evaluating.load_state_dict(state["evaluating"])
        self._agenda.set(self.checked, self.evaluating.due())
        self.end_reason = state["end_reason"]
        is_over = self.end_reason is not None or self.config.stop.share(self.checked) >= 1.0  # or it was extended
        self.finished = state["finished"] and is_over
        self.gathered.load_state_dict(state["gathered"], self.device)
        if self.best is not None:
            self.best.value = state["best_score"]
        self.game.load_state_dict(state["game"])
        self._load_players(state)
        if len(state["callbacks"]) != len(self.callbacks):
            raise CheckpointError(
                f"the run was saved with {len(state['callbacks'])} callbacks, {len(self.callbacks)} are here; "
                "give Trainer.load or Trainer.branch those that the run was started with"
            )
        for callback, callback_state in zip(self.callbacks, state["callbacks"], strict=True):
            callback.load_state_dict(callback_state)

    def _load_players(self, state: dict[str, Any]) -> None:
        for name in COUNTERS:
            setattr(self, name, state["counters"][name])
        for name, player_state in state["players"].items():
            self.players[name].load_state_dict(player_state)

    def restore(self, which: str) -> None:
        """Go back to a checkpoint of this run: state, buffers, and the records up to it."""
        output = self._output()
        loaded = output.checkpoints.load(which)
        require_same_experiment(loaded, self.config)
        with loaded.fitting():
            self._go_back_to(loaded)
        for line in [*loaded.warnings, *output.differences(loaded), *self._other_kernels(loaded)]:
            output.display.warn(line)
        end = "it is finished" if self.finished else "it goes on from there"
        output.display.log(f"{output.folder.path}: checkpoint {loaded.folder.name}, opt step {self.opt_steps}; {end}")

    def _other_kernels(self, loaded: LoadedCheckpoint) -> Iterator[str]:
        """A line for each of a player's kernels that ran when the checkpoint was written and does not now, or the other
        way round."""
        for player in self.learners:
            assert player.algorithm is not None
            before, now = loaded.state["players"][player.name]["kernels"], player.algorithm.kernels_in_use()
            for key, was, is_now in tree_differences(before, now, f"players.{player.name}"):
                yield f"{key} was {was}, is {is_now}; equal bits are not promised"

    def _go_back_to(self, loaded: LoadedCheckpoint) -> None:
        output = self._output()
        output.rewind(loaded)
        self.clock.set_before(output.train_seconds())
        self.time_log.set_before(output.time_by_phase())
        self._take_over(loaded, loaded.state)
        if loaded.state["is_best"]:  # a kill may have come before it was marked
            output.checkpoints.mark_best(loaded.folder.name)
        output.catch_up_mirror()
        self._recorded = self._mark()
        self.view.begin()

    def _take_over(self, loaded: LoadedCheckpoint, state: dict[str, Any]) -> None:
        """Buffers and state of a checkpoint."""
        self._output().checkpoints.restore_buffers(loaded, self._buffers())
        self.load_state_dict(state)

    def _branch_off(self, origin: Path) -> None:
        """Begin with the state of another run's checkpoint; records and best score are this run's own."""
        output = self._output()
        loaded = output.checkpoints.load(origin)
        with loaded.fitting():
            # the schedules are those of its config
            players = {name: state | {"schedules": {}} for name, state in loaded.state["players"].items()}
            new_callbacks = self.callbacks[len(loaded.state["callbacks"]) :]
            callbacks = [*loaded.state["callbacks"], *(callback.state_dict() for callback in new_callbacks)]
            own: dict[str, Any] = {"best_score": None, "evaluating": [], "end_reason": None}
            self._take_over(loaded, loaded.state | own | {"players": players, "callbacks": callbacks})
        for callback in self.callbacks:
            callback.begin_branch()
        self.finished = False  # who branches off a run's end gets a run of one evaluation
        self._recorded = self._mark()
        self.view.begin()
        note(output.folder, changes_since(origin, self.config), loaded.counters)
        self._has_branched_off = True
        output.display.log(f"{output.folder.path} branches off {origin}, opt step {self.opt_steps}")

    @classmethod
    def branch(
        cls,
        checkpoint: str | Path,
        overrides: Sequence[str],
        run: str | Path | None = None,
        callbacks: Sequence[Callback] = (),
        console: Console | None = None,
        trust: bool = False,
    ) -> Self:
        """The trainer of a new run that begins with the state of a checkpoint and a changed config.

        checkpoint: its folder, or the file `latest` or `best` beside it. callbacks: those that its run was started with
        beside the config's, which get their state back; further ones begin anew. What changes stands in the new run's
        changes.jsonl. trust: as in `load`. Raises ConfigError for a change that the state does not allow,
        MissingCheckpointError.
        """
        run_of(Path(checkpoint))  # there is one
        origin = checkpoint_folder(Path(checkpoint))
        with trusting(trust):
            config = branched_config(origin, overrides, RunConfig)
            trainer = cls(config, run=run, callbacks=callbacks, console=console, origin=origin)
        trainer.name = f"{run_of(origin).path.name}-branch"
        return trainer

    @classmethod
    def load(
        cls,
        run: str | Path,
        callbacks: Sequence[Callback] = (),
        console: Console | None = None,
        into: str | Path | None = None,
        trust: bool = False,
    ) -> Self:
        """The trainer of a run, from its folder. `fit` goes on where its last checkpoint stands.

        run: the folder, or the URL of its mirror, which is fetched into a new folder: `into`, or where that is None
        runs/<the last part of the URL>. callbacks: those that the run was started with beside the config's; they get
        their state back. trust: whether the modules that the run names are trusted from now on. Raises UntrustedError
        for those that are not.
        """
        if is_url(run):
            folder, warnings = fetch(str(run), None if into is None else Path(into))
            for line in warnings:
                (console or Console()).print(line, soft_wrap=True)
        elif into is not None:
            raise RunFolderError(f"{run} is a folder: the run goes on there; expected no --run")
        else:
            folder = RunFolder.open(Path(run))
            folder.require_plain()
        with trusting(trust):
            config = read_stored_config(folder.config)
            trainer = cls(config, run=folder, callbacks=callbacks, console=console)
        trainer.name = folder.path.name
        return trainer

    def _buffers(self) -> dict[str, Any]:
        return {p.name: p.replay_buffer for p in self.learners if p.replay_buffer is not None}

    def _count_opt_steps(self, player: Player, num: int) -> None:
        player.opt_steps += num
        self.opt_steps += num
        self.epoch_counts["updates"] += num

    # ---- playing ---------------------------------------------------------------------------------------

    def _roll_out(self, role: str, num_rounds: int) -> Transitions:
        """Play the worlds of the player in that seat on, and give its experience; counts env steps.

        All learning players explore, so that each also meets moves that its opponent would not choose by itself.
        """
        player = self.player_of(role)
        assert player.worlds is not None
        self.time_log.switch("play")
        seats = {seat: self.player_of(seat) for seat in self.game.roles}
        self.fused_game.policies = {seat: sitter.policy(explore=sitter.learning) for seat, sitter in seats.items()}
        transitions = self.fused_game.collect(player.worlds, player.roles, num_rounds)
        num_steps = num_rounds * self.config.num_worlds
        player.env_steps += num_steps
        self.env_steps += num_steps
        self.epoch_counts["roll_outs"] += 1
        self.time_log.switch("memory")
        return transitions

    def set_training(self, training: bool) -> None:
        """Switch the networks of all learning players between training and evaluation mode."""
        for player in self.learners:
            player.set_training(training)

    def player_of(self, role: str) -> Player:
        """The player who sits in a role."""
        return self.players[self.config.roles[role]]

    def recent_returns(self, role: str) -> list[float]:
        """Returns of the last 100 games that have finished in the worlds of the player in that seat, oldest first:
        those of training, exploration and all. Of the environment's own rewards. Waits for a GPU."""
        returns: Tensor = self.fused_game.recent_returns(self.player_of(role).worlds)
        return returns[:, self.game.roles.index(role)].tolist()

    def __getattr__(self, name: str) -> Any:
        """`host_net`, `host_optimizer`, `host_lr_scheduler`, `host_er_scheduler`, `host_replay_buffer`, and so for
        each role: the part of the player in that seat."""
        role, _, part = name.partition("_")
        if role in self.__dict__.get("config", _NoConfig).roles and part in PARTS:
            found = getattr(self.player_of(role), PARTS[part])
            return next(iter(found.values()), None) if isinstance(found, dict) else found
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    # ---- time, threads, output -------------------------------------------------------------------------

    @property
    def counters(self) -> Counters:
        """What intervals and limits count."""
        minutes = self.clock.seconds / 60
        return {"opt_steps": self.opt_steps, "env_steps": self.env_steps, "epochs": self.epochs, "minutes": minutes}

    def _counts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in COUNTERS}

    def _mark(self) -> Mark:
        return Mark(self.clock.seconds, self.env_steps, self.opt_steps)

    @contextmanager
    def _apart(self, what: str, phase: Phase) -> Iterator[None]:
        """Stop the clock of training while something else goes on."""
        with self.view.during(what, []), self.clock.paused(), self.time_log.during(phase):
            yield

    @contextmanager
    def _no_failed_branch(self) -> Iterator[None]:
        """Remove the new folder of a branch that could not take over the state of its checkpoint."""
        try:
            yield
        except BaseException:
            is_branch = self.origin is not None and not self.resumed
            if is_branch and not self._has_branched_off and isinstance(self.run, RunFolder):
                self.run.discard()
            raise

    @contextmanager
    def _opened(self) -> Iterator[RunOutput]:
        """The run's folder, recorders, threads and signal handlers, for the time of one `fit`."""
        # before the folder: an extra may be missing
        self._recorders = make_recorders(self.config.output.recorders) | self.loggers
        if self.output is None:
            if self.config.output.mirror is not None and not self.resumed:
                self.config.output.mirror.require_backend()  # before there is a folder
            folder = self.run if isinstance(self.run, RunFolder) else default_folder(self.run, self.name)
            self.run = folder
            if self.resumed:
                if folder.facts().set_in_python != self.set_in_python:
                    raise folder.not_rebuildable()
                self.output = RunOutput(folder, self.config, self.console)
            else:
                # first: a folder with a config is a run
                keep_players(self.config, self.players, folder.players, self.kept)
                self.output = RunOutput.create(folder, self.config, self.console, self.origin, self.set_in_python)
            self.output.candidates = self.evaluating.candidates
        try:
            with (
                limited_threads(self.config.execution.num_threads),
                frozen_garbage(),
                self._compiling.given(),
                self.signals.caught(self.config.output.stop_within_s, self._before_exit),
                self.output.opened(),
                self.evaluating.opened(self.output.folder),
                self.clock.running(),
                self.time_log.running(),
            ):
                if self.set_in_python:
                    self.log(f"not to be rebuilt from its config: {', '.join(self.set_in_python)} gave it objects")
                yield self.output
        finally:
            self.game.close()

    def _before_exit(self, why: str) -> None:
        """Called from another thread; the main one may be anywhere."""
        is_saved = self._has_left and self.config.output.save is not None and self.save_failure is None
        left = f"left {'after' if is_saved else 'without'} saving"
        print(f"{why}; {left}; palestra resume {getattr(self.run, 'path', self.run)}", file=sys.__stderr__, flush=True)

    def _output(self) -> RunOutput:
        if self.output is None:
            raise RuntimeError("the run has no folder yet: call fit() first")
        return self.output


class _NoConfig:
    roles: ClassVar[dict[str, str]] = {}


def find_device(name: str) -> torch.device:
    """Raises ConfigError for a device that this machine lacks."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).splitlines()[0].partition(". ")[0]
        raise ConfigError([ConfigErrorItem("execution.device", f"{name!r} cannot be used here: {why}")]) from error


def _due(interval: Interval | None, before: Counters, now: Counters) -> bool:
    return interval is not None and interval.due(before, now)
