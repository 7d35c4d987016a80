"""Makes the players of a run from its config, and brings players back from the folder of a run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import torch
from pydantic import Field, ValidationError

from palestra.algorithms.algorithm import Algorithm, AlgorithmConfig, Seat
from palestra.config import Config, ConfigError, ConfigErrorItem, PartError, UserConfig, load_class, load_stored_config
from palestra.games import make_game
from palestra.games.game import Game
from palestra.players import FromRunConfig, ScriptedPlayerConfig, make_script
from palestra.players.player import Player
from palestra.runs.config import RunConfig
from palestra.runtime.threads import memory_needed
from palestra.storage.checkpoints import NOT_OURS, CheckpointError, Checkpoints, LoadedCheckpoint
from palestra.storage.disk import Folder, RunFolderError
from palestra.storage.facts import Entry, to_json
from palestra.storage.run_folder import RunFolder
from palestra.storage.segments import DamagedError, StoredFile, damage_told, parse_json, read_tensors, tensors_to_bytes


def make_players(run: RunConfig, game: Game, kept: Folder | None) -> dict[str, Player]:
    """The players of a run: learning, scripted, or held fixed as another run left them.

    kept: where `keep_players` has written the last of these down, for this run or the one that it branches off; None:
    nowhere yet. Raises ConfigError for a player that sits in roles that see or do different things, whose algorithm
    does not fit the game, or that comes from a run that does not fit.
    """
    return {name: _make_player(name, run, game, kept) for name in run.players}


def check_seat(config: Any, player: str, seat: Seat) -> None:
    """Raise ConfigError for what in the config of a learning player's algorithm does not go with its seat."""
    faults = config.seat_errors(seat) if isinstance(config, AlgorithmConfig) else []
    if faults:
        path = f"players.{player}.algorithm"
        raise ConfigError([ConfigErrorItem(f"{path}.{item.path}", item.message) for item in faults])


def _turns(game: Game, roles: Sequence[str]) -> tuple[str, ...]:
    """The role of each turn of a round in which one of these roles may decide."""
    turns: Sequence[Sequence[str]] = getattr(game, "turns", (roles,))
    return tuple(role for turn in turns for role in turn if role in roles)


def _make_player(name: str, run: RunConfig, game: Game, kept: Folder | None) -> Player:
    config: Config = run.players[name]
    roles = tuple(run.seats(name))
    first = roles[0]
    for role in roles[1:]:
        if game.spaces[role] != game.spaces[first] or game.action_spaces[role] != game.action_spaces[first]:
            message = f"{name!r} sits there and as {first!r}, but the two see or do different things"
            raise ConfigError([ConfigErrorItem(f"roles.{role}", message)])
    spaces, actions = game.spaces[first], game.action_spaces[first]
    player = Player(
        name, roles, spaces, actions, game.device, run.seed, run.execution.compile, run.execution.gradients == "by_hand"
    )
    if isinstance(config, ScriptedPlayerConfig):
        player.script = make_script(config.scripted, game, first)
    elif isinstance(config, FromRunConfig):
        with _told_at(f"players.{name}.from_run", config, first):
            if kept is not None and _is_kept(kept, name):
                _fill(player, _read_kept(type(run), kept, name, config.player))
            else:
                _fill(player, _read_from_run(type(run), Path(config.from_run), config.player, config.checkpoint))
    else:
        player.learning, player.num_worlds = True, run.num_worlds
        player.turns = _turns(game, roles)
        player.algorithm = make_algorithm(config.algorithm, player)  # type: ignore[attr-defined]
    return player


def warm_start(player: Player, run: RunConfig) -> None:
    """Give a learning player the networks of another run's player, if its config says so.

    Raises ConfigError where there is no such player, or its networks are of another shape.
    """
    config = run.players[player.name].warm_start  # type: ignore[union-attr]
    if config is None:
        return
    with _told_at(f"players.{player.name}.warm_start", config, player.roles[0]):
        source = _read_from_run(type(run), Path(config.from_run), config.player, config.checkpoint)
        _load_nets(player, source.state)


@contextmanager
def _told_at(path: str, config: FromRunConfig, role: str) -> Iterator[None]:
    """What goes wrong with a player of another run is an error of the config, at that path."""
    try:
        yield
    except (RunFolderError, CheckpointError, ConfigError) as error:
        raise ConfigError([ConfigErrorItem(path, str(error))]) from error
    except NOT_OURS as error:  # torch says by a RuntimeError that shapes differ
        message = f"{config.player!r} of {config.from_run} does not fit {role!r} of this game: {error}"
        raise ConfigError([ConfigErrorItem(path, message)]) from error


def load_player(run: str | Path, player: str | None, checkpoint: str, model: type[RunConfig]) -> Player:
    """A player as a run left it, held fixed, with its `game` as the run left that: what the game has learned (running
    statistics, by which the player sees) is part of how it plays.

    player: its name; None: the only one that learned. checkpoint: latest, best or a number.
    """
    folder = RunFolder.open(Path(run))
    folder.require_rebuildable()
    config = load_stored_config(folder.config, (), model)
    learned = [name for name, entry in config.players.items() if hasattr(entry, "algorithm")]
    if player is None and len(learned) > 1:
        raise ValueError(f"{run} has several players that learned: say which of {', '.join(learned)}")
    name = player or learned[0]
    if name not in learned:
        raise ValueError(f"{run} has no player {name!r} that learned; it has {', '.join(learned)}")
    game = make_game(config.game, torch.device(config.execution.device), config.execution.kernel)
    roles = tuple(role for role in game.roles if config.roles[role] == name)
    spaces, actions = game.spaces[roles[0]], game.action_spaces[roles[0]]
    loaded = Player(name, roles, spaces, actions, game.device, config.seed, False, False)
    loaded.game = game
    stored = _load_checkpoint(folder, checkpoint)
    with stored.fitting():
        algorithm: Any = config.players[name].algorithm  # type: ignore[union-attr]
        _fill(loaded, _Source(algorithm, stored.state["players"][name], stored.state["game"]))
        game.load_state_dict(stored.state["game"])
    return loaded


