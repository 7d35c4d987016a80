"""Records as tables: one CSV file for each kind of record, one row for each record, one column for each number."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from palestra.config import Config
from palestra.recording.recorders import Recorder, RunCard, RunEnd, numbers_of
from palestra.storage.run_folder import write_text


class CsvConfig(Config):
    name: Literal["csv"]
    """tables in the run's csv/, one for each kind of record"""


class CsvRecorder(Recorder):
    """Its files are written anew each time that the run goes on. A column that comes later is empty in earlier rows."""

    def __init__(self, config: CsvConfig) -> None:
        self._tables: dict[str, _Table] = {}

    def open(self, run: RunCard) -> int:
        self._folder = run.folder / "csv"
        self._folder.mkdir(exist_ok=True)
        for path in self._folder.glob("*.csv"):
            path.unlink()
        self._tables = {}
        return 0

    def write(self, number: int, record: Mapping[str, Any]) -> None:
        kind = record["kind"]
        if kind not in self._tables:
            self._tables[kind] = _Table(self._folder / f"{kind}.csv")
        self._tables[kind].add({"record": number, **numbers_of(record)})

    def flush(self) -> None:
        for table in self._tables.values():
            table.write()

    def close(self, end: RunEnd) -> None:
        self.flush()


class _Table:
    """A CSV file whose columns may become more."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] = []
        self._rows: list[dict[str, float]] = []  # not yet written
        self._is_wider = False

    def add(self, row: dict[str, float]) -> None:
        new = [name for name in row if name not in self._columns]
        self._is_wider |= bool(new)
        self._columns += new
        self._rows.append(row)

    def write(self) -> None:
        if not self._rows:
            return
        if self._is_wider:
            written: list[dict[str, Any]] = []
            if self._path.exists():
                with open(self._path, newline="") as file:
                    written = list(csv.DictReader(file))
            write_text(self._path, self._text(written + self._rows, with_head=True))
            self._is_wider = False
        else:
            with open(self._path, "a", newline="") as file:
                file.write(self._text(self._rows, with_head=False))
        self._rows = []

    def _text(self, rows: list[dict[str, Any]], with_head: bool) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="", lineterminator="\n")
        if with_head:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()
