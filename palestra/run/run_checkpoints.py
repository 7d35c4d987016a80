"""The checkpoints of a run that trains, and their mirror: saves the state of a training, and reads it back."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from palestra.buffers.replay import ReplayBuffer
from palestra.config import ConfigError, user_class_hashes
from palestra.run.base import BaseRunConfig
from palestra.run.branching import tree_differences, unequal_bits
from palestra.run.checkpoints import CheckpointError, Checkpoints
from palestra.run.loaded_checkpoint import LoadedCheckpoint
from palestra.run.mirror import Mirror
from palestra.run.remote import RemoteError
from palestra.run.run import ProgressReporter
from palestra.storage.disk import RunFolderError
from palestra.storage.facts import machine, versions
from palestra.storage.manifest import Once, OnceFolder, StoredRows
from palestra.storage.records_file import beginning_of
from palestra.storage.run_folder import RunFolder

Steps = Mapping[str, int]
"""The counters that identify a checkpoint and its players."""


class RunCheckpoints:
    """The checkpoints of one run; `opened` while the run trains. progress: tells the display what is waited for.

    stored: those on the disk. number: that of the last checkpoint that was due. stands_on: the number of the checkpoint
    that was loaded or saved last. failure: the error of the last save; None if it succeeded.
    """

    stored: Checkpoints

    def __init__(self, progress: ProgressReporter) -> None:
        self.progress, self.run = progress, progress.run
        self.number = self.stands_on = -1
        self.failure: CheckpointError | None = None
        self.mirror: Mirror | None = None
        self._once: Once = {}  # what the next `fit` names, too
        self._unwritten: dict[tuple[OnceFolder, str], bytes] = {}  # what it still has to write

    @contextmanager
    def opened(self, candidates: Callable[[], Sequence[Steps]]) -> Iterator[None]:
        """A context in which checkpoints can be saved and the mirror is open.

        candidates: gives the steps of those that may still become the best.
        """
        self._candidates = candidates
        self.open_beside()
        self.stored.seconds = self.run.seconds
        self.stored.in_use, self.stored.once, self.stored.unwritten = self._in_use, self._once, self._unwritten
        with ExitStack() as stack:
            try:
                self.mirror = self._make_mirror()
                if self.mirror is not None:
                    stack.enter_context(self.mirror)
            except RemoteError as error:
                raise ConfigError.at("output.mirror", str(error)) from error
            yield

    def open_beside(self) -> None:
        """Let checkpoints be read, and rows be stored, in a process that does not save them."""
        output = self.run.config.output
        self.stored = Checkpoints(self.run.folder, output.keep_last, output.keep_every)

    def _make_mirror(self) -> Mirror | None:
        """The mirror at the URL in run.json; None if it has none."""
        folder, config = self.run.folder, self.run.config.output.mirror
        url = folder.facts().mirror
        if (url is None) != (config is None):
            has, got = ("no mirror", url) if config is None else (f"the mirror {config.url}", "none")
            raise RunFolderError(f"{folder.run} is damaged: expected {has}, as in config.yml, got {got}")
        display = self.run.display
        return None if url is None else Mirror(url, config, folder, self.stored, display.error, display.log)

    def _in_use(self) -> set[int]:
        """The numbers of checkpoints that must not be deleted yet."""
        held = [self.stored.holding(steps) for steps in self._candidates()]
        sending = set() if self.mirror is None else self.mirror.in_use()
        return {number for number in held if number is not None} | sending

    # ---- saving ------------------------------------------------------------------------------------------

    def save(
        self,
        state: Mapping[str, Any],
        counters: Steps,
        buffers: Mapping[str, ReplayBuffer] | None,
        best: bool,
        due: bool,
        elsewhere: Callable[[str], Mapping[str, StoredRows]] = lambda unfinished: {},
    ) -> Path | None:
        """Write the next checkpoint, after all records are on the disk, and give its folder.

        If the disk refuses, the display says so, `failure` holds the error, and there is no folder.

        buffers: the replay buffers whose rows it holds; None leaves the rows out. best: whether it becomes the best
        one. due: whether it is due here. One that is saved only because the run stops here uses up no number, and the
        next due checkpoint takes its place. One that is due and fails uses up its number. elsewhere: as for
        palestra.run.checkpoints.Checkpoints.save.
        """
        number = self.number + 1
        records = self.run.records
        self.number += due
        state = {
            **state,
            "is_best": best,
            "config": stored_config(self.run.config),
            "has_replay_rows": buffers is not None,
        }
        try:
            records.flush(number)
            then = records.jsonl.measure.then()
            name = self.stored.save(number, state, counters, buffers or {}, then, due, elsewhere)
            self.stands_on = number
            if best:
                self.stored.mark_best(name)
        except CheckpointError as error:  # the disk may have room again by the next time
            if self.failure is None:
                self.run.display.error(f"{error}; training goes on, and the next saves are tried")
            self.failure = error
            return None
        if self.failure is not None:
            self.run.display.log(f"{self.stored.folder.path / name}: a save has succeeded again")
            self.failure = None
        if self.mirror is not None:
            self.mirror.send(number)
        return self.stored.folder.path / name

    def write_once(self, folder: OnceFolder, name: str, content: bytes) -> None:
        """Write a file that never changes, which later checkpoints name. If the disk refuses, the display says so."""
        try:
            self.stored.write_once(folder, name, content)
        except OSError as error:
            path = self.run.folder.path / folder / name
            self.run.display.error(f"{path} waits in memory, until a save succeeds: {error}; training goes on")

    def keep_once(self, folder: OnceFolder, names: Collection[str]) -> None:
        """Let later checkpoints name only these files of a folder; others go with the last checkpoint that does."""
        for name in [name for name in self.stored.once[folder] if name not in names]:
            del self.stored.once[folder][name]
            self.stored.unwritten.pop((folder, name), None)

    def leaves_out_rows(self, buffers: Mapping[str, ReplayBuffer], is_finished: bool) -> bool:
        """Whether a checkpoint that is saved now holds no rows of these replay buffers, although there are some.

        is_finished: whether the run is.
        """
        if not any(map(len, buffers.values())):
            return False
        which = self.run.config.output.replay_in_checkpoints
        return which == "none" or (which == "resumable" and is_finished)

    def write_ahead(self, buffers: Mapping[str, ReplayBuffer]) -> None:
        """Write rows of replay buffers that the next checkpoint will need."""
        if buffers and self.run.config.output.replay_in_checkpoints != "none":
            with self.run.aside("saving"):
                self.stored.write_ahead(buffers)

    def mark_best(self, steps: Steps) -> None:
        """Mark the checkpoint of these steps as the best one. Raises CheckpointError if there is none."""
        number = self.stored.holding(steps)
        if number is None:
            raise CheckpointError(f"the players of opt step {steps['opt_steps']}, the best so far, were not saved")
        self.stored.mark_best(f"{number:08d}")

    def catch_up_mirror(self) -> None:
        """Send what earlier processes have not sent, if the loaded checkpoint is the newest."""
        if self.mirror is not None and self.stands_on == max(self.stored.numbers()):
            self.mirror.send(self.stands_on)

    def finish_mirror(self) -> RemoteError | None:
        """Wait until the mirror is complete, then remove checkpoints that were only kept for it. Gives its error."""
        if self.mirror is None:
            return None
        try:
            with self.progress.during("waiting for the mirror", []), self.run.aside("saving"):
                self.mirror.finish()
        except RemoteError as error:
            way = self.run.folder.ways_on().to_resume()
            return RemoteError(f"{error}" if way is None else f"{error}; to send the rest: {way}")
        with suppress(OSError):  # the next save removes them
            self.stored.remove_unkept(self.stands_on, self.stored.between_dues(self.stands_on))
        return None

    # ---- reading back --------------------------------------------------------------------------------------

    def load_latest(self) -> LoadedCheckpoint | None:
        """The last checkpoint of this run; None if it has none.

        Raises CheckpointError if it cannot be read, or was written under another config, and then names the keys that
        differ. Other values of `execution` are allowed, and `differences` reports them: equal bits are not promised.
        """
        if not self.stored.numbers():
            return None
        loaded = self.stored.load("latest")
        changes = [
            f"{change.key} was {change.before}, is {change.after}"
            for change in tree_differences(loaded.state.get("config"), stored_config(self.run.config))
            if change.key.split(".")[0] != "execution"
        ]
        if changes:
            with suppress(RunFolderError):  # a copy of a checkpoint alone belongs to no run
                way = RunFolder.of_checkpoint(loaded.folder).ways_on().to_branch(loaded.folder.name)
                changes[-1] += f". To go on from it with other values, branch off: {way}"
            raise CheckpointError(f"checkpoint {loaded.folder} was written under another config: {'; '.join(changes)}")
        return loaded

    def differences(self, loaded: LoadedCheckpoint) -> list[str]:
        """A line for each difference from a checkpoint in `execution`, sources, versions and machine."""
        now = user_class_hashes(self.run.config)  # those that this process uses: `verify` leaves recorders out
        execution = stored_config(self.run.config)["execution"]
        before = {name: sha256 for name, sha256 in self.run.folder.facts().user_classes.items() if name in now}
        return [
            *unequal_bits(loaded.state["config"]["execution"], execution, "execution"),
            *unequal_bits(before, now, "user_classes"),
            *unequal_bits(loaded.manifest.versions, versions(), "versions"),
            *unequal_bits(loaded.manifest.machine, machine(), "machine"),
        ]

    def go_back_to(self, loaded: LoadedCheckpoint, buffers: Mapping[str, ReplayBuffer]) -> None:
        """Bring back replay rows, records and seconds of training as they were when this checkpoint was saved."""
        self._rewind(loaded)
        self.stored.once = self._once = deepcopy(loaded.manifest.once)
        self.run.set_time_before(loaded.manifest.seconds)
        self.restore_rows(loaded, buffers)
        if loaded.state["is_best"]:  # a kill may have come before it was marked
            self.stored.mark_best(loaded.folder.name)
        self.catch_up_mirror()

    def begin_anew(self) -> None:
        """Cut off all records, because the run has no checkpoint."""
        self._rewind(None)
        self.stored.note_once()

    def _rewind(self, loaded: LoadedCheckpoint | None) -> None:
        """Cut off the records that came after a checkpoint; all of them if `loaded` is None."""
        records, length, step = self.run.records, 0, 0
        self.number = self.stands_on = -1
        if self.mirror is not None:
            with suppress(RemoteError):  # it was reported already
                self.mirror.finish()  # its thread reads the records, which are cut now
        if loaded is not None:
            self.stands_on = loaded.manifest.number
            self.number = self.stands_on - (not loaded.manifest.is_due)
            step = loaded.counters[self.run.config.axis()]
            length = beginning_of(records.jsonl.file, loaded.records).length
            fault = self.stored.fault_of_records(loaded, records.jsonl.file, records.jsonl.path)
            if fault is not None:
                self.run.display.error(fault)
        records.cut(length, step)

    def restore_rows(self, loaded: LoadedCheckpoint, buffers: Mapping[str, ReplayBuffer]) -> None:
        """Fill replay buffers from a checkpoint, which may hold those of further players.

        If it holds no rows, the buffers stay as they are, and the display says so.
        """
        if loaded.state["has_replay_rows"]:
            rows = {name: rows for name, rows in loaded.buffers.items() if name in buffers}
            return self.stored.restore_buffers(replace(loaded, buffers=rows), buffers)
        self.stored.restore_buffers(loaded, {})
        for name, buffer in buffers.items():
            what = "begins empty" if buffer.is_empty else f"goes on with the {len(buffer)} rows that it was given"
            self.run.display.warn(
                f"checkpoint {loaded.folder.name} holds no replay rows (output.replay_in_checkpoints): the replay "
                f"buffer of player {name!r} {what}; equal bits are not promised"
            )


def stored_config(config: BaseRunConfig) -> dict[str, Any]:
    """The keys of a config that a checkpoint stores: those on which its bits depend."""
    return config.model_dump(
        mode="json", exclude={"stop": True, "budget": True, "output": True, "execution": set(config.bitless)}
    )
