"""Where Optuna keeps the study of a sweep.

`open` opens it; unless that is for writing, nothing is changed or made. `require` raises ConfigError for a place that
cannot be used, and leaves it as it is.
"""

import os
import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, TypeVar
from urllib.parse import quote

from pydantic import AfterValidator, model_validator

from palestra.config import ByName, Config, ConfigError, NonEmptyStr, cut
from palestra.config.own_modules import admit_outside
from palestra.storage.disk import Folder, RefusedPathError, RunFolderError
from palestra.storage.secrets import may_hold_secret_beside_user

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

T = TypeVar("T")

STUDY = "study.db"
WAIT_S = 30.0  # for another process that writes to the SQLite file
MOST_S = 20.0  # that a statement may take
SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")  # at the end of a journal that names another file, to be deleted
OPTUNAS_CHECK = "CHECK (version_info_id=1)"
COMPUTES = re.compile(r"\b(virtual|as|check|default|generated)\b|['/]|--", re.IGNORECASE)  # in what makes a table
COLUMN = r'(\w+|"\w+")'
PLAIN_INDEX = re.compile(  # what makes an index of columns: no function, no operator, no WHERE
    rf"CREATE (UNIQUE )?INDEX {COLUMN} ON {COLUMN} ?\({COLUMN}(, ?{COLUMN})*\)", re.IGNORECASE
)


class SQLiteConfig(Config):
    """The file study.db in the sweep's folder."""

    study: ClassVar = "sweep"

    name: Literal["sqlite"]

    def require(self) -> None:
        pass

    def open(self, folder: Folder, for_writing: bool) -> "BaseStorage":
        from optuna.storages import RDBStorage

        _require_harmless_files(folder, for_writing)
        file = f"file:{quote(bytes((folder.path / STUDY).absolute()))}?mode={'rwc' if for_writing else 'ro'}"

        def connect() -> sqlite3.Connection:  # a path in a URL would be read as more than a path if it has ? or {
            connection = sqlite3.connect(file, timeout=WAIT_S, uri=True, check_same_thread=False)
            _restrain(connection)
            connection.execute("PRAGMA synchronous = EXTRA")  # else the last commit may be undone when the power goes
            return connection

        with closing(connect()) as connection:
            _require_tables_alone(connection, folder.path / STUDY)
        options = {"creator": connect}
        return RDBStorage("sqlite:///study.db", engine_kwargs=options, skip_table_creation=not for_writing)


def _require_harmless_files(folder: Folder, for_writing: bool) -> None:
    """Raise RefusedPathError for files that SQLite must not open.

    It would follow a link, write through a hard link, wait for a FIFO, and delete whatever file a journal names as its
    super-journal.
    """
    folder.require_plain(STUDY, one_name=for_writing)
    for suffix in ("-journal", "-wal", "-shm"):
        folder.require_plain(STUDY + suffix)
    if folder.kind(journal := f"{STUDY}-journal") == "file":
        with folder.reading(journal) as file:
            end = os.pread(file.descriptor, len(SUPER_JOURNAL), max(file.size - len(SUPER_JOURNAL), 0))
        if end == SUPER_JOURNAL:
            raise RefusedPathError(
                f"{folder.path / journal} names another file, which SQLite would delete; palestra writes no such "
                "journal, so somebody else has: remove it if you trust the rest of the folder"
            )


def _restrain(connection: sqlite3.Connection) -> None:
    """Let expressions that whoever wrote the file may have hidden in it end after some seconds, and have no effect."""
    began = time.monotonic()

    def begin(statement: str) -> None:
        nonlocal began
        began = time.monotonic()

    connection.set_trace_callback(begin)
    connection.set_progress_handler(lambda: time.monotonic() - began > MOST_S, 1_000_000)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 64 << 20)
    connection.execute("PRAGMA trusted_schema = OFF")


def _require_tables_alone(connection: sqlite3.Connection, path: Path) -> None:
    """Raise RunFolderError for a study with views, triggers, or anything that is computed.

    A column, a CHECK or an index may be computed: Optuna makes no such thing, and a single call of a function of
    SQLite's may take hours.
    """
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master"):
        text = str(sql or "").replace(OPTUNAS_CHECK, "")
        # without text it is the index of a key, which SQLite has made
        is_plain = {"table": not COMPUTES.search(text), "index": sql is None or PLAIN_INDEX.fullmatch(text)}
        if not is_plain.get(kind):
            raise RunFolderError(
                f"{path} is no study of Optuna: expected tables and indexes alone, got {kind} {name!r}, which computes"
            )


