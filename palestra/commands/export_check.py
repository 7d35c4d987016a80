"""Checks that an exported file decides as its player does, in games with random players.

The values that go in and come out are those outside palestra. Letters: B worlds.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from palestra.algorithms.parts.exported import DeterministicRecurrent
from palestra.games.game import TensorGame
from palestra.games.outside import Outside
from palestra.games.policy import Memory, Policy
from palestra.games.spaces import ActionSpace, Box, MultiDiscrete
from palestra.games.world import WorldGame
from palestra.players import make_script
from palestra.players.player import Player
from palestra.randomness import base_key, fold, world_keys

NUM_WORLDS, NUM_ROUNDS = 32, 16  # of the games in which the actions of the file and of the player are compared
TOLERANCE = 1e-4  # of numbers in an action, and of the values of two choices: kernels add up in different orders


class Decision(NamedTuple):
    """A decision of the player: what went in, and what came out, as outside palestra, (B, ...).

    memory, memory_after: those of the exported network; {} if it has none.
    """

    observation: Mapping[str, Tensor]
    legal: Tensor
    memory: Memory
    action: Tensor
    memory_after: Memory


Act = Callable[[Decision], tuple[Tensor, Tensor, Memory]]  # action, values, memory after


class ExportError(RuntimeError):
    """The player cannot be exported, or the exported file does not act as the player does."""


def decisions_of(player: Player, role: str, module: nn.Module) -> list[Decision]:
    """Return the decisions of the player in a role, by `Player.predict`, in NUM_WORLDS games of NUM_ROUNDS rounds.

    module: what is exported of it. Raises EnvironmentFailed.
    """
    game = player.game
    asked = _Asked(player, role, module)
    before = player.num_predictions
    try:
        if isinstance(game, TensorGame):
            _play_boards(game, role, asked)
        else:
            assert isinstance(game, WorldGame)
            game.play_outside(NUM_WORLDS, NUM_ROUNDS, base_key(player.seed, "export"), asked)
    finally:
        player.num_predictions = before  # these games are no part of any training
    return asked.decisions


class _Asked:
    """Asks the player, and keeps its decisions."""

    def __init__(self, player: Player, role: str, module: nn.Module) -> None:
        assert player.game is not None
        self.player, self.role, self.module = player, role, module
        self.outside, self.space = player.game.outside(role), player.game.action_spaces[role]
        self.state: Memory | None = None
        self.decisions: list[Decision] = []

    def __call__(self, observation: Any, legal: Tensor | None = None) -> Any:
        """Return the actions at a batch of observations, as they leave palestra.

        legal: None where every action is legal.
        """
        before = self._exported(self.state or {})
        actions, self.state = self.player.predict(observation, self.state, legal=legal, role=self.role)
        device, entries = self.player.device, self.outside.entries.items()
        values = {name: _tensor(_at(observation, name, entry.path), entry.dtype).to(device) for name, entry in entries}
        num = len(next(iter(values.values())))
        if legal is None:
            legal = torch.ones(num, self.space.num_flags, dtype=torch.bool, device=device)
        if isinstance(self.module, DeterministicRecurrent) and not before:
            before = self.module.net.initial_memory(num, device)
        action = torch.as_tensor(actions, device=device)
        self.decisions.append(
            Decision(values, legal, _sorted(before), action, _sorted(self._exported(self.state or {})))
        )
        return actions

    def _exported(self, memory: Memory) -> Memory:
        if not isinstance(self.module, DeterministicRecurrent):
            return {}
        prefix = self.module.prefix
        return {name.removeprefix(prefix): value for name, value in memory.items() if name.startswith(prefix)}


def _tensor(value: Any, dtype: torch.dtype) -> Tensor:
    """Copy a value into a tensor, because environments may write into what they gave."""
    if isinstance(value, Tensor):
        return value.detach().to(dtype, copy=True)
    return torch.from_numpy(np.array(value).astype(str(dtype).removeprefix("torch.")))


def _sorted(memory: Memory) -> Memory:
    return {name: memory[name] for name in sorted(memory)}


def _at(observation: Any, name: str, path: tuple[Any, ...]) -> Any:
    """Return an entry of an observation: at its path in one of an environment, or by its name in one of palestra's."""
    if isinstance(observation, dict) and not path:
        return observation[name]
    for key in path:
        observation = observation[key]
    return observation


@torch.no_grad()
def _play_boards(game: TensorGame, role: str, asked: _Asked) -> None:
    """Play a game of boards; the other roles play at random, where they can."""
    others: dict[str, Policy] = {other: make_script("random", game, other) for other in game.roles if other != role}
    keys = world_keys(base_key(asked.player.seed, "export"), NUM_WORLDS, game.device)
    state = game.reset(fold(keys, 0))
    for number in range(NUM_ROUNDS):
        for at, move in enumerate(game.moves):
            move_keys = fold(keys, 1 + number * len(game.moves) + at)
            actions = {}
            for other in move:
                legal, own_keys = game.legal(state, other), move_keys + game.roles.index(other) + 1
                if other == role:
                    given = asked(game.observe(state, role), legal)
                    actions[role] = torch.as_tensor(given, device=game.device)
                else:
                    actions[other] = others[other].act({}, legal, own_keys, {}).action
            state, _, terminated, truncated = game.transition(state, actions, move_keys + len(game.roles) + 1)
        over = terminated.all(dim=1) | truncated
        state = game.refill(state, over, move_keys + len(game.roles) + 2)


# ---- compared with the player ------------------------------------------------------------------------------


def compare(act: Act, decisions: list[Decision], space: ActionSpace, outside: Outside, path: Path) -> int:
    """Compare what a file decides with what the player decided; returns the number of decisions.

    Raises ExportError unless `act` makes all of them as the player did, or makes a choice of the same value, and
    remembers the same.
    """
    number = different = 0
    for made in decisions:
        found, values, after = act(made)
        if found.shape != made.action.shape or found.dtype != made.action.dtype:
            there = [f"{each.dtype} of shape {tuple(each.shape)}" for each in (made.action, found)]
            raise ExportError(f"{path}: expected the player's actions, {there[0]}, got {there[1]}")
        ours, theirs = outside.choose(made.action), outside.choose(found)
        if isinstance(space, Box):
            near = (theirs - ours).abs() <= TOLERANCE
        else:
            nums = space.nums if isinstance(space, MultiDiscrete) else (space.num,)
            parts = zip(values.split(list(nums), dim=1), _columns(theirs), _columns(ours), strict=True)
            near = torch.cat(
                [(part.gather(1, one) - part.gather(1, two)).abs() <= TOLERANCE for part, one, two in parts], dim=1
            )
        is_same = near.all(dim=1)
        for name, value in made.memory_after.items():
            is_same &= ((after[name] - value).abs() <= TOLERANCE).flatten(1).all(dim=1)
        number += len(found)
        different += int((~is_same).sum())
    if different:
        raise ExportError(f"{path}: expected the player's actions, got others in {different} of {number} decisions")
    return number


def _columns(choices: Tensor) -> tuple[Tensor, ...]:
    return choices.view(len(choices), -1).split(1, dim=1)
