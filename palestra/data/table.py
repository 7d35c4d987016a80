"""The rows of a file as numbers: which columns are shown and how, which rows are held out, and what does not fit.

Letters: N rows of the file, D numbers that are shown of a row.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from palestra.config import ByName, Config, ConfigError, ConfigErrorItem, NonEmptyStr, NonNegativeInt, below
from palestra.config.errors import cut, nearest_hint
from palestra.data.columns import Column, ColumnsFile, in_order, is_held, number_of, read_columns
from palestra.randomness import base_key, fold, random_integers, random_permutation, world_keys

TABLE = "columns"  # the entry that holds all columns but arrays
CHANNELS = (1, 3, 4)  # of pictures
MOST_CATEGORIES = 32  # of a column that a first file shows
MOST_TOLD = 8  # values of a row that a text names
FLAGS = {"true": 1, "1": 1, "1.0": 1, "false": 0, "0": 0, "0.0": 0}  # of tables; letters may be capital
HALF = re.compile(r"[\ud800-\udfff]")  # of a pair that stands for a character: no text in UTF-8 holds it alone


class HeldOutFractionConfig(Config):
    name: Literal["fraction"]
    """a part of the rows, drawn at random"""
    fraction: Annotated[float, Field(gt=0, lt=1)]
    """the share of the rows that training never draws"""
    seed: NonNegativeInt
    """which rows these are; it does not follow the run's seed"""


class HeldOutColumnConfig(Config):
    name: Literal["column"]
    """the rows that a column of the file names"""
    column: NonEmptyStr
    """1: the row is held out; 0: training draws it"""


AnyHeldOutConfig = Annotated[HeldOutFractionConfig | HeldOutColumnConfig, ByName()]


class FileKeys(Protocol):
    """The keys of a config that say which file is read, and which of its rows are held out."""

    file: str

    @property
    def label(self) -> str | None: ...
    @property
    def held_out(self) -> HeldOutFractionConfig | HeldOutColumnConfig | None: ...


class TableKeys(FileKeys, Protocol):
    """The keys of a config that a table needs."""

    categorical: list[str]
    images: list[str]
    standardize: bool


class Encoding(NamedTuple):
    """How a column is shown, which some of its rows say.

    shape: of a row. categories: the values of a column of categories, in their order; else None. image: uint8 or
    float32, of arrays that are images, which stay as they are; else None. mean, spread: what is taken from numbers, and
    by what they are divided.
    """

    shape: tuple[int, ...]
    categories: Column | None
    image: np.dtype[Any] | None
    mean: Any = None
    spread: Any = None

    def applied(self, column: Column) -> np.ndarray[Any, Any]:
        """Return what is shown of a column: float32 (N, numbers), or arrays (N, ...)."""
        if self.categories is not None:
            return (column[:, None] == self.categories).astype(np.float32)
        if self.image is not None:
            return np.ascontiguousarray(column[:, None] if column.ndim == 3 else column, dtype=self.image)
        numbers = column.astype(np.float64)
        with np.errstate(over="ignore", under="ignore"):
            if self.spread is not None:
                numbers = (numbers - self.mean) / self.spread
            values = numbers.astype(np.float32)
        return values[:, None] if values.ndim == 1 else values

    def described(self) -> dict[str, Any]:
        """Return what files say of it: the categories, or mean and spread of numbers (0 and 1 where they stay)."""
        if self.categories is not None:
            return {"categories": self.categories.tolist()}
        known = (0.0, 1.0) if self.spread is None else (self.mean, self.spread)
        return dict(zip(("mean", "spread"), (np.asarray(each).tolist() for each in known), strict=True))


class Shown(NamedTuple):
    """What is shown of all rows.

    table: the numbers and categories of all columns, float32 (N, D). ranges: the places of each column in it. arrays:
    (N, ...) by column: images (C, H, W) of uint8 or float32, others of float32.
    """

    table: np.ndarray[Any, Any]
    ranges: dict[str, range]
    arrays: dict[str, np.ndarray[Any, Any]]