class JournalConfig(Config):
    """A file to which lines are added; several machines may share it."""

    usual: ClassVar = {"study": "sweep"}

    name: Literal["journal"]
    path: Annotated[NonEmptyStr, AfterValidator(lambda path: str(Path(path).absolute()))] | None
    """the file, by path from the working directory, stored in full; null: study.journal in the sweep's folder"""
    study: NonEmptyStr
    """the study's name in it"""

    @model_validator(mode="after")
    def _check_trusted(self) -> Self:
        if self.path is not None:
            _require_trusted("path", self.path)
        return self

    def require(self) -> None:
        if self.path is not None:
            file = Path(self.path)
            if not os.access(file if file.exists() else file.parent, os.W_OK) or file.is_dir():
                raise _error("path", f"expected a file that can be written, got {file}")

    def open(self, folder: Folder, for_writing: bool) -> "BaseStorage":
        from optuna.storages import JournalStorage

        from palestra.sweeps.journal import JournalFile

        path = folder.path / "study.journal" if self.path is None else Path(self.path)
        file = JournalFile(Folder(path.parent), path.name)
        try:
            if for_writing:
                file.make()
            return JournalStorage(file)
        except OSError as error:
            if not for_writing or isinstance(error, RunFolderError):
                raise
            raise _error("path", f"{path} cannot be used: {error.strerror}") from error


class DatabaseConfig(Config):
    """A database that SQLAlchemy knows, as PostgreSQL or MySQL."""

    usual: ClassVar = {"study": "sweep"}

    name: Literal["database"]
    url: NonEmptyStr
    """postgresql+psycopg://USER@HOST/DATABASE, without a password"""
    password_from: NonEmptyStr | None
    """the environment variable with the password; null: none is needed"""
    study: NonEmptyStr
    """the study's name in it"""

    @model_validator(mode="after")
    def _check_url(self) -> Self:
        scheme, _, place = self.url.partition("://")
        if scheme.lower().partition("+")[0] == "sqlite" and not place.startswith("//"):
            message = (
                "expected a file by its full path, as sqlite:////home/me/study.db, got one in memory or by a path from "
                "the working directory; storage: {name: sqlite} keeps the study in the sweep's folder"
            )
            raise ConfigError.at("url", message)
        if may_hold_secret_beside_user(self.url):
            message = (
                "expected a URL without a password or options, which would be stored in the sweep's folder; put the "
                "password into an environment variable that password_from names"
            )
            raise ConfigError.at("url", message)
        secret = "" if self.password_from is None else f", which gets the secret in {self.password_from}"
        _require_trusted("url", self.url + secret)
        return self

    def require(self) -> None:
        from sqlalchemy import create_engine

        def connect(url: str) -> None:
            engine = create_engine(url)
            try:
                engine.connect().close()
            finally:
                engine.dispose()

        self._reach(connect)

    def open(self, folder: Folder, for_writing: bool) -> "BaseStorage":
        from optuna.storages import RDBStorage

        options = {"pool_pre_ping": True}
        return self._reach(lambda url: RDBStorage(url, engine_kwargs=options, skip_table_creation=not for_writing))

    def _reach(self, connect: Callable[[str], T]) -> T:
        """Return what `connect` makes of the URL with its password.

        Raises ConfigError, which does not tell the password.
        """
        from sqlalchemy import make_url
        from sqlalchemy.exc import SQLAlchemyError

        password = None
        if self.password_from is not None and (password := os.environ.get(self.password_from)) is None:
            raise _error(
                "password_from",
                f"expected the name of an environment variable, got {self.password_from!r}, which is unset",
            )
        try:
            # a password of None leaves the URL as it is
            return connect(make_url(self.url).set(password=password).render_as_string(hide_password=False))
        except (SQLAlchemyError, ImportError, ValueError) as error:
            why = " ".join(str(getattr(error, "orig", None) or error).split())
            if password:
                why = why.replace(password, "***")
            raise _error("url", f"expected a database that can be reached, got {self.url}: {cut(why, 300)}") from None


AnyStorageConfig = Annotated[SQLiteConfig | JournalConfig | DatabaseConfig, ByName()]


def _require_trusted(key: str, place: str) -> None:
    """Raise ConfigError for a place outside that is not trusted.

    A stranger's sweep must not send a secret to its author, nor write to a file of the user's.
    """
    if not admit_outside(place, "to keep the study of a sweep"):
        raise ConfigError.at(key, f"expected a place that is trusted (palestra trials SWEEP --trust), got {place}")


def _error(key: str, message: str) -> ConfigError:
    return ConfigError.at(f"storage.{key}", message)
