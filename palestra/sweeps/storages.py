"""Where Optuna keeps the study of a sweep. `open` is for work on it; `open_to_read` changes and makes nothing;
`require` raises ConfigError for a place that cannot be used, and leaves it as it is."""

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar
from urllib.parse import quote

from pydantic import AfterValidator, model_validator

from palestra.config import ByName, Config, ConfigError, ConfigErrorItem, NonEmptyStr
from palestra.config.own_modules import admit_outside
from palestra.storage.disk import Folder, open_plain
from palestra.storage.secrets import may_hold_secret_beside_user

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

T = TypeVar("T")

WAIT_S = 120.0  # for another process that writes to the SQLite file


class SQLiteConfig(Config):
    """The file study.db in the sweep's folder."""

    name: Literal["sqlite"]

    @property
    def study(self) -> str:
        return "sweep"

    def require(self) -> None:
        pass

    def open(self, folder: Folder) -> "BaseStorage":
        return self._open(folder, "rwc")

    def open_to_read(self, folder: Folder) -> "BaseStorage":
        return self._open(folder, "ro")

    def _open(self, folder: Folder, mode: str) -> "BaseStorage":
        from optuna.storages import RDBStorage

        file = f"file:{quote(bytes(_own_file(folder, 'study.db')))}?mode={mode}"

        def connect() -> sqlite3.Connection:  # a path in a URL would be read as more than a path if it has ? or {
            return sqlite3.connect(file, timeout=WAIT_S, uri=True, check_same_thread=False)

        return RDBStorage("sqlite:///study.db", engine_kwargs={"creator": connect}, skip_table_creation=mode == "ro")


class JournalConfig(Config):
    """A file to which lines are added; several machines may share it."""

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
            place = file if file.exists() else file.parent
            if not os.access(place, os.W_OK) or file.is_dir():
                raise _error("path", f"expected a file that can be written, got {file}")

    def open(self, folder: Folder) -> "BaseStorage":
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        file = self._file(folder)
        try:
            return JournalStorage(JournalFileBackend(str(file)))
        except OSError as error:
            raise _error("path", f"{file} cannot be used: {error.strerror}") from error

    def open_to_read(self, folder: Folder) -> "BaseStorage":
        from optuna.storages import JournalStorage

        return JournalStorage(_StoredJournal(self._file(folder)))  # type: ignore[arg-type]

    def _file(self, folder: Folder) -> Path:
        return _own_file(folder, "study.journal") if self.path is None else Path(self.path)


class DatabaseConfig(Config):
    """A database that SQLAlchemy knows, as PostgreSQL or MySQL."""

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
            raise ConfigError([ConfigErrorItem("url", message)])
        if may_hold_secret_beside_user(self.url):
            where = "put the password into an environment variable that password_from names"
            message = (
                f"expected a URL without a password or options, which would be stored in the sweep's folder; {where}"
            )
            raise ConfigError([ConfigErrorItem("url", message)])
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

    def open(self, folder: Folder) -> "BaseStorage":
        return self._connect(makes_tables=True)

    def open_to_read(self, folder: Folder) -> "BaseStorage":
        return self._connect(makes_tables=False)

    def _connect(self, makes_tables: bool) -> "BaseStorage":
        from optuna.storages import RDBStorage

        options = {"pool_pre_ping": True}
        return self._reach(lambda url: RDBStorage(url, engine_kwargs=options, skip_table_creation=not makes_tables))

    def _reach(self, connect: Callable[[str], T]) -> T:
        """What `connect` makes of the URL with its password. Raises ConfigError, which does not tell the password."""
        from sqlalchemy import make_url
        from sqlalchemy.exc import SQLAlchemyError

        password = None
        if self.password_from is not None and (password := os.environ.get(self.password_from)) is None:
            raise _error(
                "password_from",
                f"expected the name of an environment variable, got {self.password_from!r}, which is unset",
            )
        try:
            url = make_url(self.url)
            if password is not None:
                url = url.set(password=password)
            return connect(url.render_as_string(hide_password=False))
        except (SQLAlchemyError, ImportError, ValueError) as error:
            why = " ".join(str(getattr(error, "orig", None) or error).split())
            if password:
                why = why.replace(password, "***")
            raise _error("url", f"expected a database that can be reached, got {self.url}: {why:.300}") from None


AnyStorageConfig = Annotated[SQLiteConfig | JournalConfig | DatabaseConfig, ByName()]


def _require_trusted(key: str, place: str) -> None:
    """A stranger's sweep must not send a secret to its author, nor write to a file of the user's."""
    if not admit_outside(place, "to keep the study of a sweep"):
        raise ConfigError(
            [ConfigErrorItem(key, f"expected a place that is trusted (palestra trials SWEEP --trust), got {place}")]
        )


class _StoredJournal:
    """The lines of a journal, for Optuna's storage, which cannot add to them. The last one may be unfinished."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        file = open_plain(self.file)
        try:
            content = b"".join(file.pieces(file.size))
        finally:
            file.close()
        whole = content[: content.rfind(b"\n") + 1]
        yield from map(json.loads, whole.splitlines()[log_number_from:])


def _own_file(folder: Folder, name: str) -> Path:
    """The path of a file in the sweep's folder. Raises RefusedPathError if a link or a folder has its name."""
    if folder.kind(name) is not None:
        folder.open(name).close()
    return (folder.path / name).absolute()


def _error(key: str, message: str) -> ConfigError:
    return ConfigError([ConfigErrorItem(f"storage.{key}", message)])
