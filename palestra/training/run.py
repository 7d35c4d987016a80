"""A trainer's run: its config, its folder and what it shows; how it is opened for `fit`, loaded and branched."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from palestra.callbacks import Callback, make_callback
from palestra.config import trusting
from palestra.recording import make_recorders
from palestra.recording.recorders import Recorder
from palestra.runs.branching import branched_config, run_of
from palestra.runs.config import BaseRunConfig, TrainerBase, read_config, read_stored_config
from palestra.runs.output import RunOutput, default_folder
from palestra.runtime.clock import TrainingClock
from palestra.runtime.device import find_device
from palestra.runtime.signals import StopSignals
from palestra.runtime.threads import CompilingNotice, frozen_garbage, limited_threads
from palestra.runtime.timing import TimeLog
from palestra.storage.checkpoints import checkpoint_folder
from palestra.storage.disk import RunFolderError
from palestra.storage.fetching import fetch, is_url
from palestra.storage.run_folder import RunFolder
from palestra.training.naming import class_for, python_class


class RunOwner(TrainerBase):
    """What a trainer has of its run, whatever it trains.

    config: a path, a mapping or a config object. run: the run's folder, which must not exist; None: runs/<name>-<n>.
    callbacks: more of them, beside the config's. origin: the checkpoint that the run branches off, as `branch` has it.
    """

    config: BaseRunConfig

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
        with trusting(not self.resumed and origin is None):  # who trains by a config of their own means what it names
            self.config = read_config(config, tuple(overrides))
        self.trainer_in_python = python_class(type(self), self.config)
        self.name = Path(config).stem if isinstance(config, str | Path) else "run"
        self.console = console or Console()
        self.output: RunOutput | None = None
        self.compiling = CompilingNotice(self._say)
        self.device = find_device(self.config.execution.device)
        self.time_log = TimeLog(self.device)
        self.clock, self.signals = TrainingClock(), StopSignals()
        self.callbacks = [*map(make_callback, self.config.callbacks), *callbacks]
        self.loggers: dict[str, Recorder] = {}
        self.set_in_python: list[str] = []  # calls that gave objects which no config names
        self._build()

    def _build(self) -> None:
        """Make what is trained; config, device and callbacks are there."""

    @classmethod
    def load(
        cls,
        run: str | Path,
        callbacks: Sequence[Callback] = (),
        console: Console | None = None,
        into: str | Path | None = None,
        trust: bool = False,
    ) -> Self:
        """The trainer of a run, from its folder, of the class that its config names. `fit` goes on where its last
        checkpoint stands.

        run: the folder, or the URL of its mirror, which is fetched into a new folder: `into`, or where that is None
        runs/<the last part of the URL>. callbacks: those that the run was started with beside the config's; they get
        their state back. trust: whether the modules that the run names are trusted from now on. Raises UntrustedError
        for those that are not, RunFolderError for a run that another class has trained.
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
            built = class_for(cls, config, folder)
            trainer = built(config, run=folder, callbacks=callbacks, console=console)
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
            config = branched_config(origin, overrides)
            built = class_for(cls, config, run_of(origin))
            trainer = built(config, run=run, callbacks=callbacks, console=console, origin=origin)
        trainer.name = f"{run_of(origin).path.name}-branch"
        return trainer

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

    def log(self, line: str) -> None:
        """Show a line that stays."""
        self.opened_output().display.log(line)

    def _say(self, line: str) -> None:
        """The same, also before the run has an output."""
        if self.output is not None:
            self.log(line)
        elif self.config.output.display != "quiet":
            self.console.print(line, soft_wrap=True)

    def opened_output(self) -> RunOutput:
        if self.output is None:
            raise RuntimeError("the run has no folder yet: call fit() first")
        return self.output

    def _begin_run(self, folder: RunFolder) -> None:
        """Write what a new run needs in its folder beside its config."""

    def _parts_opened(self, output: RunOutput) -> AbstractContextManager[None]:
        """What else is open for the time of one `fit`."""
        return nullcontext()

    def _close(self) -> None:
        """Called when `fit` is left."""

    def _is_saved(self) -> bool:
        """Whether who leaves at once loses nothing."""
        return False

    @contextmanager
    def _opened(self) -> Iterator[RunOutput]:
        """The run's folder, recorders, threads and signal handlers, for the time of one `fit`."""
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
                    self.log(f"not to be rebuilt from its config: {', '.join(self.set_in_python)} gave it objects")
                if self.trainer_in_python is not None:
                    self.log(f"not to be resumed from the shell: its config does not name {self.trainer_in_python}")
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
        self._begin_run(folder)  # first: a folder with a config is a run
        return RunOutput.create(
            folder, self.config, self.console, self.origin, self.set_in_python, self.trainer_in_python
        )

    def _before_exit(self, why: str) -> None:
        """Called from another thread; the main one may be anywhere."""
        left = f"left {'after' if self._is_saved() else 'without'} saving"
        print(f"{why}; {left}; palestra resume {getattr(self.run, 'path', self.run)}", file=sys.__stderr__, flush=True)
