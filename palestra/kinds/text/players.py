"""Players of other runs that talk in words: reads them there, and copies them into the folder of the run that has them.

The run then no longer needs those runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palestra.config import ConfigError
from palestra.kinds.text.config import TextConfig
from palestra.players import FromRunConfig
from palestra.randomness import base_key
from palestra.run.checkpoints import Checkpoints
from palestra.run.copies import find_copy, write_copy
from palestra.run.kinds import read_stored_config, require_kind
from palestra.run.shipped import find_run
from palestra.storage.disk import Folder, RunFolderError
from palestra.storage.run_folder import RunFolder
from palestra.text.models.model import TextModel
from palestra.text.models.sources import FolderConfig
from palestra.text.players import TextPlayerConfig, build_model
from palestra.text.servers.calls import Calls
from palestra.text.servers.config import ServerConfig


@dataclass(frozen=True)
class TrainedTextPlayer:
    """A player that talks in words, as a run has left it.

    origin: where it is from. run: the config of that run. settings: the content of its file. opt_steps: those of the
    player. base: the SHA-256 of what its model has not changed. weights: the others, by name.
    """

    origin: FromRunConfig
    run: TextConfig
    settings: bytes = field(repr=False)
    opt_steps: int
    base: str
    weights: Mapping[str, Tensor]

    @property
    def config(self) -> TextPlayerConfig:
        """The config of the player, which learns no more."""
        found: Any = self.run.players[self.origin.player]
        config: TextPlayerConfig = found.model_copy(update={"algorithm": None, "imitate": None, "warm_start": None})
        return config

    def build(self, device: torch.device, calls: Calls) -> TextModel:
        """Make its model. calls: by which one at a server is asked.

        Raises ConfigError if the base is another one now.
        """
        key = base_key(self.run.seed, f"model/{self.origin.player}")
        model = build_model(self.config.model, self.origin.player, key, device, calls)
        model.load_state_dict({"base": self.base, "weights": self.weights, "reference": None, "optimizer": None})
        return model

    def require_fits(self, config: Any, model: TextModel) -> None:
        """Raise ConfigError if a model of this config cannot begin with the weights.

        A new model must have the same sizes, one of a folder the same base and adapter, one of a server the same URL.
        """
        free = {"init_std", "path", "dtype"}
        if isinstance(config, ServerConfig):
            free = config.model_dump().keys() - {"name", "url"}
        there, here = (each.model_dump(exclude=free) for each in (self.config.model, config))
        where = f"{self.origin.player!r} of {self.origin.from_run}"
        for key in here.keys() | there.keys():
            if here.get(key) != there.get(key):
                expected = f"expected a player whose model has {key} {here.get(key)!r}, as here"
                raise ConfigError.at("", f"{expected}, got {where} with {there.get(key)!r}")
        own = model.state_dict()["base"]
        if isinstance(config, FolderConfig) and own != self.base:
            expected = f"expected a player whose model began as the one here (SHA-256 {own[:12]}...)"
            raise ConfigError.at("", f"{expected}, got {where}, which began as another one ({self.base[:12]}...)")


def find_text_player(name: str, config: FromRunConfig, copies: Folder | None) -> TrainedTextPlayer:
    """Find a player of another run.

    name: of the player here. copies: a folder in which there may be a copy of it. Raises RunFolderError if there is no
    such player, CheckpointError for a checkpoint that is missing or damaged, DamagedError for a damaged copy.
    """
    if (copied := find_copy(copies, name, config.model_dump())) is None:
        return _read(config)
    run, facts = copied.run(TextConfig), copied.facts
    _require_model(run, config)
    return TrainedTextPlayer(config, run, copied.settings(), facts.opt_steps, facts.base or "", copied.tensors())


def _read(origin: FromRunConfig) -> TrainedTextPlayer:
    folder = RunFolder.open(find_run(origin.from_run).folder)
    folder.require_rebuildable()
    stored = require_kind(read_stored_config(folder.config), TextConfig, folder.path)
    _require_model(stored, origin)
    state = Checkpoints(folder, keep_last=1, keep_every=None).load(origin.checkpoint, check_rows=False).state
    player = state["players"][origin.player]
    settings = folder.root.read(folder.config.name)
    model = player["model"]
    return TrainedTextPlayer(origin, stored, settings, player["opt_steps"], model["base"], model["weights"])


def _require_model(run: TextConfig, origin: FromRunConfig) -> None:
    known = [name for name, each in run.players.items() if isinstance(each, TextPlayerConfig)]
    if origin.player not in known:
        expected = f"expected a player with a model in {origin.from_run} ({', '.join(known)})"
        raise RunFolderError(f"{expected}, got {origin.player!r}")


def copy_text_player(name: str, trained: TrainedTextPlayer, folder: Folder) -> None:
    """Write a player of another run into a folder, under the name that it has here."""
    facts: Any = {"opt_steps": trained.opt_steps, "base": trained.base}
    write_copy(folder, name, trained.origin.model_dump(), trained.weights, trained.settings, **facts)
