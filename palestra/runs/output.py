"""The output of a run: its folder, recorders, checkpoints and display."""

import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from palestra.buffers.replay import ReplayBuffer
from palestra.config import ConfigError, render, user_class_hashes
from palestra.recording.display import make_display
from palestra.recording.feed import Feed
from palestra.recording.history import History
from palestra.recording.plots import plot_scores
from palestra.recording.recorders import JsonlRecorder, Recorder, RunCard, RunEnd, Status, flat_params, plain, step_of
from palestra.recording.results import Evaluation, Progress, by_name, is_after_training, pair_label, standings
from palestra.recording.summary import render_summary
from palestra.recording.values import Image, Video, file_media
from palestra.runs.branching import stored_config, tree_differences
from palestra.runs.config import RunConfig
from palestra.runtime.timing import summed_times
from palestra.storage.checkpoints import CheckpointError, Checkpoints
from palestra.storage.disk import RunFolderError
from palestra.storage.facts import RunFacts, machine, versions
from palestra.storage.loaded_checkpoint import NOT_OURS, LoadedCheckpoint
from palestra.storage.mirror import Mirror
from palestra.storage.records_file import iterate_records, part_of
from palestra.storage.remote import RemoteError
from palestra.storage.run_folder import UNFILED, RunFolder


