"""Trainings of stored runs: loads them, branches off checkpoints, copies them, and restores the state for `fit`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from palestra.callbacks import Callback
from palestra.config import list_of_overrides, trusting
from palestra.runs.base import TrainerBase
from palestra.runs.branching import branched_config, change_bitless, changes_since, note_changes, run_of, seat_overrides
from palestra.runs.kinds import read_stored_config
from palestra.runs.user_nets import Models, Nets, calls_of
from palestra.runtime.console import VisibleConsole
from palestra.storage.checkpoints import CheckpointError
from palestra.storage.disk import RunFolderError
from palestra.storage.fetching import fetch, is_url
from palestra.storage.loaded_checkpoint import checkpoint_folder
from palestra.storage.run_folder import RunFolder
from palestra.training import processes
from palestra.training.naming import class_for, named_classes

T = TypeVar("T", bound=TrainerBase)


def load(
    cls: type[T],
    run: str | Path,
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
    into: str | Path | None = None,
    trust: bool = False,
    models: Models | None = None,
    overrides: Sequence[str] = (),
) -> T:
    """The training of a stored run, of the class that its config names. `fit` goes on from its last checkpoint.

    run: its folder, or the URL of its mirror, which is fetched into a new folder: `into`, or if that is None runs/<the
    last name in the URL>. callbacks: those that the run was started with besides the config's; their state is restored.
    trust: whether the modules that the run names are trusted from now on. models: the networks that `set_model` handed
    over when the run began, by role, or those of the one player that learns; they are copied. overrides: of keys that
    change no bit, as "execution.loading.num_workers=0"; the run's changes.jsonl lists them. Raises UntrustedError for
    modules that are not trusted, ConfigError for other overrides, RunFolderError where there is no run, another class
    has trained it, or it needs other `models`.
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
        training = class_for(cls, config, folder)(config, run=folder, callbacks=callbacks, console=console)
    return _with_models(training, training.by_role(config, models), folder.path.name)


def branch(
    cls: type[T],
    checkpoint: str | Path,
    overrides: Sequence[str],
    run: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
    trust: bool = False,
    freeze: Sequence[str] = (),
    replace: Mapping[str, str] | None = None,
    models: Models | None = None,
) -> T:
    """The training of a new run that begins with the state of a checkpoint and a changed config.

    checkpoint: its folder, or beside it `latest`, `best`, a number, or @ and an opt step. overrides: the changes, as
    "num_worlds=4"; the new run's changes.jsonl lists them. run: the new run's folder, which must not exist; None:
    runs/<name>-<n>. callbacks: those that the old run was started with besides the config's, whose state is restored;
    further ones begin anew. trust: as in `load`. freeze: learning players that are held fixed from here on. replace:
    scripted players, by the names of those whose places they take from here on. models: as in `load`. Raises
    ConfigError for a change that the state does not allow, MissingCheckpointError, RunFolderError, UntrustedError.
    """
    source = run_of(Path(checkpoint))  # raises if there is no run
    origin = checkpoint_folder(Path(checkpoint))
    with trusting(trust):
        stored = read_stored_config(source.config)
        nets_of = named_classes(stored)[0].by_role(stored, models)
        seats = seat_overrides(origin, freeze, replace or {})
        config = branched_config(origin, [*seats, *list_of_overrides(overrides)], calls_of(nets_of))
        built = class_for(cls, config, source)
        training = built(config, run=run, callbacks=callbacks, console=console, origin=origin)
    return _with_models(training, nets_of, f"{source.path.name}-branch")


def copy(self: Any, run: str | Path | None = None, models: Models | None = None) -> Any:
    """The training of a new run that goes on from the last checkpoint of this one: a branch without changes.

    Trained alike, both come to the same bits, and neither touches the other. run: the new run's folder, which must not
    exist; None: runs/<name>-<n>. models: as in `load`. Callbacks from Python are copied, recorders of `set_logger` are
    not. As in every branch, the best checkpoint and schedules that a callback has changed begin anew. Raises
    RuntimeError without a checkpoint, RunFolderError.
    """
    place = self.run.place
    if not isinstance(place, RunFolder) or place.checkpoints.kind("latest") is None:
        raise RuntimeError("copy: expected a run with a checkpoint, got one that has none; call fit() first")
    callbacks = deepcopy(self.callbacks[len(self.config.callbacks) :])
    latest = place.checkpoints.path / "latest"
    return branch(type(self), latest, [], run, callbacks, self.run.console, models=models)


