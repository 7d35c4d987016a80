"""`rows`: the labelled rows of a file as a data set.

Letters: N rows of the file.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from palestra.config import ConfigError, ConfigErrorItem, NonEmptyStr, below, cut
from palestra.data.columns import Column, in_order, number_of
from palestra.data.items import LABEL, TensorItems
from palestra.data.sets import DataConfig, FileRows
from palestra.data.table import (
    TABLE,
    AnyHeldOutConfig,
    Encoding,
    Table,
    check_column,
    check_finite,
    read_column,
    suggested,
    told_file,
)

INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")  # as Python writes it, and int64 holds it


class RowsDataConfig(DataConfig):
    judged_by: ClassVar = {"part": "held_out"}

    name: Literal["rows"]
    """the labelled rows of a file; those of all sets of a run are shown as the training rows of `train` say"""
    file: NonEmptyStr
    """a .csv, .jsonl, .parquet or .npz file on this machine; a relative path begins at the working directory"""
    label: NonEmptyStr | None
    """the column with the labels; null: these items have none, and are predicted alone; not of `train`"""
    label_kind: Literal["class", "number"]
    """class: the texts of the cells, numbered 0, 1, ... in the order of those that the file of `train` has, whole
    numbers by size, others by their characters; number: as in the file, float32"""
    sees: Annotated[list[NonEmptyStr], Field(min_length=1)]
    """the columns that the model sees"""
    categorical: list[NonEmptyStr]
    """those of them that hold categories, as texts do: one number for each value that training rows have, 1 where the
    row has it; a value that only other rows have is all zeros"""
    images: list[NonEmptyStr]
    """those of them that hold images, arrays (rows, height, width) or (rows, channels, height, width): they stay as
    they are; each number of any other array is one of its own"""
    held_out: AnyHeldOutConfig | None
    """which rows training never sees; null: all are training rows"""
    part: Literal["train", "held_out", "all"]
    """which rows of the file these items are: those that are not held out, those that are, or all"""
    standardize: bool
    """true: the numbers that the model sees have mean 0 and standard deviation 1 over the training rows, but categories
    and images; false: they are as in the file"""

    def build(self, train: Any, seed: int) -> "RowsData":
        return RowsData(self, train if isinstance(train, RowsData) else None)

    @classmethod
    def usual(cls, said: Mapping[str, Any], about: Any) -> dict[str, Any]:
        """Read what the file tells: the model sees all columns but the label.

        Columns that lack values, and texts with many values, are left out; if all are such, none is, so that their
        faults are told. Raises ConfigError if the file or the label must be given first.
        """
        held_out = {"name": "fraction", "fraction": 0.2, "seed": 0}
        told: dict[str, Any] = {"label_kind": "class", "held_out": held_out, "part": "train", "standardize": True}
        told |= {"num_items": None, **said}
        file = told_file(told, "data.train")
        aside = {told["label"], *(value for key, value in dict(told["held_out"] or {}).items() if key == "column")}
        columns = [name for name in file.names if name not in aside]
        shown = {name: column for name in columns if (column := suggested(file, name))}
        told.setdefault("sees", [*shown] or columns)
        for key, kind in (("categorical", "texts"), ("images", "images")):
            told.setdefault(key, [name for name in told["sees"] if shown.get(name) == kind])
        return told


WHOLE_FILE = {"part": "all", "held_out": None, "num_items": None}  # what a set has that takes all rows of its file


def is_other_file(file: Any, own: str) -> bool:
    """Return whether a value of the key `file` names a file, and another one than `own`."""
    return isinstance(file, str) and os.path.abspath(file) != os.path.abspath(own)


AS_IN_TRAIN = ("label", "label_kind", "sees", "categorical", "images", "standardize")


class RowsData(TensorItems):
    """Items with an entry `columns`, float32, of all numbers and categories, an entry for each array, and `label`.

    train: the set from which the model learns, by whose training rows the columns are shown; None: by those of this
    file. Raises ConfigError, with paths relative to the config, for everything in the file that does not fit.

    rows: the number of each item's row. unseen: columns that the config does not name. classes: the values of classes
    in their order; None where labels are numbers. encodings: how the columns are shown, by name.
    """

    classes: list[Any] | None
    encodings: dict[str, Encoding]

    def __init__(self, config: RowsDataConfig, train: "RowsData | None") -> None:
        self.config = config
        ConfigError.require_none([*_faults(config), *(_unlike(config, train.config) if train else ())])
        self.source = table = Table(
            config, [(f"sees.{at}", name) for at, name in enumerate(config.sees)], (TABLE, LABEL)
        )
        self.files = table.files
        self.unseen = [name for name in table.file.names if name not in table.columns]
        if (is_held_out := table.held_out_rows()).all():
            raise ConfigError.at("held_out", f"expected rows that are not held out, got none of {len(table)}")
        self.encodings = table.encodings(~is_held_out) if train is None else train.encodings
        ConfigError.require_none(self._unlike_arrays())
        if config.label is None and train is None:
            raise ConfigError.at("label", "expected a column, because the model learns from these labels, got null")
        wanted = {"train": ~is_held_out, "held_out": is_held_out, "all": np.ones(len(table), dtype=bool)}[config.part]
        self.rows = np.flatnonzero(wanted)
        if len(self.rows) == 0:
            raise ConfigError.at(
                "part", f"expected rows that are held out, got none of {len(table)}; choose other ones"
            )
        split = None if config.part == "all" else (config.held_out,)
        self.file_rows = FileRows(table.file.sha256, split, "held_out", self.rows)
        label = None
        if config.label is not None:
            label = self._labels(
                config.label, read_column(table.file, config.label, "label", config.label_kind == "class"), train
            )[self.rows]
        elif train is not None:
            self.classes, self.num_classes = train.classes, train.num_classes
        shown = table.shown(self.encodings)
        entries = {TABLE: shown.table} if shown.ranges else {}
        entries |= shown.arrays
        super().__init__({n: torch.from_numpy(each[self.rows]) for n, each in entries.items()}, label)

    def _labels(self, name: str, column: Column, train: "RowsData | None") -> torch.Tensor:
        """Return the labels of all rows: int64 (N,) of classes, float32 (N, ...) of numbers."""
        is_class = self.config.label_kind == "class"
        self.classes = None
        with below("label"):
            remedy = "if it is a class, write label_kind: class"
            if column.ndim > 1 and is_class:
                raise ConfigError.at("", f"expected a class in each row of {name!r}, got an array")
            check_column(name, column, is_class, remedy)
            if not is_class:
                with np.errstate(over="ignore"):
                    numbers = column.astype(np.float32)
                check_finite(numbers, "", f"numbers that float32 holds in the column {name!r}")
                return torch.from_numpy(numbers)
            self.classes = _classes(column) if train is None else train.classes
            assert self.classes is not None
            self.num_classes = len(self.classes)
            places = {str(value): place for place, value in enumerate(self.classes)}
            if None in (found := [places.get(cell) for cell in column.tolist()]):
                row = found.index(None)
                message = f"expected one of the classes in the file of data.train ({cut(', '.join(places), 200)})"
                raise ConfigError.at("", f"{message}, got {column[row]} in row {row} (counted from 0)")
            return torch.tensor(found)

    def _unlike_arrays(self) -> Iterator[ConfigErrorItem]:
        for name, encoding in self.encodings.items():
            column = self.source.columns[name]
            image = self.source.image(name)
            if (column.shape[1:], image) != (encoding.shape, encoding.image):
                kinds = [
                    f"{'numbers' if kind is None else f'images of {kind}'} of shape {shape}"
                    for kind, shape in ((encoding.image, encoding.shape), (image, column.shape[1:]))
                ]
                message = f"expected in each row of {name!r} {kinds[0]}, as in data.train, got {kinds[1]}"
                yield ConfigErrorItem(self.source.paths[name], message)

    def described(self) -> dict[str, Any]:
        """Return how rows are shown, as files say it: entries and columns in order, classes, a row's cells."""
        columns = [
            {"name": name, "entry": name if name in self.entries else TABLE} | self.encodings[name].described()
            for name in self.config.sees
        ]
        first = {name: np.asarray(self.source.columns[name][self.rows[0]]).tolist() for name in self.config.sees}
        entries = [name for name in self.entries if name != LABEL]
        return {"entries": entries, "columns": columns, "classes": self.classes, "first": first}

    def row_hashes(self) -> np.ndarray[Any, Any]:
        """Return a number for each item, equal for equal items of all sets of this process: int64 (N,)."""
        arrays = [each.numpy() for each in self.entries.values()]
        return np.array([hash(b"".join(each.tobytes() for each in item)) for item in zip(*arrays, strict=True)])

    def describe(self, index: int) -> str:
        """Describe an item as people read it, such as "row 17: age 31, colour red"."""
        return self.source.describe(int(self.rows[index]))


