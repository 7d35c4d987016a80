"""Players of other runs: reads them there, and copies them into the folder of the run in which they play."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from palestra.games.config import GameConfig
from palestra.players import FromRunConfig
from palestra.players.player import Player
from palestra.players.seated_models import ModelPolicy
from palestra.players.torch_modules import ModulePolicy
from palestra.runs.base import BaseRunConfig
from palestra.runs.config import LearningPlayerConfig, RunConfig
from palestra.runs.copied_models import copy_model
from palestra.runs.copied_modules import copy_module
from palestra.runs.kinds import read_stored_config, require_kind
from palestra.runs.shipped_runs import find_run
from palestra.storage.checkpoints import Checkpoints
from palestra.storage.disk import Folder, RunFolderError, writing
from palestra.storage.facts import Count, Entry, to_json
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import (
    DamagedError,
    StoredFile,
    checked_entry,
    read_json,
    read_tensors,
    tensors_to_bytes,
)


@dataclass(frozen=True)
class TrainedPlayer:
    """A player as another run has trained it.

    game: the config of its game. algorithm: that of its algorithm. state: nets, opt_steps and env_steps.
    """

    game: GameConfig
    algorithm: Any
    state: dict[str, Any]

    def require_same_observations(self, played: GameConfig) -> None:
        """Raise RunFolderError if the player would observe a game of this config in another way than its own game.

        Shapes are not compared here, but when the weights are loaded.
        """
        fault = self.game.misfit(played)
        if fault is not None:
            raise _other_key(fault.path)
        self.require_no_statistics(played)

    def require_no_statistics(self, played: GameConfig) -> None:
        """Raise RunFolderError if observations are normalised in its run or here, or clipped in another way.

        Its networks know the statistics of its own run alone.
        """
        if self.game.observations() != played.observations():
            raise _other_key("observation")
        if played.observations().normalize is not None:
            why = "because each run normalises by running statistics of its own"
            message = f"expected null for game.observation.normalize here and in its run, {why}, got a mapping"
            raise RunFolderError(message)


def _other_key(path: str) -> RunFolderError:
    return RunFolderError(f"expected a player of a run with the game.{path} of this file, got another one")


def read_player(config: FromRunConfig) -> TrainedPlayer:
    """Read a player from a checkpoint of the run that trained it.

    Raises RunFolderError if no such player learned there, CheckpointError for a checkpoint that is missing or damaged.
    """
    folder = RunFolder.open(find_run(config.from_run).folder)
    folder.require_rebuildable()
    stored = require_kind(read_stored_config(folder.config), RunConfig, folder.path)
    learned = stored.players.get(config.player)
    if not isinstance(learned, LearningPlayerConfig):
        raise RunFolderError(f"expected a player that learned in {config.from_run}, got {config.player!r}")
    checkpoints = Checkpoints(folder, keep_last=1, keep_every=None)
    state = checkpoints.load(config.checkpoint, check_rows=False).state
    return TrainedPlayer(stored.game, learned.algorithm, state["players"][config.player])


def copy_players(run: RunConfig, players: Mapping[str, Player], folder: Folder, copies: Folder | None) -> None:
    """Copy the players and models of other runs, and the weights of torch modules, into a new run's folder.

    The run then no longer needs those runs and files. copies: a folder that holds copies of them already, if any, as
    for `build_parts`. Raises RunFolderError if the folder cannot be written.
    """
    with writing(folder.path):
        for name, config in run.players.items():
            if isinstance(config, FromRunConfig):
                source = RunFolder(find_run(config.from_run).folder).root, "config.yml"
                if copies is not None and _find_copy(copies, name, config) is not None:
                    source = copies, _files_of(name)[1]
                _copy_player(players[name], config, source[0].read(source[1]), folder)
            elif isinstance(script := players[name].script, ModulePolicy):
                copy_module(name, script, folder)
            elif isinstance(script, ModelPolicy):
                copy_model(name, script, folder, copies)


def files_of_copies(run: BaseRunConfig) -> set[str]:
    """The names of all files that `copy_players` may write for a run."""
    return {file for name in run.copied() for file in _files_of(name)}


def _copy_player(player: Player, origin: FromRunConfig, config: bytes, folder: Folder) -> None:
    """Write a player's weights, counters, and the config file of the run that trained it."""
    folder.make()
    facts, text, weights = _files_of(player.name)
    nets = {f"{net}/{key}": value for net, module in player.nets.items() for key, value in module.state_dict().items()}
    folder.write(text, config)
    content = tensors_to_bytes(nets)
    folder.write(weights, content)
    copied = CopiedPlayer(
        **origin.model_dump(),
        opt_steps=player.opt_steps,
        env_steps=player.env_steps,
        weights=StoredFile.of(content),
    )
    folder.write(facts, to_json(copied.model_dump()).encode())


class CopiedPlayer(Entry):
    """The facts of a copied player: what the config says of it, its counters, the size and SHA-256 of its weights."""

    from_run: str
    player: str
    checkpoint: str
    opt_steps: Count
    env_steps: Count
    weights: StoredFile


def read_copy(folder: Folder, name: str, config: FromRunConfig) -> TrainedPlayer | None:
    """Read a player that `copy_players` has written for this config; None if it has not.

    Raises DamagedError if the files differ from what was written.
    """
    if (copied := _find_copy(folder, name, config)) is None:
        return None
    _, text, weights = _files_of(name)
    if folder.kind(text) != "file":
        raise DamagedError(f"{text}: expected a regular file, got {folder.kind(text) or 'none'}")
    stored = read_stored_config(folder.path / text)
    state: dict[str, Any] = {"opt_steps": copied.opt_steps, "env_steps": copied.env_steps, "nets": {}}
    for key, value in read_tensors(folder, weights, copied.weights).items():
        net, _, key_there = key.partition("/")
        state["nets"].setdefault(net, {})[key_there] = value
    return TrainedPlayer(stored.game, stored.players[config.player].algorithm, state)


def _find_copy(folder: Folder, name: str, config: FromRunConfig) -> CopiedPlayer | None:
    """The facts that `copy_players` has written of the player of this config; None if it has written none.

    A branch may name another player than its origin, also in place of a torch module. Raises DamagedError.
    """
    facts = _files_of(name)[0]
    if folder.kind(facts) is None:
        return None
    found = read_json(folder, facts)
    if not isinstance(found, dict) or "from_run" not in found:
        return None  # a copy of a torch module
    copied = checked_entry(found, facts, CopiedPlayer)
    is_same = copied.model_dump(include=set(FromRunConfig.model_fields)) == config.model_dump()
    return copied if is_same else None


def _files_of(name: str) -> tuple[str, str, str]:
    """The names of a player's files: its counters, which are written last; its run's config; its weights."""
    facts, text, weights = (f"{quote(name, safe='')}.{end}" for end in ("json", "yml", "safetensors"))
    return facts, text, weights
