"""`rows`: the labelled rows of a file. Each role sees the columns that are named for it.

Letters: B worlds, N rows of the file, D numbers that a role sees of a row.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from palestra.config import (
    ByName,
    Config,
    ConfigError,
    ConfigErrorItem,
    NonEmptyStr,
    NonNegativeInt,
    PositiveInt,
    below,
)
from palestra.config.errors import nearest
from palestra.games.dialogue.columns import Column, ColumnsFile, number_of, read_columns
from palestra.games.dialogue.protocol import Protocol
from palestra.games.dialogue.scenario import Instances, Scenario
from palestra.games.game import value_text
from palestra.games.spaces import Space
from palestra.randomness import base_key, fold, random_integers, random_permutation, world_keys

TABLE = "columns"  # the entry of an observation that holds all columns but arrays
RESERVED = (TABLE, "messages", "round")
CHANNELS = (1, 3, 4)  # of pictures
MOST_CATEGORIES = 32  # of a column that a first file lets players see
MOST_TOLD = 8  # values of a row that a text names

# ---- what a run must say -------------------------------------------------------------------------------


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


class RowsConfig(Config):
    name: Literal["rows"]
    """the labelled rows of a file; each role sees the columns that are named for it; a message is a symbol"""
    file: NonEmptyStr
    """a .csv, .parquet or .npz file on this machine; a relative path begins at the working directory"""
    label: NonEmptyStr
    """the column with the labels, 0 and 1"""
    sees: dict[str, list[NonEmptyStr]]
    """the columns that each role sees; []: none"""
    categorical: list[NonEmptyStr]
    """those of them that hold categories, as texts do: one number for each value that training rows have, 1 where the
    row has it; a value that only held-out rows have is all zeros"""
    num_tokens: PositiveInt
    """how many symbols there are, of which a message is one"""
    held_out: Annotated[HeldOutFractionConfig | HeldOutColumnConfig, ByName()]
    """which rows evaluations draw, and training never does"""
    balanced: bool
    """true: both labels are drawn equally often; false: as often as the rows have them"""
    standardize: bool
    """true: the numbers that players see have mean 0 and standard deviation 1 over the training rows, but categories
    and images; false: they are as in the file"""

    def build(self, protocol: Protocol, device: torch.device) -> "Rows":
        return Rows(self, protocol, device)

    def misfit(self, other: Config) -> ConfigErrorItem | None:
        """Say why players that have learned with these rows would see the others otherwise, or return None."""
        for key in ("name", "file", "held_out", "sees", "categorical", "standardize"):
            own, there = getattr(self, key), getattr(other, key, None)
            if own != there:
                expected = "the same as in the run's game, because it says how players see a row"
                return ConfigErrorItem(key, f"expected {expected} ({own!s:.80}), got {there!s:.80}")
        return None

    @classmethod
    def usual(cls, said: Mapping[str, Any], protocol: Protocol) -> dict[str, Any]:
        """Read what the file tells: provers see all columns, verifiers none unless they are alone.

        Columns that lack values, and texts with many values, are left out. Raises ConfigError if the file or the label
        must be given first.
        """
        held_out = {"name": "fraction", "fraction": 0.2, "seed": 0}
        told: dict[str, Any] = {"num_tokens": 8, "held_out": held_out, "balanced": True, "standardize": True, **said}
        if not isinstance(told.get("file"), str):
            raise ConfigError.at(
                "file", "expected a path, but the key is missing; give it, as game.scenario.file=data.csv"
            )
        with below("file"):
            file = read_columns(told["file"])
        if "label" in file.names:
            told.setdefault("label", "label")
        if "label" not in told:
            example = f"game.scenario.label={file.names[-1]}" if file.names else "game.scenario.label=NAME"
            message = f"expected one of the columns ({', '.join(file.names)}), but the key is missing; give it, as"
            raise ConfigError.at("label", f"{message} {example}")
        aside = {told["label"], *(value for key, value in dict(told["held_out"]).items() if key == "column")}
        shown = {name: column for name in file.names if name not in aside and (column := _suggested(file, name))}
        has_provers = set(protocol.roles) > set(protocol.verifiers)
        told.setdefault(
            "sees",
            {role: [] if has_provers and role in protocol.verifiers else [*shown] for role in protocol.roles},
        )
        seen = {name for columns in told["sees"].values() for name in columns}
        told.setdefault("categorical", [name for name, kind in shown.items() if kind == "texts" and name in seen])
        return told


def _suggested(file: ColumnsFile, name: str) -> Literal["numbers", "texts"] | None:
    """Return what a column holds if a first file lets players see it, else None."""
    try:
        column = file.column(name)
    except ConfigError:
        return None
    if column.dtype == object:
        is_complete = column.ndim == 1 and all(column.tolist())
        return "texts" if is_complete and len(set(column.tolist())) <= MOST_CATEGORIES else None
    return "numbers" if np.isfinite(column).all() else None


# ---- what players see ----------------------------------------------------------------------------------


class Split(NamedTuple):
    """Rows that may be drawn. rows: int64, those with label 0 first. starts, counts: int64 (2,), by label."""

    rows: Tensor
    starts: Tensor
    counts: Tensor


@dataclass(frozen=True)
class Seen:
    """A column as players see it: float32 (N, numbers), or an array (N, ...) of its own."""

    values: np.ndarray[Any, Any]
    is_array: bool


class Rows(Scenario):
    """Instances are rows of a file, of which the state holds the number; the file lies in tensors on the device.

    A role sees the numbers and categories of its columns as one entry, `columns`, float32 (D,), in the order of its
    list; each array as an entry of its own name: uint8 (N, H, W) or (N, C, H, W) as an image (C, H, W), other ones as
    float32. Raises ConfigError, with paths relative to the config, for everything in the file that does not fit.
    """

    def __init__(self, config: RowsConfig, protocol: Protocol, device: torch.device) -> None:
        super().__init__(config, protocol, device)
        self.num_tokens = config.num_tokens
        ConfigError.require_none(ConfigErrorItem(*fault) for fault in _faults_of_sees(config, protocol))
        with below("file"):
            file = read_columns(config.file)
        self.files = {config.file: file.sha256}
        ConfigError.require_none(ConfigErrorItem(*fault) for fault in _unknown_columns(config, file))
        names = list(dict.fromkeys(name for columns in config.sees.values() for name in columns))
        columns = {name: _column(file, name, path) for path, name in _named(config)}
        _check_columns(config, columns)
        self.told = {name: columns[name] for name in names if columns[name].ndim == 1}
        label = _flags(columns[config.label], "label", f"the label {config.label!r}")
        is_held_out = self._held_out_rows(columns, len(label))
        self.labels = torch.from_numpy(label).to(device)
        self.training = self._split(label, ~is_held_out, "training")
        self.held_out = self._split(label, is_held_out, "held-out")
        seen = {name: self._seen(name, columns[name], ~is_held_out) for name in names}
        self.arrays = {n: torch.from_numpy(each.values).to(device) for n, each in seen.items() if each.is_array}
        tables = {name: each.values for name, each in seen.items() if not each.is_array}
        table = np.concatenate([*tables.values(), np.zeros((len(label), 0), np.float32)], axis=1)
        self.table = torch.from_numpy(table).to(device)
        ends = np.cumsum([0, *(each.shape[1] for each in tables.values())])
        self.ranges = places = {name: range(ends[at], ends[at + 1]) for at, name in enumerate(tables)}
        self.places = {
            role: torch.tensor([i for n in listed if n in places for i in places[n]], dtype=torch.int64, device=device)
            for role, listed in config.sees.items()
        }

    def _held_out_rows(self, columns: Mapping[str, Column], num: int) -> np.ndarray[Any, Any]:
        """Find the rows that are held out: bool (N,)."""
        how = self.config.held_out
        if isinstance(how, HeldOutColumnConfig):
            return _flags(columns[how.column], "held_out.column", f"the column {how.column!r}") == 1
        order = random_permutation(world_keys(base_key(how.seed, "rows/held out"), 1, torch.device("cpu")), num)
        is_held_out = np.zeros(num, dtype=bool)
        is_held_out[order[: round(how.fraction * num)].numpy()] = True
        return is_held_out

    def _split(self, label: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], what: str) -> Split:
        rows = [np.flatnonzero(wanted & (label == each)) for each in (0, 1)]
        counts = [len(each) for each in rows]
        if not all(counts):
            got = f"{counts[0]} with label 0 and {counts[1]} with label 1"
            raise ConfigError.at("held_out", f"expected {what} rows with both labels, got {got}; choose other ones")
        starts = torch.tensor([0, counts[0]], device=self.device)
        all_rows = torch.from_numpy(np.concatenate(rows)).to(self.device)
        return Split(all_rows, starts, torch.tensor(counts, device=self.device))

    def _seen(self, name: str, column: Column, is_training: np.ndarray[Any, Any]) -> Seen:
        """Convert a column to what players see of it. is_training: bool (N,)."""
        config = self.config
        if name in config.categorical:
            found = sorted(set(column[is_training].tolist()))
            return Seen((column[:, None] == np.array(found, dtype=column.dtype)).astype(np.float32), is_array=False)
        if column.dtype == np.uint8 and column.ndim in (3, 4):
            return Seen(np.ascontiguousarray(column[:, None] if column.ndim == 3 else column), is_array=True)
        numbers = column.astype(np.float64)
        if config.standardize:
            known = numbers[is_training]
            spread = np.where(known.max(axis=0) == known.min(axis=0), 1.0, known.std(axis=0))
            numbers = (numbers - known.mean(axis=0)) / spread
        with np.errstate(over="ignore"):
            values = numbers.astype(np.float32)
        _check_finite(values, _path_of(config, name), f"numbers that float32 holds in the column {name!r}")
        return Seen(values[:, None] if values.ndim == 1 else values, is_array=column.ndim > 1)

    # ---- the scenario ------------------------------------------------------------------------------------

    def spaces(self, role: str) -> dict[str, Space]:
        table = {TABLE: Space((len(self.places[role]),), torch.float32, padded=False)} if len(self.places[role]) else {}
        arrays = ((name, self.arrays[name]) for name in self._arrays_of(role))
        return table | {name: Space(tuple(value.shape[1:]), value.dtype, padded=False) for name, value in arrays}

    def _arrays_of(self, role: str) -> list[str]:
        return [name for name in self.config.sees[role] if name in self.arrays]

    def draw(self, keys: Tensor, held_out: bool) -> tuple[Instances, Tensor]:
        split = self.held_out if held_out else self.training
        if self.config.balanced:
            label = random_integers(fold(keys, 0), 1, 2).squeeze(1)
            place = split.starts[label] + random_integers(fold(keys, 1), 1, split.counts[label].unsqueeze(1)).squeeze(1)
        else:
            place = random_integers(fold(keys, 1), 1, len(split.rows)).squeeze(1)
        row = split.rows[place]
        return {"row": row}, self.labels[row]

    def view(self, instances: Instances, role: str, messages: Tensor) -> dict[str, Tensor]:
        row, places = instances["row"], self.places[role]
        table = {TABLE: self.table[row.unsqueeze(1), places]} if len(places) else {}
        return table | {name: self.arrays[name][row] for name in self._arrays_of(role)}

    def describe_token(self, token: int) -> str:
        return f"symbol {token}"

    def describe(self, instance: Mapping[str, Tensor]) -> str:
        """Describe an instance without its arrays, such as "row 17: age 31, colour red"."""
        row = int(instance["row"])
        values = [(name, column[row]) for name, column in self.told.items() if name != self.config.label]
        texts = [f"{name} {_cell_text(value)}" for name, value in values]
        shown = texts[:MOST_TOLD] + (["..."] if len(texts) > MOST_TOLD else [])
        return f"row {row}" + (f": {', '.join(shown)}" if shown else "")

    def describe_view(self, instances: Instances, role: str, messages: Tensor) -> str:
        """Describe what a role sees, as the file has it; a category that no training row has is `?`."""
        row = int(instances["row"])
        texts = {}
        for name in self.config.sees[role]:
            if name in self.arrays:
                texts[name] = value_text(self.arrays[name][row])
            elif name in self.config.categorical and not self.table[row, list(self.ranges[name])].any():
                texts[name] = "?"
            else:
                texts[name] = _cell_text(self.told[name][row])
        return ", ".join(f"{name} {text}" for name, text in texts.items()) or "nothing of the instance"


def _cell_text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"


# ---- what does not fit ---------------------------------------------------------------------------------


def _faults_of_sees(config: RowsConfig, protocol: Protocol) -> Iterator[tuple[str, str]]:
    roles = ", ".join(protocol.roles)
    for role in protocol.roles:
        if role not in config.sees:
            yield f"sees.{role}", "expected a list of columns ([]: it sees none), but the key is missing"
    for role, columns in config.sees.items():
        if role not in protocol.roles:
            yield f"sees.{role}", f"unknown key; the roles of the protocol are {roles}"
        for place, name in enumerate(columns):
            if name in columns[:place]:
                yield f"sees.{role}.{place}", f"expected different columns, got {name!r} twice"
            if name == config.label and role in protocol.verifiers:
                message = f"expected another column, because {role!r} is to decide by what it sees, got the label"
                yield f"sees.{role}.{place}", f"{message} {name!r}"
    seen = {name for columns in config.sees.values() for name in columns}
    for place, name in enumerate(config.categorical):
        if name not in seen:
            yield f"categorical.{place}", f"expected a column that some role sees, got {name!r}"


def _named(config: RowsConfig) -> list[tuple[str, str]]:
    """List the columns that the config names, each with its path."""
    found = [(f"sees.{role}.{at}", name) for role, columns in config.sees.items() for at, name in enumerate(columns)]
    how = config.held_out
    held_out = [("held_out.column", how.column)] if isinstance(how, HeldOutColumnConfig) else []
    return [("label", config.label), *held_out, *found]


def _path_of(config: RowsConfig, name: str) -> str:
    """Return the path at which the config says that a role sees a column."""
    return next(path for path, named in _named(config) if named == name and path.startswith("sees."))


def _unknown_columns(config: RowsConfig, file: ColumnsFile) -> Iterator[tuple[str, str]]:
    for path, name in _named(config):
        if name not in file.names:
            near = nearest(name, file.names)
            hint = f"; did you mean {near!r}?" if near else ""
            known = ", ".join(file.names) or "none"
            yield path, f"expected a column of {config.file} ({known:.200}), got {name!r}{hint}"


def _column(file: ColumnsFile, name: str, path: str) -> Column:
    with below(path):
        return file.column(name)


def _check_columns(config: RowsConfig, columns: Mapping[str, Column]) -> None:
    num = len(columns[config.label])
    if num == 0:
        raise ConfigError.at("file", f"expected rows in {config.file!r}, got none")
    for path, name in _named(config):
        column, is_seen = columns[name], path.startswith("sees.")
        if len(column) != num:
            raise ConfigError.at(path, f"expected {num} rows in {name!r}, as the label has, got {len(column)}")
        if is_seen:
            with below(path):
                _check_seen(name, column, name in config.categorical)


def _check_seen(name: str, column: Column, is_categorical: bool) -> None:
    """Raise ConfigError, with the path "", unless players can see the column."""
    if column.ndim > 1 and name in RESERVED:
        raise ConfigError.at("", f"expected another name of an array than {', '.join(RESERVED)}, got {name!r}")
    if column.ndim > 1 and (is_categorical or column.dtype == object):
        raise ConfigError.at("", f"expected a number or text in each row of the category {name!r}, got an array")
    if column.dtype == object:
        texts = column.tolist()
        if not is_categorical:
            row = next(row for row, text in enumerate(texts) if number_of(text) is None)
            where = f"got {texts[row]!r} in row {row} (counted from 0)"
            remedy = "if these are categories, name the column in `categorical`"
            raise ConfigError.at("", f"expected numbers in the column {name!r}, {where}; {remedy}")
        if "" in texts:
            where = f"got none in row {texts.index('')} (counted from 0)"
            raise ConfigError.at(
                "", f"expected a value in every row of {name!r}, {where}; fill it, or leave the row out"
            )
        return
    if (
        column.dtype == np.uint8
        and column.ndim == 4
        and column.shape[1] not in CHANNELS
        and column.shape[3] in CHANNELS
    ):
        shape = "(rows, channels, height, width)"
        raise ConfigError.at(
            "", f"expected images {shape} as {name!r}, got {column.shape}; transpose(0, 3, 1, 2) makes them so"
        )
    _check_finite(column, "", f"finite numbers in the column {name!r}", "; fill it, or leave the row out")


def _check_finite(values: np.ndarray[Any, Any], path: str, what: str, remedy: str = "") -> None:
    is_sound = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if not is_sound.all():
        row = int(np.flatnonzero(~is_sound)[0])
        got = values[row][~np.isfinite(values[row])][0] if values.ndim > 1 else values[row]
        told = "none or nan" if np.isnan(got) else str(got)
        raise ConfigError.at(path, f"expected {what}, got {told} in row {row} (counted from 0){remedy}")


def _flags(column: Column, path: str, what: str) -> np.ndarray[Any, Any]:
    """Convert a column of zeros and ones to int64 (N,). Raises ConfigError for other values."""
    values: list[Any] = [number_of(each) if isinstance(each, str) else each for each in column.tolist()]
    for row, value in enumerate(values):
        if value not in (0, 1):
            got = f"{column[row]!s:.80} in row {row} (counted from 0)"
            raise ConfigError.at(path, f"expected 0 or 1 in every row as {what}, got {got}")
    return np.array(values).astype(np.int64)