class LabelledFile:
    """A file of rows with its label and what is held out, whatever is shown of the rows.

    config: says which. shown: the columns that are shown, each with its path in the config. Raises ConfigError, with
    paths relative to the config, for what does not fit.

    columns: the label and the column of held-out rows, if the config names them, as the file has them. names: of the
    shown ones. files: the SHA-256 of the file, by its path.
    """

    def __init__(self, config: FileKeys, shown: Sequence[tuple[str, str]]) -> None:
        with below("file"):
            self.file = file = read_columns(config.file)
        self.files = {config.file: file.sha256}
        self.how = how = config.held_out
        held_out = [("held_out.column", how.column)] if isinstance(how, HeldOutColumnConfig) else []
        self.aside = [*([] if config.label is None else [("label", config.label)]), *held_out]
        ConfigError.require_none(unknown_columns(config.file, [*self.aside, *shown], file))
        self.names = list(dict.fromkeys(name for _, name in shown))
        self.paths = {name: path for path, name in reversed(shown)}
        self.columns = {name: read_column(file, name, path) for path, name in self.aside}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def held_out_rows(self) -> np.ndarray[Any, Any]:
        """Find the rows that are held out: bool (N,). Raises ConfigError for a fraction that leaves none on a side."""
        how, num = self.how, len(self)
        if isinstance(how, HeldOutColumnConfig):
            return flags(self.columns[how.column], "held_out.column", f"the column {how.column!r}") == 1
        is_held_out = np.zeros(num, dtype=bool)
        if how is not None:
            if not 0 < (num_held_out := round(how.fraction * num)) < num:
                expected = f"expected a fraction of {num} rows that leaves some on both sides"
                raise ConfigError.at("held_out.fraction", f"{expected}, got {how.fraction}")
            order = random_permutation(world_keys(base_key(how.seed, "rows/held out"), 1, torch.device("cpu")), num)
            is_held_out[order[:num_held_out].numpy()] = True
        return is_held_out

    def texts(self) -> dict[str, list[str]]:
        """Return the shown columns as texts, by name. Raises ConfigError for a row that lacks one."""
        found = {}
        for name in self.names:
            with below(self.paths[name]):
                found[name] = self.file.texts(name)
                if "" in found[name]:
                    where = f"got none in row {found[name].index('')} (counted from 0)"
                    message = f"expected a text in every row of {name!r}, {where}; fill it, or leave the row out"
                    raise ConfigError.at("", message)
                if halves := [row for row, text in enumerate(found[name]) if HALF.search(text)]:
                    where = f"got half of a pair (surrogate) in row {halves[0]} (counted from 0)"
                    raise ConfigError.at("", f"expected texts that UTF-8 can write in {name!r}, {where}")
        return found


class Table(LabelledFile):
    """The rows of a file as numbers.

    reserved: names that a shown array may not have. columns: all that the config names, as the file has them.
    """

    def __init__(self, config: TableKeys, shown: Sequence[tuple[str, str]], reserved: Sequence[str]) -> None:
        super().__init__(config, shown)
        self.config = config
        self.columns |= {
            name: read_column(self.file, name, path, as_written=name in config.categorical) for path, name in shown
        }
        self._check([*self.aside, *shown], reserved)

    def _check(self, named: Sequence[tuple[str, str]], reserved: Sequence[str]) -> None:
        if (num := len(self)) == 0:
            raise ConfigError.at("file", f"expected rows in {self.config.file!r}, got none")
        for path, name in named:
            if len(column := self.columns[name]) != num:
                raise ConfigError.at(path, f"expected {num} rows in {name!r}, as in {named[0][1]!r}, got {len(column)}")
            if name in self.paths and path not in ("label", "held_out.column"):
                with below(path):
                    if column.ndim > 1 and name in reserved:
                        expected = f"expected another name of an array than {', '.join(reserved)}"
                        raise ConfigError.at("", f"{expected}, got {name!r}")
                    check_column(name, column, name in self.config.categorical)
        for place, name in enumerate(self.config.images):
            with below(f"images.{place}"):
                _check_image(name, self.columns.get(name))

    def encodings(self, is_training: np.ndarray[Any, Any]) -> dict[str, Encoding]:
        """Return how each shown column is shown, by the training rows alone. is_training: bool (N,)."""
        return {name: self._encoding(name, self.columns[name][is_training]) for name in self.names}

    def _encoding(self, name: str, known: Column) -> Encoding:
        """Return how a column is shown. known: its training rows."""
        shape, image = known.shape[1:], self.image(name)
        if name in self.config.categorical:
            return Encoding(shape, np.array(in_order(known.tolist()), dtype=object), None)
        if image is not None or not self.config.standardize:
            return Encoding(shape, None, image)
        known = known.astype(np.float64)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            mean, spread = known.mean(axis=0), known.std(axis=0)
            is_constant = known.max(axis=0) == known.min(axis=0)
            is_held = is_constant | (np.isfinite(spread) & (spread > np.finfo(np.float64).tiny))
            if not np.all(is_held):  # squares that float64 does not hold
                scale = np.where(is_held, 1.0, np.abs(known).max(axis=0))
                of_shares = (known / scale).mean(axis=0) * scale, (known / scale).std(axis=0) * scale
                mean, spread = np.where(is_held, (mean, spread), of_shares)
        return Encoding(shape, None, None, mean, np.where(is_constant | (spread == 0), 1.0, spread))

    def image(self, name: str) -> np.dtype[Any] | None:
        """Return the type in which an array of images is shown; None for any other column."""
        is_pixels = self.columns[name].dtype == np.uint8
        return None if name not in self.config.images else np.dtype(np.uint8 if is_pixels else np.float32)

    def shown(self, encodings: Mapping[str, Encoding]) -> Shown:
        """Return what is shown of all rows. Raises ConfigError for numbers that are too large."""
        tables: dict[str, np.ndarray[Any, Any]] = {}
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        for name in self.names:
            values = encodings[name].applied(self.columns[name])
            if encodings[name].image is None:
                check_finite(values, self.paths[name], f"numbers that float32 holds in the column {name!r}")
            (arrays if self.columns[name].ndim > 1 else tables)[name] = values
        table = np.concatenate([*tables.values(), np.zeros((len(self), 0), np.float32)], axis=1)
        ends = np.cumsum([0, *(each.shape[1] for each in tables.values())])
        return Shown(table, {name: range(ends[at], ends[at + 1]) for at, name in enumerate(tables)}, arrays)

    def describe(self, row: int) -> str:
        """Describe a row without its arrays and its label, such as "row 17: age 31, colour red"."""
        columns = {name: self.columns[name] for name in self.names if name != self.config.label}
        texts = [f"{name} {cell_text(column[row])}" for name, column in columns.items() if column.ndim == 1]
        told = texts[:MOST_TOLD] + (["..."] if len(texts) > MOST_TOLD else [])
        return f"row {row}" + (f": {', '.join(told)}" if told else "")


