"""Writes the forward pass of a model as files that run without palestra: a torch.export program, and ONNX.

Both take a batch as the run's training data are collated, of any number of items, without what no file can hold and
without labels, unless `forward` reads them; and give what `forward` gives, computed in float32. `model.json` has the
names, shapes and types, and how the rows of a file become such a batch. The files are loaded again, and must give the
model's outputs.
"""

import io
import json
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from palestra.config import failure
from palestra.config.errors import cut, typed
from palestra.data.reading import BatchKey, DataFailed, Unread
from palestra.data.rows import RowsData
from palestra.kinds.data.config import TRAIN
from palestra.kinds.data.models import StoredModel, named_tensors
from palestra.models.labelled import LABEL
from palestra.run.export_files import TOLERANCE, ExportError, entry_of, example_of, exporting, write_onnx, write_program
from palestra.storage.disk import write_bytes
from palestra.storage.stored_files import to_json

SIZES = (32, 1, 7)  # of the batches in which outputs are compared; the first is the example


class Forward(nn.Module):
    """The exported module: the model's `forward`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> Any:
        return self.model(batch)


def export_model(
    loaded: StoredModel, folder: Path, onnx: bool, tell: Callable[[str], None] = lambda line: None
) -> dict[str, int]:
    """Write `model.pt2` (torch.export), `model.json` and, with `onnx`, `model.onnx` into a new folder.

    Gives for each file the number of items for which its outputs were compared with the model's. tell: called with a
    line before what takes long. Raises ExportError, also if the folder exists, ConfigError for data that are not there.
    """
    module = Forward(loaded.model)
    with exporting(folder, "model"), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporters warn about their internals
        data, batches = _batches(loaded, module)
        rows = {"rows": data.described()} if isinstance(data, RowsData) else {}
        logging.getLogger("torch.fx.experimental.symbolic_shapes").setLevel(logging.ERROR)
        try:
            return _write(loaded, module, batches, rows, folder, tell if onnx else None)
        except ExportError:
            raise
        except Exception as error:
            first_line = str(error).partition("\n")[0]  # torch adds pages
            why = failure(RuntimeError(first_line).with_traceback(error.__traceback__))
            raise ExportError(f"{type(loaded.model).__name__} cannot be exported: {why}") from error


def _batches(loaded: StoredModel, module: nn.Module) -> tuple[Any, list[Any]]:
    """Return the training data and batches of them, without labels and texts, and such, unless the model reads them.

    Where a loader gives the training data, they are those of another set.
    """
    sets = loaded.config.sets()
    if not sets:
        raise ExportError("expected a data set in `data`, of whose items batches are made, got a loader alone")
    name = TRAIN if TRAIN in sets else next(iter(sets))
    data = loaded.data_set(name)
    reader = loaded.reader(data, f"data.{name}")
    places = [tuple(-place % len(data) for place in range(1, size + 1)) for size in SIZES]  # from the last item on
    batches = [reader[BatchKey(0, 0, items)] for items in places]
    for batch in batches:
        if isinstance(batch, Unread):
            raise DataFailed(*batch)
    if not isinstance(batches[0], Mapping):
        return data, batches
    others = {
        name
        for batch in batches
        for name, value in batch.items()
        if not all(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value))
    }
    for unread in (others | {LABEL}, others):
        without = [{name: value for name, value in batch.items() if name not in unread} for batch in batches]
        with suppress(KeyError, AttributeError, TypeError):
            module(without[0])
            return data, without
    return data, [dict(batch) for batch in batches]


def _write(
    loaded: StoredModel, module: nn.Module, batches: list[Any], rows: Any, folder: Path, tell: Callable[..., Any] | None
) -> dict[str, int]:
    example, found = batches[0], module(batches[0])
    _require_tensors(example, "a batch of the training data", "batch")
    _require_tensors(found, "what forward returns", "outputs")
    inputs, outputs = named_tensors(example, "input"), named_tensors(found, "output")
    shapes = (_dynamic_shapes(batches),)
    sizes = [_sizes(each) for each in zip(*map(pytree.tree_leaves, batches), strict=True)]
    path = folder / "model.pt2"
    with redirect_stderr(io.StringIO()):  # to which torch prints the graph of what it cannot export
        program, written = write_program(module, (example,), shapes, path)
    checked = {path.name: _compare(written, module, batches, path)}
    assert loaded.config.model is not None, "a model of a script cannot be loaded"
    description = {
        "model": loaded.config.model.name,
        "opt_steps": loaded.opt_steps,
        "weights": loaded.weights,
        "inputs": {
            name: entry_of(value) | {"shape": shape} for (name, value), shape in zip(inputs.items(), sizes, strict=True)
        },
        "batch": _in_python(example),
        "outputs": {name: entry_of(value) for name, value in outputs.items()},
    } | rows
    if tell is not None:
        path = folder / "model.onnx"
        tell(f"writing {path} with torch's ONNX exporter; this takes some ten seconds")
        run, names = write_onnx(program, list(inputs), (), list(outputs), path)
        description |= names
        checked[path.name] = _compare(lambda batch: run(pytree.tree_leaves(batch)), module, batches, path)
    write_bytes(folder / "model.json", to_json(description).encode())
    return checked


def _require_tensors(tree: Any, what: str, name: str) -> None:
    """Raise ExportError for the first leaf that is no tensor, by its place in what is called `name`."""
    for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
        if not isinstance(leaf, Tensor):
            expected = f"expected tensors alone in {what}, because no file can hold anything else"
            raise ExportError(f"{expected}, got {cut(typed(leaf))} as {name}{pytree.keystr(path)}")


def _dynamic_shapes(batches: list[Any]) -> Any:
    """Return which sizes of a batch may differ, as torch.export has them: those in which the batches differ."""
    kinds = {"batch": torch.export.Dim("batch", min=1), "any": torch.export.Dim.AUTO}

    def axes(*tensors: Tensor) -> dict[int, Any]:
        return {axis: kinds[size] for axis, size in enumerate(_sizes(tensors)) if isinstance(size, str)}

    return pytree.tree_map(axes, *batches)


def _sizes(tensors: Sequence[Tensor]) -> list[int | str]:
    """Return the sizes of a tensor of all batches: `batch` for their number of items, `any` for one that differs."""
    found = zip(*(each.shape for each in tensors), strict=True)
    return ["batch" if each == SIZES else each[0] if len(set(each)) == 1 else "any" for each in found]


def _compare(run: Callable[[Any], Any], module: nn.Module, batches: list[Any], path: Path) -> int:
    """Compare the outputs of a file with the model's; returns the number of items. Raises ExportError."""
    for batch in batches:
        found, expected = (pytree.tree_leaves(each) for each in (run(batch), module(batch)))
        for one, other in zip(found, expected, strict=True):
            if one.shape != other.shape or one.dtype != other.dtype:
                there = [f"{each.dtype} of shape {tuple(each.shape)}" for each in (other, one)]
                raise ExportError(f"{path}: expected the model's outputs, {there[0]}, got {there[1]}")
            if not torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
                apart = float((one - other).abs().max())
                raise ExportError(f"{path}: expected the model's outputs, got others, up to {apart:g} away")
    return sum(SIZES)


