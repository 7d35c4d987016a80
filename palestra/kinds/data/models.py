"""The model of a run: what it begins with, and how it is used, without training.

Letters: B items of a batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from palestra.config import ConfigError, Failed, cut, failure, trusting
from palestra.data.items import moved
from palestra.data.loading import Loader, LoadingConfig, in_order
from palestra.data.reading import BatchKey, Reader
from palestra.data.sets import TRAIN, UserDataConfig, make_sets, require_same_sets
from palestra.models.learning import computing_in
from palestra.models.model import Model
from palestra.models.sources import FileStartConfig, ModelStartConfig
from palestra.nets.weights import body_of_another, output_weights
from palestra.randomness import restored_global_states
from palestra.run.trained_models import TrainedModel, Weights
from palestra.run.warm_starts import WarmStart, errors_at
from palestra.runtime.device import find_device
from palestra.runtime.scores import SEAT
from palestra.storage.disk import RunFolderError
from palestra.storage.stored_files import read_weights_file, tensors_in

NO_WORKERS = LoadingConfig(num_workers=0, num_prefetched=1, start_method="fork", batch_within_s=None)


# ---- a model that begins with weights of another --------------------------------------------------


def start_model(model: Model, config: ModelStartConfig | FileStartConfig) -> WarmStart:
    """Load the weights of another run's model, or of a file, into a model.

    Raises ConfigError if there are none, or if what is taken of them has other names or shapes than here.
    """
    with errors_at("warm_start", "weights that fit the model"):
        weights, source = _weights_of(config)
        left = [name for name in output_weights(model) if name in model.state_dict()] if config.take == "body" else []
        model.load_state_dict(body_of_another(model, weights) if config.take == "body" else dict(weights))
        return WarmStart("model", source, [name for name in model.state_dict() if name not in left], left)


def _weights_of(config: ModelStartConfig | FileStartConfig) -> tuple[Mapping[str, Tensor], str]:
    """Return weights by name, and where they come from, in words."""
    if isinstance(config, ModelStartConfig):
        trained = TrainedModel.read(config.from_model, config.checkpoint)
        return trained.weights, f"{config.take} of {config.from_model} at opt step {trained.opt_steps}"
    try:
        return tensors_in(read_weights_file(config.file), config.file), f"{config.take} of {config.file}"
    except OSError as error:
        raise RunFolderError(f"expected a safetensors file, got {config.file} ({error.strerror})") from error


# ---- a model that is used ----------------------------------------------------------------------------


class PredictionFailed(Failed, RuntimeError):
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
        raise ValueError(f"models: expected a palestra.Model, as set_model got it, got {cut(repr(given))}")
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
        ValueError for anything else and for no items, DataFailed for an item that cannot be read, PredictionFailed.
        """
        if not isinstance(items, Sized) or isinstance(items, Mapping) or len(items) == 0:
            got = cut(" ".join(repr(items).split()))
            raise ValueError(f"items: expected a data set, or a list of one item or more, got {got}")
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
    leaves, structure = [pytree.tree_leaves(part) for part in parts], pytree.tree_structure(parts[0])
    try:
        return pytree.tree_unflatten([torch.cat(each) for each in zip(*leaves, strict=True)], structure)
    except (RuntimeError, ValueError) as error:
        raise PredictionFailed(f"expected predictions of one shape for all batches, got others: {error}") from error
