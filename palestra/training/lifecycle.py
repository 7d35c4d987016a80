"""The lifecycle of a training: fit, hooks, safe points, counters, records. It knows no game and no player.

A subclass says what an epoch does (`_train`), what is counted (`counter_names`), and what else is evaluated, recorded
and saved. The subclass `palestra.training.trainer.Trainer` trains players in games.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

from palestra.buffers.memory import NoRoom
from palestra.buffers.replay import ReplayBuffer
from palestra.config import PartError
from palestra.recording.aggregates import Aggregates
from palestra.recording.recorders import Status
from palestra.recording.results import Task
from palestra.recording.values import Recordable
from palestra.runs.config import BaseRunConfig
from palestra.runs.output import RunOutput
from palestra.runtime.counter import count, set_counts
from palestra.runtime.intervals import Agenda, Counters, Interval, is_due, read_limit
from palestra.runtime.signals import Interrupted
from palestra.storage.checkpoints import CheckpointError
from palestra.storage.disk import write_traceback
from palestra.training.checkpointing import Checkpointing
from palestra.training.checks import TrainingFailed, branch_hint, check_checkpoint_folder, resume_hint
from palestra.training.evaluating import Evaluating
from palestra.training.interface import TrainingEnds, Watcher
from palestra.training.progress import ProgressReporter
from palestra.training.stages import Stages

LOOK_INTERVAL = Interval(every=256, unit="opt_steps")  # between checks of the loss: on a GPU each one waits


class Lifecycle(Stages):
    """What every training does, whatever it trains.

    epoch_counter_names: the keys of `epoch_counts`, which are set to 0 when an epoch begins. failures: exceptions of
    parts (of an environment, say) that end the run as failed.
    extra_state: what a `_train` of your own remembers from one safe point to the next: numbers, texts, tensors, lists
    and dicts of these. Checkpoints hold it.
    """

    run_config: ClassVar[type[BaseRunConfig]] = BaseRunConfig
    epoch_counter_names: ClassVar[tuple[str, ...]] = ("updates",)
    failures: ClassVar[tuple[type[Exception], ...]] = ()

    def _build(self) -> None:
        self.watcher: Watcher | None = None
        set_counts(self, **dict.fromkeys(self.counter_names, 0))
        self.in_epoch = False
        self.epoch_counts = dict.fromkeys(self.epoch_counter_names, 0)
        self.extra_state: dict[str, Any] = {}
        self.notes = Aggregates(self.config.output.statistics)
        self.finished = self._has_left = False
        self.end_reason: str | None = None  # of an end before the config's `stop`
        self.evaluating: Evaluating = Evaluating()
        self.checkpointing = Checkpointing(self)
        self.checked: Counters = self.counters  # at the last safe point where anything was due
        self._recorded = self.mark()
        self.progress = ProgressReporter(self)

    # ---- the lifecycle ---------------------------------------------------------------------------------

    def fit(self, num_steps: float | None = None, unit: str | None = None) -> None:
        """Train until the config's `stop`, until `end_run`, or until a signal (`signals.received`) asks to leave.

        num_steps, unit: train for so many more opt_steps, env_steps, epochs or minutes, but not beyond `stop`. The run
        is then saved, and the next `fit` goes on to the same bits as if there had been no pause. None: until `stop`.
        A run that was loaded goes on from its last checkpoint; if it is finished, its mirror gets what it lacks. Raises
        TrainingFailed if a loss is not finite or if an environment fails (failure.txt in the run's folder has the
        traceback), RunFolderError or CheckpointError if the disk refuses; for the last or the best checkpoint and the
        mirror, CheckpointError comes after everything else is done. ValueError for a number or a unit that is none.
        """
        self._more = read_limit(num_steps, unit, self.config.units)
        self.require_ready()
        self._has_left = False
        with self.checkpointing.removing_failed_branch(), self._opened() as output, self.train_context():
            try:
                self.before_train()
                while not self.finished:
                    if not self.in_epoch:
                        self.in_epoch = True
                        self.epoch_counts = dict.fromkeys(self.epoch_counter_names, 0)
                        self.before_epoch()
                    if (given := self._train()) is not None:  # type: ignore[func-returns-value]
                        raise TypeError(f"expected nothing from _train, which calls safe_point() itself, got {given!r}")
                    count(self, epochs=1)
                    self.in_epoch = False
                    self.after_epoch()
                    self.safe_point()
            except TrainingEnds:
                self._end(output)
            except NoRoom as error:
                raise TrainingFailed(str(error), resume_hint(output)) from error
            except self.failures as error:
                traceback = write_traceback(output.folder.root, error)
                raise TrainingFailed(str(error), resume_hint(output), traceback) from error

    def _end(self, output: RunOutput) -> None:
        self.after_train()
        self._note_end()
        output.finish(self._status())
        unsent = self.checkpointing.finish_mirror()
        output.conclude(self.progress.now(), with_plot=self.finished and self.signals.received is None)
        unkept = self.evaluating.unkept_best() if self.finished else None
        failure = self.checkpointing.failure or unkept or unsent
        if failure is not None:
            raise failure from None

    def require_ready(self) -> None:
        """Raise ConfigError, before anything is written, for what would make training fail."""
        if not self.resumed:
            check_checkpoint_folder(self.config)
        for callback in self.callbacks:
            try:
                callback.check(self)
            except PartError as error:
                raise error.within(self.config, "") from error

    def safe_point(self) -> None:
        """Do what is due: evaluate, record, save; then leave if the run is done or a signal came.

        Only called where all state lies in objects. An interval is due if its counter has passed a multiple of it
        since the last safe point. A signal does not wait for an evaluation: the run is saved as it was before this
        safe point, and a resumed run repeats the safe point.
        """
        if self.watcher is not None:
            self.watcher.before_safe_point()
        self.time_log.switch("other")
        is_asked = self.signals.received is not None or self.end_reason is not None
        if is_asked or not self._agenda.waits(self, self.clock):
            self._do_what_is_due()
        self.progress.show()
        if self._has_left:
            raise TrainingEnds
        if self.watcher is not None:
            self.watcher.after_safe_point()

    def _do_what_is_due(self) -> None:
        output, before, now = self.config.output, self.checked, self.counters
        done = self.end_reason is not None or self.config.stop.share(now) >= 1.0
        self.require_finite(with_parameters=False)
        try:
            if done:
                self.finish_with_test()
            else:
                self.evaluate(self.evaluating.due(before, now))
            if done or is_due(output.record, before, now):
                self.record(self.end_reason if done else None)
            self.checked, self.finished = now, done
            self._agenda.set(now, self.evaluating.due_once())
            save_is_due = done or self.evaluating.must_save() or is_due(output.save, before, now)
        except Interrupted:
            save_is_due = False
        leaving = self.signals.received is not None  # read once, so that a run that leaves has saved
        leaving = leaving or (self._pause is not None and self._pause.share(now) >= 1.0)
        if output.save is not None and (save_is_due or leaving):
            self.save(save_is_due)
        elif output.save is not None:
            self.checkpointing.write_ahead()
        self._has_left = self.finished or leaving

    def end_run(self, reason: str) -> None:
        """End the run before its `stop`, as complete, at the next safe point; the first reason counts."""
        if self.end_reason is None and self.config.stop.share(self.counters) < 1.0:
            self.end_reason = reason
            self.log(reason)

    def extend(self, overrides: Sequence[str]) -> None:
        """Give the run another end, as `palestra extend` does: extend(["stop.after=64000"]). `fit` then goes on. Raises
        RuntimeError if the run has not begun, ConfigError for other keys than `stop` and an end that lies behind."""
        self.checkpointing.extend(overrides)

    def _note_end(self) -> None:
        if self.finished and self.end_reason is not None:
            self.opened_output().note_end(self.end_reason)

    def _status(self) -> Status:
        """How the run ends if nothing was raised."""
        if self.checkpointing.failure is not None:
            return "failed"
        return "complete" if self.finished else "interrupted"

    # ---- hooks: an override calls its parent -------------------------------------------------------------

    def before_train(self) -> None:
        """Restore the last checkpoint, or play the evaluations of the start and write checkpoint 0; a second `fit`
        needs neither."""
        self.progress.begin()
        output = self.opened_output()
        is_fresh = not any(self.counts().values())
        if is_fresh:
            self.checkpointing.restore_or_begin()
        for callback in self.callbacks:
            callback.before_train(self)
        if self.finished:  # but a recorder may lack the end
            if not is_fresh:
                self.checkpointing.tell_finished()
            self._note_end()
            output.feed({name: self._recorders[name] for name in output.unfiled() if name in self._recorders})
            output.finish(self._status())
            output.catch_up_mirror()
            if (unsent := self.checkpointing.finish_mirror()) is not None:
                raise unsent
            return
        output.feed(self._recorders)
        self.choose_kernels()
        if is_fresh and not output.checkpoints.numbers():
            try:
                self.evaluate(self.evaluating.at_start())
            except Interrupted:
                raise TrainingEnds from None
            if self.config.output.save is not None:
                self.save()
        intervals = [*self.evaluating.intervals(), self.config.output.record, self.config.output.save, LOOK_INTERVAL]
        self._pause = None if self._more is None else self._more.counted_from(self.counters)
        self._agenda = Agenda([self.config.stop, self._pause], intervals)
        self._agenda.set(self.checked, self.evaluating.due_once())
        self.safe_point()

    def choose_kernels(self) -> None:
        """Let all players decide what computes them in this `fit`; nothing has been played yet, but callbacks have
        changed what they want to change."""

    def before_epoch(self) -> None:
        for callback in self.callbacks:
            callback.before_epoch(self)

    def after_evaluation(self, record: Mapping[str, Any]) -> None:
        for callback in self.callbacks:
            callback.after_evaluation(self, record)

    def after_save(self, checkpoint: Path) -> None:
        for callback in self.callbacks:
            callback.after_save(self, checkpoint)

    def after_epoch(self) -> None:
        for callback in self.callbacks:
            callback.after_epoch(self)

    def after_train(self) -> None:
        for callback in self.callbacks:
            callback.after_train(self)

    # ---- what a kind of training adds --------------------------------------------------------------------

    def fault(self, with_parameters: bool) -> str | None:
        """A message if a loss is not finite or, with `with_parameters`, a parameter; None if all are finite."""
        return None

    def differences(self, state: Mapping[str, Any]) -> Iterable[str]:
        """Why a run that goes on from a state may compute other bits: a line for each reason."""
        return []

    def buffers(self) -> dict[str, ReplayBuffer]:
        """The replay buffers whose rows checkpoints hold, by name."""
        return {}

    def shown_metrics(self) -> Mapping[str, Mapping[str, float]]:
        """The metrics that the display shows, by learning player."""
        return {}

    def _record_fields(self) -> dict[str, Any]:
        """The fields of a record besides counters, notes and clock."""
        return {}

    def _errors_after_record(self, has_ended: bool) -> Sequence[str]:
        """Error lines on what a record lacks. has_ended: whether the run ends before the config's `stop`."""
        return []

    # ---- what is done at safe points -------------------------------------------------------------------

    def record(self, ended: str | None = None) -> None:
        """Write a training record of what came since the last one. ended: why the run ends before its `stop`."""
        fields = self._record_fields()
        rates = {f"{name}_per_s": rate for name, rate in self._recorded.rates(self.mark()).items()}
        clock = {"train_seconds": self.clock.seconds, **rates, "time": self.time_log.take()}
        self._recorded = self.mark()
        notes = self.notes.take()
        noted = {"notes": notes} if notes else {}
        why = {} if ended is None else {"ended": ended}
        output = self.opened_output()
        output.write({"kind": "training", **self.counts(), **fields, **noted, **why, "clock": clock})
        for line in self._errors_after_record(ended is not None):
            output.display.error(line)

    def save(self, is_due: bool = True) -> None:
        """Write a checkpoint: the best one, if the last evaluation was better than all before. If the disk refuses, the
        display says so, and training goes on; a failed last save makes `fit` raise at the end.

        is_due: whether it is due here; one that is saved only because the run stops uses up no number.
        """
        is_best, self.evaluating.is_best = self.evaluating.is_best, False
        self.checkpointing.save(is_best, is_due)

    def note(self, name: str, value: Recordable) -> None:
        """Put a value into the next record, as notes/NAME: a number (several become the statistics that
        `output.statistics` names), an array (a histogram), or a text, a datetime, an Image or a Video of
        palestra.recording (the last one counts). Raises TypeError or ValueError for what cannot be recorded."""
        self.notes.add({name: value})

    def require_finite(self, with_parameters: bool) -> None:
        """Raise TrainingFailed for what `fault` finds, such as a loss that is not finite."""
        if (fault := self.fault(with_parameters)) is not None:
            raise TrainingFailed(fault, branch_hint(self.opened_output()))

    # ---- state -----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything but the rows of replay buffers."""
        return {
            "counters": self.counts(),
            "checked": {name: value for name, value in self.checked.items() if name != "minutes"},
            "in_epoch": self.in_epoch,
            "epoch_counts": dict(self.epoch_counts),
            "extra_state": self.extra_state,
            "notes": self.notes.state_dict(),
            "evaluating": self.evaluating.state_dict(),
            "finished": self.finished,
            "end_reason": self.end_reason,
            "callbacks": [callback.state_dict() for callback in self.callbacks],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_counts(self, **{name: state["counters"][name] for name in self.counter_names})
        self.checked = {**state["checked"], "minutes": self.clock.seconds / 60}
        self.in_epoch, self.epoch_counts = state["in_epoch"], state["epoch_counts"]
        self.extra_state = state["extra_state"]
        self.notes.load_state_dict(state["notes"], self.device)
        self.evaluating.load_state_dict(state["evaluating"])
        self.end_reason = state["end_reason"]
        is_over = self.end_reason is not None or self.config.stop.share(self.checked) >= 1.0  # or it was extended
        self.finished = state["finished"] and is_over
        if len(state["callbacks"]) != len(self.callbacks):
            raise CheckpointError(
                f"expected {len(state['callbacks'])} callbacks, as when the run was saved, got {len(self.callbacks)}; "
                "give Trainer.load or Trainer.branch those that the run was started with"
            )
        for callback, callback_state in zip(self.callbacks, state["callbacks"], strict=True):
            callback.load_state_dict(callback_state)

    def without_rows(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state without what belongs to the rows of replay buffers."""
        return state

    def state_of_branch(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state with which a branch from a checkpoint begins. state: that of the checkpoint."""
        new_callbacks = self.callbacks[len(state["callbacks"]) :]
        callbacks = [*state["callbacks"], *(callback.state_dict() for callback in new_callbacks)]
        return state | {"evaluating": self.evaluating.state_of_branch(), "end_reason": None, "callbacks": callbacks}

    # ---- time, output ------------------------------------------------------------------------------------

    def begin_rates(self) -> None:
        """Compute rates from here on, because a checkpoint was restored."""
        self._recorded = self.mark()
        self.progress.begin()

    def during(self, message: str, tasks: Sequence[Task]) -> AbstractContextManager[None]:
        """A context in which the display shows a message and tasks instead of training."""
        return self.progress.during(message, tasks)

    def show(self) -> None:
        """Update the display, unless it was updated a moment ago."""
        self.progress.show()

    def _parts_opened(self, output: RunOutput) -> AbstractContextManager[None]:
        return self.evaluating.opened(output)

    def _is_saved(self) -> bool:
        return self._has_left and self.config.output.save is not None and self.checkpointing.failure is None