def loading_lines(folder: Path, file: str) -> list[str]:
    """Return lines of Python that load one of the files, and ask it for the outputs of one item.

    Where the items are rows of a file, four of them make the batch of a row.
    """
    description = json.loads((folder / "model.json").read_text())
    path, inputs, outputs = str((folder / file).absolute()), description["inputs"], ", ".join(description["outputs"])
    rows = "rows" in description and inputs.keys() == {*description["rows"]["entries"]}
    made = _row_lines(folder / "model.json") if rows else []
    if file.endswith(".onnx"):
        entries = {description["onnx_names"][name]: (name, entry) for name, entry in inputs.items()}
        named = [(name, *entries[name]) for name in description["onnx_inputs"]]
        given = ", ".join(
            f"{name!r}: {f'batch[{own!r}]' if rows else example_of('np', entry)}" for name, own, entry in named
        )
        return [
            "import numpy as np, onnxruntime",
            *made,
            f"model = onnxruntime.InferenceSession({path!r})",
            f"{outputs}, = model.run(None, {{{given}}})",
        ]
    batch = "{name: torch.from_numpy(each) for name, each in batch.items()}" if rows else description["batch"]
    load = ["import torch", *made, f"model = torch.export.load({path!r}).module()"]
    return [*load, f"outputs = model({batch})"]


def _row_lines(description: Path) -> list[str]:
    """Return four lines of Python that make the batch of a row of a file, as `model.json` says."""
    categories = '[each == str(row[how["name"]]) for each in how["categories"]]'
    numbers = '(np.asarray(row[how["name"]], "float64") - how["mean"]) / how["spread"]'
    of_entry = 'np.hstack([shown(how) for how in said["rows"]["columns"] if how["entry"] == name])'
    as_input = 'reshape(1, *said["inputs"][name]["shape"][1:]).astype(said["inputs"][name]["dtype"])'
    return [
        "import json, numpy as np",
        f'said = json.load(open({str(description.absolute())!r})); row = said["rows"]["first"]  # or another one',
        f'shown = lambda how: np.ravel({categories} if "categories" in how else {numbers})',
        f'batch = {{name: {of_entry}.{as_input} for name in said["rows"]["entries"]}}',
    ]


def _in_python(batch: Any) -> str:
    """Write a batch of one item as Python."""
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{name!r}: {_in_python(value)}" for name, value in batch.items()) + "}"
    if isinstance(batch, tuple | list):
        inner = ", ".join(map(_in_python, batch))
        return f"[{inner}]" if isinstance(batch, list) else f"({inner},)"
    return example_of("torch", entry_of(batch))
