"""A stored run in which nobody plays: its training evaluates what a checkpoint holds, without training it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palestra.config import ConfigError, trusting
from palestra.evaluation.evaluator import Watch
from palestra.runs.changed_evaluations import Changes
from palestra.runs.kinds import read_stored_config
from palestra.runs.stored import Stored, StoredRun
from palestra.storage.disk import RunFolderError
from palestra.storage.run_folder import RunFolder
from palestra.training.naming import named_classes


class StoredTraining(Stored):
    """A run of a training that judges what it trains. First `load` a checkpoint, then `evaluate`."""

    def __init__(self, folder: RunFolder, config: Any) -> None:
        super().__init__(folder, config)
        self.training = named_classes(config)[0](config, run=folder)
        self.device, self.failures = self.training.device, self.training.failures
        if not getattr(config, "evaluations", ()):
            raise RunFolderError(f"{folder.path}: expected a run with evaluations, got {config.in_words} without any")

    @property
    def evaluations(self) -> Any:
        return self.training.evaluating.evaluations

    def change_evaluations(self, changes: Changes) -> None:
        """Raise ConfigError: these evaluations stay as they are."""
        raise ConfigError.at(changes.lines()[0], f"expected no change, because the run is {self.config.in_words}")

    def restore(self, state: Mapping[str, Any]) -> None:
        self.counters = {name: state["counters"][name] for name in self.training.counter_names}
        self.evaluations.restore(state)

    def judge(self, name: str, num: int, with_scripted: bool, watch: Watch) -> dict[str, Any]:
        try:
            with self.training.test_context():
                return self.evaluations.play(name, num, with_scripted, watch)
        finally:
            self.training._close()


def open_stored(run: str | Path, trust: bool = False) -> Stored:
    """Open the run in a folder, of whatever kind, in order to evaluate it. Raises as `StoredRun.open`."""
    with trusting(trust):
        folder = RunFolder.open(Path(run))
        config = read_stored_config(folder.config)
        if config.is_played:
            return StoredRun.open(run)
        folder.require_rebuildable()
        return StoredTraining(folder, config)