def by_role(cls: type[TrainerBase], config: Any, models: Models | None) -> Mapping[str, Nets]:
    """What `set_model` handed over when a stored run began, by role: nothing. Raises ValueError for `models`."""
    if models is not None:
        raise ValueError(f"models: expected none, because this is {config.in_words}")
    return {}


def _with_models(training: Any, nets_of: Mapping[str, Nets], name: str) -> Any:
    """Give a training the networks with which its run began, and its name."""
    for role, nets in nets_of.items():
        training.set_model(role, deepcopy(nets))
    training.run.name = name
    return training


@contextmanager
def opened(training: Any) -> Iterator[None]:
    """The context of one `fit`, in which all components of a training are open."""
    run, replica = training.run, training.replica
    try:
        if not replica.leads:
            with processes.beside(training) if replica.heads else nullcontext():
                yield
            return
        with (
            run.opened(training._begin_run, training.is_saved),
            training.checkpoints.opened(training.evaluating.candidates),
            nullcontext() if training.is_between else training.evaluating.opened(),
            run.timed(),
        ):
            if replica.link is not None:
                processes.share_folder(training, replica.link)
            yield
    finally:
        training._close()


def restore_or_begin(training: Any) -> None:
    """Restore the last checkpoint of a training's run; for a branch that has none yet, the one that it branches off."""
    if not training.replica.leads:
        return _follow(training)
    run, checkpoints, buffers = training.run, training.checkpoints, training.lockstep.buffers()
    if (loaded := checkpoints.load_latest()) is not None:
        with loaded.fitting():
            checkpoints.go_back_to(loaded, buffers)
            training.load_state_dict(training.lockstep.begin(loaded)[0])
        for line in [*loaded.warnings, *run.differences(loaded), *training.differences(loaded.state)]:
            run.display.warn(line)
        end = run.finished_line(training.end_reason) if training.finished else "it goes on from there"
        return run.display.log(
            f"{run.folder.path}: checkpoint {loaded.folder.name}, opt step {training.opt_steps}; {end}"
        )
    checkpoints.begin_anew()
    for start in run.warm_starts:
        training.log(start.line())
        run.records.write({**start.record(), **training.counts()})
    if (branched_from := run.folder.facts().branched_from) is not None:
        origin = Path(branched_from)
        loaded = checkpoints.stored.load(origin)
        with loaded.fitting():
            checkpoints.stored.take_once(loaded)
            checkpoints.restore_rows(loaded, buffers)
            _begin_branch(training, training.lockstep.begin(loaded, is_branch=True)[0])
        note_changes(run.folder, changes_since(origin, run.config), loaded.counters)
        run.has_branched_off = True
        return run.display.log(f"{run.folder.path} branches off {origin}, opt step {training.opt_steps}")
    training.lockstep.begin(None)
    if run.resumed:
        run.display.log(f"{run.folder.path} has no checkpoint: it starts at 0")


def _begin_branch(training: Any, state: dict[str, Any]) -> None:
    """Begin with the state of a replica of the run that a new one branches off."""
    training.load_state_dict(training.state_of_branch(state))
    for callback in training.callbacks:
        callback.begin_branch()
    training.finished = False  # a branch from the end of a run evaluates once, and ends


def _follow(training: Any) -> None:
    """Begin as the leader of the replicas does, with this one's state, if there is one."""
    state, is_branch = training.lockstep.begin(None)
    if is_branch:
        _begin_branch(training, state)
    elif state is not None:
        training.load_state_dict(state)


def restore_callbacks(callbacks: Sequence[Callback], states: Sequence[dict[str, Any]]) -> None:
    """Give each callback its state. Raises CheckpointError where their number is another."""
    if len(states) != len(callbacks):
        raise CheckpointError(
            f"expected {len(states)} callbacks, as when the run was saved, got {len(callbacks)}; "
            "give Trainer.load or Trainer.branch those that the run was started with"
        )
    for callback, state in zip(callbacks, states, strict=True):
        callback.load_state_dict(state)
