"""Copies of weights from elsewhere: of other runs, of files, and those with which a model was handed over.

A run keeps them in its folder, and then no longer needs where they came from.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from torch import Tensor

from palestra.games.spaces import Space
from palestra.models.labelled import LabelledModel
from palestra.models.model import Model
from palestra.run.base import BaseRunConfig
from palestra.run.kinds import read_stored_config, require_kind
from palestra.storage.disk import Folder
from palestra.storage.manifest import PUT_BACK
from palestra.storage.stored_files import (
    TENSOR_DTYPES,
    Count,
    DamagedError,
    Entry,
    StoredFile,
    read_checked,
    read_entry,
    tensors_in,
    tensors_to_bytes,
    to_json,
)

K = TypeVar("K", bound=BaseRunConfig)
Origin = Mapping[str, str | None]


class StoredSpace(Entry):
    """An entry of the items from which a model was made, as files hold it."""

    name: str
    shape: list[Count]
    dtype: str
    padded: bool


def spaces_to_store(model: Model) -> list[dict[str, Any]] | None:
    """Return the spaces of the items from which a model was made, as files hold them; None if it needs none."""
    if not isinstance(model, LabelledModel):
        return None
    return [
        {"name": name, "shape": list(it.shape), "dtype": str(it.dtype).removeprefix("torch."), "padded": it.padded}
        for name, it in model.spaces.items()
    ]


def stored_spaces(stored: list[Any] | None) -> dict[str, Space] | None:
    """Return what `spaces_to_store` has stored. Raises ValueError for anything else."""
    if stored is None:
        return None
    kinds = {str(kind).removeprefix("torch."): kind for kind in TENSOR_DTYPES}
    found = map(StoredSpace.model_validate, stored)
    return {each.name: Space(tuple(each.shape), kinds[each.dtype], each.padded) for each in found}


class CopyFacts(Entry):
    """The facts of a copy, which are written last.

    origin: what the config says of where the weights are from. opt_steps, env_steps: those after which they are so, 0
    where they are not known. base: the SHA-256 of what a model that talks in words has not changed. spaces: of the
    items from which a model was made. config: the file of the run in which they learned; None: they are of no run.
    """

    origin: dict[str, str | None]
    opt_steps: Count
    env_steps: Count
    base: str | None
    spaces: list[StoredSpace] | None
    config: StoredFile | None
    weights: StoredFile


@dataclass(frozen=True)
class Copy:
    """A copy in a folder. Each file is checked when it is read: DamagedError says that it differs from the facts."""

    folder: Folder
    name: str
    facts: CopyFacts

    @property
    def config(self) -> Path:
        """The config file of the run in which the weights learned."""
        return self.folder.path / _files_of(self.name)[0]

    def settings(self) -> bytes:
        """Return the content of the config file."""
        if self.facts.config is None:
            raise DamagedError(f"expected a copy with the config of its run, got one without {self.config.name}")
        return self._read(self.config.name, self.facts.config)

    def run(self, kind: type[K]) -> K:
        """Return the config. Raises RunFolderError, too, if it is of another kind."""
        self.settings()  # raises
        return require_kind(read_stored_config(self.config), kind, self.config)

    def weights(self) -> bytes:
        """Return the content of the file of weights."""
        return self._read(_files_of(self.name)[1], self.facts.weights)

    def _read(self, file: str, stored: StoredFile) -> bytes:
        try:
            return read_checked(self.folder, file, stored)
        except DamagedError as error:
            raise DamagedError(f"{error}; {PUT_BACK}") from error

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights by name."""
        return tensors_in(self.weights(), _files_of(self.name)[1])


def write_copy(
    folder: Folder,
    name: str,
    origin: Origin,
    weights: bytes | Mapping[str, Tensor],
    settings: bytes | None = None,
    *,
    opt_steps: int = 0,
    env_steps: int = 0,
    base: str | None = None,
    spaces: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Write a copy under a name. settings: the content of its run's config file. The others as in CopyFacts."""
    content = weights if isinstance(weights, bytes) else tensors_to_bytes(dict(weights))
    facts = CopyFacts(
        origin=dict(origin),
        opt_steps=opt_steps,
        env_steps=env_steps,
        base=base,
        spaces=None if spaces is None else [StoredSpace(**each) for each in spaces],
        config=None if settings is None else StoredFile.of(settings),
        weights=StoredFile.of(content),
    )
    folder.make()
    for file, each in zip(_files_of(name), (settings, content, to_json(facts.model_dump()).encode()), strict=True):
        if each is not None:
            folder.write(file, each)


def find_copy(folder: Folder | None, name: str, origin: Origin) -> Copy | None:
    """Return the copy under a name that is from this origin; None if there is none.

    A branch may name another origin than the run that it branches off. Raises DamagedError.
    """
    if folder is None or folder.kind(facts := _files_of(name)[2]) is None:
        return None
    found = read_entry(folder, facts, CopyFacts)
    return Copy(folder, name, found) if found.origin == origin else None


def files_of_copies(names: Iterable[str]) -> set[str]:
    """Return the names of all files that copies under these names may have."""
    return {file for name in names for file in _files_of(name)}


def _files_of(name: str) -> tuple[str, str, str]:
    stem = quote(name, safe="")
    return f"{stem}.yml", f"{stem}.safetensors", f"{stem}.json"
