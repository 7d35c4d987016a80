"""A recorder of tables: one CSV file for each kind of record, one row for each record, one column for each number."""

import csv
import io
import re
from collections.abc import Mapping
from typing import Any, Literal

from palestra.config import Config
from palestra.recording.recorders import Recorder, RunCard, RunEnd, numbers_of
from palestra.storage.disk import Folder

OUR_TABLE = re.compile(r"(training|evaluation|failed_evaluation)\.csv|\.[a-z_]+\.csv\.[0-9]+\.tmp")
MAX_TABLE_BYTES = 1 << 40


class CsvConfig(Config):
    name: Literal["csv"]
    """tables in the run's csv/, one for each kind of record"""

    def build(self) -> "CsvRecorder":
        return CsvRecorder(self)


class CsvRecorder(Recorder):
    """Writes CSV files, anew each time that the run goes on. A column that comes later is empty in earlier rows."""

    def __init__(self, config: CsvConfig) -> None:
        self._tables: dict[str, _Table] = {}

    def open(self, run: RunCard) -> int:
        self._folder = Folder(run.folder, "csv").make()
        self._folder.remove_files(OUR_TABLE.fullmatch)
        self._tables = {}
        return 0

    def write(self, number: int, record: Mapping[str, Any]) -> None:
        kind = record["kind"]
        if kind not in self._tables:
            self._tables[kind] = _Table(self._folder, f"{kind}.csv")
        self._tables[kind].add({"record": number, **numbers_of(record)})

    def flush(self) -> None:
        for table in self._tables.values():
            table.write()

    def close(self, end: RunEnd) -> None:
        self.flush()


class _Table:
    """A CSV file that may get more columns."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder, self._name = folder, name
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
            if self._folder.kind(self._name) is not None:
                text = self._folder.read(self._name, MAX_TABLE_BYTES).decode()
                written = list(csv.DictReader(io.StringIO(text, newline="")))
            self._folder.write(self._name, self._text(written + self._rows, with_head=True).encode())
            self._is_wider = False
        else:
            file = self._folder.append(self._name)
            try:
                file.append(self._text(self._rows, with_head=False).encode())
            finally:
                file.close()
        self._rows = []

    def _text(self, rows: list[dict[str, Any]], with_head: bool) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="", lineterminator="\n")
        if with_head:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()