class RunOutput:
    """The folder of one run, with its records, checkpoints, display and mirror; open while the run trains.

    config: the run's config, whose section `output` is used here.
    """

    def __init__(self, folder: RunFolder, config: Any, console: Console) -> None:
        self.folder = folder
        self.config = config
        self.console = console
        self.display = make_display(config.output.display, console)
        self.evaluations: list[Evaluation] = []
        self.history = History()
        self.number = -1  # of the last checkpoint that was due
        self.stands_on = -1  # the number of the checkpoint that was loaded or saved last
        self.mirror: Mirror | None = None
        self.step = 0  # the largest step of a record so far
        self.feeds: list[Feed] = []
        self._reported_faults: set[str] = set()
        self.candidates: Callable[[], Sequence[Mapping[str, int]]] = (
            tuple  # steps of checkpoints that may still become the best
        )

    @classmethod
    def create(
        cls,
        folder: RunFolder,
        config: Any,
        console: Console,
        origin: Path | None,
        set_in_python: Sequence[str],
        trainer_in_python: str | None,
    ) -> "RunOutput":
        """The output of a new run. Its resolved config and its run.json (versions, machine, command) are written at
        once; the latter fixes the mirror's URL and the checkpoint folder for all of the run.

        origin: the checkpoint that the run branches off, if any. set_in_python: the calls that gave it objects which no
        config names. trainer_in_python: the class that trains it, if the config does not name that class. Raises
        RunFolderError if the disk refuses.
        """
        mirror, run_id, place = config.output.mirror, uuid.uuid4().hex, config.output.checkpoint_folder
        elsewhere = None if place is None else folder.keep_checkpoints_in(Path(place), run_id)
        facts = RunFacts.of_now(
            id=run_id,
            user_classes=user_class_hashes(config),
            set_in_python=list(set_in_python),
            trainer_in_python=trainer_in_python,
            branched_from=None if origin is None else str(origin.resolve()),
            mirror=None if mirror is None else f"{mirror.url.rstrip('/')}/{folder.path.resolve().name}",
            checkpoint_folder=None if elsewhere is None else str(elsewhere.resolve()),
        )
        try:
            folder.root.write(folder.config.name, render(config, type(config)).encode())
            folder.write_facts(facts)  # last: a folder with a config and run.json is a run
        except OSError as error:
            raise RunFolderError(f"{folder.path} cannot be written: {error}") from error
        return cls(folder, config, console)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """A context that holds the run's lock, and in which its records, the display and the mirror are open. If an
        error leaves it, the recorders are told that the run failed."""
        output = self.config.output
        with ExitStack() as stack:
            stack.enter_context(self.folder.lock())
            self.checkpoints = Checkpoints(self.folder, output.keep_last, output.keep_every)
            try:
                self.jsonl = JsonlRecorder(self.folder.records)
            except OSError as error:
                raise RunFolderError(f"{self.folder.records} cannot be written: {error}") from error
            self.checkpoints.in_use = self._in_use
            stack.callback(self.jsonl.close)
            stack.enter_context(self.display)
            try:
                self.mirror = self._make_mirror()
                if self.mirror is not None:
                    stack.enter_context(self.mirror)
            except RemoteError as error:
                raise ConfigError.at("output.mirror", str(error)) from error
            try:
                yield
            except BaseException as error:
                self.finish("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
                raise

    def _make_mirror(self) -> Mirror | None:
        """The mirror at the URL in run.json; None if it has none."""
        url, config = self.folder.facts().mirror, self.config.output.mirror
        if (url is None) != (config is None):
            has, got = ("no mirror", url) if config is None else (f"the mirror {config.url}", "none")
            raise RunFolderError(f"{self.folder.run} is damaged: expected {has}, as in config.yml, got {got}")
        return None if url is None else Mirror(url, config, self.folder, self.checkpoints, self.display.error)

    def _in_use(self) -> set[int]:
        """The numbers of checkpoints that must not be deleted yet."""
        held = [self.checkpoints.holding(steps) for steps in self.candidates()]
        sending = set() if self.mirror is None else self.mirror.in_use()
        return {number for number in held if number is not None} | sending

    def mark_best(self, steps: Mapping[str, int]) -> None:
        """Mark the checkpoint of these steps as the best one. Raises CheckpointError if there is none."""
        number = self.checkpoints.holding(steps)
        if number is None:
            raise CheckpointError(f"the players of opt step {steps['opt_steps']}, the best so far, were not saved")
        self.checkpoints.mark_best(f"{number:08d}")

    def rewind(self, loaded: LoadedCheckpoint | None) -> None:
        """Cut off the records that came after a checkpoint; all of them if `loaded` is None."""
        length, self.step, self.number, self.stands_on = 0, 0, -1, -1
        if self.mirror is not None:
            with suppress(RemoteError):  # it was reported already
                self.mirror.finish()  # its thread reads the records, which are cut now
        if loaded is not None:
            self.step = step_of(loaded.counters)
            self.stands_on = loaded.manifest.number
            self.number = self.stands_on - (not loaded.manifest.is_due)
            length = part_of(self.jsonl.file, loaded.records).length
            fault = self.checkpoints.fault_of_records(loaded, self.jsonl.file, self.folder.records)
            if fault is not None:
                self.display.error(fault)
        self.jsonl.cut(length)
        self.evaluations, self.history = [], History()
        for record in self.records():
            try:
                self._remember(record)
            except NOT_OURS as error:
                self._report_fault(f"{self.folder.records}: an evaluation differs from what was written: {error!r}")

    def feed(self, recorders: Mapping[str, Recorder]) -> None:
        """Hand all records, past and future, to recorders."""
        self._note_unfiled(list(recorders))
        card = RunCard(self.folder.path, flat_params(self.config.model_dump()))
        self.feeds = [Feed(name, recorder, card, self.folder.records) for name, recorder in recorders.items()]

    def finish(self, status: Status) -> None:
        """Wait until the recorders have filed all records and the end of the run."""
        scores = {
            f"final/{name}/{pair_label(pair)}/{measure}": score.value
            for name, evaluations in by_name(self.evaluations).items()
            for pair in standings(evaluations)
            if pair.learned and is_after_training(evaluations)
            for measure, score in pair.scores.items()
            if math.isfinite(score.value)
        }
        for feed in self.feeds:
            feed.end(RunEnd(status, self.step, scores))
        for feed in self.feeds:
            feed.wait()
        self._show_news()
        self._note_unfiled([feed.name for feed in self.feeds if not feed.is_complete])
        self.feeds = []

    def unfiled(self) -> list[str]:
        """The names of the recorders that lack records or the end of the run, as the last process noted them."""
        is_there = self.folder.root.kind(UNFILED) is not None
        return self.folder.root.read(UNFILED).decode(errors="replace").split() if is_there else []

    def _note_unfiled(self, names: list[str]) -> None:
        with suppress(OSError):  # a full disk is reported elsewhere
            if names:
                self.folder.root.write(UNFILED, ("\n".join(names) + "\n").encode())
            elif self.feeds:
                self.folder.root.remove(UNFILED)

    def _show_news(self) -> None:
        for feed in self.feeds:
            for line in feed.news():
                self.display.error(line)

    def origin(self) -> Path | None:
        """The checkpoint that the run branched off, if any."""
        branched_from = self.folder.facts().branched_from
        return None if branched_from is None else Path(branched_from)

    def records(self) -> list[dict[str, Any]]:
        """All records that can be read; each damaged line is reported once."""
        return list(iterate_records(self.folder.records, self._report_fault))

    def _report_fault(self, fault: str) -> None:
        if fault not in self._reported_faults:
            self._reported_faults.add(fault)
            self.display.error(f"{fault}; the run goes on without that line")

    def train_seconds(self) -> float:
        """The seconds of training so far, from the records."""
        clocks = (record.get("clock", {}) for record in self.records())
        return max((clock.get("train_seconds", 0.0) for clock in clocks), default=0.0)

    def note_end(self, reason: str) -> None:
        """Write to run.json why the run ended before its `stop`. (The last record says it too.)"""
        try:
            self.folder.write_facts(self.folder.facts().model_copy(update={"ended": reason}))
        except OSError as error:
            self.display.error(f"{self.folder.run} could not be written: {error}")

    def time_by_phase(self) -> dict[str, float]:
        """The seconds by phase so far, from the records."""
        return summed_times(self.records())

    def write(self, record: Mapping[str, Any]) -> None:
        """Write a record, and before it the files of its images and videos. If the disk refuses, this is reported once,
        and the records wait in memory."""
        step = f"{step_of(record)}-{record['opt_steps']}"
        record = file_media(record, lambda name, media: self._file(f"{name}-{step}{media.suffix}", media))
        was_waiting = self.jsonl.is_waiting
        try:
            self.jsonl.write(record)
        except OSError as error:
            if not was_waiting:
                self.display.error(f"the disk refuses records, which wait in memory: {error}; training goes on")
        self.step = max(self.step, step_of(record))
        for feed in self.feeds:
            feed.notify(self.jsonl.length)
        self._show_news()
        self._remember(plain(record))

    def _remember(self, record: Mapping[str, Any]) -> None:
        """Keep what the display and the plot need of a record."""
        if record.get("kind") == "evaluation":
            self.evaluations.append(Evaluation.from_record(record))
        elif record.get("kind") == "training":
            self.history.add(record)

    def _file(self, name: str, media: Image | Video) -> str | None:
        """Write an image or a video. Gives its path in the run's folder; None if the disk refuses."""
        *folders, last = name.split("/")
        folder = self.folder.media
        try:
            folder.make()
            for inner in folders:
                folder = folder.below(inner).make()
            folder.write(last, media.to_bytes())
        except OSError as error:
            path = folder.path / last
            self.display.error(f"{path} could not be written: {error}; training goes on, and the record has null there")
            return None
        return f"media/{name}"

    def save(
        self,
        state: Mapping[str, Any],
        counters: Mapping[str, int],
        buffers: Mapping[str, ReplayBuffer],
        best: bool,
        is_due: bool,
    ) -> Path:
        """Write the next checkpoint, after all records are on the disk, and give its folder. Raises CheckpointError if
        the disk refuses.

        best: whether it is marked as the best. is_due: whether an interval asked for it; one that is not due uses up no
        number, and a due one that fails does.
        """
        number = self.number + 1
        self.number += is_due
        try:
            self.jsonl.flush()
        except OSError as error:
            message = f"checkpoint {number:08d} could not be saved: the records before it cannot be written: {error}"
            raise CheckpointError(message) from error
        self._show_news()
        name = self.checkpoints.save(number, state, counters, buffers, self.jsonl.then, is_due)
        self.stands_on = number
        if best:
            self.checkpoints.mark_best(name)
        if self.mirror is not None:
            self.mirror.send(number)
        return self.checkpoints.folder.path / name

    def catch_up_mirror(self) -> None:
        """Send what earlier processes have not sent, unless the loaded checkpoint is not the newest."""
        if self.mirror is not None and self.stands_on == max(self.checkpoints.numbers()):
            self.mirror.send(self.stands_on)

    def finish_mirror(self) -> None:
        """Wait until the mirror is complete, then remove checkpoints that were only kept for it. Raises RemoteError."""
        assert self.mirror is not None
        self.mirror.finish()
        with suppress(OSError):  # the next save removes them
            self.checkpoints.remove_unkept(self.stands_on)

    def differences(self, loaded: LoadedCheckpoint) -> list[str]:
        """A line for each part of `execution`, source, version or machine that was another one when the checkpoint was
        written; then equal bits are not promised."""
        lines = []
        execution = loaded.state["config"]["execution"], stored_config(self.config)["execution"], "execution"
        classes = user_class_hashes(self.config)  # all that this process uses: `verify` leaves recorders out
        before_now = {name: sha256 for name, sha256 in self.folder.facts().user_classes.items() if name in classes}
        sources = before_now, classes, "user_classes"
        for key, was, is_now in [*tree_differences(*execution), *tree_differences(*sources)]:
            lines.append(f"{key} was {was}, is {is_now}; equal bits are not promised")
        facts = ("versions", loaded.manifest.versions, versions()), ("machine", loaded.manifest.machine, machine())
        for kind, before_all, now in facts:
            for name, before in before_all.items():
                if now.get(name) != before:
                    lines.append(f"{kind}: {name} was {before}, is {now.get(name)}; equal bits are not promised")
        return lines

    def conclude(self, progress: Progress, with_plot: bool) -> None:
        """Draw the plot, if asked for (it takes a second or more), and print the summary where the display
        has one."""
        plot = self.folder.path / "scores.png"
        files = {"records": self.folder.records, "checkpoints": self.folder.checkpoints.path}
        try:
            if with_plot and (picture := plot_scores(self.records())) is not None:
                self.folder.root.write(plot.name, picture)
                files["plot"] = plot
        except OSError as error:
            self.display.error(f"{plot} could not be written: {error}")
        self.display.update(progress)
        self.display.close()  # its last frame stays above the summary
        if self.display.has_summary:
            render_summary(self.console, progress, files, self._ways_on(is_over=progress.fraction >= 1))

    def _ways_on(self, is_over: bool) -> dict[str, str]:
        """The commands that this run accepts now, by what they do."""
        ways, roles = self.folder.ways_on(), self.config.roles if isinstance(self.config, RunConfig) else None
        found = {
            "go on from here": None if is_over else ways.to_resume(),
            "evaluate the players again": ways.to_evaluate(roles, roles is not None and bool(self.config.evaluations)),
            "see it as a page": ways.to_see(),
        }
        return {what: way for what, way in found.items() if way is not None}


def default_folder(run: str | Path | None, name: str) -> RunFolder:
    """A new folder at `run` or, if that is None, runs/<name>-<n> in the working directory. Raises RunFolderError if it
    exists."""
    return RunFolder.create(Path("runs"), name) if run is None else RunFolder.create_at(Path(run))
