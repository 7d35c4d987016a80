"""The records of runs as tidy rows, one number each, and as a table for pandas, polars, CSV and parquet."""

import csv
import io
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

from palestra.config import ConfigError, cut, load_yaml
from palestra.recording.recorders import numbers_of
from palestra.run.base import BaseRunConfig
from palestra.run.kinds import kind_of_stored
from palestra.runtime.console import VisibleFile
from palestra.storage.disk import RunFolderError, csv_text
from palestra.storage.records_file import iterate_records
from palestra.storage.run_folder import RunFolder

Library = Literal["pandas", "polars"]


class Row(NamedTuple):
    """A number of a record.

    counters: of the record. name: as recorders name it: `players/host/loss`, `evaluation/main/host vs random/rho`.
    """

    run: str
    seed: int
    counters: Mapping[str, int]
    name: str
    value: float


def types_of(axes: Iterable[str]) -> dict[str, str]:
    """Return the columns of a table with their types. axes: the counters among them."""
    return {"run": "string", "seed": "int64", **dict.fromkeys(axes, "int64"), "name": "string", "value": "float64"}


def run_name(path: Path) -> str:
    r"""Return the name of a run: its folder's, with that of the folder above if it only names the seed.

    What is no UTF-8, which no table holds, is written as \\udcff.
    """
    path = path.resolve()
    name = f"{path.parent.name}/{path.name}" if path.name.startswith("seed-") else path.name
    return name.encode(errors="backslashreplace").decode()


