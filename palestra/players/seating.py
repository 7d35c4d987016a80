"""Makes the players of a run from its config, and brings players back from the folder of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from palestra.config import Config, ConfigError, ConfigErrorItem, PartError, UserConfig, load_class, load_config
from palestra.games import make_game
from palestra.games.game import Game
from palestra.player import Algorithm, Player
from palestra.players import FromRunConfig, ScriptedPlayerConfig, make_script
from palestra.storage.checkpoints import CheckpointError, Checkpoints
from palestra.storage.run_folder import RunFolder, RunFolderError

if TYPE_CHECKING:
    from palestra.algorithms import RunConfig


def make_player(name: str, run: "RunConfig", game: Game) -> Player:
    """A player of a run: learning, scripted, or held fixed as another run left it.

    Raises ConfigError if it sits in roles that see or do different things, or comes from a run that does not fit.
    """
    config: Config = run.players[name]
    roles = tuple(role for role in game.roles if run.roles[role] == name)
    first, others = roles[0], roles[1:]
    for role in others:
        if game.spaces[role] != game.spaces[first] or game.action_spaces[role] != game.action_spaces[first]:
            message = f"{name!r} sits there and as {first!r}, but the two see or do different things"
            raise ConfigError([ConfigErrorItem(f"roles.{role}", message)])
    spaces, actions = game.spaces[first], game.action_spaces[first]
    player = Player(name, roles, spaces, actions, game.device, run.seed, run.execution.compile)
    if isinstance(config, ScriptedPlayerConfig):
        player.script = make_script(config.scripted, game, first)
    elif isinstance(config, FromRunConfig):
        with _told_at(f"players.{name}.from_run", config, first):
            _fill_from_run(player, type(run), Path(config.from_run), config.player, config.checkpoint)
    else:
        player.learning, player.num_worlds = True, run.num_worlds
        turns: tuple[tuple[str, ...], ...] = getattr(game, "turns", (roles,))
        player.turns = tuple(role for turn in turns for role in turn if role in roles)
        player.algorithm = _make_algorithm(config.algorithm, player)  # type: ignore[attr-defined]
    return player


def warm_start(player: Player, run: "RunConfig") -> None:
    """Give a learning player the networks of another run's player, if its config says so.

    Raises ConfigError where there is no such player, or its networks are of another shape.
    """
    config = run.players[player.name].warm_start  # type: ignore[union-attr]
    if config is None:
        return
    with _told_at(f"players.{player.name}.warm_start", config, player.roles[0]):
        whole = _state_of_run(type(run), Path(config.from_run), config.player, config.checkpoint)
        _load_nets(player, whole["players"][config.player])


@contextmanager
def _told_at(path: str, config: FromRunConfig, role: str) -> Iterator[None]:
    """What goes wrong with a player of another run is an error of the config, at that path."""
    try:
        yield
    except (RunFolderError, CheckpointError, ConfigError) as error:
        raise ConfigError([ConfigErrorItem(path, str(error))]) from error
    except (KeyError, RuntimeError) as error:  # how torch says that shapes differ
        message = f"{config.player!r} of {config.from_run} does not fit {role!r} of this game: {error}"
        raise ConfigError([ConfigErrorItem(path, message)]) from error


def load_player(run: str | Path, player: str | None, checkpoint: str, model: type["RunConfig"]) -> Player:
    """A player as a run left it, held fixed, with its `game` as the run left that: what the game has learned (running
    statistics, by which the player sees) is part of how it plays.

    player: its name; None: the only one that learned. checkpoint: latest, best or a number.
    """
    config = load_config(RunFolder.open(Path(run)).config, (), model)
    learned = [name for name, entry in config.players.items() if hasattr(entry, "algorithm")]
    if player is None and len(learned) > 1:
        raise ValueError(f"{run} has several players that learned: say which of {', '.join(learned)}")
    name = player or learned[0]
    if name not in learned:
        raise ValueError(f"{run} has no player {name!r} that learned; it has {', '.join(learned)}")
    game = make_game(config.game, torch.device(config.execution.device), config.execution.kernel)
    roles = tuple(role for role in game.roles if config.roles[role] == name)
    spaces, actions = game.spaces[roles[0]], game.action_spaces[roles[0]]
    loaded = Player(name, roles, spaces, actions, game.device, config.seed, False)
    loaded.game = game
    game.load_state_dict(_fill_from_run(loaded, model, Path(run), name, checkpoint)["game"])
    return loaded


def _make_algorithm(config: Any, player: Player) -> Algorithm:
    """The algorithm that a config names, ours or a user's own; it fills the player."""
    try:
        if isinstance(config, UserConfig):  # which may derive from the config of one of ours
            return load_class(config.name, Algorithm)(config, player)  # type: ignore[type-abstract]
        built: Algorithm = config.build(player)
        return built
    except PartError as error:
        raise error.within(config, f"players.{player.name}.algorithm") from error


def _fill_from_run(player: Player, model: type["RunConfig"], run: Path, name: str, checkpoint: str) -> dict[str, Any]:
    """Give the player what it had learned; gives the state of the run."""
    whole = _state_of_run(model, run, name, checkpoint)
    config = load_config(RunFolder.open(run).config, (), model).players[name]
    player.algorithm = _make_algorithm(config.algorithm, player)  # type: ignore[union-attr]
    state = whole["players"][name]
    _load_nets(player, state)
    for net in player.nets.values():
        net.requires_grad_(False)
    player.set_training(False)
    player.opt_steps, player.env_steps = state["opt_steps"], state["env_steps"]
    player.optimizers, player.replay_buffer = {}, None
    return whole


def _state_of_run(model: type["RunConfig"], run: Path, name: str, checkpoint: str) -> dict[str, Any]:
    """What a checkpoint of a run holds. Raises RunFolderError if that player did not learn there."""
    folder = RunFolder.open(run)
    if not hasattr(load_config(folder.config, (), model).players.get(name), "algorithm"):
        raise RunFolderError(f"{run} has no player {name!r} that learned")
    which = int(checkpoint) if checkpoint.isdigit() else checkpoint
    return Checkpoints(folder, keep_last=1, keep_every=None).load(which, check_rows=False).state


def _load_nets(player: Player, state: dict[str, Any]) -> None:
    """Load the weights of all networks of a player."""
    for key, net in player.nets.items():
        net.load_state_dict(state["nets"][key])
