"""Checks what players need in order to learn: algorithms that the trainer knows, finite losses, worlds that go on."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from palestra.algorithms.algorithm import AlgorithmConfig
from palestra.config import ConfigError, ConfigErrorItem
from palestra.config.errors import listed
from palestra.kinds.games.config import LearningPlayerConfig, RunConfig
from palestra.players.player import Player
from palestra.recording.aggregates import Aggregates
from palestra.rollouts.fused import Worlds


def fault_of_players(
    players: Sequence[Player], metrics: Mapping[str, Aggregates], fused_game: Any, with_parameters: bool, is_own: bool
) -> str | None:
    """Say which player can learn no more: its loss or a parameter is not finite, or all of its worlds stand still.

    metrics: those since the last record, by player. with_parameters: whether parameters are checked, also that all of
    them ask for a gradient; derivatives by hand give them one. is_own: whether code of the user's own trains, which may
    do otherwise. Gives None if all players can go on.
    """
    for player in players:
        loss = metrics[player.name].total("loss")  # a sum keeps a nan
        if not math.isfinite(loss):
            return f"player {player.name!r}, opt step {player.opt_steps}: the loss is {loss}"
        weights = (value for net in player.nets.values() for value in net.parameters())
        if with_parameters and not all(bool(value.isfinite().all()) for value in weights):
            return f"player {player.name!r}, opt step {player.opt_steps}: a parameter is no finite number"
        for net in player.optimizers.keys() & player.nets.keys() if with_parameters and not is_own else ():
            if names := [name for name, each in player.nets[net].named_parameters() if not each.requires_grad]:
                expected = f"players.{player.name}: expected weights of {net!r} that require a gradient"
                return f"{expected}, got {listed(names)} without; use the callback `freeze`"
        if player.worlds is not None and _stands_still(player.worlds, fused_game):
            name, where = type(fused_game.game).__name__, "a world that was cut off (truncated), which plays on"
            got = f"none in any world of player {player.name!r}"
            return f"{name}.deciding: expected each role that has decided to decide once more in {where}, got {got}"
    return None


def _stands_still(worlds: Any, fused_game: Any) -> bool:
    """Whether no world goes on.

    Between two rounds of a game in lockstep, a world that was cut off waits for roles that decide at their next move.
    Where the game lets nobody decide, that world waits for ever. The game is asked only if all worlds wait.
    """
    for share in getattr(worlds, "shares", [worlds]):
        if not (isinstance(share, Worlds) and fused_game.game.lockstep):
            return False
        waits = share.truncated_pending & (share.awaiting & ~share.done).any(dim=1)
        if not waits.all() or fused_game.game.deciding(share.state).any():
            return False
    return True


def check_algorithms(config: RunConfig, algorithms: tuple[type[AlgorithmConfig], ...]) -> None:
    """Raise ConfigError for players that learn by other algorithms than these. (): they may learn by any."""
    names = [name for each in algorithms for name in get_args(each.model_fields["name"].annotation)]
    expected = " or ".join(map(repr, names))
    others = [
        ConfigErrorItem(f"players.{name}.algorithm.name", f"expected {expected}, got {player.algorithm.name!r}")
        for name, player in config.players.items()
        if isinstance(player, LearningPlayerConfig) and not isinstance(player.algorithm, algorithms)
    ]
    if names:
        ConfigError.require_none(others)
