"""Builds the parts of a run, its game and its players, from its config.

Training, evaluators, stored runs, `verify` and export all use this file.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from palestra.algorithms.algorithm import Algorithm, AlgorithmConfig, Seat
from palestra.config import Config, ConfigError, PartError, below
from palestra.evaluation.config import EvaluationConfig, UserEvaluationConfig
from palestra.evaluation.evaluations import Evaluations
from palestra.games import GameConfig
from palestra.games.game import Game, TensorGame
from palestra.games.world import WorldGame
from palestra.kinds.games.config import RunConfig
from palestra.kinds.games.imported_players import build_module, find_player, read_player, seat_model
from palestra.kinds.games.warm_starts import start_player
from palestra.models.sources import BodyStartConfig
from palestra.nets.weights import body_of_another
from palestra.players import FromRunConfig, make_script
from palestra.players.past import PastPlayerConfig, PastPolicy
from palestra.players.player import Player
from palestra.players.scripted import ScriptedPlayerConfig
from palestra.players.seated_models import SeatedModelConfig
from palestra.players.torch_modules import TorchModuleConfig
from palestra.run.warm_starts import WarmStart, errors_at
from palestra.runtime.limits import memory_needed
from palestra.scaling.replica import Replica
from palestra.storage.disk import Folder


@dataclass(frozen=True)
class Parts:
    """The game and the players of a run. players: by name, including those that only play in evaluations."""

    config: RunConfig
    game: Game
    players: dict[str, Player]

    @property
    def learners(self) -> list[Player]:
        """The players that learn."""
        return [player for player in self.players.values() if player.learning]


def build_parts(
    config: RunConfig, device: torch.device, copies: Folder | None, replica: Replica | None = None
) -> Parts:
    """The game of a run and its players: learning, scripted, or held fixed as another run left them.

    copies: the folder into which `copy_players` has copied players of other runs, for this run or the one that it
    branches off; None if they were not copied yet. replica: the place of the training among those that learn the same
    networks; None: it learns alone. Raises ConfigError for a game that cannot be made, and for a player
    whose roles differ in observations or actions, whose algorithm does not fit the game, or whose run does not fit.
    """
    game = _build_game(config.game, config, device)
    players = {
        name: _build_player(name, config, game, copies, replica)
        for name, player in config.players.items()
        if not isinstance(player, PastPlayerConfig)
    }
    past = {name: player for name, player in config.players.items() if isinstance(player, PastPlayerConfig)}
    players |= {name: _build_past_player(name, player, config, game, players) for name, player in past.items()}
    return Parts(config, game, {name: players[name] for name in config.players})


def build_evaluations(
    parts: Parts, evaluations: Sequence[EvaluationConfig | UserEvaluationConfig] | None = None
) -> Evaluations:
    """The evaluations of a run, or others between its players.

    Raises ConfigError if they do not fit its game and players.
    """
    config = parts.config
    return Evaluations(
        config.evaluations if evaluations is None else evaluations,
        parts.game,
        config.roles,
        parts.players,
        lambda game: _build_game(game, config, parts.game.device),
        _fit_player,
        config.seed,
        config.most_worlds(),
        config.output.info,
    )


def _build_game(game: GameConfig, run: RunConfig, device: torch.device) -> Game:
    """The game of a run, or that of one of its evaluations."""
    built = game.build(device, run.execution.kernel)
    if isinstance(built, WorldGame):
        built.step_within_s = run.execution.step_within_s
    built.settled = frozenset(role for role, name in run.roles.items() if run.data_set_of(name) is not None)
    return built


def _fit_player(player: Player, game: Game, role: str) -> Player:
    """A copy of a player, held fixed, with the observations and actions of a role in another game.

    Raises ConfigError if its networks would have other weights there.
    """
    assert player.algorithm is not None
    spaces, actions = game.spaces[role], game.action_spaces[role]
    fitted = Player(player.name, (role,), spaces, actions, game.device, player.seed, player.compile, player.by_hand)
    fitted.critic_spaces = game.critic_spaces
    fitted.algorithm = build_algorithm(player.algorithm.config, fitted)
    for name, net in fitted.nets.items():
        own, there = player.nets[name].state_dict(), net.state_dict()
        for key, weight in there.items():
            if key not in own or own[key].shape != weight.shape:
                has = f"shape {tuple(own[key].shape)}" if key in own else "none"
                message = f"its network {name} has weights {key} of {has}; there they have shape {tuple(weight.shape)}"
                raise ConfigError.at(f"players.{player.name}", message)
    fitted.load_weights(player.weights())
    hold_fixed(fitted)
    return fitted


def _build_player(name: str, run: RunConfig, game: Game, copies: Folder | None, replica: Replica | None) -> Player:
    config: Config = run.players[name]
    roles = tuple(run.seats(name, game.roles))
    first = roles[0]
    for role in roles[1:]:
        if (
            isinstance(config, ScriptedPlayerConfig | TorchModuleConfig | SeatedModelConfig)
            and run.roles.get(role) != name
        ):
            continue  # in pairings it is made anew for each seat
        if game.spaces[role] != game.spaces[first] or game.action_spaces[role] != game.action_spaces[first]:
            message = f"expected {role!r} to observe and act like {first!r}, for {name!r} sits in both, got others"
            raise ConfigError.at(f"roles.{role}" if run.roles.get(role) == name else f"players.{name}", message)
    spaces, actions = game.spaces[first], game.action_spaces[first]
    execution = run.execution
    by_hand = execution.gradients == "by_hand"
    player = Player(name, roles, spaces, actions, game.device, run.seed, execution.compile, by_hand, game=game)
    player.critic_spaces = game.critic_spaces
    if isinstance(config, ScriptedPlayerConfig):
        with below(f"players.{name}.scripted"):
            player.script = make_script(config, game, first)
    elif isinstance(config, TorchModuleConfig):
        with below(f"players.{name}"):
            player.script = build_module(name, config, game, first, copies)
    elif isinstance(config, SeatedModelConfig):
        with below(f"players.{name}"):
            player.script = seat_model(name, config, game, first, copies)
    elif isinstance(config, FromRunConfig):
        with _errors_at(f"players.{name}.from_run", config, first):
            trained = find_player(name, config, copies)
            trained.require_same_observations(run.game)
            player.algorithm = build_algorithm(trained.algorithm, player)
            player.load_weights(trained.state)
            hold_fixed(player)
    else:
        player.learning, player.num_worlds = True, run.worlds_of(name)
        player.replica = replica if run.num_replicas > 1 else None
        player.moves = _moves(game, roles)
        player.algorithm = build_algorithm(config.algorithm, player)  # type: ignore[attr-defined]
    return player


def _build_past_player(
    name: str, config: PastPlayerConfig, run: RunConfig, game: Game, players: Mapping[str, Player]
) -> Player:
    """The past selves of a player that is built already. They are tried in each of their roles."""
    assert isinstance(game, TensorGame)
    learner, roles = players[config.past_of], tuple(run.seats(name, game.roles))
    kept: dict[int, Mapping[str, Any]] = {}
    try:
        scripts = {role: PastPolicy(config, game, role, partial(_fit_player, learner), kept) for role in roles}
    except ConfigError as error:
        expected = f"expected a player that can play as {' and '.join(roles)}, got {config.past_of!r}"
        raise ConfigError.at(f"players.{name}.past_of", f"{expected}; {error.errors[0].message}") from error
    spaces, actions = game.spaces[roles[0]], game.action_spaces[roles[0]]
    player = Player(name, roles, spaces, actions, game.device, run.seed, learner.compile, learner.by_hand, game=game)
    player.script, player.scripts = scripts[roles[0]], dict(scripts)
    return player


def _moves(game: Game, roles: Sequence[str]) -> tuple[str, ...]:
    """The roles, out of `roles`, that may decide in a round, in the order of its moves."""
    moves: Sequence[Sequence[str]] = getattr(game, "moves", (roles,))
    return tuple(role for move in moves for role in move if role in roles)


def build_algorithm(config: Any, player: Player) -> Algorithm:
    """Build the algorithm that a config names, which gives the player its networks. Raises ConfigError."""
    try:
        with memory_needed(f"players.{player.name}.algorithm"):
            algorithm: Algorithm = config.build(player)
    except PartError as error:
        raise error.within(config, f"players.{player.name}.algorithm") from error
    for name, optimizer in player.optimizers.items():
        optimizer.scheduled, optimizer.counted = partial(algorithm.learning_rate_of, name), player.counted_opt_steps
        if player.lr_schedule is not None:
            optimizer.follow_schedule()
    if player.learning:
        check_seat(config, player.name, Seat(player.num_worlds, len(player.moves), len(player.roles)))
    return algorithm


def check_seat(config: Any, player: str, seat: Seat) -> None:
    """Raise ConfigError if the config of a learning player's algorithm does not fit its seat."""
    with below(f"players.{player}.algorithm"):
        ConfigError.require_none(config.seat_errors(seat) if isinstance(config, AlgorithmConfig) else ())


