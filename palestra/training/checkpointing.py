"""Saves a training, and restores it: from its own checkpoint, or as a branch from a checkpoint of another run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from palestra.buffers.replay import ReplayBuffer
from palestra.runs.branching import (
    Reached,
    changes_since,
    extend,
    note_changes,
    require_same_experiment,
    stored_config,
)
from palestra.storage.checkpoints import CheckpointError
from palestra.storage.loaded_checkpoint import LoadedCheckpoint
from palestra.storage.remote import RemoteError
from palestra.storage.run_folder import RunFolder
from palestra.training.interface import RunningTraining


class Checkpointing:
    """The checkpoints of one training.

    failure: why the last save failed; None if it succeeded. has_branched_off: whether the training has taken over the
    state of another run's checkpoint.
    """

    def __init__(self, training: RunningTraining) -> None:
        self.training = training
        self.failure: CheckpointError | None = None
        self.has_branched_off = False

    # ---- saving ----------------------------------------------------------------------------------------

    def save(self, is_best: bool, is_due: bool) -> None:
        """Write a checkpoint. If the disk refuses, the display says so, and training goes on; a failed last save makes
        `fit` raise at the end.

        is_best: whether it becomes the best one. is_due: whether it was due here; one that is saved only because the
        run stops here uses up no number, and the next due checkpoint takes its place.
        """
        training = self.training
        training.require_finite(with_parameters=True)
        output = training.opened_output()
        with training.during("saving", []), training.clock.paused(), training.time_log.during("saving"):
            try:
                buffers, has_rows = training.buffers(), not self._leaves_out_rows()
                state = training.state_dict() if has_rows else training.without_rows(training.state_dict())
                state |= {"is_best": is_best, "config": stored_config(training.config), "has_replay_rows": has_rows}
                folder = output.save(state, training.counts(), buffers if has_rows else {}, is_best, is_due)
                self.failure = None
            except CheckpointError as error:  # the disk may have room again by the next time
                self.failure = error
                if is_best:
                    training.evaluating.withdraw_best(error)
                output.display.error(f"{error}; training goes on")
                return
            training.after_save(folder)

    def _leaves_out_rows(self) -> bool:
        """Whether the checkpoint that is saved here holds no rows of replay buffers, although there are some."""
        training, which = self.training, self.training.config.output.replay_in_checkpoints
        is_light = which == "none" or (which == "resumable" and training.finished)
        return is_light and not all(buffer.is_empty for buffer in training.buffers().values())

    def write_ahead(self) -> None:
        """Write rows of replay buffers that the next checkpoint will need."""
        training = self.training
        if training.config.output.replay_in_checkpoints == "none":
            return
        with training.clock.paused(), training.time_log.during("saving"):
            training.opened_output().checkpoints.write_ahead(training.buffers())

    def finish_mirror(self) -> RemoteError | None:
        """Wait for the last upload, if there is a mirror. Gives the error if it failed, else None."""
        training, output = self.training, self.training.opened_output()
        if output.mirror is None:
            return None
        waiting = training.during("waiting for the mirror", [])
        with waiting, training.clock.paused(), training.time_log.during("saving"):
            try:
                output.finish_mirror()
            except RemoteError as error:
                way = output.folder.ways_on().to_resume()
                return RemoteError(f"{error}" if way is None else f"{error}; to send the rest: {way}")
        return None

    # ---- another end -----------------------------------------------------------------------------------

    def extend(self, overrides: Sequence[str]) -> None:
        """Give the run another end, in its config on the disk and here. Raises as palestra.runs.branching.extend,
        RuntimeError if the run has no folder yet."""
        training = self.training
        if not isinstance(training.run, RunFolder):
            raise RuntimeError("extend: expected a run that has begun, got one without a folder; call fit() first")
        has_begun = any(training.counts().values())  # else the state is still in the last checkpoint
        here = Reached(training.counts(), training.end_reason) if has_begun else None
        extended = extend(training.run.path, overrides, here)
        training.config = training.config.model_copy(update={"stop": extended.stop})
        if training.output is not None:
            training.output.config = training.config
        training.finished = False

    # ---- restoring -------------------------------------------------------------------------------------

    def restore_or_begin(self) -> None:
        """Begin `fit`: restore the last checkpoint or, if this run branches off another one, the checkpoint that it
        branches off."""
        output = self.training.opened_output()
        if output.checkpoints.numbers():
            self.restore("latest")
            return
        output.rewind(None)
        origin = output.origin()
        if origin is not None:
            self._branch_off(origin)
        elif self.training.resumed:
            output.display.log(f"{output.folder.path} has no checkpoint: it starts at 0")

    def restore(self, which: str) -> None:
        """Go back to a checkpoint of this run: state, buffers, and the records up to it."""
        training, output = self.training, self.training.opened_output()
        loaded = output.checkpoints.load(which)
        require_same_experiment(loaded, training.config)
        with loaded.fitting():
            self._go_back_to(loaded)
        for line in [*loaded.warnings, *output.differences(loaded), *training.differences(loaded.state)]:
            output.display.warn(line)
        end = f"it is finished; {self._way_on()}" if training.finished else "it goes on from there"
        where = f"checkpoint {loaded.folder.name}, opt step {training.opt_steps}"
        output.display.log(f"{output.folder.path}: {where}; {end}")

    def tell_finished(self) -> None:
        """Say that the run is finished, and how it can go on."""
        self.training.log(f"{self.training.opened_output().folder.path}: it is finished; {self._way_on()}")

    def _way_on(self) -> str:
        """The command by which a run goes on that is finished."""
        ways, stop = self.training.opened_output().folder.ways_on(), self.training.config.stop
        has_ended_early = self.training.end_reason is not None
        way = ways.to_branch() if has_ended_early else ways.to_extend(f"stop.after={2 * stop.after:g}")
        return "it cannot go on, because nothing was saved" if way is None else f"to go on: {way}"

    def _go_back_to(self, loaded: LoadedCheckpoint) -> None:
        training, output = self.training, self.training.opened_output()
        output.rewind(loaded)
        training.clock.set_before(output.train_seconds())
        training.time_log.set_before(output.time_by_phase())
        self._restore_rows(loaded, training.buffers())
        training.load_state_dict(loaded.state)
        if loaded.state["is_best"]:  # a kill may have come before it was marked
            output.checkpoints.mark_best(loaded.folder.name)
        output.catch_up_mirror()
        training.begin_rates()

    def _restore_rows(self, loaded: LoadedCheckpoint, buffers: Mapping[str, ReplayBuffer]) -> None:
        """Fill the replay buffers from a checkpoint. If it holds no rows, the buffers stay as they are, and the display
        says so."""
        training, has_rows = self.training, loaded.state["has_replay_rows"]
        training.opened_output().checkpoints.restore_buffers(loaded, buffers if has_rows else {})
        for name, buffer in buffers.items() if not has_rows else ():
            what = "begins empty" if buffer.is_empty else f"goes on with the {len(buffer)} rows that it was given"
            training.opened_output().display.warn(
                f"checkpoint {loaded.folder.name} holds no replay rows (output.replay_in_checkpoints): the replay "
                f"buffer of player {name!r} {what}; equal bits are not promised"
            )

    @contextmanager
    def removing_failed_branch(self) -> Iterator[None]:
        """If an error comes before a branch has taken over the state of its checkpoint, remove the branch's new
        folder."""
        training = self.training
        try:
            yield
        except BaseException:
            is_new = training.origin is not None and not training.resumed
            if is_new and not self.has_branched_off and isinstance(training.run, RunFolder):
                training.run.discard()
            raise

    def _branch_off(self, origin: Path) -> None:
        """Begin with the state of another run's checkpoint; records and best score are this run's own."""
        training, output = self.training, self.training.opened_output()
        loaded = output.checkpoints.load(origin)
        with loaded.fitting():
            buffers = training.buffers()
            rows = {name: rows for name, rows in loaded.buffers.items() if name in buffers}
            self._restore_rows(replace(loaded, buffers=rows), buffers)
            training.load_state_dict(training.state_of_branch(loaded.state))
        for callback in training.callbacks:
            callback.begin_branch()
        training.finished = False  # a branch from the end of a run evaluates once, and ends
        training.begin_rates()
        note_changes(output.folder, changes_since(origin, training.config), loaded.counters)
        self.has_branched_off = True
        output.display.log(f"{output.folder.path} branches off {origin}, opt step {training.opt_steps}")
