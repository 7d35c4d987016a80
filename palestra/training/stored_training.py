"""A stored run in which nobody plays: its training evaluates what a checkpoint holds, without training it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from palestra.config import Config, ConfigError, trusting
from palestra.evaluation.evaluator import Watch
from palestra.runs.changed_evaluations import Changes, changed_stored_config, errors_at
from palestra.runs.kinds import read_stored_config
from palestra.runs.stored import Stored, StoredRun
from palestra.storage.disk import RunFolderError
from palestra.storage.run_folder import RunFolder
from palestra.training.naming import named_classes
from palestra.training.rollout_files import write_rollouts


class StoredTraining(Stored):
    """A run of a training that judges what it trains. First `load` a checkpoint, then `evaluate`."""

    def __init__(self, folder: RunFolder, config: Any) -> None:
        super().__init__(folder, config)
        self._make(config)
        if not config.measured() and "--pairing" not in config.options:
            raise RunFolderError(f"{folder.path}: expected a run with evaluations, got one without")

    def _make(self, config: Any) -> None:
        self.training = named_classes(config)[0](config, run=self.folder)
        self.device, self.failures = self.training.device, self.training.failures

    @property
    def evaluations(self) -> Any:
        return self.training.evaluating.evaluations

    def change_evaluations(self, changes: Changes) -> None:
        """Judge by other sections of the config, which the kind of run calls changeable."""
        with errors_at(changes.asked_path):
            config, self.notes = changed_stored_config(self.folder, changes.overrides)
            if changes.pairings:
                overrides = [*changes.overrides, *config.pairing_overrides(changes.pairings)]
                config, self.notes = changed_stored_config(self.folder, overrides)
        ConfigError.require_none(config.unjudged(changes.overrides))
        self._make(config)
        self.changes = changes

    def _judged_by(self, name: str) -> Sequence[Config]:
        judged_by: Sequence[Config] = self.training.config.judged_by(name)
        return judged_by

    def _is_changed(self, name: str) -> bool:
        return self._judged_by(name) != self.config.judged_by(name)

    def restore(self, state: Mapping[str, Any]) -> None:
        self.counters = {name: state["counters"][name] for name in self.config.counters}
        self.evaluations.restore(state)

    def judge(self, name: str, num: int, with_scripted: bool, watch: Watch) -> dict[str, Any]:
        with self.playing():
            found: dict[str, Any] = self.evaluations.play(name, num, with_scripted, watch)
            return found

    def file_rollouts(self, name: str, played: str) -> None:
        write_rollouts(self.results, name, played, self.config.output.transcripts)

    @contextmanager
    def playing(self) -> Iterator[None]:
        """A context in which what is trained acts as in evaluations."""
        try:
            with self.training.test_context():
                yield
        finally:
            self.training._close()


def open_stored(run: str | Path, trust: bool = False, starts: Mapping[str, int] | None = None) -> Stored:
    """Open the run in a folder, of whatever kind, in order to evaluate it. Raises as `StoredRun.open`.

    starts: seeds of evaluations by name, in place of their own.
    """
    with trusting(trust):
        folder = RunFolder.open(Path(run))
        config = read_stored_config(folder.config)
        folder.require_rebuildable()
        if starts:
            seeded = [each.model_copy(update={"seed": starts[each.name]}) for each in config.evaluations]
            config = config.model_copy(update={"evaluations": seeded})
        return StoredRun(folder, config) if config.is_played else StoredTraining(folder, config)
