"""Copies the models that sit in a run into its folder, and reads them there.

The run then no longer needs the runs in which they learned.
"""

from pathlib import Path
from urllib.parse import quote

from palestra.config import below
from palestra.games.game import Game
from palestra.players.seated_models import ModelPolicy, SeatedModelConfig
from palestra.runs.fit import FitConfig
from palestra.runs.kinds import read_stored_config, require_kind
from palestra.runs.models import StoredSpace, TrainedModel, spaces_to_store, stored_spaces
from palestra.runs.warm_starts import errors_at
from palestra.storage.disk import Folder
from palestra.storage.facts import Count, Entry, to_json
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import (
    StoredFile,
    checked_entry,
    read_checked,
    read_json,
    read_tensors,
    tensors_to_bytes,
)


class CopiedModel(Entry):
    """The facts of a copied model: what the config says of it, and the size and SHA-256 of its files."""

    from_model: str
    checkpoint: str
    opt_steps: Count
    spaces: list[StoredSpace] | None
    config: StoredFile
    weights: StoredFile


def seat_model(name: str, config: SeatedModelConfig, game: Game, role: str, copies: Folder | None) -> ModelPolicy:
    """A model in a role, with the weights that the run has copied.

    If it has copied none yet, they are those of the run that the config names. Raises ConfigError.
    """
    with errors_at("from_model", f"the model of {config.from_model}"):
        copied = None if copies is None else _read_copy(name, config, copies)
        trained = copied or TrainedModel.read(config.from_model, config.checkpoint)
        model = trained.build(game.device)
    with below("from_model"):
        return ModelPolicy(config, model, trained.opt_steps, game, role)


def copy_model(name: str, policy: ModelPolicy, folder: Folder, copies: Folder | None) -> None:
    """Write a model into a folder: its weights, and the config of the run in which it learned.

    copies: a folder that may hold a copy of it already.
    """
    config, (facts, text, weights) = policy.config, _files_of(name)
    if copies is not None and _find_copy(name, config, copies) is not None:
        settings = copies.read(text)
    else:
        settings = RunFolder(Path(config.from_model)).root.read("config.yml")
    folder.make()
    folder.write(text, settings)
    content = tensors_to_bytes(policy.model.state_dict())
    folder.write(weights, content)
    spaces = spaces_to_store(policy.model)
    copied = CopiedModel(
        from_model=config.from_model,
        checkpoint=config.checkpoint,
        opt_steps=policy.opt_steps,
        spaces=None if spaces is None else [StoredSpace(**each) for each in spaces],
        config=StoredFile.of(settings),
        weights=StoredFile.of(content),
    )
    folder.write(facts, to_json(copied.model_dump()).encode())


def _read_copy(name: str, config: SeatedModelConfig, folder: Folder) -> TrainedModel | None:
    """The model that `copy_model` has written for this config; None if it has not.

    Raises DamagedError if the files differ from what was written.
    """
    if (copied := _find_copy(name, config, folder)) is None:
        return None
    _, text, weights = _files_of(name)
    read_checked(folder, text, copied.config)  # raises
    settings = require_kind(read_stored_config(folder.path / text), FitConfig, folder.path / text)
    tensors = read_tensors(folder, weights, copied.weights)
    return TrainedModel(folder.path / text, settings, copied.opt_steps, tensors, stored_spaces(copied.spaces), {}, {})


def _find_copy(name: str, config: SeatedModelConfig, folder: Folder) -> CopiedModel | None:
    """The facts that `copy_model` has written of the model of this config; None if it has written none.

    A branch may name another player than its origin. Raises DamagedError.
    """
    facts = _files_of(name)[0]
    if folder.kind(facts) is None:
        return None
    found = read_json(folder, facts)
    if not isinstance(found, dict) or "from_model" not in found:
        return None  # a copy of another kind of player
    copied = checked_entry(found, facts, CopiedModel)
    return copied if (copied.from_model, copied.checkpoint) == (config.from_model, config.checkpoint) else None


def _files_of(name: str) -> tuple[str, str, str]:
    """The names of a model's files: its facts, which are written last; its run's config; its weights."""
    stem = quote(name, safe="")
    return f"{stem}.json", f"{stem}.yml", f"{stem}.safetensors"
