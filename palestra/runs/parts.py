"""The parts of a run, built from its config: the one place where a game and its players come into being, for training,
evaluators, stored runs, `verify` and export."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from palestra.algorithms.algorithm import Algorithm, AlgorithmConfig, Seat
from palestra.config import Config, ConfigError, ConfigErrorItem, PartError
from palestra.evaluation.evaluations import Evaluations
from palestra.games.game import Game
from palestra.players import FromRunConfig, ScriptedPlayerConfig, make_script
from palestra.players.player import Player
from palestra.runs.config import RunConfig
from palestra.runs.imported_players import TrainedPlayer, is_copied, read_copy, read_player
from palestra.runtime.threads import memory_needed
from palestra.storage.checkpoints import NOT_OURS, CheckpointError
from palestra.storage.disk import Folder, RunFolderError


@dataclass(frozen=True)
class Parts:
    """What the config of a run builds. players: by name, also those that evaluations alone want."""

    config: RunConfig
    game: Game
    players: dict[str, Player]

    @property
    def learners(self) -> list[Player]:
        """The players that learn."""
        return [player for player in self.players.values() if player.learning]


def build_parts(config: RunConfig, device: torch.device, copies: Folder | None) -> Parts:
    """The game of a run and its players: learning, scripted, or held fixed as another run left them.

    copies: where `copy_players` has written those of other runs, for this run or the one that it branches off; None:
    nowhere yet. Raises ConfigError for a game that cannot be made, and for a player that sits in roles that see or do
    different things, whose algorithm does not fit the game, or that comes from a run that does not fit.
    """
    game = config.game.build(device, config.execution.kernel)
    return Parts(config, game, {name: _build_player(name, config, game, copies) for name in config.players})


def build_evaluations(parts: Parts) -> Evaluations:
    """The evaluations of a run. Raises ConfigError where its game and players do not fit them."""
    config = parts.config
    return Evaluations(
        config.evaluations,
        parts.game,
        parts.players,
        lambda game: game.build(parts.game.device, config.execution.kernel),
        config.seed,
        config.num_worlds,
    )


def _build_player(name: str, run: RunConfig, game: Game, copies: Folder | None) -> Player:
    config: Config = run.players[name]
    roles = tuple(run.seats(name, game.roles))
    first = roles[0]
    for role in roles[1:]:
        if game.spaces[role] != game.spaces[first] or game.action_spaces[role] != game.action_spaces[first]:
            message = f"expected a role that sees and does what {first!r} does, where {name!r} also sits, got another"
            raise ConfigError([ConfigErrorItem(f"roles.{role}", message)])
    spaces, actions = game.spaces[first], game.action_spaces[first]
    execution = run.execution
    by_hand = execution.gradients == "by_hand"
    player = Player(name, roles, spaces, actions, game.device, run.seed, execution.compile, by_hand)
    if isinstance(config, ScriptedPlayerConfig):
        player.script = make_script(config.scripted, game, first)
    elif isinstance(config, FromRunConfig):
        with _blaming(f"players.{name}.from_run", config, first):
            is_here = copies is not None and is_copied(copies, name)
            trained = read_copy(copies, name, config) if copies is not None and is_here else read_player(config)
            _import(player, trained)
    else:
        player.learning, player.num_worlds = True, run.num_worlds
        player.moves = _moves(game, roles)
        player.algorithm = build_algorithm(config.algorithm, player)  # type: ignore[attr-defined]
    return player


def _moves(game: Game, roles: Sequence[str]) -> tuple[str, ...]:
    """The role of each move of a round in which one of these roles may decide."""
    moves: Sequence[Sequence[str]] = getattr(game, "moves", (roles,))
    return tuple(role for move in moves for role in move if role in roles)


def build_algorithm(config: Any, player: Player) -> Algorithm:
    """The algorithm that a config names, ours or a user's own; it fills the player."""
    try:
        with memory_needed(f"players.{player.name}.algorithm"):
            algorithm: Algorithm = config.build(player)
    except PartError as error:
        raise error.within(config, f"players.{player.name}.algorithm") from error
    if player.learning:
        check_seat(config, player.name, Seat(player.num_worlds, len(player.moves), len(player.roles)))
    return algorithm


def check_seat(config: Any, player: str, seat: Seat) -> None:
    """Raise ConfigError for what in the config of a learning player's algorithm does not go with its seat."""
    faults = config.seat_errors(seat) if isinstance(config, AlgorithmConfig) else []
    if faults:
        path = f"players.{player}.algorithm"
        raise ConfigError([ConfigErrorItem(f"{path}.{item.path}", item.message) for item in faults])


# ---- players of other runs -----------------------------------------------------------------------------


def warm_start(player: Player, run: RunConfig) -> None:
    """Give a learning player the networks of another run's player, if its config says so.

    Raises ConfigError where there is no such player, or its networks are of another shape.
    """
    config = run.players[player.name].warm_start  # type: ignore[union-attr]
    if config is None:
        return
    with _blaming(f"players.{player.name}.warm_start", config, player.roles[0]):
        _load_nets(player, read_player(config))


def _import(player: Player, trained: TrainedPlayer) -> None:
    """Give a player what it has learned in another run, held fixed."""
    player.algorithm = build_algorithm(trained.algorithm, player)
    _load_nets(player, trained)
    player.opt_steps, player.env_steps = trained.state["opt_steps"], trained.state["env_steps"]
    hold_fixed(player)


def hold_fixed(player: Player) -> None:
    """Let a player learn no more: what only learning needs is let go."""
    for net in player.nets.values():
        net.requires_grad_(False)
    player.set_training(False)
    player.learning, player.num_worlds = False, 0
    player.optimizers, player.replay_buffer = {}, None


def _load_nets(player: Player, trained: TrainedPlayer) -> None:
    """Load the weights of all networks of a player."""
    for key, net in player.nets.items():
        net.load_state_dict(trained.state["nets"][key])


@contextmanager
def _blaming(path: str, config: FromRunConfig, role: str) -> Iterator[None]:
    """What goes wrong with a player of another run is an error of the config, at that path."""
    try:
        yield
    except (RunFolderError, CheckpointError, ConfigError) as error:
        raise ConfigError([ConfigErrorItem(path, str(error))]) from error
    except NOT_OURS as error:  # torch says by a RuntimeError that shapes differ
        message = f"{config.player!r} of {config.from_run} does not fit {role!r} of this game: {error}"
        raise ConfigError([ConfigErrorItem(path, message)]) from error
