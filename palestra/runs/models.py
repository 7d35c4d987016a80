"""The model of a run: made from the run's config, or read from a checkpoint to be used, without training.

Letters: B items of a batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from palestra.config import ConfigError, below, failure, trusting
from palestra.data.items import moved
from palestra.data.loading import Loader, LoadingConfig, in_order
from palestra.data.reading import BatchKey, Reader
from palestra.data.sets import TRAIN, UserDataConfig, make_sets, require_same_sets
from palestra.games.spaces import Space
from palestra.models.labelled import LabelledConfig, LabelledModel
from palestra.models.learning import Learner, computing_in
from palestra.models.model import SEAT, Model
from palestra.randomness import base_key, restored_global_states, seeded_global_state
from palestra.runs.changed_evaluations import changed_stored_config
from palestra.runs.fit import FitConfig
from palestra.runs.kinds import require_kind
from palestra.runs.shipped import find_run
from palestra.runtime.device import find_device
from palestra.storage.checkpoints import Checkpoints
from palestra.storage.disk import RunFolderError
from palestra.storage.facts import Count, Entry
from palestra.storage.loaded_checkpoint import NOT_OURS
from palestra.storage.run_folder import RunFolder
from palestra.storage.states import TENSOR_DTYPES

Weights = Literal["latest", "averaged"]
NO_WORKERS = LoadingConfig(num_workers=0, num_prefetched=1, start_method="fork", batch_within_s=None)


def make_model(config: FitConfig, spaces: Mapping[str, Space] | None) -> Model:
    """Make the model of a run, with the weights of its seed.

    spaces: of all entries of an item but its label; None for a model of the user's own. Raises ConfigError.
    """
    if isinstance(config.model, LabelledConfig):
        assert spaces is not None
        with below("model"):
            return config.model.build(spaces, config.seed)
    assert config.model is not None, "the model is handed over"
    with seeded_global_state(base_key(config.seed, "model")):
        try:
            return config.model.build()
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError.at("model", f"{config.model.name!r} fails: {failure(error)}") from error


class StoredSpace(Entry):
    """An entry of the items from which a model was made, as files hold it."""

    name: str
    shape: list[Count]
    dtype: str
    padded: bool


def spaces_to_store(model: Model) -> list[dict[str, Any]] | None:
    """Return the spaces of the items from which a model was made, as files hold them; None if it needs none."""
    if not isinstance(model, LabelledModel):
        return None
    kinds = {name: str(each.dtype).removeprefix("torch.") for name, each in model.spaces.items()}
    return [
        {"name": name, "shape": list(each.shape), "dtype": kinds[name], "padded": each.padded}
        for name, each in model.spaces.items()
    ]


def stored_spaces(stored: list[Any] | None) -> dict[str, Space] | None:
    """Return what `spaces_to_store` has stored. Raises ValueError for anything else."""
    if stored is None:
        return None
    kinds = {str(kind).removeprefix("torch."): kind for kind in TENSOR_DTYPES}
    found = [StoredSpace.model_validate(each) for each in stored]
    return {each.name: Space(tuple(each.shape), kinds[each.dtype], each.padded) for each in found}


# ---- what a checkpoint holds -------------------------------------------------------------------------


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
    config: FitConfig
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
        changed = changed_stored_config(folder, overrides)
        config = require_kind(changed.config, FitConfig, folder.path)
        folder.require_rebuildable([] if given is None else [f"set_model({SEAT!r}, ...)"])
        loaded = Checkpoints(folder, keep_last=1, keep_every=None).load(checkpoint, check_rows=False)
        with loaded.fitting():
            state = loaded.state
            stored = state["model"], stored_spaces(state["spaces"]), state["learner"], state["files"]
            notes = [*changed.notes, *loaded.warnings]
            return cls(folder.path, config, loaded.counters["opt_steps"], *stored, notes, given)

    def build(self, device: torch.device, weights: Weights = "latest") -> Model:
        """Make the model, held fixed and in evaluation mode.

        Raises ConfigError for averages that there are not, RunFolderError if its class has changed.
        """
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


# ---- a model that is used ----------------------------------------------------------------------------


class PredictionFailed(RuntimeError):
    """A model fails on a batch, or gives something else than tensors with a row for each item."""


def load_model(
    run: str | Path,
    checkpoint: str,
    weights: Weights,
    overrides: Sequence[str] = (),
    trust: bool = False,
    device: torch.device | None = None,
    models: Model | Mapping[str, Model] | None = None,
) -> "StoredModel":
    """A model as a run left it, held fixed. The arguments and errors are those of `palestra.load_model`.

    device: where it computes; None: on that of the run.
    """
    given = models[SEAT] if isinstance(models, Mapping) and SEAT in models else models
    if not isinstance(given, Model | None):
        raise ValueError(f"models: expected a palestra.Model, as set_model got it, got {given!r:.80}")
    with trusting(trust):
        trained = TrainedModel.read(run, checkpoint, overrides, given)
        device = device or find_device(trained.config.execution.device)
        return StoredModel(trained, trained.build(device, weights), weights, device)


class StoredModel:
    """A model as a run left it: `load_model(run).predict(items)`.

    model: in evaluation mode. config: that of the run. opt_steps: those after which it is so. weights: latest or
    averaged. warnings: as those of TrainedModel.
    """

    def __init__(self, trained: TrainedModel, model: Model, weights: Weights, device: torch.device) -> None:
        self.model, self.config, self.opt_steps = model, trained.config, trained.opt_steps
        self.weights, self.warnings, self.files = weights, trained.warnings, trained.files
        self.device = device

    def data_set(self, name: str) -> Any:
        """Make a data set of the run's `data`. Raises ConfigError if there is none of this name, or it fails."""
        sets = self.config.sets()
        if name not in sets:
            known = ", ".join(sets) or "none"
            raise ConfigError.at(f"data.{name}", f"expected one of the run's data sets ({known}), got {name!r}")
        names = {name} if isinstance(sets[name], UserDataConfig) else {name, TRAIN}  # by which rows are shown
        made = make_sets({each: sets[each] for each in names if each in sets}, self.config.seed)
        require_same_sets(self.files, made)
        return made[name]

    def reader(self, data: Any, name: str, collate: Callable[[list[Any]], Any] | None = None) -> Reader:
        """Return what makes batches of a data set, as in the run. name: of the set, for messages."""
        collate = collate or getattr(data, "collate", None)
        return Reader(name, data, collate, self.config.learning.seeding, self.config.seed)

    def predict(self, items: Any, batch_size: int = 256, collate: Callable[[list[Any]], Any] | None = None) -> Any:
        """Return what the model's `predict` says of items: tensors on the CPU with a row for each item, in their order.

        Those of bfloat16, which NumPy does not know, are float32. They stand in dicts and tuples as the model gives
        them. items: a list of items, or a data set. batch_size: items that are computed at once; it changes rounding
        alone. collate: makes a batch of a list of items; None: as the data set says, else as torch does. Raises
        ValueError for no items, DataFailed for an item that cannot be read, PredictionFailed.
        """
        if len(items) == 0:
            raise ValueError("expected items, got none")
        parts = [found for _, _, found in self.batches(items, "items", len(items), batch_size, NO_WORKERS, collate)]
        return joined(parts)

    @torch.no_grad()
    def batches(
        self,
        data: Any,
        name: str,
        num: int,
        batch_size: int,
        loading: LoadingConfig,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Iterator[tuple[BatchKey, Any, Any]]:
        """Give the batches of the first `num` items of a data set, each with its key and the model's predictions.

        name: of the set, for messages. loading: how they are read. Raises as `predict`.
        """
        learning, reader = self.config.learning, self.reader(data, name, collate)
        loader = Loader(reader, loading, in_order(num), batch_size, drop_last=False, pin=self.device.type == "cuda")
        try:
            for key, batch in loader.batches(0):
                try:
                    with restored_global_states(), computing_in(learning.precision, self.device):
                        found = self.model.predict(moved(batch, self.device))
                except Exception as error:
                    raise PredictionFailed(f"{name}: the model fails at {key}: {failure(error)}") from error
                yield key, batch, pytree.tree_map(lambda leaf, key=key: self._rows(leaf, key, name), found)
        finally:
            loader.close()

    def _rows(self, leaf: Any, key: BatchKey, name: str) -> Tensor:
        """Return an output on the CPU. Raises PredictionFailed unless it is a tensor with a row for each item."""
        if isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == len(key.items):
            leaf = leaf.detach().cpu()
            return leaf.float() if leaf.dtype == torch.bfloat16 else leaf  # which NumPy does not know
        got = f"a tensor of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__
        expected = f"expected tensors with a row for each of {len(key.items)} items from predict"
        raise PredictionFailed(f"{name}: {expected} of {type(self.model).__name__}, got {got} at {key}")


def named_tensors(tree: Any, alone: str, path: str = "") -> dict[str, Any]:
    """Return the tensors in dicts and tuples by name, in their order.

    One of a dict has its key, one of a tuple its place behind `alone`, as output_0; a tensor alone is `alone`. What
    lies deeper has the names of all that leads to it, as key_0.
    """
    if isinstance(tree, Mapping):
        inner = {f"{path}_{key}" if path else str(key): value for key, value in tree.items()}
    elif isinstance(tree, tuple | list):
        inner = {f"{path or alone}_{place}": value for place, value in enumerate(tree)}
    else:
        return {path or alone: tree}
    return {name: value for key, each in inner.items() for name, value in named_tensors(each, alone, key).items()}


def joined(parts: Sequence[Any]) -> Any:
    """Join the predictions of batches along their axis of items. Raises PredictionFailed if their shapes differ."""
    leaves = [pytree.tree_leaves(part) for part in parts]
    try:
        return pytree.tree_unflatten([torch.cat(each) for each in zip(*leaves, strict=True)], _structure(parts[0]))
    except (RuntimeError, ValueError) as error:
        raise PredictionFailed(f"expected predictions of one shape for all batches, got others: {error}") from error


def _structure(tree: Any) -> Any:
    return pytree.tree_flatten(tree)[1]
