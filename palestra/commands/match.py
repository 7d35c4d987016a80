"""One game in one world, move by move, and what players make of a position; `ask` and `play` share it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from palestra.config import ConfigError
from palestra.games.game import Game, Observation, State, TensorGame
from palestra.games.policy import Decision, Memory, Observes, Policy
from palestra.games.spaces import Box, Discrete, MultiDiscrete
from palestra.players import scripts_for
from palestra.players.player import Player
from palestra.players.scripted import RandomPolicy
from palestra.randomness import fold, world_keys
from palestra.runs.stored import StoredRun


@dataclass(frozen=True)
class Position:
    """A role's decision in one world.

    views: what policies may observe, by `Policy.observes`. legal: bool (1, flags). keys: int64 (1,).
    """

    role: str
    views: Mapping[str, Observation]
    legal: Tensor
    keys: Tensor

    def decide(self, policy: Policy, memory: Memory) -> Decision:
        with torch.no_grad():
            return policy.act(self.views[policy.observes], self.legal, self.keys, memory)


class Match:
    """A game that begins with a state of one world.

    returns: by role, so far. rounds: complete ones. moved: the roles that have decided since all had. is_over: by the
    rules. is_cut_off: truncated.
    """

    def __init__(self, game: TensorGame, state: State, key: int) -> None:
        self.game, self.state = game, state
        self.keys = world_keys(key, 1, game.device)
        self.num_moves = self.rounds = 0
        self.returns = dict.fromkeys(game.roles, 0.0)
        self.moved: set[str] = set()
        self.is_over = self.is_cut_off = False

    def positions(self) -> list[Position]:
        """Return the decisions that are due now, of one role or more at once; none where the game has ended.

        Moves in which nobody decides are played.
        """
        while not (self.is_over or self.is_cut_off):
            deciding = self.game.deciding(self.state)[0].tolist()
            due = [role for role, decides in zip(self.game.roles, deciding, strict=True) if decides]
            if due:
                return [self._position(role) for role in due]
            self.play({})
        return []

    def _position(self, role: str) -> Position:
        kinds: tuple[Observes, ...] = ("observation", "state", "nothing")
        views: dict[str, Observation] = {kind: self.game.view(self.state, role, kind) for kind in kinds}
        keys = fold(fold(self.keys, self.num_moves), self.game.roles.index(role) + 1)
        return Position(role, views, self.game.legal(self.state, role), keys)

    def play(self, actions: Mapping[str, Tensor]) -> None:
        """Play one move, and check it. actions: of the roles that decide, each (1, ...)."""
        game, state = self.game, {name: value.clone() for name, value in self.state.items()}
        spaces = {role: game.action_spaces[role] for role in game.moves[self.num_moves % len(game.moves)]}
        ignored = {
            role: torch.zeros((1, *space.shape), dtype=space.dtype, device=game.device)
            for role, space in spaces.items()
        }
        keys = fold(fold(self.keys, self.num_moves), 0)
        self.state, rewards, terminated, truncated = game.step(state, {**ignored, **actions}, keys)
        for role, reward in zip(game.roles, rewards[0].tolist(), strict=True):
            self.returns[role] += reward
        moved = self.moved | actions.keys()
        self.moved = set() if moved == set(game.roles) else moved
        self.num_moves += 1
        self.rounds = self.num_moves // len(game.moves)
        self.is_over, self.is_cut_off = bool(terminated.all()), bool(truncated[0])

    def board(self, role: str | None = None) -> str:
        """Return the state as people read it. role: show only what this one observes of it."""
        state = {name: value[0] for name, value in self.state.items()}
        return self.game.describe_board(state) if role is None else self.game.describe_seen(state, role)


# ---- what players make of a position -----------------------------------------------------------------------


@dataclass(frozen=True)
class Advice:
    """What a role's player and the scripted players choose in a position. lines: the same as text."""

    action: Tensor
    memory: Memory
    lines: list[str] = field(repr=False)


def advise(stored: StoredRun, position: Position, memory: Memory) -> Advice:
    """Ask a role's player and the scripted players for their choices.

    memory: of the role's player; {} at the start of a game.
    """
    game, role = stored.game, position.role
    player = stored.players[stored.config.roles[role]]
    policy = player.predictor(True, role)
    decision = position.decide(policy, memory)
    also = _scripted_choices(stored, position)
    lines = [f"{role}: {player.name} ({_kind(player)}) chooses {game.describe_action(role, decision.action[0])}"]
    table = _table(game, player, position, memory, {player.name: decision.action[0]} | also)
    if not table:
        table = [f"  {name} chooses {game.describe_action(role, action)}" for name, action in also.items()]
    return Advice(decision.action, decision.memory, lines + table)


def _kind(player: Player) -> str:
    if player.algorithm is None:
        return "scripted" if player.script is None else player.script.kind
    return f"{player.algorithm.config.name}, {player.opt_steps:,} opt steps"


def _scripted_choices(stored: StoredRun, position: Position) -> dict[str, Tensor]:
    """Return the choices of scripted players by name: of all but `random` that can sit in the role and see enough."""
    return {
        name: position.decide(script, {}).action[0]
        for name, script in scripts_for(stored.game, stored.config.game, position.role).items()
        if script.observes in position.views and not isinstance(script, RandomPolicy)
    }


def _table(game: Game, player: Player, position: Position, memory: Memory, choices: Mapping[str, Tensor]) -> list[str]:
    """Return a line for each legal choice, the best first: its value, if the player has values, and who chooses it.

    Where several choices are made at once there is a line for each action of each; where nothing can be listed, none.
    choices: actions by who chooses them.
    """
    space, role = game.action_spaces[position.role], position.role
    valued = None
    if player.algorithm is not None:
        with torch.no_grad():
            valued = player.algorithm.choice_values(position.views["observation"], position.legal, memory)
    if isinstance(space, Box) or (isinstance(space, MultiDiscrete) and valued is None):
        return []
    flags, words = position.legal[0].nonzero().flatten(), game.describe_flags(role)
    nums = space.nums if isinstance(space, MultiDiscrete) else (space.num,)
    starts = torch.tensor([0, *nums[:-1]]).cumsum(0)
    chosen = {who: (starts + action.flatten().cpu()).tolist() for who, action in choices.items()}
    names = [words[flag] for flag in flags.tolist()]
    by = [", ".join(who for who, its in chosen.items() if flag in its) for flag in flags.tolist()]
    what, values = ("", [""] * len(names)) if valued is None else (valued[0], _texts(valued[1][0, flags]))
    order = list(range(len(names)))
    if valued is not None and isinstance(space, Discrete):
        order = valued[1][0, flags].argsort(descending=True, stable=True).tolist()
    rows = [("choice", what, "chosen by"), *((names[at], values[at], by[at]) for at in order)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return [f"  {name:<{widths[0]}}  {value:>{widths[1]}}  {who}".rstrip() for name, value, who in rows]


def _texts(values: Tensor) -> list[str]:
    return [f"{value:.4f}" for value in values.tolist()]


# ---- what people type ----------------------------------------------------------------------------------


def check_role(game: Game, option: str, role: str) -> None:
    """Raise ConfigError unless the game has the role."""
    if role not in game.roles:
        raise ConfigError.at(option, f"expected a role of the game ({', '.join(game.roles)}), got {role!r}")
