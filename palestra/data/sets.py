"""Data sets that a config names: map-style sets of the user's own, of which a config may take the first items alone."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, NamedTuple

import numpy as np
from torch.utils.data import IterableDataset

from palestra.config import Config, ConfigError, PositiveInt, UserConfig, below, cut, running_own
from palestra.data.columns import require_same_files
from palestra.randomness import base_key, restored_global_states, seed_global_states

TRAIN = "train"  # the set from which a model learns


class DataConfig(Config):
    """The keys of every data set.

    judged_by: the keys in which a first file's set for evaluations differs from the one from which the model learns;
    {}: there is no other set.
    """

    usual: ClassVar[Any] = {"num_items": None}
    judged_by: ClassVar[dict[str, Any]] = {}

    num_items: PositiveInt | None
    """only the first so many items, such as those of one batch, to see whether a model can learn them by heart; null:
    all"""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Put `num_items` last, after the keys of a subclass, in printed configs."""
        super().__pydantic_init_subclass__(**kwargs)
        fields = cls.__pydantic_fields__
        fields["num_items"] = fields.pop("num_items")

    def build(self, train: Any, seed: int) -> Any:
        """Make the data set. Raises ConfigError, with paths relative to this config.

        train: the set from which the model learns; None: this is it. seed: the run's.
        """
        raise NotImplementedError


class UserDataConfig(UserConfig, DataConfig):
    """Base of the `Config` of a data set of the user's own: a map-style `torch.utils.data.Dataset`.

    Its class is called with the config. It has `data[index]` and `len(data)`, and may have `collate(items)`, which
    makes a batch, `weights`, N numbers by which `{name: weighted}` draws, and `files`, the SHA-256 of each file that
    items come from, by its path: a run is not resumed once one of them has changed.
    """

    def build(self, train: Any, seed: int) -> Any:
        """Make the data set. Raises ConfigError if it fails, is empty, lacks a length, or is a stream.

        The generators of Python, NumPy and torch are seeded by the run's seed alone, so that sets which draw how they
        are split draw the same, also when the run is resumed; afterwards they are as they were.
        """
        with running_own("name", f"{self.name!r} fails"):
            with restored_global_states():
                seed_global_states(base_key(seed, "data") % 2**63)
                data = UserConfig.build(self)
            if isinstance(data, IterableDataset):
                remedy = "a function that gives batches of it may stand as {loader: module:function, num_batches: null}"
                raise ConfigError.at("name", f"expected items by index, got the stream {self.name!r}; {remedy}")
            num = len(data)
        if num == 0:
            raise ConfigError.at("name", f"expected items in {self.name!r}, got none")
        return data


# the sets that were made last, after the configs and the seed of which they were; None: nothing is kept
_last: ContextVar[list[Any] | None] = ContextVar("last", default=None)


@contextmanager
def keeping_last_sets() -> Iterator[None]:
    """A context in which `make_sets` makes equal sets once, if it is asked for them several times in a row."""
    token = _last.set([])
    try:
        yield
    finally:
        _last.reset(token)


def make_sets(configs: Mapping[str, DataConfig], seed: int) -> dict[str, Any]:
    """Make the data sets of a run by name. seed: the run's. Raises ConfigError."""
    if (last := _last.get()) and last[:2] == [configs, seed]:
        return dict(last[2])
    if last:
        last.clear()  # before others are made, because sets may be large
    made = _make_sets(configs, seed)
    if last is not None:
        last[:] = [dict(configs), seed, made]
    return dict(made)


def _make_sets(configs: Mapping[str, DataConfig], seed: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name in sorted(configs, key=lambda each: each != TRAIN):  # the others are shown as `train` says
        with below(f"data.{name}"):
            data = configs[name].build(made.get(TRAIN), seed)
            _require_one_split(made, data)
            made[name] = data
            files = getattr(data, "files", {})
            if not isinstance(files, Mapping) or not all(isinstance(each, str) for each in (*files, *files.values())):
                expected = (
                    f"expected as `files` of {type(data).__name__} a mapping from paths to SHA-256s in hex digits"
                )
                raise ConfigError.at("", f"{expected}, got {cut(repr(files))}")
    return made


class FileRows(NamedTuple):
    """The rows of a file that the items of a set are, as its attribute `file_rows`.

    sha256: of the file. split: which of its rows are held out, as a config says it; None: all are taken. key: of the
    set's config that says it. rows: the number of each item's row.
    """

    sha256: str
    split: Any
    key: str
    rows: np.ndarray[Any, Any]


def _of_train_file(made: Mapping[str, Any], data: Any) -> FileRows | None:
    """Return the rows of the training data if a set takes its rows from the same file, whatever its path is."""
    there, own = (getattr(each, "file_rows", None) for each in (made.get(TRAIN), data))
    return there if there is not None and own is not None and there.sha256 == own.sha256 else None


def _require_one_split(made: Mapping[str, Any], data: Any) -> None:
    """Raise ConfigError if a set has a part of the file of `train`, which is split in another way there."""
    if (train := _of_train_file(made, data)) is None or None in (train.split, data.file_rows.split):
        return
    own, there = data.file_rows.split[0], train.split[0]
    if own != there:
        why = f"because both are parts of one file ({cut(str(there))})"
        raise ConfigError.at(data.file_rows.key, f"expected the same as in data.{TRAIN}, {why}, got {cut(str(own))}")


def overlaps(sets: Mapping[str, Any], configs: Mapping[str, DataConfig]) -> list[str]:
    """Say which sets have rows from which the model also learns, or equal ones of another file, and how many."""
    lines = []
    for name, data in sets.items():
        ways: dict[str, Callable[[Any], Any]] = {}
        if _of_train_file(sets, data) is not None:
            ways["are also"] = lambda each: each.file_rows.rows
        if all(hasattr(each, "row_hashes") for each in (sets.get(TRAIN), data)):  # a file may have a row twice
            ways["equal rows"] = lambda each: each.row_hashes()
        for what, rows in ways.items() if name != TRAIN else ():
            own, there = (rows(sets[each])[: configs[each].num_items] for each in (name, TRAIN))
            if num := int(np.isin(np.unique(own) if what == "are also" else own, there).sum()):
                told = f"{num} rows or instances of data.{name} {what} in data.{TRAIN}"
                lines.append(f"{told}, from which the model learns")
                break
    return lines


def files_of(sets: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the files that data sets name, by set: the SHA-256 by path."""
    return {name: dict(getattr(data, "files", {})) for name, data in sets.items()}


def require_same_sets(before: Mapping[str, Mapping[str, str]], sets: Mapping[str, Any]) -> None:
    """Raise ConfigError if a file of a data set has changed. before: what `files_of` gave when the run began."""
    for name, now in files_of(sets).items():
        with below(f"data.{name}"):
            require_same_files(before.get(name, {}), now)


def num_items(data: Any, config: DataConfig) -> int:
    """Return how many items of a set are read. Raises ConfigError where the config asks for more than there are."""
    if config.num_items is None:
        return len(data)
    if config.num_items > len(data):
        raise ConfigError.at("num_items", f"expected at most {len(data)}, as the set has, got {config.num_items}")
    return config.num_items
