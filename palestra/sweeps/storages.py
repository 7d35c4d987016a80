"""Where Optuna keeps the study of a sweep."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import model_validator

from palestra.config import ByName, Config, ConfigError, ConfigErrorItem, NonEmptyStr
from palestra.config.own_modules import admit_outside
from palestra.storage.disk import Folder
from palestra.storage.secrets import may_hold_secret

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

WAIT_S = 120.0  # for another process that writes to the SQLite file


class SQLiteConfig(Config):
    """The file study.db in the sweep's folder."""

    name: Literal["sqlite"]

    @property
    def study(self) -> str:
        return "sweep"

    def open(self, folder: Folder) -> "BaseStorage":
        from optuna.storages import RDBStorage

        file = _own_file(folder, "study.db")
        return RDBStorage(f"sqlite:///{file}", engine_kwargs={"connect_args": {"timeout": WAIT_S}})


class JournalConfig(Config):
    """A file to which lines are added; several machines may share it."""

    name: Literal["journal"]
    path: NonEmptyStr | None
    """the file; null: study.journal in the sweep's folder"""
    study: NonEmptyStr
    """the study's name in it"""

    @model_validator(mode="after")
    def _check_trusted(self) -> Self:
        if self.path is not None:
            _require_trusted("path", str(Path(self.path).absolute()))
        return self

    def open(self, folder: Folder) -> "BaseStorage":
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        file = _own_file(folder, "study.journal") if self.path is None else Path(self.path).absolute()
        try:
            return JournalStorage(JournalFileBackend(str(file)))
        except OSError as error:
            raise _error("path", f"{file} cannot be used: {error.strerror}") from error


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
    def _check_secret(self) -> Self:
        if may_hold_secret(re.sub(r"://[^@:/]*@", "://", self.url)):
            where = "put the password into an environment variable that password_from names"
            message = (
                f"expected a URL without a password or options, which would be stored in the sweep's folder; {where}"
            )
            raise ConfigError([ConfigErrorItem("url", message)])
        secret = "" if self.password_from is None else f", which gets the secret in {self.password_from}"
        _require_trusted("url", self.url + secret)
        return self

    def open(self, folder: Folder) -> "BaseStorage":
        from optuna.storages import RDBStorage
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
            return RDBStorage(url.render_as_string(hide_password=False), engine_kwargs={"pool_pre_ping": True})
        except (SQLAlchemyError, ImportError, ValueError) as error:
            why = " ".join(str(getattr(error, "orig", None) or error).split())
            if password:
                why = why.replace(password, "***")
            raise _error("url", f"expected a database that can be reached, got {self.url}: {why:.300}") from None


AnyStorageConfig = Annotated[SQLiteConfig | JournalConfig | DatabaseConfig, ByName()]


def _require_trusted(key: str, place: str) -> None:
    """A stranger's sweep must not send a secret to its author, nor write to a file of the user's."""
    if not admit_outside(place, "to keep the study of a sweep"):
        raise ConfigError([ConfigErrorItem(key, f"expected a place that is trusted, got {place}")])


def _own_file(folder: Folder, name: str) -> Path:
    """The path of a file in the sweep's folder. Raises RefusedPathError if a link or a folder has its name."""
    if folder.kind(name) is not None:
        folder.open(name).close()
    return (folder.path / name).absolute()


def _error(key: str, message: str) -> ConfigError:
    return ConfigError([ConfigErrorItem(f"storage.{key}", message)])