def _classes(column: Column) -> list[Any]:
    """Return the values of a column of classes in their order: whole numbers if each is written as one, else texts."""
    found = in_order(column.tolist())
    numbers = [number_of(cell) for cell in found]
    broken = [cell for cell, number in zip(found, numbers, strict=True) if number is not None and number % 1 != 0]
    if broken and None not in numbers:
        row, remedy = column.tolist().index(broken[0]), "if it is to be predicted as a number, write label_kind: number"
        got = f"{broken[0]} in row {row} (counted from 0); {remedy}"
        raise ConfigError.at("", f"expected whole numbers or texts as classes, got {got}")
    return [int(cell) for cell in found] if all(map(INTEGER.fullmatch, found)) else found


def _faults(config: RowsDataConfig) -> Iterator[ConfigErrorItem]:
    for place, name in enumerate(config.sees):
        if name in config.sees[:place]:
            yield ConfigErrorItem(f"sees.{place}", f"expected different columns, got {name!r} twice")
        if name == config.label:
            message = f"expected another column, because the model is to predict it, got the label {name!r}"
            yield ConfigErrorItem(f"sees.{place}", message)
    for place, name in enumerate(config.categorical):
        if name not in config.sees:
            yield ConfigErrorItem(f"categorical.{place}", f"expected a column that the model sees, got {name!r}")


def _unlike(config: RowsDataConfig, train: RowsDataConfig) -> Iterator[ConfigErrorItem]:
    for key in AS_IN_TRAIN:
        own, there = getattr(config, key), getattr(train, key)
        if own != there and (key, own) != ("label", None):
            message = f"expected the same as in data.train, whose rows say how the model sees a row ({cut(str(there))})"
            yield ConfigErrorItem(key, f"{message}, got {cut(str(own))}")
