"""Players from elsewhere, which are held fixed: of other runs, models that have learned from data, and torch modules.

The run in which they play copies them into its folder.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from palestra.config import ConfigError, below
from palestra.games.config import GameConfig
from palestra.games.game import Game
from palestra.kinds.games.config import LearningPlayerConfig, RunConfig
from palestra.players import FromRunConfig
from palestra.players.player import Player
from palestra.players.seated_models import ModelPolicy, SeatedModelConfig
from palestra.players.torch_modules import ModulePolicy, TorchModuleConfig, read_weights
from palestra.run.checkpoints import CheckpointError, Checkpoints, MissingCheckpointError
from palestra.run.copies import find_copy, spaces_to_store, write_copy
from palestra.run.kinds import read_stored_config, require_kind
from palestra.run.loaded_checkpoint import AT, LoadedCheckpoint
from palestra.run.shipped import find_run
from palestra.run.trained_models import TrainedModel
from palestra.run.warm_starts import errors_at
from palestra.storage.disk import Folder, RunFolderError, writing
from palestra.storage.manifest import NUMBER
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import DamagedError


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
    learned: Any = stored.players.get(config.player)
    if not isinstance(learned, LearningPlayerConfig):
        remedy = f"; a past self is {learned.past_of!r} with checkpoint @N" if hasattr(learned, "past_of") else ""
        raise RunFolderError(f"expected a player that learned in {config.from_run}, got {config.player!r}{remedy}")
    checkpoints = Checkpoints(folder, keep_last=1, keep_every=None)
    players = find_players(checkpoints, config.checkpoint).state["players"]
    if config.player not in players:
        raise CheckpointError(f"expected a checkpoint with {config.player!r}, got copies of {', '.join(players)} alone")
    return TrainedPlayer(stored.game, learned.algorithm, players[config.player])


def find_players(checkpoints: Checkpoints, which: str) -> LoadedCheckpoint:
    """Read a checkpoint; where there is none of this opt step, the players of which copies were kept then.

    Raises CheckpointError, which names the opt steps of the copies.
    """
    try:
        return checkpoints.load(which, check_rows=False)
    except MissingCheckpointError as error:
        if not re.fullmatch(AT + NUMBER, which):
            raise
        step, latest = int(which.removeprefix(AT)), checkpoints.load("latest", check_rows=False)
        past, state = latest.state.get("past", {}), latest.state
        files = {state["config"]["players"][name]["past_of"]: own[step] for name, own in past.items() if step in own}
        if not (found := {name: state["copies"][file] for name, file in files.items()}):
            if not (steps := {each for own in past.values() for each in own}):
                raise
            kept = ", ".join(f"{AT}{each}" for each in sorted(steps))
            raise MissingCheckpointError(f"{error}, or of the copies of past selves {kept}") from error
        one = next(iter(found.values()))
        players = {name: each["player"] for name, each in found.items()}
        state = state | {"players": players, "game": one["game"], "counters": one["counters"], "finished": False}
        return replace(latest, state=state, counters=one["counters"])


def find_player(name: str, config: FromRunConfig, copies: Folder | None) -> TrainedPlayer:
    """Find a player of another run: in the folder of copies, else as `read_player`. Raises DamagedError, too."""
    if (copied := find_copy(copies, name, config.model_dump())) is None:
        return read_player(config)
    stored, facts = copied.run(RunConfig), copied.facts
    state: dict[str, Any] = {"opt_steps": facts.opt_steps, "env_steps": facts.env_steps, "nets": {}}
    for key, value in copied.tensors().items():
        net, _, key_there = key.partition("/")
        state["nets"].setdefault(net, {})[key_there] = value
    learned: Any = stored.players[config.player]
    return TrainedPlayer(stored.game, learned.algorithm, state)


def seat_model(name: str, config: SeatedModelConfig, game: Game, role: str, copies: Folder | None) -> ModelPolicy:
    """A model in a role, with the weights that the run has copied.

    If it has copied none yet, they are those of the run that the config names. Raises ConfigError.
    """
    with errors_at("from_model", f"the model of {config.from_model}"):
        if (copied := find_copy(copies, name, _origin(config))) is None:
            trained = TrainedModel.read(config.from_model, config.checkpoint)
        else:
            trained = TrainedModel.of_copy(copied)
        model = trained.build(game.device)
    with below("from_model"):
        return ModelPolicy(config, model, trained.opt_steps, game, role)


def build_module(name: str, config: TorchModuleConfig, game: Game, role: str, copies: Folder | None) -> ModulePolicy:
    """A pretrained module for a role, with the weights that the run has copied.

    If it has copied none yet, they are those that the config names. Raises ConfigError.
    """
    try:
        copied = find_copy(copies, name, _origin(config))
        content = None if copied is None else copied.weights()
    except DamagedError as error:
        raise ConfigError.at("weights", str(error)) from error
    if content is not None:
        return ModulePolicy.build(config, content, f"{name}.safetensors", game, role)
    return ModulePolicy.build(config, read_weights(config), str(config.weights), game, role)


def copy_players(run: RunConfig, players: Mapping[str, Player], folder: Folder, copies: Folder | None) -> None:
    """Copy the players and models of other runs, and the weights of torch modules, into a new run's folder.

    The run then no longer needs those runs and files. copies: a folder that holds copies of them already, if any, as
    for `build_parts`. Raises RunFolderError if the folder cannot be written, DamagedError.
    """
    with writing(folder.path):
        for name, config in run.players.items():
            player, script = players[name], players[name].script
            if isinstance(script, ModulePolicy):
                weights = script.module.state_dict() if script.weights is None else script.weights
                write_copy(folder, name, _origin(script.config), weights)
            elif isinstance(config, FromRunConfig | SeatedModelConfig):
                origin = _origin(config)
                if (copied := find_copy(copies, name, origin)) is not None:
                    settings = copied.settings()
                else:
                    there = config.from_run if isinstance(config, FromRunConfig) else config.from_model
                    settings = RunFolder(find_run(there).folder).root.read("config.yml")
                if isinstance(script, ModelPolicy):
                    spaces, weights = spaces_to_store(script.model), script.model.state_dict()
                    write_copy(folder, name, origin, weights, settings, opt_steps=script.opt_steps, spaces=spaces)
                else:
                    nets = {f"{n}/{k}": v for n, net in player.nets.items() for k, v in net.state_dict().items()}
                    opt_steps, env_steps = player.opt_steps, player.env_steps
                    write_copy(folder, name, origin, nets, settings, opt_steps=opt_steps, env_steps=env_steps)


def _origin(config: FromRunConfig | SeatedModelConfig | TorchModuleConfig) -> dict[str, str | None]:
    return config.model_dump(exclude={"acts"})  # in which a branch may differ
