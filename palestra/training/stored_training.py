"""Stored runs of any kind, opened. Where nobody plays, a training evaluates what a checkpoint holds."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from palestra.config import Config, ConfigError, trusting
from palestra.evaluation.evaluator import Watch
from palestra.run.changes import Changes, changed_stored_config, errors_at
from palestra.run.kinds import read_stored_config
from palestra.run.stored import Stored
from palestra.storage.disk import RunFolderError
from palestra.storage.run_folder import RunFolder
from palestra.training.opening import Models, Nets, calls_of, named_classes


class StoredTraining(Stored):
    """A run of a training that judges what it trains. First `load` a checkpoint, then `evaluate`."""

    def __init__(self, folder: RunFolder, config: Any, models: Mapping[str, Nets]) -> None:
        super().__init__(folder, config)
        self.models = models
        self._make(config)

    def _make(self, config: Any) -> None:
        self.training = named_classes(config)[0](config, run=self.folder)
        for role, model in self.models.items():
            self.training.set_model(role, model)
        self.device, self.failures = self.training.device, self.training.failures

    @property
    def evaluations(self) -> Any:
        """As in Stored. Raises RunFolderError if there is none."""
        if not self.config.measured() and "--pairing" not in self.config.options:
            raise RunFolderError(f"{self.folder.path}: expected a run with evaluations, got one without")
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

    @contextmanager
    def playing(self) -> Iterator[None]:
        """A context in which what is trained acts as in evaluations."""
        try:
            with self.training.test_context():
                yield
        finally:
            self.training.close()


class StoredRun:
    """Opens stored runs."""

    @staticmethod
    def open(
        run: str | Path, trust: bool = False, models: Models | None = None, starts: Mapping[str, int] | None = None
    ) -> Any:
        """Open the run in a folder, of whatever kind, as a Stored: in games a StoredGames, else a StoredTraining.

        trust: whether the modules that the run names are trusted from now on. models: the networks, or the model, that
        `set_model` handed over when the run began, by role, or those of the one player that learns. starts: seeds of
        evaluations by name, in place of their own. Raises RunFolderError if there is no run, its config is not as
        palestra wrote it, or it needs other `models`; UntrustedError if it names modules that are not trusted,
        ConfigError.
        """
        with trusting(trust):
            folder = RunFolder.open(Path(run))
            config = read_stored_config(folder.config)
            nets = named_classes(config)[0].by_role(config, models)
            folder.require_rebuildable(calls_of(nets))
            if starts:
                seeded = [each.model_copy(update={"seed": starts[each.name]}) for each in config.evaluations]
                config = config.model_copy(update={"evaluations": seeded})
            return named_classes(config)[0].stored(folder, config, nets)
