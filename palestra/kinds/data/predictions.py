"""What `palestra predict` does: writes what a model says of every item of a data set into a table or arrays.

Letters: N items; D numbers of an item.
"""

import io
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palestra.config import ConfigError, below
from palestra.data.rows import RowsData
from palestra.data.sets import num_items
from palestra.data.workers import deaths_held
from palestra.kinds.data.models import PredictionFailed, StoredModel, joined, named_tensors
from palestra.models.labelled import LABEL, Classifier
from palestra.run.tables import frames_module
from palestra.storage.disk import csv_text, write_file

Columns = dict[str, np.ndarray[Any, Any]]
HALVES = (torch.bfloat16, torch.float16)  # of which no table knows the first
SUFFIXES = (".csv", ".parquet", ".npz")


def write_predictions(model: StoredModel, name: str, out: Path, batch_size: int) -> int:
    """Write the predictions for all items of one of the run's data sets; returns how many items there are.

    out: a file that ends in .csv, .parquet or .npz. A table has a column for each number. An array of an .npz file has
    a row for each item. Where a data set has `classes`, the labels and classes of a classifier are those. Raises
    ConfigError for a file that cannot be written, before anything is computed.
    """
    _check(out)
    data = model.data_set(name)
    with below(f"data.{name}"):
        num = num_items(data, model.config.sets()[name])
    labels, found = [], []
    loading = model.config.execution.loading
    with deaths_held():
        for key, batch, predictions in model.batches(data, f"data.{name}", num, batch_size, loading):
            labels.append(_label(batch, len(key.items)))
            found.append(predictions)
    columns = {"index": np.arange(num)}
    if isinstance(data, RowsData):  # by which they are found in the file
        columns["row"] = data.rows[:num]
    if all(label is not None for label in labels):
        columns[LABEL] = np.concatenate([label for label in labels if label is not None])
    outputs = named_tensors(joined(found), "output")
    columns |= {each: (value.float() if value.dtype in HALVES else value).numpy() for each, value in outputs.items()}
    if isinstance(model.model, Classifier) and isinstance(classes := getattr(data, "classes", None), list | tuple):
        columns |= {each: _named(columns[each], classes) for each in (LABEL, "class") if each in columns}
    write_file(out, _content(columns, out))
    return num


def _check(out: Path) -> None:
    """Raise ConfigError for a file that cannot be written."""
    if out.suffix not in SUFFIXES:
        raise ConfigError.at("--out", f"expected a file that ends in {', '.join(SUFFIXES)}, got {out}")
    if not out.absolute().parent.is_dir():
        raise ConfigError.at("--out", f"expected a file in a folder that exists, got {out}")
    if out.suffix == ".parquet":
        frames_module("pyarrow.parquet", "--out")


def _label(batch: Any, num: int) -> np.ndarray[Any, Any] | None:
    """Return the labels of a batch, if its items have them: an array or texts, one for each item."""
    label = batch.get(LABEL) if isinstance(batch, Mapping) else None
    if isinstance(label, Tensor) and label.dim() > 0 and len(label) == num:
        return (label.float() if label.dtype in HALVES else label).numpy()
    if isinstance(label, list | tuple) and len(label) == num and all(isinstance(each, str) for each in label):
        return np.array(label)
    return None


def _named(numbers: np.ndarray[Any, Any], classes: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Return the classes of their numbers: whole numbers that NumPy holds, or texts."""
    named = np.array(classes)
    return (named if named.dtype.kind in "iu" else np.array(list(map(str, classes))))[numbers]


def _content(columns: Columns, out: Path) -> str | bytes:
    """Return the content of a file. Raises ConfigError for a table with numbers of an item in a grid."""
    content = io.BytesIO()
    if out.suffix == ".npz":
        np.savez(content, allow_pickle=False, **columns)
        return content.getvalue()
    flat: Columns = {}
    for name, value in columns.items():
        if value.ndim > 2:
            expected = f"expected a file that ends in .npz for {name!r}, which has the shape {value.shape[1:]} per item"
            raise ConfigError.at("--out", f"{expected}, got {out}")
        parts = value.T if value.ndim == 2 else [value]
        for place, part in enumerate(parts):
            key = name if len(parts) == 1 else f"{name}_{place}"
            if key in flat:
                raise PredictionFailed(f"expected outputs of different names, got {key!r} twice")
            flat[key] = part
    if out.suffix == ".parquet":
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        parquet.write_table(pyarrow.table(flat), content)
        return content.getvalue()
    return csv_text(flat, zip(*(part.tolist() for part in flat.values()), strict=True))
