"""The run of a trainer: its config, folder and display; how it is opened for `fit`, loaded and branched."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, Self

from rich.console import Console

from palestra.callbacks import Callback, make_callback, required_callbacks
from palestra.config import listed, trusting
from palestra.recording import make_recorders
from palestra.recording.recorders import Recorder
from palestra.runs.branching import branched_config, run_of, seat_overrides
from palestra.runs.config import BaseRunConfig, TrainerBase, read_config, read_stored_config
from palestra.runs.output import RunOutput, default_folder
from palestra.runs.user_nets import Models, by_role, calls_of
from palestra.runtime.clock import Mark, TrainingClock
from palestra.runtime.console import VisibleConsole, visible
from palestra.runtime.device import find_device
from palestra.runtime.intervals import Counters
from palestra.runtime.signals import StopSignals
from palestra.runtime.threads import CompilingNotice, frozen_garbage, limited_threads
from palestra.runtime.timing import TimeLog
from palestra.storage.disk import RunFolderError
from palestra.storage.fetching import fetch, is_url
from palestra.storage.loaded_checkpoint import checkpoint_folder
from palestra.storage.run_folder import RunFolder
from palestra.training.naming import class_for, python_class


class RunOwner(TrainerBase):
    """The base of all trainers: holds the config, the counters, the folder and the output of a run, whatever is
    trained.

    config: a path, the name of a shipped config, a mapping or a config object. run: the run's folder, which must not
    exist; None: runs/<name>-<n>. overrides: as "num_worlds=4". callbacks: further ones besides the config's. console:
    where the display writes. origin: the checkpoint that the run branches off; `branch` passes it. Raises ConfigError.

    counter_names: the counters, each an integer attribute, in the order in which records have them. rated: those whose
    rates per second are recorded.
    """

    config: BaseRunConfig
    counter_names: ClassVar[tuple[str, ...]] = ("opt_steps", "epochs")
    rated: ClassVar[tuple[str, ...]] = ("opt_steps",)

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
    ) -> None:
        self.run, self.resumed, self.origin = run, isinstance(run, RunFolder), origin
        with trusting(not self.resumed and origin is None):  # whoever trains by their own config trusts what it names
            self.config = read_config(config, overrides)
        self.trainer_in_python = python_class(type(self), self.config)
        self.name = Path(config).stem if isinstance(config, str | Path) else "run"
        self.console = console or VisibleConsole()
        self.output: RunOutput | None = None
        self.compiling = CompilingNotice(self._say)
        self.device = find_device(self.config.execution.device)
        self.time_log = TimeLog(self.device)
        self.clock, self.signals = TrainingClock(), StopSignals()
        self.callbacks = [*map(make_callback, self.config.callbacks), *required_callbacks(callbacks)]
        self.loggers: dict[str, Recorder] = {}
        self.set_in_python: list[str] = []  # calls that gave objects which no config names
        self._build()

    def _build(self) -> None:
        """Make what is trained. The config, the device and the callbacks exist already."""

    @classmethod
    def load(
        cls,
        run: str | Path,
        callbacks: Sequence[Callback] = (),
        console: Console | None = None,
        into: str | Path | None = None,
        trust: bool = False,
        models: Models | None = None,
    ) -> Self:
        """The trainer of a stored run, of the class that its config names. `fit` goes on from its last checkpoint.

        run: its folder, or the URL of its mirror, which is fetched into a new folder: `into`, or if that is None
        runs/<the last part of the URL>. callbacks: those that the run was started with besides the config's; their
        state is restored. trust: whether the modules that the run names are trusted from now on. models: the networks
        that `set_model` handed over when the run began, by role, or those of the one player that learns; they are
        copied. Raises UntrustedError for
        modules that are not trusted, RunFolderError where there is no run, another class has trained it, or it needs
        other `models`.
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
            config = read_stored_config(folder.config)
            built = class_for(cls, config, folder)
            trainer = built(config, run=folder, callbacks=callbacks, console=console)
        for role, nets in by_role(config, models).items():
            trainer.set_model(role, deepcopy(nets))
        trainer.name = folder.path.name
        return trainer

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
        """The trainer of a new run that begins with the state of a checkpoint and a changed config.

        checkpoint: its folder, or beside it `latest`, `best`, a number, or @ and an opt step. overrides: the changes,
        as "num_worlds=4"; the new run's changes.jsonl lists them. run: the new run's folder, which must not exist;
        None: runs/<name>-<n>. callbacks: those that the old run was started with besides the config's, whose state is
        restored; further ones begin anew. trust: as in `load`. freeze: learning players that are held fixed from here
        on. replace: scripted players, by the names of those whose places they take from here on. models: as in `load`.
        Raises ConfigError for a change that the state does not allow, MissingCheckpointError, RunFolderError,
        UntrustedError.
        """
        run_of(Path(checkpoint))  # raises if there is no run
        origin = checkpoint_folder(Path(checkpoint))
        with trusting(trust):
            nets_of = by_role(read_stored_config(run_of(origin).config), models)
            seats = seat_overrides(origin, freeze, replace or {})
            config = branched_config(origin, [*seats, *listed(overrides)], calls_of(nets_of))
            built = class_for(cls, config, run_of(origin))
            trainer = built(config, run=run, callbacks=callbacks, console=console, origin=origin)
        for role, nets in nets_of.items():
            trainer.set_model(role, deepcopy(nets))
        trainer.name = f"{run_of(origin).path.name}-branch"
        return trainer

    def copy(self, run: str | Path | None = None, models: Models | None = None) -> Self:
        """The trainer of a new run that goes on where the last checkpoint of this one stands, as this one does between
        two calls of `fit`: a branch without changes. Trained alike, both come to the same bits; neither touches the
        other.

        run: the new run's folder, which must not exist; None: runs/<name>-<n>. Callbacks from Python are copied,
        recorders of `set_logger` are not. models: as in `load`. As in every branch, the best checkpoint and schedules
        that a callback has changed begin anew. Raises RuntimeError without a checkpoint, RunFolderError.
        """
        if not isinstance(self.run, RunFolder) or self.run.checkpoints.kind("latest") is None:
            raise RuntimeError("copy: expected a run with a checkpoint, got one that has none; call fit() first")
        callbacks = deepcopy(self.callbacks[len(self.config.callbacks) :])
        latest = self.run.checkpoints.path / "latest"
        return type(self).branch(latest, [], run, callbacks, self.console, models=models)

    # ---- counters ----------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.counter_names}

    @property
    def counters(self) -> Counters:
        """The counters that intervals and limits may name as their unit."""
        counts = self.counts()
        return {unit: self.clock.seconds / 60 if unit == "minutes" else counts[unit] for unit in self.config.units}

    def mark(self) -> Mark:
        """The present counts and seconds of training, from which rates are computed."""
        return Mark(self.clock.seconds, {name: getattr(self, name) for name in self.rated})

    # ---- output ------------------------------------------------------------------------------------------

    def set_logger(self, recorder: Recorder) -> None:
        """Let a recorder of your own file the records too, besides the config's. To be called before `fit`, and again
        after `Trainer.load`. Raises TypeError for what is no Recorder, RuntimeError once the run has begun."""
        self._require_unopened("set_logger")
        if not isinstance(recorder, Recorder):
            expected = (
                "set_logger: expected an object of a class that derives from palestra.recording.recorders.Recorder"
            )
            raise TypeError(f"{expected}, got {recorder!r:.80}")
        name = type(recorder).__name__
        self.loggers[name] = recorder
        self._set_in_python(f"set_logger({name}(...))")

    def _require_unopened(self, call: str) -> None:
        if self.output is not None:
            raise RuntimeError(f"{call}: expected a call before fit(), got one after the run has begun")

    def _set_in_python(self, call: str) -> None:
        self.set_in_python = sorted({*self.set_in_python, call})

    def log(self, line: str) -> None:
        """Show a line that stays."""
        self.opened_output().display.log(line)

    def _say(self, line: str) -> None:
        """As `log`, but it also works before the run has an output."""
        if self.output is not None:
            self.log(line)
        elif self.config.output.display != "quiet":
            self.console.print(line, soft_wrap=True)

    def is_asked_to_leave(self) -> bool:
        """Whether a signal asks the run to leave."""
        return self.signals.received is not None

    def opened_output(self) -> RunOutput:
        if self.output is None:
            raise RuntimeError("the run has no folder yet: call fit() first")
        return self.output

    def _begin_run(self, folder: RunFolder) -> None:
        """Write what a new run needs in its folder besides its config."""

    def _parts_opened(self, output: RunOutput) -> AbstractContextManager[None]:
        """A context that is open during one `fit`."""
        return nullcontext()

    def _close(self) -> None:
        """Called when `fit` ends, also by an error."""

    def _is_saved(self) -> bool:
        """Whether nothing is lost if the process ends now."""
        return False

    @contextmanager
    def _opened(self) -> Iterator[RunOutput]:
        """Opens the run's folder and recorders, sets threads and signal handlers, for one `fit`."""
        # before the folder: an extra may be missing
        self._recorders = make_recorders(self.config.output.recorders) | self.loggers
        self.output = output = self.output or self._make_output()
        try:
            with (
                limited_threads(self.config.execution.num_threads),
                frozen_garbage(),
                self.compiling.listening(),
                self.signals.caught(self.config.output.stop_within_s, self._before_exit),
                output.opened(),
                self._parts_opened(output),
                self.clock.running(),
                self.time_log.running(),
            ):
                if self.set_in_python:
                    calls = ", ".join(self.set_in_python)
                    self.log(f"this run cannot be rebuilt from its config: it uses objects from {calls}")
                if self.trainer_in_python is not None:
                    self.log(
                        f"this run cannot be resumed from the shell: its config does not name {self.trainer_in_python}"
                    )
                yield output
        finally:
            self._close()

    def _make_output(self) -> RunOutput:
        if self.config.output.mirror is not None and not self.resumed:
            self.config.output.mirror.require_backend()  # before there is a folder
        self.run = folder = self.run if isinstance(self.run, RunFolder) else default_folder(self.run, self.name)
        if self.resumed:
            if folder.facts().set_in_python != self.set_in_python:
                raise folder.not_rebuildable()
            return RunOutput(folder, self.config, self.console)
        self._begin_run(folder)  # first: a folder with a config and run.json is a run
        return RunOutput.create(
            folder, self.config, self.console, self.origin, self.set_in_python, self.trainer_in_python
        )

    def _before_exit(self, why: str) -> None:
        """Called from another thread; the main thread may be anywhere."""
        left = f"left {'after' if self._is_saved() else 'without'} saving"
        way = self.run.ways_on().to_resume() if isinstance(self.run, RunFolder) else None
        remedy = "nothing was saved" if way is None else f"to go on: {way}"
        print(f"{why}; {left}; {visible(remedy)}", file=sys.__stderr__, flush=True)
