"""Checks what training needs in order to go on: finite losses and parameters, and folders that can be written to."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from palestra.buffers.memory import NoRoom
from palestra.callbacks import Callback
from palestra.config import ConfigError, ConfigErrorItem, Failed, PartError, running_own
from palestra.config.own_classes import HOOKS, is_ours, names_of_ours, own_frames, require_used
from palestra.run.base import BaseRunConfig
from palestra.run.run import Run
from palestra.run.run_checkpoints import RunCheckpoints
from palestra.scaling.replica import Replica
from palestra.storage.manifest import numbers_in
from palestra.storage.run_folder import RunFolder, write_traceback

MOST_IDLE_EPOCHS = 1000  # epochs in which nothing is counted, before a run is told that none would end it


class TrainingFailed(Failed, RuntimeError):
    """Training cannot go on: a loss is not finite, the disk is full, or an environment has raised.

    why: what has happened. left: how to go on from the last checkpoint, and which file says more.
    """

    def __init__(self, why: str, *left: str) -> None:
        super().__init__("; ".join([why, *left]))
        self.why = why


class TrainingEnds(Exception):
    """A safe point raises it to leave the loops: the run is done, or a signal asked to leave."""


class Watcher:
    """An observer that is called at every safe point but does not belong to the run: `palestra verify`, `profile`.

    Both methods may raise TrainingEnds.
    """

    def before_safe_point(self) -> None:
        """Look at a training before it does what is due."""

    def after_safe_point(self) -> None:
        """Look at a training that goes on."""


class AnyTraining(Protocol):
    """A training of any kind, as those of its parts know it that need no more."""

    run: Run
    replica: Replica
    checkpoints: RunCheckpoints
    opt_steps: int

    @property
    def config(self) -> Any: ...

    @property
    def callbacks(self) -> Sequence[Callback]: ...

    def is_saved(self) -> bool: ...


@contextmanager
def telling_failures(run: Run, failures: tuple[type[Exception], ...]) -> Iterator[None]:
    """A context in which a lack of memory for replay buffers and the exceptions `failures` become TrainingFailed.

    One that code of the user's own has raised stays what it is, with a note on how to go on.
    """
    try:
        yield
    except NoRoom as error:
        raise TrainingFailed(str(error), resume_hint(run.folder)) from error
    except failures as error:
        traceback = write_traceback(run.folder.root, error)
        raise TrainingFailed(str(error), resume_hint(run.folder), traceback) from error
    except Exception as error:
        if own_frames(error) and not isinstance(error, Failed | ConfigError):
            error.add_note(f"{resume_hint(run.folder)}; {write_traceback(run.folder.root, error)}")
        raise


def resume_hint(folder: RunFolder) -> str:
    """Say how to go on with a run that has failed."""
    if (way := folder.ways_on().to_resume()) is None:
        return "nothing was saved"
    if not (numbers := numbers_in(folder.checkpoints)):
        return f"the answers of servers are kept; to resume: {way}"
    return f"the last checkpoint is {numbers[-1]:08d}; to resume: {way}"


def branch_hint(folder: RunFolder) -> str:
    """Say how to go on after a fault that a resumed run would meet again, because it computes the same bits."""
    if not (numbers := numbers_in(folder.checkpoints)):
        return "nothing was saved"
    way = folder.ways_on().to_branch(f"{numbers[-1]:08d}")
    return f"a resumed run would fail again; to change the config: {way}"


def require_progress(training: AnyTraining, num_idle: int) -> None:
    """Raise TrainingFailed after many epochs, one after the other, that have counted nothing, if no other can end.

    num_idle: how many there were.
    """
    unit = training.config.stop.unit
    if num_idle >= MOST_IDLE_EPOCHS and unit not in ("epochs", "minutes"):
        expected = f"{type(training).__name__}._train: expected it to count {unit}, as `stop` does, or to call end_run"
        raise TrainingFailed(f"{expected}, got {num_idle} epochs, one after the other, in which nothing was counted")


def check_checkpoint_folder(config: BaseRunConfig) -> None:
    """Raise ConfigError for a checkpoint folder that cannot be made or written to.

    Only for runs that begin: later the run.json names the folder.
    """
    place = config.output.checkpoint_folder
    if place is None:
        return
    nearest = next(path for path in (Path(place), *Path(place).parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise ConfigError.at("output.checkpoint_folder", f"expected a folder in which files can be made, got {place!r}")


def check_scratch_folders(config: BaseRunConfig) -> None:
    """Raise ConfigError for a scratch folder in which nothing can be written.

    Only training needs these folders; a run can be evaluated on a machine that lacks them.
    """
    ConfigError.require_none(
        ConfigErrorItem(key, f"expected a folder in which files can be made, got {folder!r}")
        for key, folder in config.scratch_folders().items()
        if not (os.path.isdir(folder) and os.access(folder, os.W_OK))
    )


def uncalled_hooks(training: AnyTraining) -> list[str]:
    """Say which hooks of callbacks a training of this kind never calls."""
    uncalled = [name for name in names_of_ours(Callback) if name.startswith(HOOKS) and not hasattr(training, name)]
    return [
        f"{cls.__name__}.{name} is never called, because this is {training.config.in_words}"
        for cls in map(type, training.callbacks)
        for name in uncalled
        if getattr(cls, name) is not getattr(Callback, name)
    ]


def check_ready(training: Any) -> None:
    """Raise ConfigError for a folder in which nothing can be written, and for a callback that does not fit the run.

    Raises RuntimeError in a worker that imports a script which trains at once.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError('expected fit() below `if __name__ == "__main__":`, because workers import the script, too')
    cls = type(training)
    require_used(cls, [name for name in dir(next(filter(is_ours, cls.__mro__))) if name.startswith(HOOKS)], "trainer")
    check_scratch_folders(training.config)
    if not training.run.resumed:
        check_checkpoint_folder(training.config)
    for callback in training.callbacks:
        require_used(type(callback), names_of_ours(Callback), "callbacks")
        try:
            with running_own("callbacks", f"{type(callback).__name__} fails"):
                callback.check(training)
        except PartError as error:
            raise error.within(training.config, "") from error
