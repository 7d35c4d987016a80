"""Training: fit, safe points, hooks, counters and state, whatever is trained. It knows no game and no player.

The subclass `palestra.kinds.games.trainer.Trainer` trains players in games.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from copy import deepcopy
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import torch
from rich.console import Console

from palestra.buffers.replay import ReplayBuffer
from palestra.callbacks import Callback, make_callback, required_callbacks
from palestra.config import list_of_overrides, reading_own, trusting
from palestra.randomness import restored_torch_states
from palestra.recording.aggregates import Aggregates
from palestra.recording.results import Stage
from palestra.recording.values import Recordable
from palestra.run.base import BaseRunConfig, TrainingClass
from palestra.run.branching import Reached, branched_config, change_bitless, differences, note_changes
from palestra.run.checkpoints import CheckpointError
from palestra.run.evaluating import Evaluating, EvaluationHooks
from palestra.run.fetching import fetch, is_url
from palestra.run.kinds import read_config, read_stored_config
from palestra.run.loaded_checkpoint import LoadedCheckpoint, checkpoint_folder
from palestra.run.remote import RemoteError
from palestra.run.run import ProgressReporter, Run, Standing
from palestra.run.run_checkpoints import RunCheckpoints
from palestra.run.stored import Stored
from palestra.runtime.console import VisibleConsole
from palestra.runtime.device import find_device, require_stock_torch
from palestra.runtime.intervals import Agenda, Counters, Interval, count, is_due, read_limit, set_counts
from palestra.runtime.signals import Interrupted
from palestra.runtime.timing import Mark
from palestra.scaling.replica import Replica
from palestra.storage.disk import RunFolderError
from palestra.storage.run_folder import RunFolder
from palestra.training import checks, processes
from palestra.training.async_evaluations import make_evaluating
from palestra.training.checks import TrainingEnds, TrainingFailed, Watcher, branch_hint
from palestra.training.lockstep import Lockstep
from palestra.training.opening import Models, Nets, calls_of, class_for, named_classes, python_class
from palestra.training.own_judging import JudgedRunConfig, Judging
from palestra.training.stored_training import StoredTraining

T = TypeVar("T")
LOOK_INTERVAL = Interval(every=256, unit="opt_steps")  # between checks of the loss: on a GPU each one waits


def led(method: Callable[..., T]) -> Callable[..., T | None]:
    """Of several replicas let the leader alone do what a method says; the others do nothing, and get None."""

    @wraps(method)
    def done_by_the_leader(self: "Training", *arguments: Any) -> T | None:
        return method(self, *arguments) if self.replica.leads else None

    return done_by_the_leader


class Training:
    """Trains what a subclass makes, in epochs.

    config: a path, the name of a shipped config, a mapping or a config object. run: the run's folder, which must not
    exist; None: runs/<name>-<n>. overrides: as "num_worlds=4". callbacks: further ones besides the config's. console:
    where the display writes. origin: the checkpoint that the run branches off; `branch` passes it. replica: its place
    among those of the run; None: the leader's. Raises ConfigError.

    Must be implemented: `_train`, and `judge` if the config is a JudgedRunConfig. May be overridden: `_build`, which
    makes what is trained; `_test`; `safe_point`; `train_stage` and `test_stage`, which describe both; the contexts
    `train_context` and `test_context`; `require_ready`, `check` and `check_keys`; the state, in `state_dict`,
    `load_state_dict`, `without_rows`, `state_of_branch` and `buffers`; what is recorded and shown, in `_record_fields`,
    `_errors_after_record`, `file_evaluation`, `shown_metrics`, `fault` and `differences`; `by_role`, which models a
    stored run needs; `_begin_run`, `choose_kernels` and `close`; and every hook (`before_train`, `before_epoch`,
    `after_evaluation`, `after_save`, `after_epoch`, `after_train`); an override calls its parent.

    May be set: `run_config`, the model of its files, whose `counters` are integer attributes here; `recurs`, epochs or
    opt_steps, whole ones of which `palestra profile` times; `rated`, the counters whose rates per second are recorded;
    `epoch_counter_names`, the keys of `epoch_counts`, which are 0 when an epoch begins; `failures`, exceptions of parts
    that end the run as failed; `stored`, the class by which a stored run of it is evaluated.

    run: its config, folder, records, display, clock and signals. checkpoints, evaluating, progress: its other
    components. during, show: those of `progress`. set_logger: that of `run`. extra_state: what a `_train` of your own
    remembers from one safe point to the next: numbers, texts, tensors, lists and dicts of these; checkpoints hold it.
    """

    run_config: ClassVar[type[BaseRunConfig]] = BaseRunConfig
    rated: ClassVar[tuple[str, ...]] = ("opt_steps",)
    recurs: ClassVar[str] = "epochs"
    epoch_counter_names: ClassVar[tuple[str, ...]] = ("updates",)
    failures: ClassVar[tuple[type[Exception], ...]] = ()
    looks: ClassVar[tuple[Interval, ...]] = (LOOK_INTERVAL,)
    stored: ClassVar[type[Stored]] = StoredTraining
    learners: Sequence[Any] = ()  # the players that learn, or the model, as callbacks know them
    opt_steps: int
    epochs: int

    def __init__(
        self,
        config: str | Path | dict[str, Any] | BaseRunConfig,
        run: str | Path | RunFolder | None = None,
        overrides: Sequence[str] = (),
        callbacks: Sequence[Callback] = (),
        console: Console | None = None,
        origin: Path | None = None,
        replica: Replica | None = None,
    ) -> None:
        # users who train by their own config trust what it names
        with nullcontext() if isinstance(run, RunFolder) or origin is not None else reading_own():
            read: BaseRunConfig = read_config(config, overrides)
        require_stock_torch(trains=True)  # after the modules that the config names
        name = Path(config).stem if isinstance(config, str | Path) else "run"
        self.run = Run(read, run, name, console, origin, python_class(type(self), read))
        self.device = self.run.device
        self.replica = replica or Replica.heading(read.count_replicas())
        self.lockstep = Lockstep(self, self.replica)
        self.callbacks = [*map(make_callback, read.callbacks), *required_callbacks(callbacks)]
        self.watcher: Watcher | None = None
        set_counts(self, **dict.fromkeys(read.counters, 0))
        self.in_epoch = self.finished = self.is_open = self.is_between = self._has_left = False
        self.epoch_counts = dict.fromkeys(self.epoch_counter_names, 0)
        self.extra_state: dict[str, Any] = {}
        self.notes = Aggregates(read.output.statistics)
        self.end_reason: str | None = None  # of an end before the config's `stop`
        self.is_cut = False  # whether an evaluation could not be made, so that the run ends; it is due if it goes on
        self.checked: Counters = self.counters  # at the last safe point where anything was due
        self._recorded = self.mark()
        self.progress = ProgressReporter(self.run, self.standing, is_shown=self.replica.leads)
        self.during, self.show, self.set_logger = self.progress.during, self.progress.show, self.run.set_logger
        self.checkpoints = RunCheckpoints(self.progress)
        self.evaluating = Evaluating(self.progress, self.checkpoints, None)
        if isinstance(read, JudgedRunConfig):
            self.evaluating = make_evaluating(self.progress, self.checkpoints, Judging(self))
        self._build()

    def _build(self) -> None:
        """Make what is trained and, where there are evaluations, `evaluating`. The other components exist already."""

    # ---- the lifecycle -----------------------------------------------------------------------------------

    def fit(self, num_steps: float | None = None, unit: str | None = None, *, max_steps: float | None = None) -> None:
        """Train until the config's `stop`, until `end_run`, or until a signal (`run.signals.received`) asks to leave.

        num_steps, unit: train for so many more opt_steps, env_steps, epochs or minutes, but not beyond `stop`. The run
        is then saved, and the next `fit` goes on to the same bits as if there had been no pause. None: until `stop`.
        max_steps: go on until there are so many in all. Without a unit they are opt_steps.
        A run that was loaded goes on from its last checkpoint; if it is finished, its mirror gets what it lacks. Raises
        TrainingFailed if a loss is not finite or an environment fails (failure.txt in the run's folder has the
        traceback); RunFolderError or CheckpointError if the disk refuses, at the end if only the last or the best
        checkpoint or the mirror is concerned; ValueError for a number or a unit that is none.
        """
        self._asked_for = read_limit(num_steps, max_steps, unit, self.config.units())
        self.require_ready()
        self._num_idle = 0
        with self.opened(lambda other: other.fit(num_steps, unit, max_steps=max_steps)):
            try:
                self.before_train()  # restores the last checkpoint, or evaluates and writes the first one
                self._keep_torch()
                while not self.finished:
                    before = self.counts()
                    if not self.in_epoch:
                        self.in_epoch = True
                        self.epoch_counts = dict.fromkeys(self.epoch_counter_names, 0)
                        self.before_epoch()
                    if (given := self._train()) is not None:  # type: ignore[func-returns-value]
                        raise TypeError(f"expected nothing from _train, which calls safe_point() itself, got {given!r}")
                    self._num_idle = self._num_idle + 1 if self.counts() == before else 0
                    checks.require_progress(self, self._num_idle)
                    count(self, epochs=1)
                    self.in_epoch = False
                    self._end_epoch()
            except TrainingEnds:
                self.after_train()
                self._conclude()

    @contextmanager
    def opened(self, call: Callable[[Any], object]) -> Iterator[None]:
        """A context in which all components are open. call: calls for another replica what was called here."""
        require_stock_torch(trains=True)
        self._has_left = False
        with (
            processes.linked(self),
            closing(self),
            processes.led(self, self._opened_run),
            self.train_context(),
            self.lockstep.opened(call),
        ):
            self.is_open = True
            try:
                yield
            finally:
                self.is_open = False

    @contextmanager
    def _opened_run(self) -> Iterator[None]:
        """The folder, checkpoints and evaluations of the run, open: in the leader of replicas alone."""
        with (
            self.run.opened(self._begin_run, self.is_saved),
            self.checkpoints.opened(self.evaluating.candidates),
            nullcontext() if self.is_between else self.evaluating.opened(),
            self.run.timed(),
        ):
            yield

    def _restore_or_begin(self) -> None:
        """Restore the last checkpoint of the run; for a branch that has none yet, the one that it branches off."""
        loaded = self._find_beginning()
        with nullcontext() if loaded is None else loaded.fitting():
            state, is_branch = self.lockstep.begin(loaded)
            if is_branch:
                self.load_state_dict(self.state_of_branch(state))
                for callback in self.callbacks:
                    callback.begin_branch()
                self.finished = False  # a branch from the end of a run evaluates once, and ends
            elif state is not None:
                self.load_state_dict(state)
        self._tell_beginning(loaded)

    @led
    def _find_beginning(self) -> LoadedCheckpoint | None:
        """Read the checkpoint with which the run begins here, and bring back what lies outside of its state."""
        run, checkpoints = self.run, self.checkpoints
        if (loaded := checkpoints.load_latest()) is not None:
            with loaded.fitting():
                checkpoints.go_back_to(loaded, self.lockstep.buffers())
            return loaded
        checkpoints.begin_anew()
        for start in run.beginnings:
            self.log(start.line())
            run.records.write({**start.record(), **self.counts()})
        if (origin := run.folder.facts().branched_from) is None:
            return None
        loaded = checkpoints.stored.load(Path(origin))
        with loaded.fitting():
            checkpoints.stored.take_once(loaded)
            checkpoints.restore_rows(loaded, self.lockstep.buffers())
        return loaded

    @led
    def _tell_beginning(self, loaded: LoadedCheckpoint | None) -> None:
        """Say where the run begins. loaded: what `_find_beginning` has found."""
        run = self.run
        place = self.run.folder.path
        if loaded is not None and self.checkpoints.stored.is_ours(loaded):
            for line in [*loaded.warnings, *self.checkpoints.differences(loaded), *self.differences(loaded.state)]:
                run.display.warn(line)
            end = run.finished_line(self.end_reason) if self.finished else "it goes on from there"
            self.log(f"{place}: checkpoint {loaded.folder.name}, opt step {self.opt_steps}; {end}")
        elif loaded is not None:
            before = read_stored_config(RunFolder.of_checkpoint(loaded.folder).config)
            note_changes(run.folder, differences(before, run.config), loaded.counters)
            run.has_branched_off = True
            self.log(f"{place} branches off {loaded.folder}, opt step {self.opt_steps}")
        elif run.resumed:
            self.log(f"{place} has no checkpoint: it starts at 0")

    def _end_epoch(self) -> None:
        """Call `after_epoch`, and do what is due."""
        self.after_epoch()
        self.replica.each("the end of an epoch", None)
        self.safe_point()

    def safe_point(self) -> None:
        """Do what is due: evaluate, record, save; then leave if the run is done or a signal came.

        To be called where all state lies in objects. An interval is due if its counter has passed a multiple of it
        since the last one. A signal does not wait for an evaluation: the run is saved as before, and repeats this.
        """
        if self.watcher is not None:
            self.watcher.before_safe_point()
        self.run.time_log.switch("other")
        if self.lockstep.is_asked_to_end() or not self._agenda.waits(self, self.lockstep.minutes):
            self._do_what_is_due()
        self.progress.show()
        if self._has_left:
            raise TrainingEnds
        if self.watcher is not None:
            self.watcher.after_safe_point()
        self._keep_torch()

    def _keep_torch(self) -> None:
        """Let torch compute with gradients, by as many threads as the config says, whatever a user's own code does."""
        if not torch.is_grad_enabled():
            torch.set_grad_enabled(True)
        if torch.get_num_threads() != (num := self.config.execution.num_threads):
            torch.set_num_threads(num)

    def _do_what_is_due(self) -> None:
        self.lockstep.agree_on_end()
        output, before, now = self.config.output, self.checked, self.counters
        done = self.end_reason is not None or self.config.stop.share(now) >= 1.0
        self.require_finite(with_parameters=False)
        try:
            if not done:
                self.evaluate(self._names_due(before, now))
            if done := done or self.is_cut:
                with self.lockstep.evaluating(), self.evaluating.test(self.counts(), self._hooks()):
                    self._test()
            self._before_record()
            if done or is_due(output.record, before, now):
                self.record(self.end_reason if done else None)
            self.checked, self.finished = before if self.is_cut else now, done
            self._agenda.set(now, self.lockstep.due_once())
            save_is_due = done or self.evaluating.must_save(self.counts()) or is_due(output.save, before, now)
        except Interrupted:
            save_is_due = False
        received = self.run.signals.received  # read once, so that a run that leaves has saved
        pauses = self._pause is not None and self._pause.share(now) >= 1.0
        save_is_due, leaving = self.lockstep.agree_to_leave(save_is_due, pauses, received)
        if output.save is not None and (save_is_due or leaving):
            self.save(save_is_due)
        elif output.save is not None:
            self.lockstep.write_ahead()
        self._has_left = self.finished or leaving

    def _before_record(self) -> None:
        """Do what belongs between the evaluations of a safe point and its record."""

    def _names_due(self, before: Counters, now: Counters) -> list[str]:
        """The names of the evaluations that are due between two moments of training."""
        return self.evaluating.due(before, now)

    def is_saved(self) -> bool:
        """Whether nothing is lost if the process ends now."""
        return self._has_left and self.config.output.save is not None and self.checkpoints.failure is None

    @led
    def _conclude(self) -> None:
        """End a `fit` whose training is done or was asked to leave. Raises the error of what could not be kept."""
        with self.lockstep.keeping_others():
            unsent = self._file_end()
            self.run.conclude(self.progress.now(), with_plot=self.finished and self.run.signals.received is None)
        unkept = self.evaluating.unkept_best() if self.finished else None
        if (failure := self.checkpoints.failure or unkept or unsent) is not None:
            raise failure from None

    def _file_end(self) -> RemoteError | None:
        """Tell run.json, the recorders and the mirror how this `fit` ends. Gives the error of an incomplete mirror."""
        if self.finished and self.end_reason is not None:
            self.run.note_end(self.end_reason)
        has_failed = self.checkpoints.failure is not None
        self.run.records.finish("failed" if has_failed else "complete" if self.finished else "interrupted")
        return self.checkpoints.finish_mirror()

    # ---- from a stored run -------------------------------------------------------------------------------

    @classmethod
    def load(
        cls,
        run: str | Path,
        callbacks: Sequence[Callback] = (),
        console: Console | None = None,
        into: str | Path | None = None,
        trust: bool = False,
        models: Models | None = None,
        overrides: Sequence[str] = (),
    ) -> Self:
        """The training of a stored run, of the class that its config names. `fit` goes on from its last checkpoint.

        run: its folder, or the URL of its mirror, which is fetched into a new folder: `into`, or if that is None
        runs/<the last name in the URL>. callbacks: those that the run was started with besides the config's; their
        state is restored. trust: whether the modules that the run names are trusted from now on. models: the networks
        that `set_model` handed over when the run began, by role, or those of the one player that learns; they are
        copied. overrides: of keys that change no bit, as "execution.loading.num_workers=0"; the run's changes.jsonl
        lists them. Raises UntrustedError for modules that are not trusted, ConfigError for other overrides,
        RunFolderError where there is no run, another class has trained it, or it needs other `models`.
        """
        if is_url(run):
            folder, warnings = fetch(str(run), None if into is None else Path(into))
            for line in warnings:
                (console or VisibleConsole()).print(line, soft_wrap=True)
        elif into is not None:
            raise RunFolderError(f"--run: expected none, because the run goes on in its folder {run}, got {into}")
        else:
            folder = RunFolder.open(Path(run))
            folder.require_plain()
        with trusting(trust):
            if overrides:
                change_bitless(folder, overrides)
            config = read_stored_config(folder.config)
            loaded = class_for(cls, config, folder)(config, run=folder, callbacks=callbacks, console=console)
        found: Self = _with_models(loaded, loaded.by_role(config, models), folder.path.name)
        return found

    @classmethod
    def branch(
        cls,
        checkpoint: str | Path,
        overrides: Sequence[str],
        run: str | Path | None = None,
        callbacks: Sequence[Callback] = (),
        console: Console | None = None,
        trust: bool = False,
        freeze: Sequence[str] = (),
        replace: Mapping[str, str] | None = None,
        models: Models | None = None,
    ) -> Self:
        """The training of a new run that begins with the state of a checkpoint and a changed config.

        checkpoint: its folder, or beside it `latest`, `best`, a number, or @ and an opt step. overrides: the changes,
        as "num_worlds=4"; the new run's changes.jsonl lists them. run: the new run's folder, new or empty; None:
        runs/<name>-<n>. callbacks: those that the old run was started with besides the config's, whose state is
        restored; further ones begin anew. trust: as in `load`. freeze: learning players that are held fixed from here
        on. replace: scripted players, by the names of those whose places they take from here on. models: as in `load`.
        Raises ConfigError for a change that the state does not allow, MissingCheckpointError, RunFolderError,
        UntrustedError.
        """
        source = RunFolder.of_checkpoint(Path(checkpoint))  # raises if there is no run
        origin = checkpoint_folder(Path(checkpoint))
        with trusting(trust):
            stored = read_stored_config(source.config)
            nets_of = named_classes(stored)[0].by_role(stored, models)
            seat = {"from_run": str(source.path.absolute()), "checkpoint": origin.name}
            seats = stored.seat_overrides(seat, freeze, replace or {})
            config = branched_config(origin, [*seats, *list_of_overrides(overrides)], calls_of(nets_of))
            built = class_for(cls, config, source)
            new = built(config, run=run, callbacks=callbacks, console=console, origin=origin)
        branched: Self = _with_models(new, nets_of, f"{source.path.name}-branch")
        return branched

    def copy(self, run: str | Path | None = None, models: Models | None = None) -> Self:
        """The training of a new run that goes on from the last checkpoint of this one: a branch without changes.

        Trained alike, both come to the same bits, and neither touches the other. run: the new run's folder, which must
        not exist; None: runs/<name>-<n>. models: as in `load`. Callbacks from Python are copied, recorders of
        `set_logger` are not. As in every branch, the best checkpoint and schedules that a callback has changed begin
        anew. Raises RuntimeError without a checkpoint, RunFolderError.
        """
        place = self.run.place
        if not isinstance(place, RunFolder) or place.checkpoints.kind("latest") is None:
            raise RuntimeError("copy: expected a run with a checkpoint, got one that has none; call fit() first")
        callbacks = deepcopy(self.callbacks[len(self.config.callbacks) :])
        return self.branch(place.checkpoints.path / "latest", [], run, callbacks, self.run.console, models=models)

    @classmethod
    def by_role(cls, config: Any, models: Models | None) -> Mapping[str, Nets]:
        """What `set_model` handed over when a stored run began, by role: nothing. Raises ValueError for `models`."""
        if models is not None:
            raise ValueError(f"models: expected none, because this is {config.in_words}")
        return {}

    # ---- what is checked before, and another end ---------------------------------------------------------

    @classmethod
    def check(cls, config: Any) -> None:
        """Raise ConfigError for everything that `fit` would refuse, by making a training. An override may make less."""
        cls(config).require_ready()

    @classmethod
    def check_keys(cls, config: Any) -> None:
        """Raise ConfigError for what `check` finds without making anything that needs an extra or an environment."""
        find_device(config.execution.device)
        checks.check_scratch_folders(config)
        checks.check_checkpoint_folder(config)

    @classmethod
    def bounds(cls, config: Any) -> list[str]:
        """Say what a run may cost at most, and what is found in its data that may not be meant; [] if nothing."""
        return []

    def require_repeatable(self) -> None:
        """Raise RunFolderError for a run that another training would not repeat to the bit."""

    def require_ready(self) -> None:
        """Raise ConfigError, before anything is written, for what would make training fail."""
        checks.check_ready(self)

    def end_run(self, reason: str) -> None:
        """End the run before its `stop`, as complete, at the next safe point; the first reason counts."""
        if self.end_reason is None and self.config.stop.share(self.counters) < 1.0:
            self.end_reason = reason
            self.log(reason)

    def extend(self, overrides: Sequence[str]) -> None:
        """Give the run another end, as `palestra extend` does, such as ["stop.after=64000"]. `fit` then goes on.

        Raises RuntimeError if the run has not begun, ConfigError for keys that end no run and for an end in the past.
        """
        has_begun = any(self.counts().values())  # else the state is still in the last checkpoint
        self.run.extend(overrides, Reached(self.counts(), self.end_reason) if has_begun else None)
        self.finished, self.end_reason, self.is_cut = False, None, False

    # ---- the stages of a run, and their contexts -----------------------------------------------------------

    def _train(self) -> None:
        """Train for one epoch. A run that is resumed at a safe point calls it again, and it must go on from there."""
        raise NotImplementedError

    def _test(self) -> None:
        """Play the final evaluations: all that the config names, each with its `final_num_games`.

        Called once, when the run is done, before its last record. If the run is killed or asked to leave inside, it is
        called again after a resume. So an override adds to the state of the run (`note`, `extra_state`) after the last
        of its evaluations, which raise Interrupted if a signal asks to leave.
        """
        self.evaluate(self.evaluating.at_end())

    def judge(self, name: str, num: int) -> Mapping[str, float]:
        """Return the scores that the config, a JudgedRunConfig, declares, by name. name: of the evaluation.

        num: how many items to judge by. It draws from no generator of the training, and changes nothing.
        """
        raise NotImplementedError

    def _hooks(self) -> EvaluationHooks:
        return self.lockstep.hooks(EvaluationHooks(self.test_context, self.after_evaluation, self.file_evaluation))

    @classmethod
    def train_stage(cls, config: Any) -> Stage:
        """Describe an epoch, and how long training is, from the config alone; else by the docstring of `_train`."""
        return Stage(own_words(cls, "_train"), config.stop.after, config.stop.unit)

    @classmethod
    def test_stage(cls, config: Any) -> Stage:
        """Describe the test, and how long it is, from the config alone; else by the docstring of `_test`."""
        if cls._test is Training._test:
            return Stage("the final evaluations, if there are any", None, "")
        return Stage(own_words(cls, "_test"), None, "")

    @contextmanager
    def train_context(self) -> Iterator[None]:
        """The context of one `fit`, in which gradients are on. An override may set more, such as attention kernels.

        Afterwards the global generators of torch are as they were, whatever was seeded or drawn inside.
        """
        with torch.enable_grad(), restored_torch_states():
            yield

    @contextmanager
    def test_context(self) -> Iterator[None]:
        """The context of `_test` and of all evaluations that this process plays, in which gradients are off."""
        with torch.no_grad():
            yield

    # ---- what is done at safe points -----------------------------------------------------------------------

    def evaluate(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Play evaluations by name, and write the records of the results that count now; in the test, once it is over.

        Returns these records, in the test to the leader of replicas alone. Between two `fit`, all results count at
        once, and the run is saved, so that it keeps the records. Raises ValueError for unknown names, RuntimeError
        before `fit`, Interrupted if a signal comes, and then writes no record.
        """
        known = self.evaluating.at_end()
        if unknown := [name for name in names if name not in known]:
            got = f"got {', '.join(map(repr, unknown))}"
            raise ValueError(f"evaluate: expected names of evaluations ({', '.join(known) or 'there are none'}), {got}")
        if not self.is_open:
            return self._evaluate_between(names)
        with self.lockstep.evaluating() as found:
            found += self._play_evaluations(names) or ()
        return found

    @led
    def _play_evaluations(self, names: Sequence[str]) -> list[dict[str, Any]]:
        return self.evaluating.evaluate(names, self.counts(), self._hooks())

    def _evaluate_between(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Evaluate while no `fit` holds the run open, save it, and return the records. Raises as `evaluate`."""
        self._require_begun()
        self.is_between = True
        try:
            with self.opened(lambda other: other.evaluate(names)):
                self.begin_progress()
                self._feed_recorders()
                found: list[dict[str, Any]] = self.evaluate(names)
                if self.config.output.save is not None:
                    self.save(self.evaluating.must_save(self.counts()))
                self._end_between()
        finally:
            self.is_between = False
        return found

    @led
    def _require_begun(self) -> None:
        if not self.run.is_begun:
            way = "palestra.StoredRun.open(run) evaluates a stored one"
            raise RuntimeError(f"evaluate: expected a run that fit() has begun here, got one that it has not; {way}")

    @led
    def _feed_recorders(self) -> None:
        self.run.records.feed(self.run.recorders)

    @led
    def _end_between(self) -> None:
        if (failure := self.checkpoints.failure or self._file_end()) is not None:
            raise failure from None

    def record(self, ended: str | None = None) -> None:
        """Write a training record of what came since the last one. ended: why the run ends before its `stop`."""
        self.lockstep.join("notes", self.notes)
        self._write_record(dict(self._record_fields()), self.mark(), self.lockstep.waits(), ended)

    @led
    def _write_record(self, fields: dict[str, Any], now: Mark, waits: dict[str, Any], ended: str | None) -> None:
        rates = {f"{name}_per_s": rate for name, rate in self._recorded.rates(now).items()}
        clock = {"train_seconds": self.run.clock.seconds, **rates, "time": self.run.time_log.take(), **waits}
        clock |= fields.pop("clock", {})
        self._recorded = now
        if notes := self.notes.take():
            fields["notes"] = notes
        if ended is not None:
            fields["ended"] = ended
        self.run.records.write({"kind": "training", **self.counts(), **fields, "clock": clock})
        for line in self._errors_after_record(ended is not None):
            self.run.display.error(line)

    def save(self, is_due: bool = True) -> None:
        """Write a checkpoint, which becomes the best one if the last evaluation was better than all before.

        If the disk refuses, the display says so, and training goes on; if it refuses the last one, `fit` raises at the
        end. is_due: whether it is due here; one that is saved only because the run stops uses up no number.
        """
        self.require_finite(with_parameters=True)
        is_best, self.evaluating.is_best = self.evaluating.is_best, False
        with self.during("saving", []), self.run.aside("saving"):
            folder = self.lockstep.save(is_best, is_due)
            if folder is not None:
                self.after_save(folder)
            elif is_best:
                self.evaluating.withdraw_best(self.checkpoints.failure)

    def require_finite(self, with_parameters: bool) -> None:
        """Raise TrainingFailed for what `fault` finds, such as a loss that is not finite."""
        if (fault := self.fault(with_parameters)) is not None:
            raise TrainingFailed(fault, branch_hint(self.run.folder))

    # ---- hooks: an override calls its parent -------------------------------------------------------------

    def before_train(self) -> None:
        """Restore the last checkpoint, or evaluate and write checkpoint 0; a second `fit` needs neither."""
        if is_fresh := not any(self.counts().values()):
            for note in [*self.config.notes(), *self.replica.ranks.notes(), *checks.uncalled_hooks(self)]:
                self.log(note)
            self._restore_or_begin()
            self._recorded = self.mark()
        self.begin_progress()
        for callback in self.callbacks:
            callback.before_train(self)
        if self.finished:
            self._stay_finished(is_fresh)
            return
        self._feed_recorders()
        self.choose_kernels()
        if is_fresh and self.lockstep.has_no_checkpoint():
            try:
                self.evaluate(self.evaluating.at_start())
            except Interrupted:
                raise TrainingEnds from None
            if self.config.output.save is not None:
                self.save()
        intervals = [*self.evaluating.intervals(), self.config.output.record, self.config.output.save, *self.looks]
        self._pause = None if self._asked_for is None else self._asked_for(self.counters)
        self._agenda = Agenda([self.config.stop, self._pause], intervals)
        self._agenda.set(self.checked, self.lockstep.due_once())
        self.safe_point()

    @led
    def _stay_finished(self, is_fresh: bool) -> None:
        """End a `fit` of a run that is finished: recorders and mirror get what they lack. Raises RemoteError.

        is_fresh: whether this process has just loaded it.
        """
        if not is_fresh:
            self.log(f"{self.run.folder.path}: {self.run.finished_line(self.end_reason)}")
        self.run.records.feed(self.run.unfiled())
        self.checkpoints.catch_up_mirror()
        if (unsent := self._file_end()) is not None:
            raise unsent

    def begin_progress(self) -> None:
        """Let the display count from here on."""
        self.progress.begin({"train": self.train_stage(self.config), "test": self.test_stage(self.config)})

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

    def _begin_run(self, folder: RunFolder) -> None:
        """Write what a new run needs in its folder besides its config."""

    def choose_kernels(self) -> None:
        """Decide what computes all players in this `fit`, after the callbacks' `before_train`, before any play."""

    def close(self) -> None:
        """Called when `fit` ends, also by an error."""

    def fault(self, with_parameters: bool) -> str | None:
        """A message if a loss is not finite or, with `with_parameters`, a parameter; None if all are finite."""
        return None

    def differences(self, state: Mapping[str, Any]) -> Iterable[str]:
        """Say why a run that goes on from a state may compute other bits, one line for each reason."""
        return []

    def buffers(self) -> dict[str, ReplayBuffer]:
        """The replay buffers whose rows checkpoints hold, by name."""
        return {}

    def file_evaluation(self, record: dict[str, Any]) -> dict[str, Any]:
        """Write what the result of an evaluation has for files beside the checkpoints; return its record."""
        return record

    def shown_metrics(self) -> Mapping[str, Mapping[str, float]]:
        """The metrics that the display shows, by learning player."""
        return {}

    def _record_fields(self) -> dict[str, Any]:
        """The fields of a record besides counters and notes; those of `clock` go there."""
        return {}

    def _errors_after_record(self, has_ended: bool) -> Sequence[str]:
        """Error lines on what a record lacks. has_ended: whether the run ends before the config's `stop`."""
        return []

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
        set_counts(self, **{name: state["counters"][name] for name in self.config.counters})
        self.checked = {**state["checked"], "minutes": self.lockstep.minutes()}
        self.in_epoch, self.epoch_counts = state["in_epoch"], state["epoch_counts"]
        self.extra_state = state["extra_state"]
        self.notes.load_state_dict(state["notes"], self.device)
        self.evaluating.load_state_dict(state["evaluating"])
        self.end_reason = state["end_reason"]
        self.finished = self.is_over(state)
        states: Sequence[dict[str, Any]] = state["callbacks"]
        if len(states) != len(self.callbacks):
            raise CheckpointError(
                f"expected {len(states)} callbacks, as when the run was saved, got {len(self.callbacks)}; "
                "give Trainer.load or Trainer.branch those that the run was started with"
            )
        for callback, of_callback in zip(self.callbacks, states, strict=True):
            callback.load_state_dict(of_callback)

    def is_over(self, state: Mapping[str, Any]) -> bool:
        """Whether a state is the end of the run; it is not if the run was extended since."""
        checked = {**state["checked"], "minutes": self.run.clock.seconds / 60}
        is_end = state["end_reason"] is not None or self.config.stop.share(checked) >= 1.0
        return state["finished"] and is_end

    def without_rows(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state without what belongs to the rows of replay buffers."""
        return state

    def state_of_branch(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state with which a branch from a checkpoint begins. state: that of the checkpoint."""
        new = self.callbacks[len(state["callbacks"]) :]
        callbacks = [*state["callbacks"], *(callback.state_dict() for callback in new)]
        return state | {"evaluating": self.evaluating.state_of_branch(), "end_reason": None, "callbacks": callbacks}

    # ---- counters, and what callbacks may use --------------------------------------------------------------

    @property
    def config(self) -> BaseRunConfig:
        """The run's config."""
        return self.run.config

    def counts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.config.counters}

    @property
    def counters(self) -> Counters:
        """The counters that intervals and limits may name as their unit."""
        known = {**self.counts(), "minutes": self.lockstep.minutes()}
        return {unit: known[unit] for unit in self.config.units()}

    def mark(self) -> Mark:
        """The present counts and seconds of training, from which rates are computed."""
        return Mark(self.run.clock.seconds, {name: getattr(self, name) for name in self.rated})

    def standing(self) -> Standing:
        """The state of the training at this moment, for the display."""
        stage = None if self.finished else "test" if self.evaluating.is_final else "train"
        share = 1.0 if self.finished else self.config.stop.share(self.counters)
        what = self.counts(), self.mark(), self.shown_metrics(), self.evaluating.tasks(), self.end_reason
        return Standing(stage, share, *what)

    def note(self, name: str, value: Recordable) -> None:
        """Put a value into the next record, as notes/NAME.

        A number (several become the statistics that `output.statistics` names), an array (a histogram), or a text, a
        datetime, an Image or a Video of palestra.recording (the last counts). Raises TypeError, ValueError for others.
        """
        self.notes.add({name: value})

    def warn(self, line: str) -> None:
        """Show a warning, and put it into the next record."""
        self.run.display.warn(line)
        self.note("warning", line)

    def log(self, line: str) -> None:
        """Show a line that stays."""
        self.run.display.log(line)

    def is_asked_to_leave(self) -> bool:  # by a signal
        return self.run.signals.received is not None


def _with_models(training: Any, nets_of: Mapping[str, Nets], name: str) -> Any:
    """Give a training copies of the networks with which its run began, and its name."""
    for role, nets in nets_of.items():
        training.set_model(role, deepcopy(nets))
    training.run.name = name
    return training


def replicas_in_words(config: BaseRunConfig) -> str:
    """Say how many replicas there are, and processes if there are several."""
    processes = config.count_processes()
    return f"{config.count_replicas()} replicas" + (f" (in {processes} processes)" if processes > 1 else "")


def own_words(cls: type, method: str) -> str:
    """Describe a stage by the first paragraph of its method's docstring, and by the class that defines the method."""
    owner = next(each for each in cls.__mro__ if method in vars(each))
    first, *_ = inspect.cleandoc(getattr(owner, method).__doc__ or "").split("\n\n")
    said = " ".join(first.split()).removesuffix(".")
    return f"as {owner.__name__} says: {said}" if said else f"by {owner.__name__}"


TrainingClass.register(Training)
