"""Copies the weights of pretrained torch modules into the folder of the run that uses them, and reads them there.

These are modules that play, and the model of `set_model`. The run then no longer needs the file, or the object, from
which they came.
"""

from collections.abc import Mapping
from urllib.parse import quote

from torch import Tensor

from palestra.config import ConfigError
from palestra.games.game import Game
from palestra.models.model import SEAT
from palestra.players.torch_modules import ModulePolicy, TorchModuleConfig, read_weights
from palestra.storage.disk import Folder
from palestra.storage.facts import Entry, to_json
from palestra.storage.stored_files import (
    DamagedError,
    StoredFile,
    checked_entry,
    read_checked,
    read_json,
    read_tensors,
    tensors_to_bytes,
)


class CopiedModule(Entry):
    """The facts of a copied module: what the config says of it, and the size and SHA-256 of its weights.

    If the config names a file, the copy is equal to it byte for byte.
    """

    torch_module: str
    source: str | None
    weights: StoredFile


def build_module(name: str, config: TorchModuleConfig, game: Game, role: str, copies: Folder | None) -> ModulePolicy:
    """A pretrained module for a role, with the weights that the run has copied.

    If it has copied none yet, they are those that the config names. Raises ConfigError.
    """
    try:
        content = None if copies is None else _read_copy(name, config, copies)
    except DamagedError as error:
        raise ConfigError.at("weights", str(error)) from error
    if content is not None:
        return ModulePolicy.build(config, content, _files_of(name)[1], game, role)
    return ModulePolicy.build(config, read_weights(config), str(config.weights), game, role)


def copy_module(name: str, policy: ModulePolicy, folder: Folder) -> None:
    """Write a module's weights into a folder: the file that its config names, else the weights that it has."""
    folder.make()
    facts, weights = _files_of(name)
    content = policy.weights
    if content is None:
        content = tensors_to_bytes(policy.module.state_dict())
    folder.write(weights, content)
    config = policy.config
    copied = CopiedModule(torch_module=config.torch_module, source=config.weights, weights=StoredFile.of(content))
    folder.write(facts, to_json(copied.model_dump()).encode())


def _read_copy(name: str, config: TorchModuleConfig, folder: Folder) -> bytes | None:
    """The weights that `copy_module` has written for this config; None if it has not.

    A branch may name others than its origin. Raises DamagedError if the files differ from what was written.
    """
    facts, weights = _files_of(name)
    if folder.kind(facts) is None:
        return None
    found = read_json(folder, facts)
    if not isinstance(found, dict) or "torch_module" not in found:
        return None  # a copy of a player of another run
    copied = checked_entry(found, facts, CopiedModule)
    if (copied.torch_module, copied.source) != (config.torch_module, config.weights):
        return None
    return read_checked(folder, weights, copied.weights)


def _files_of(name: str) -> tuple[str, str]:
    """The names of a module's files: its facts, which are written last, and its weights."""
    stem = quote(name, safe="")
    return f"{stem}.json", f"{stem}.safetensors"


# ---- the model that `set_model` hands over -------------------------------------------------------------


class GivenWeights(Entry):
    """The facts of the weights with which a model was handed over: their size and SHA-256."""

    given: StoredFile


def write_given(weights: Mapping[str, Tensor], folder: Folder) -> None:
    """Write the weights with which a model begins, by name."""
    facts, file = _files_of(SEAT)
    content = tensors_to_bytes(dict(weights))
    folder.make().write(file, content)
    folder.write(facts, to_json(GivenWeights(given=StoredFile.of(content)).model_dump()).encode())


def read_given(folder: Folder) -> dict[str, Tensor] | None:
    """Read what `write_given` has written; None if it has not. Raises DamagedError."""
    facts, file = _files_of(SEAT)
    if folder.kind(facts) is None:
        return None
    return read_tensors(folder, file, checked_entry(read_json(folder, facts), facts, GivenWeights).given)
