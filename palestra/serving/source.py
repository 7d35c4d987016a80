"""The model that a server begins with: a folder of transformers, or a player of a run that talks in words."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from palestra.config import ConfigError, below
from palestra.config.own_modules import using_nothing_outside
from palestra.kinds.text.config import TextConfig
from palestra.kinds.text.players import TrainedTextPlayer, copy_text_player, find_text_player
from palestra.players import FromRunConfig
from palestra.randomness import base_key
from palestra.run.kinds import read_stored_config, require_kind
from palestra.storage.disk import Folder, RunFolderError
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import Count, Entry, Sha256, read_entry, to_json
from palestra.text.models.folder import ADAPTER_CONFIG, CONFIG, check_folder, sha256_of
from palestra.text.models.local import LocalModel
from palestra.text.models.sources import Dtype, FolderConfig, NewConfig
from palestra.text.players import TextPlayerConfig

FACTS, COPY = "server.json", "base"


class ServerFacts(Entry):
    """The content of server.json: what the folder of a server began with.

    name: of the model in the list. place: its folder, or that of the run. player, checkpoint: of a run, whose player is
    copied. base, dtype: the SHA-256 of a model's folder, and the type of its weights here; None of a run. created_at:
    Unix time.
    """

    format: Literal[1]
    name: str
    place: str
    player: str | None
    checkpoint: str | None
    base: Sha256 | None
    dtype: Dtype | None
    created_at: Count

    def identity(self) -> tuple[str | None, ...]:
        """Return what two servers with the same model have in common."""
        return (self.base, self.dtype) if self.base is not None else (self.place, self.player, self.checkpoint)


class Source(NamedTuple):
    """The model that a server begins with.

    key: an int64 of which it is drawn. trained: the player of a run, who has learned it; None: as its folder has it.
    """

    facts: ServerFacts
    config: NewConfig | FolderConfig
    key: int
    trained: TrainedTextPlayer | None

    def build(self, device: torch.device) -> LocalModel:
        """Make the model. Raises ConfigError."""
        with below("model"):
            model = self.config.build(self.key, device)
            if self.facts.base not in (None, model.learning.base_sha256):
                raise ConfigError.at("path", "expected the model with which the server began, got another one")
        if self.trained is not None:
            fill(model, self.trained.weights)
        return model


def fill(model: LocalModel, weights: Mapping[str, Tensor]) -> None:
    """Give a model the weights that another one of the same source has learned."""
    model.load_state_dict(
        {"base": model.learning.base_sha256, "weights": weights, "reference": None, "optimizer": None}
    )


@using_nothing_outside()  # the player is one with a model here
def find_source(facts: ServerFacts, folder: Folder) -> Source:
    """Return the model that a server serves: what its folder says, if it has begun, else that of the facts.

    Raises RunFolderError if the folder belongs to another model, or if there is no such player, CheckpointError.
    """
    if folder.kind(FACTS) is not None:
        begun = read_entry(folder, FACTS, ServerFacts)
        if begun.identity() != facts.identity():
            player_of = "" if begun.player is None else f"{begun.player!r} at the checkpoint {begun.checkpoint} of "
            in_type = "" if begun.dtype is None else f" in {begun.dtype}"
            message = f"{folder.path} belongs to a server of {player_of}{begun.place}{in_type}"
            raise RunFolderError(f"{message}; give this one another --folder")
        facts = begun.model_copy(update={"place": facts.place})  # a model may have moved
        return _source(facts, folder.below(COPY))
    return _source(facts, None)


def keep_source(source: Source, folder: Folder) -> None:
    """Write into the folder of a server which model it serves, with a copy of a run's player. Raises as above."""
    if folder.kind(FACTS) is not None:
        find_source(source.facts, folder)
    elif source.trained is not None:
        copy_text_player(COPY, source.trained, folder.below(COPY))
    folder.write(FACTS, to_json(source.facts.model_dump()).encode())


@using_nothing_outside()
def stored_source(folder: Folder) -> Source:
    """Return the model with which the folder of a server began. Raises RunFolderError, CheckpointError."""
    return _source(read_entry(folder, FACTS, ServerFacts), folder.below(COPY))


def _source(facts: ServerFacts, copied: Folder | None) -> Source:
    """Return the model of a server. copied: where its player lies; None: in the run."""
    if facts.player is None:
        config = FolderConfig(name="folder", path=facts.place, adapter=None, dtype=facts.dtype or "float32")
        return Source(facts, config, 0, None)
    assert facts.checkpoint is not None
    origin = FromRunConfig(from_run=facts.place, player=facts.player, checkpoint=facts.checkpoint)
    trained = find_text_player(COPY, origin, copied)
    model = trained.config.model
    assert isinstance(model, NewConfig | FolderConfig)
    return Source(facts, model, base_key(trained.run.seed, f"model/{facts.player}"), trained)


@using_nothing_outside()
def facts_of(path: Path, player: str | None, checkpoint: str | None, dtype: str | None = None) -> ServerFacts:
    """Find the model of a server. path: absolute. dtype: of the weights of a model's folder; None: float32.

    Raises ConfigError for options that do not fit, RunFolderError if there is no such model, UntrustedError.
    """
    is_model = any((path / name).exists() for name in (CONFIG, ADAPTER_CONFIG))
    if not is_model and not RunFolder(path).config.exists():
        raise RunFolderError(f"expected the folder of a model ({CONFIG}) or of a run (config.yml), got {path}")
    found: dict[str, Any] = {"format": 1, "place": str(path), "created_at": int(time.time())}
    if is_model:
        for option, value in {"--player": player, "--checkpoint": checkpoint}.items():
            if value is not None:
                raise ConfigError.at(option, f"expected no such option, because {path} is a model, got {value}")
        in_type: Any = dtype or "float32"
        if in_type not in get_args(Dtype):
            raise ConfigError.at("--dtype", f"expected {' or '.join(get_args(Dtype))}, got {dtype!r}")
        with below("model"):
            check_folder(path)
        return ServerFacts(**found, name=path.name, player=None, checkpoint=None, base=sha256_of(path), dtype=in_type)
    if dtype is not None:
        raise ConfigError.at("--dtype", f"expected no such option, because the run {path} says it, got {dtype}")
    config = require_kind(read_stored_config(RunFolder.open(path).config), TextConfig, path)
    known = [
        name
        for name, each in config.players.items()
        if isinstance(each, TextPlayerConfig) and isinstance(each.model, NewConfig | FolderConfig)
    ]
    chosen = known[0] if player is None and len(known) == 1 else player
    if chosen not in known:
        expected = f"expected a player with a model of its own in {path} ({', '.join(known) or 'it has none'})"
        raise ConfigError.at("--player", f"{expected}, got {chosen or 'none'}")
    found |= {"name": f"{path.name}:{chosen}", "player": chosen, "checkpoint": checkpoint or "latest"}
    return ServerFacts(**found, base=None, dtype=None)