def make_algorithm(config: Any, player: Player) -> Algorithm:
    """The algorithm that a config names, ours or a user's own; it fills the player."""
    try:
        with memory_needed(f"players.{player.name}.algorithm"):
            algorithm = _make_algorithm(config, player)
    except PartError as error:
        raise error.within(config, f"players.{player.name}.algorithm") from error
    if player.learning:
        check_seat(config, player.name, Seat(player.num_worlds, len(player.turns), len(player.roles)))
    return algorithm


def _make_algorithm(config: Any, player: Player) -> Algorithm:
    if isinstance(config, UserConfig):  # which may derive from the config of one of ours
        return load_class(config.name, Algorithm)(config, player)  # type: ignore[type-abstract]
    built: Algorithm = config.build(player)
    return built


# ---- players of other runs -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """Where a player comes from. algorithm: its config. state: nets, opt_steps and env_steps. game: the state of the
    game that it was trained in."""

    algorithm: Any
    state: dict[str, Any]
    game: dict[str, Any]


def _read_from_run(model: type[RunConfig], run: Path, name: str, checkpoint: str) -> _Source:
    """A player in a checkpoint of a run. Raises RunFolderError if that player did not learn there."""
    folder = RunFolder.open(run)
    folder.require_rebuildable()
    learned: Any = load_stored_config(folder.config, (), model).players.get(name)
    if not hasattr(learned, "algorithm"):
        raise RunFolderError(f"{run} has no player {name!r} that learned")
    whole = _load_checkpoint(folder, checkpoint).state
    return _Source(learned.algorithm, whole["players"][name], whole["game"])


def _load_checkpoint(folder: RunFolder, which: str) -> LoadedCheckpoint:
    checkpoints = Checkpoints(folder, keep_last=1, keep_every=None)
    return checkpoints.load(which, check_rows=False)


def keep_players(run: RunConfig, players: Mapping[str, Player], folder: Folder, kept: Folder | None) -> None:
    """Write down in a new run's folder the players that come from other runs, so that it needs those no more. kept:
    as `make_players` was given it. Raises RunFolderError if that fails."""
    try:
        for name, config in run.players.items():
            if isinstance(config, FromRunConfig):
                source = RunFolder(Path(config.from_run)).root, "config.yml"
                if kept is not None and _is_kept(kept, name):
                    source = kept, _kept_files(name)[1]
                _keep_player(players[name], source[0].read(source[1]), folder)
    except OSError as error:
        raise RunFolderError(f"{folder.path} cannot be written: {error}") from error


def _keep_player(player: Player, config: bytes, folder: Folder) -> None:
    """config: of the run that the player comes from."""
    folder.make()
    facts, text, weights = _kept_files(player.name)
    nets = {f"{net}/{key}": value for net, module in player.nets.items() for key, value in module.state_dict().items()}
    folder.write(text, config)
    content = tensors_to_bytes(nets)
    folder.write(weights, content)
    kept = KeptPlayer(opt_steps=player.opt_steps, env_steps=player.env_steps, weights=StoredFile.of(content))
    folder.write(facts, to_json(kept.model_dump()).encode())


class KeptPlayer(Entry):
    """What is kept of a player beside its run's config and its weights."""

    opt_steps: Annotated[int, Field(ge=0)]
    env_steps: Annotated[int, Field(ge=0)]
    weights: StoredFile


def _read_kept(model: type[RunConfig], folder: Folder, name: str, name_there: str) -> _Source:
    """A player that `keep_players` has written. Raises DamagedError."""
    facts, text, weights = _kept_files(name)
    with damage_told(facts):
        content = folder.read(facts)
    try:
        kept = KeptPlayer.model_validate(parse_json(content, facts))
    except ValidationError as error:
        raise DamagedError(f"{facts} is not what was written: {error.errors()[0]['msg']}") from error
    if folder.kind(text) != "file":
        raise DamagedError(f"{text} is missing, or no regular file")
    learned: Any = load_stored_config(folder.path / text, (), model).players[name_there]
    state: dict[str, Any] = {"opt_steps": kept.opt_steps, "env_steps": kept.env_steps, "nets": {}}
    for key, value in read_tensors(folder, weights, kept.weights).items():
        net, _, key_there = key.partition("/")
        state["nets"].setdefault(net, {})[key_there] = value
    return _Source(learned.algorithm, state, {})


def _is_kept(folder: Folder, name: str) -> bool:
    return folder.kind(_kept_files(name)[0]) is not None


def _kept_files(name: str) -> tuple[str, str, str]:
    """The names of its facts, which are written last; of its run's config; of its weights."""
    facts, text, weights = (f"{quote(name, safe='')}.{end}" for end in ("json", "yml", "safetensors"))
    return facts, text, weights


def _fill(player: Player, source: _Source) -> None:
    """Give the player what it had learned, held fixed."""
    player.algorithm = make_algorithm(source.algorithm, player)
    _load_nets(player, source.state)
    for net in player.nets.values():
        net.requires_grad_(False)
    player.set_training(False)
    player.opt_steps, player.env_steps = source.state["opt_steps"], source.state["env_steps"]
    player.optimizers, player.replay_buffer = {}, None


def _load_nets(player: Player, state: dict[str, Any]) -> None:
    """Load the weights of all networks of a player."""
    for key, net in player.nets.items():
        net.load_state_dict(state["nets"][key])