# ---- players of other runs -----------------------------------------------------------------------------


def warm_start(player: Player, run: RunConfig) -> WarmStart | None:
    """Load weights of another run's player or model into a learning player, if its config names one as `warm_start`.

    Of a model, gives what was taken, which depends on the networks. Raises ConfigError if there is no such player or
    model, if what is taken of its networks has other shapes, and where observations are normalised.
    """
    config = run.players[player.name].warm_start  # type: ignore[union-attr]
    if isinstance(config, BodyStartConfig):
        return start_player(player, config, run.game)
    if config is None:
        return None
    with _errors_at(f"players.{player.name}.warm_start", config, player.roles[0]):
        trained = read_player(config)
        trained.require_no_statistics(run.game)
        nets = trained.state["nets"]
        if config.take == "body":
            nets |= {name: body_of_another(net, nets[name]) for name, net in player.nets.items() if name in nets}
        player.algorithm.warm_start(nets)  # type: ignore[union-attr]
    return None


def hold_fixed(player: Player) -> None:
    """Let a player learn no more, and drop its optimizers and its replay buffer."""
    for net in player.nets.values():
        net.requires_grad_(False)
    player.set_training(False)
    player.learning, player.num_worlds = False, 0
    player.optimizers, player.replay_buffer = {}, None


def _errors_at(path: str, config: FromRunConfig, role: str) -> AbstractContextManager[None]:
    return errors_at(path, f"a player that fits the role {role!r}", f"{config.player!r} of {config.from_run}")