def run_names(paths: Sequence[Path]) -> list[str]:
    """Return the names of runs; if two would have the same name, all are named by their paths."""
    names = [run_name(path) for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


class Rows(NamedTuple):
    """The rows of runs. axes: the counters that are columns, those of any of the runs."""

    axes: tuple[str, ...]
    rows: Iterable[Row]


def rows_of_runs(paths: Sequence[Path], tell: Callable[[str], None]) -> Rows:
    """Read the rows of several runs, each run once.

    tell: called with a message for each damaged line, which is left out. Raises RunFolderError for a folder that is no
    run, before the first row, and ConfigError for a config that cannot be read.
    """
    paths = list({path.resolve(): path for path in paths}.values())
    runs = [(RunFolder.open(path), name) for path, name in zip(paths, run_names(paths), strict=True)]
    axes = dict.fromkeys(axis for folder, _ in runs for axis in kind_of_stored(load_yaml(folder.config), tell).axes)
    return Rows(tuple(axes), (row for folder, name in runs for row in rows_of_run(folder, name, tell)))


def rows_of_run(folder: RunFolder, name: str, tell: Callable[[str], None]) -> Iterator[Row]:
    """Yield the rows of one run, in the order of its records. Raises RunFolderError, ConfigError."""
    config = load_yaml(folder.config)
    if not isinstance(seed := config.get("seed"), int):
        raise RunFolderError(f"{folder.config}: seed: expected a whole number, got {seed!r}")
    return rows_of_records(iterate_records(folder.records, tell), kind_of_stored(config), name, seed, tell)


def rows_of_records(
    records: Iterable[Mapping[str, Any]], kind: type[BaseRunConfig], run: str, seed: int, tell: Callable[[str], None]
) -> Iterator[Row]:
    """Yield the rows of records.

    kind: that of the run. tell: called with a message for each record that is damaged, which is left out.
    """
    for record in records:
        try:
            yield from list(rows_of_record(record, kind, run, seed))
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            tell(f"{run}: a record is damaged, and is left out: {cut(repr(error), 200)}")


def rows_of_record(record: Mapping[str, Any], kind: type[BaseRunConfig], run: str, seed: int) -> Iterator[Row]:
    """Yield the numbers of a training record, or of an evaluation; of other records none.

    The counters over which curves of runs go are no rows; all others are rows of the training records alone. What
    follows the clock is `clock/...`, of an evaluation `evaluation/NAME/clock/...`. A number that is not known (null)
    has no row.
    """
    if record.get("kind") not in ("training", "evaluation"):
        return
    counters = {name: record[name] for name in kind.counters if name in record}
    if not all(isinstance(count, int) for count in (record["opt_steps"], *counters.values())):
        got = ", ".join(map(repr, counters.values()))
        raise TypeError(f"expected whole numbers of {', '.join(counters)}, got {got}")
    prefix = f"evaluation/{record['evaluation']}/" if record["kind"] == "evaluation" else ""
    for name, value in numbers_of(record).items():
        if prefix and name.startswith("clock/"):
            name = prefix + name
        if name not in kind.axes and name.startswith(prefix):
            yield Row(run, seed, counters, name, float(value))


# ---- which numbers -------------------------------------------------------------------------------------


def chosen_names(known: Sequence[str], metrics: Sequence[str]) -> list[str]:
    """Return the names that `--metrics` means: names, or their ends, in which * stands for any text.

    Raises ConfigError for one that means none of the known names.
    """
    found: dict[str, None] = {}
    for metric in metrics:
        matches = [metric] if metric in known else [name for name in known if _is_named(name, metric)]
        if not matches:
            near = get_close_matches(metric, dict.fromkeys([*known, *(name.rpartition("/")[2] for name in known)]))
            message = f"expected the name of a recorded number, got {metric!r}; {in_words(near or known)}"
            raise ConfigError.at("--metrics", message)
        found |= dict.fromkeys(matches)
    return list(found)


def _is_named(name: str, metric: str) -> bool:
    name, metric = name.replace("_", " "), metric.replace("_", " ")  # as tables and figures write them
    return fnmatchcase(name, metric) or fnmatchcase(name, f"*[/ ]{metric}")  # also of "prover vs verifier/accuracy"


def in_words(names: Sequence[str]) -> str:
    """Say which names are recorded, as one types them."""
    shown = ", ".join(map(shlex.quote, names[:5]))
    return f"recorded are {shown}{', ...' if len(names) > 5 else ''}" if names else "nothing is recorded"


# ---- as a table ----------------------------------------------------------------------------------------


def cells(row: Row, axes: Iterable[str]) -> list[Any]:
    """Return a row in the order of its columns. A counter that its run has not is 0."""
    return [row.run, row.seed, *(row.counters.get(axis, 0) for axis in axes), row.name, row.value]


def columns(found: Rows) -> dict[str, list[Any]]:
    """Return rows as columns by name."""
    by_name: dict[str, list[Any]] = {name: [] for name in types_of(found.axes)}
    for row in found.rows:
        for column, value in zip(by_name.values(), cells(row, found.axes), strict=True):
            column.append(value)
    return by_name


def table(found: Rows, library: Library) -> Any:
    """Return rows as a DataFrame of pandas or polars. Raises ConfigError if the extra `frames` is missing."""
    if library not in ("pandas", "polars"):
        raise ValueError(f"expected pandas or polars, got {library!r}")
    module = frames_module(library, "table")
    types = types_of(found.axes).items()
    if library == "pandas":
        return module.DataFrame(columns(found)).astype({name: kind.replace("string", "str") for name, kind in types})
    return module.DataFrame(columns(found), schema={name: getattr(module, kind.title()) for name, kind in types})


def write_csv(found: Rows, file: TextIO | VisibleFile) -> None:
    """Write a line with the names of the columns, then one for each row. Numbers are exact."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(types_of(found.axes))
    writer.writerows(cells(row, found.axes) for row in found.rows)


def to_csv(found: Rows) -> str:
    """Return the text that `write_csv` writes."""
    return csv_text(types_of(found.axes), (cells(row, found.axes) for row in found.rows))


def to_parquet(found: Rows) -> bytes:
    """Return the content of a parquet file. Raises ConfigError if the extra `frames` is missing."""
    pyarrow, parquet = frames_module("pyarrow", "--parquet"), frames_module("pyarrow.parquet", "--parquet")
    schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in types_of(found.axes).items()])
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns(found), schema=schema), file)
    return file.getvalue()


def frames_module(module: str, what: str) -> Any:
    """Import a module of the extra `frames`. Raises ConfigError at `what` if it is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        message = f"{module.partition('.')[0]} needs an extra: pip install 'palestra[frames]'"
        raise ConfigError.at(what, message) from error
