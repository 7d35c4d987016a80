"""The model of a run: made from the run's config, or read from a checkpoint."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor

from palestra.config import ConfigError, below, running_own
from palestra.games.spaces import Space
from palestra.models.labelled import LabelledConfig
from palestra.models.learning import Learner
from palestra.models.model import Model
from palestra.randomness import base_key, restored_global_states, seeded_global_state
from palestra.run.base import BaseRunConfig
from palestra.run.changes import changed_stored_config
from palestra.run.checkpoints import Checkpoints
from palestra.run.copies import Copy, stored_spaces
from palestra.run.shipped import find_run
from palestra.runtime.device import require_stock_torch
from palestra.runtime.scores import SEAT
from palestra.storage.disk import RunFolderError
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import NOT_OURS

Weights = Literal["latest", "averaged"]


def make_model(config: Any, spaces: Mapping[str, Space] | None) -> Model:
    """Make the model of a run, with the weights of its seed.

    spaces: of all entries of an item but its label; None for a model of the user's own. Raises ConfigError.
    """
    if isinstance(config.model, LabelledConfig):
        assert spaces is not None
        with below("model"):
            return config.model.build(spaces, config.seed)
    assert config.model is not None, "the model is handed over"
    with running_own("model", f"{config.model.name!r} fails"), seeded_global_state(base_key(config.seed, "model")):
        return config.model.build()


# ---- what a checkpoint, or a copy, holds -------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainedModel:
    """A model as its run has trained it.

    place: the folder that it was read from. config: that of its run. weights: the latest ones by name, with the
    buffers. spaces: of the items from which it was made; None if it needs none. learner: the state of its learner, with
    the averages of its weights; {} if it was not read. files: the SHA-256 of those that its data sets name, by set and
    path. warnings: a line for each change that nobody has typed, and each damaged checkpoint that was skipped. given:
    the model that `set_model` handed over when the run began, if no config names it.
    """

    place: Path
    config: Any
    opt_steps: int
    weights: Mapping[str, Tensor]
    spaces: Mapping[str, Space] | None
    learner: Mapping[str, Any]
    files: Mapping[str, Mapping[str, str]]
    warnings: Sequence[str] = ()
    given: Model | None = None

    @classmethod
    def read(cls, run: str | Path, checkpoint: str, overrides: Sequence[str] = (), given: Model | None = None) -> Self:
        """Read a checkpoint of a run in which a model has learned.

        overrides: changes of its config. given: as above. Raises RunFolderError if there is no such run,
        CheckpointError for a checkpoint that is missing or damaged, UntrustedError, ConfigError for overrides that do
        not fit.
        """
        folder = RunFolder.open(find_run(run).folder)
        changed, notes = changed_stored_config(folder, overrides)
        config = _with_model(changed, folder.path)
        folder.require_rebuildable([] if given is None else [f"set_model({SEAT!r}, ...)"])
        loaded = Checkpoints(folder, keep_last=1, keep_every=None).load(checkpoint, check_rows=False)
        with loaded.fitting():
            state = loaded.state
            stored = state["model"], stored_spaces(state["spaces"]), state["learner"], state["files"]
            return cls(folder.path, config, loaded.counters["opt_steps"], *stored, [*notes, *loaded.warnings], given)

    @classmethod
    def of_copy(cls, copied: Copy) -> Self:
        """Read what another run has copied of one. Raises DamagedError, RunFolderError."""
        config, facts = _with_model(copied.run(BaseRunConfig), copied.config), copied.facts
        return cls(copied.config, config, facts.opt_steps, copied.tensors(), stored_spaces(facts.spaces), {}, {})

    def build(self, device: torch.device, weights: Weights = "latest") -> Model:
        """Make the model, held fixed and in evaluation mode.

        Raises ConfigError for averages that there are not, and where torch has another default dtype or device,
        RunFolderError if its class has changed.
        """
        require_stock_torch(trains=False)
        if weights not in ("latest", "averaged"):
            raise ConfigError.at("weights", f"expected latest or averaged, got {weights!r}")
        if weights == "averaged" and self.config.learning.ema is None:
            why = f"learning.ema of {self.place} is null"
            raise ConfigError.at("weights", f"expected latest, because {why}, got 'averaged'")
        with restored_global_states():
            model = make_model(self.config, self.spaces) if self.given is None else deepcopy(self.given)
        try:
            model.load_state_dict(dict(self.weights))
            if weights == "averaged":
                learner = Learner(model, self.config.learning)
                learner.load_averages(self.learner["averages"])
                learner.take_averages()
        except NOT_OURS as error:
            expected = f"expected a model {type(model).__name__} with the weights that {self.place} holds"
            raise RunFolderError(f"{expected}, got another one: {' '.join(str(error).split())}") from error
        return model.to(device).eval().requires_grad_(False)


def _with_model(config: Any, place: Path) -> Any:
    """Return the config of a stored run in which a model learns. Raises RunFolderError for another one."""
    if not config.has_model:
        raise RunFolderError(f"expected a run in which a model learns from data, got {place}, {config.in_words}")
    return config