def cell_text(value: Any) -> str:
    """Write a cell as people read it."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def suggested(file: ColumnsFile, name: str) -> Literal["numbers", "texts", "images"] | None:
    """Return what a column holds if a first file shows it, else None: where values lack, or texts are too many."""
    try:
        column = file.column(name)
    except ConfigError:
        return None
    if column.dtype == object:
        is_complete = column.ndim == 1 and all(column.tolist())
        return "texts" if is_complete and len(set(column.tolist())) <= MOST_CATEGORIES else None
    if not np.isfinite(column).all():
        return None
    return "images" if column.ndim in (3, 4) else "numbers"


def has_texts(file: ColumnsFile, name: str) -> bool:
    """Return whether a column has a text in every row."""
    try:
        return all(file.texts(name))
    except ConfigError:
        return False


def told_file(told: dict[str, Any], place: str) -> ColumnsFile:
    """Read the file that a first config names; its column `label` is the label, unless the config says which.

    place: the path of the keys, for messages. Raises ConfigError if the file or the label must be given first.
    """
    if not isinstance(told.get("file"), str):
        raise ConfigError.at("file", f"expected a path, but the key is missing; give it, as {place}.file=data.csv")
    with below("file"):
        file = read_columns(told["file"])
    if "label" in file.names:
        told.setdefault("label", "label")
    if "label" not in told:
        message = f"expected one of the columns ({', '.join(file.names)}), but the key is missing; give it, as"
        raise ConfigError.at("label", f"{message} {place}.label={file.names[-1] if file.names else 'NAME'}")
    return file


# ---- what does not fit ---------------------------------------------------------------------------------


def unknown_columns(path: str, named: Sequence[tuple[str, str]], file: ColumnsFile) -> Iterator[ConfigErrorItem]:
    for key, name in named:
        if name not in file.names:
            known = ", ".join(file.names) or "none"
            expected = f"expected a column of {path} ({cut(known, 200)})"
            yield ConfigErrorItem(key, f"{expected}, got {name!r}{nearest_hint(name, file.names)}")


def read_column(file: ColumnsFile, name: str, path: str, as_written: bool = False) -> Column:
    """Return a column; as_written: with its cells as texts, as of classes and categories, unless it holds arrays."""
    with below(path):
        column = file.column(name)
        return np.array(file.texts(name), dtype=object) if as_written and column.ndim == 1 else column


CATEGORIES = "if these are categories, name the column in `categorical`"


def check_column(name: str, column: Column, is_categorical: bool, remedy: str = CATEGORIES) -> None:
    """Raise ConfigError, with the path "", unless the column holds what it should in every row.

    remedy: what to do if texts stand where numbers should.
    """
    if column.ndim > 1 and (is_categorical or column.dtype == object):
        wanted = "a number or text in each row of the category" if is_categorical else "numbers in the column"
        raise ConfigError.at("", f"expected {wanted} {name!r}, got an array{'' if is_categorical else ' of texts'}")
    if column.dtype == object:
        texts = column.tolist()
        if not is_categorical:
            row = next((row for row, text in enumerate(texts) if number_of(text) is None), 0)
            where = f"got {texts[row]!r} in row {row} (counted from 0)"
            raise ConfigError.at("", f"expected numbers in the column {name!r}, {where}; {remedy}")
        if "" in texts:
            where = f"got none in row {texts.index('')} (counted from 0)"
            message = f"expected a value in every row of {name!r}, {where}; fill it, or leave the row out"
            raise ConfigError.at("", message)
        return
    if column.dtype.kind in "iu" and not is_held(column):
        raise ConfigError.at("", f"expected numbers that float64 holds in {name!r}, got integers beyond 2**53")
    check_finite(column, "", f"finite numbers in the column {name!r}", "; fill it, or leave the row out")


def _check_image(name: str, column: Column | None) -> None:
    """Raise ConfigError, with the path "", unless a column that is seen has an image in each row."""
    if column is None or column.ndim not in (3, 4):
        got = "a column that nobody sees" if column is None else f"the shape {column.shape}"
        expected = f"expected an array (rows, height, width) or (rows, channels, height, width) as {name!r}"
        raise ConfigError.at("", f"{expected}, got {got}")
    if column.ndim == 4 and column.shape[1] not in CHANNELS and column.shape[3] in CHANNELS:
        expected = f"expected images (rows, channels, height, width) as {name!r}"
        raise ConfigError.at("", f"{expected}, got {column.shape}; transpose(0, 3, 1, 2) makes them so")


def check_finite(values: np.ndarray[Any, Any], path: str, what: str, remedy: str = "") -> None:
    """Raise ConfigError at a path for the first row that holds a number which is not finite."""
    if not (is_sound := np.isfinite(values).reshape(len(values), -1).all(axis=1)).all():
        row = int(np.flatnonzero(~is_sound)[0])
        got = values[row][~np.isfinite(values[row])][0] if values.ndim > 1 else values[row]
        told = "none or nan" if np.isnan(got) else str(got)
        raise ConfigError.at(path, f"expected {what}, got {told} in row {row} (counted from 0){remedy}")


def flags(column: Column, path: str, what: str) -> np.ndarray[Any, Any]:
    """Convert a column of zeros and ones, or of booleans, to int64 (N,). Raises ConfigError for other values."""
    values: list[Any] = column.tolist()
    if column.dtype == object:
        values = [FLAGS.get(each.strip().lower(), number_of(each)) for each in values]
    for row, value in enumerate(values):
        if value not in (0, 1):
            got = f"{cut(str(column[row]))} in row {row} (counted from 0)"
            raise ConfigError.at(path, f"expected 0 or 1 in every row as {what}, got {got}")
    return np.array(values).astype(np.int64)


class Split(NamedTuple):
    """Rows that may be drawn. rows: int64, those with label 0 first. starts, counts: int64 (2,), by label."""

    rows: Tensor
    starts: Tensor
    counts: Tensor

    def draw(self, keys: Tensor, balanced: bool) -> Tensor:
        """Draw a row per key, int64 (B,). balanced: both labels are equally likely, not as often as the rows have them.

        keys: int64 (B,).
        """
        if balanced:
            label = random_integers(fold(keys, 0), 1, 2).squeeze(1)
            of_label = random_integers(fold(keys, 1), 1, self.counts[label].unsqueeze(1)).squeeze(1)
            return self.rows[self.starts[label] + of_label]
        return self.rows[random_integers(fold(keys, 1), 1, len(self.rows)).squeeze(1)]


def split_rows(label: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], what: str, device: torch.device) -> Split:
    """Return the wanted rows. label: 0 or 1 (N,). wanted: bool (N,). what: they are, for messages.

    Raises ConfigError, at `held_out`, if they do not have both labels.
    """
    rows = [np.flatnonzero(wanted & (label == each)) for each in (0, 1)]
    if not all(counts := [len(each) for each in rows]):
        got = f"{counts[0]} with label 0 and {counts[1]} with label 1"
        raise ConfigError.at("held_out", f"expected {what} rows with both labels, got {got}; choose other ones")
    starts = torch.tensor([0, counts[0]], device=device)
    return Split(torch.from_numpy(np.concatenate(rows)).to(device), starts, torch.tensor(counts, device=device))
