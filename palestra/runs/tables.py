"""The records of runs as tidy rows, one number each, and as a table for pandas, polars, CSV and parquet."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

from palestra.config import ConfigError, load_yaml
from palestra.recording.recorders import numbers_of
from palestra.runtime.console import VisibleFile
from palestra.storage.disk import RunFolderError
from palestra.storage.records_file import iterate_records
from palestra.storage.run_folder import RunFolder

Library = Literal["pandas", "polars"]
COUNTERS = ("env_steps", "opt_steps")


class Row(NamedTuple):
    """A number of a record. name: as recorders name it: `players/host/loss`, `evaluation/main/host vs random/rho`."""

    run: str
    seed: int
    env_steps: int
    opt_steps: int
    name: str
    value: float


KINDS = {str: "string", int: "int64", float: "float64"}
TYPES = {name: KINDS[kind] for name, kind in Row.__annotations__.items()}


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


def rows_of_runs(paths: Sequence[Path], tell: Callable[[str], None]) -> Iterator[Row]:
    """Yield the rows of several runs, each run once.

    tell: called with a message for each damaged line, which is left out. Raises RunFolderError for a folder that is no
    run, before the first row, and ConfigError for a config that cannot be read.
    """
    paths = list({path.resolve(): path for path in paths}.values())
    runs = [(RunFolder.open(path), name) for path, name in zip(paths, run_names(paths), strict=True)]
    return (row for folder, name in runs for row in rows_of_run(folder, name, tell))


def rows_of_run(folder: RunFolder, name: str, tell: Callable[[str], None]) -> Iterator[Row]:
    """Yield the rows of one run, in the order of its records. Raises RunFolderError, ConfigError."""
    seed = load_yaml(folder.config).get("seed")
    if not isinstance(seed, int):
        raise RunFolderError(f"{folder.config}: seed: expected a whole number, got {seed!r}")
    return rows_of_records(iterate_records(folder.records, tell), name, seed, tell)


def rows_of_records(
    records: Iterable[Mapping[str, Any]], run: str, seed: int, tell: Callable[[str], None]
) -> Iterator[Row]:
    """Yield the rows of records. tell: called with a message for each record that is damaged, which is left out."""
    for record in records:
        try:
            yield from list(rows_of_record(record, run, seed))
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            tell(f"{run}: a record is damaged, and is left out: {error!r:.200}")


def rows_of_record(record: Mapping[str, Any], run: str, seed: int) -> Iterator[Row]:
    """Yield the numbers of a training record, or of an evaluation; of other records none.

    The counters env_steps (0 in a run without environments) and opt_steps are columns. All other counters are rows of
    the training records alone. What follows the clock is `clock/...`, of an evaluation `evaluation/NAME/clock/...`. A
    number that is not known (null) has no row.
    """
    if record.get("kind") not in ("training", "evaluation"):
        return
    env_steps, opt_steps = record.get("env_steps", 0), record["opt_steps"]
    if not (isinstance(env_steps, int) and isinstance(opt_steps, int)):
        raise TypeError(f"expected whole numbers of env_steps and opt_steps, got {env_steps!r} and {opt_steps!r}")
    prefix = f"evaluation/{record['evaluation']}/" if record["kind"] == "evaluation" else ""
    for name, value in numbers_of(record).items():
        if prefix and name.startswith("clock/"):
            name = prefix + name
        if name not in COUNTERS and name.startswith(prefix):
            yield Row(run, seed, env_steps, opt_steps, name, float(value))


# ---- as a table ----------------------------------------------------------------------------------------


def columns(rows: Iterable[Row]) -> dict[str, list[Any]]:
    """Return the rows as columns by name, in the order of TYPES."""
    found: dict[str, list[Any]] = {name: [] for name in TYPES}
    for row in rows:
        for column, value in zip(found.values(), row, strict=True):
            column.append(value)
    return found


def table(rows: Iterable[Row], library: Library) -> Any:
    """Return the rows as a DataFrame of pandas or polars. Raises ConfigError if the extra `frames` is missing."""
    if library not in ("pandas", "polars"):
        raise ValueError(f"expected pandas or polars, got {library!r}")
    module = _extra(library, "table")
    if library == "pandas":
        return module.DataFrame(columns(rows)).astype(
            {name: "str" if t == "string" else t for name, t in TYPES.items()}
        )
    kinds = {"string": module.String, "int64": module.Int64, "float64": module.Float64}
    return module.DataFrame(columns(rows), schema={name: kinds[kind] for name, kind in TYPES.items()})


def write_csv(rows: Iterable[Row], file: TextIO | VisibleFile) -> None:
    """Write a line with the names of the columns, then one for each row. Numbers are exact."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(TYPES)
    writer.writerows(rows)


def to_csv(rows: Iterable[Row]) -> str:
    """Return the text that `write_csv` writes."""
    file = io.StringIO()
    write_csv(rows, file)
    return file.getvalue()


def to_parquet(rows: Iterable[Row]) -> bytes:
    """Return the content of a parquet file. Raises ConfigError if the extra `frames` is missing."""
    pyarrow, parquet = _extra("pyarrow", "--parquet"), _extra("pyarrow.parquet", "--parquet")
    schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in TYPES.items()])
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns(rows), schema=schema), file)
    return file.getvalue()


def _extra(module: str, what: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        message = f"{module.partition('.')[0]} needs an extra: pip install 'palestra[frames]'"
        raise ConfigError.at(what, message) from error
