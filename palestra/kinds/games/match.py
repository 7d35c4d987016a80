"""One game in one world, move by move, and what players make of a position; `ask` and `play` share it."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palestra.config import ConfigError
from palestra.config.errors import shown
from palestra.games.game import Game, Observation, State, TensorGame, is_legal
from palestra.games.policy import Decision, Memory, Observes, Policy
from palestra.games.spaces import Box, Discrete, MultiDiscrete
from palestra.games.tryout import fault_of_board
from palestra.kinds.games.stored import StoredGames
from palestra.players import scripts_for
from palestra.players.people import check_roles
from palestra.players.player import Player
from palestra.players.scripted import RandomPolicy
from palestra.randomness import base_key, fold, world_keys

MOST_LISTED = 16  # legal moves in a message


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


def advise(stored: StoredGames, position: Position, memory: Memory) -> Advice:
    """Ask a role's player and the scripted players for their choices.

    memory: of the role's player; {} at the start of a game.
    """
    game, role = stored.game, position.role
    player = stored.players[stored.config.roles[role]]
    decision = position.decide(player.predictor(True, role), memory)
    scripts = scripts_for(game, stored.config.game, role)  # of all but `random` that can sit there and see enough
    also = {
        name: position.decide(script, {}).action[0]
        for name, script in scripts.items()
        if script.observes in position.views and not isinstance(script, RandomPolicy)
    }
    lines = [f"{role}: {player.name} ({_kind(player)}) chooses {game.describe_action(role, decision.action[0])}"]
    table = _table(game, player, position, memory, {player.name: decision.action[0]} | also)
    if not table:
        table = [f"  {name} chooses {game.describe_action(role, action)}" for name, action in also.items()]
    return Advice(decision.action, decision.memory, lines + table)


def _kind(player: Player) -> str:
    if player.algorithm is None:
        return "scripted" if player.script is None else player.script.kind
    return f"{player.algorithm.config.name}, {player.opt_steps:,} opt steps"


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
    starts = torch.tensor([0, *space.nums[:-1]]).cumsum(0)
    chosen = {who: (starts + action.flatten().cpu()).tolist() for who, action in choices.items()}
    names = [words[flag] for flag in flags.tolist()]
    by = [", ".join(who for who, its in chosen.items() if flag in its) for flag in flags.tolist()]
    what, values, order = "", [""] * len(names), list(range(len(names)))
    if valued is not None:
        what, found = valued[0], valued[1][0, flags]
        values = [f"{value:.4f}" for value in found.tolist()]
        if isinstance(space, Discrete):
            order = found.argsort(descending=True, stable=True).tolist()
    rows = [("choice", what, "chosen by"), *((names[at], values[at], by[at]) for at in order)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return [f"  {name:<{widths[0]}}  {value:>{widths[1]}}  {who}".rstrip() for name, value, who in rows]


# ---- what people type ------------------------------------------------------------------------------------------


def parse(text: str, option: str) -> Any:
    """Read a text as JSON, with round brackets allowed for square ones, and without the outermost ones.

    Boards are printed like that: (3, 0), (0, 5). A text that is no JSON, as NaN or 1e999, is returned as it is. Raises
    ConfigError for brackets that are nested too deeply.
    """
    squared = re.sub(r",\s*\]", "]", text.replace("(", "[").replace(")", "]"))
    for written in (text, squared, f"[{squared}]") if squared != text else (text,):
        try:
            return json.loads(written, parse_constant=_finite, parse_float=_finite)
        except RecursionError:
            raise ConfigError.at(
                option, f"expected JSON, got brackets that are nested too deeply: {shown(text)}"
            ) from None
        except ValueError:
            continue
    return text


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


def begin_match(stored: StoredGames, board: str, seed: int) -> Match:
    """Make a game that begins with a board. Raises ConfigError if the text is no board of the run's game."""
    game = stored.game
    if not isinstance(game, TensorGame):
        message = "expected --observation, because this game is an environment and has no boards, got a board"
        raise ConfigError.at("--board", message)
    parsed = parse(board, "--board")
    try:
        state = game.read_board(parsed)
    except ValueError as error:
        raise ConfigError.at("--board", str(error)) from error
    if (fault := fault_of_board(game, state)) is not None:
        expected, got = fault
        message = f"expected of read_board of {type(game).__name__} {expected}, got {got}"
        raise ConfigError.at("--board", f"{message}; palestra.testing.check_game checks it")
    return Match(game, state, base_key(seed, "play"))


def read_legal_action(game: TensorGame, position: Position, text: str, option: str) -> Any:
    """Read an action that somebody has typed; returns it as (1, ...). Raises ConfigError unless it is a legal one."""
    role = position.role
    try:
        action = game.read_action(role, text).unsqueeze(0)
    except ValueError as error:
        raise ConfigError.at(option, str(error)) from error
    if not is_legal(action, game.action_spaces[role], position.legal).all():
        raise ConfigError.at(option, f"expected a legal move of {role!r} ({legal_moves(game, position)}), got {text!r}")
    return action


def legal_moves(game: TensorGame, position: Position) -> str:
    """List the legal moves for a message; if there are many, or no choices to list, give one of them as an example."""
    role, space = position.role, game.action_spaces[position.role]
    flags = position.legal[0].nonzero().flatten()
    if isinstance(space, Discrete) and len(flags) <= MOST_LISTED:
        return "; ".join(game.describe_action(role, flag) for flag in flags)
    if isinstance(space, Box):
        first = torch.zeros(len(space.low)).clamp(torch.tensor(space.low), torch.tensor(space.high))
    else:
        first = space.join([flags.to(torch.int8).argmax(dim=1) for flags in space.split(position.legal)])[0]
    return f"such as {game.describe_action(role, first)}"


# ---- what `ask` answers ----------------------------------------------------------------------------------------


def ask_on_board(stored: StoredGames, board: str, moves: Sequence[str], role: str | None) -> list[str]:
    """Return lines on what the players do on a board: each role decides in turn, after those before it have moved.

    moves: what is played first, in order. role: ask this one alone; None: all. Raises ConfigError.
    """
    match = begin_match(stored, board, seed=0)
    if role is not None:
        check_roles(match.game, "--role", [role])
    _play_given(match, moves)
    lines, seen = [match.board()], set(match.moved)
    while positions := match.positions():
        due = {position.role for position in positions}
        if role is None and due & seen:
            break
        advices = {position.role: advise(stored, position, {}) for position in positions}
        for name, advice in advices.items():
            lines += ["", *advice.lines] if role in (None, name) else []
        seen |= due
        if role in due or seen >= set(match.game.roles):
            break
        match.play({name: advice.action for name, advice in advices.items()})
        lines += ["", match.board()]
    if not seen:
        lines.append("the game is over: nobody decides here")
    return lines


def _play_given(match: Match, moves: Sequence[str]) -> None:
    left = list(moves)
    while left and (positions := match.positions()):
        if len(left) < len(positions):
            together = " and ".join(position.role for position in positions)
            raise ConfigError.at(
                "--move", f"expected a move for each of {together}, who decide together, got {len(left)}"
            )
        pairs = zip(positions, left, strict=False)
        match.play({position.role: read_legal_action(match.game, position, text, "--move") for position, text in pairs})
        left = left[len(positions) :]
    if left:
        raise ConfigError.at("--move", f"expected no move after the end of the game, got {left[0]!r}")


def ask_at_observation(stored: StoredGames, text: str, role: str | None) -> list[str]:
    """Return lines on what a role's player chooses at an observation.

    role: may be None where the game has one. Raises ConfigError.
    """
    game = stored.game
    if role is None and len(game.roles) > 1:
        raise ConfigError.at("--role", f"expected the role that observes this ({', '.join(game.roles)}), got none")
    role = role or game.roles[0]
    check_roles(game, "--role", [role])
    try:
        if isinstance(parsed := parse(text, "--observation"), str):
            raise ValueError("this is no JSON of finite numbers")
        with np.errstate(over="ignore"):  # what overflows is infinite, and refused
            own, is_single = game.read_observation(role, parsed)
        if not all(value.isfinite().all() for value in own.values()):
            raise ValueError("its numbers must be finite")
    except ConfigError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError, OverflowError) as error:
        shapes = ", ".join(f"{name} {space.shape}" for name, space in game.spaces[role].items())
        message = f"expected one observation of {role!r} as JSON (shapes: {shapes}): {error}; got {shown(text)}"
        raise ConfigError.at("--observation", message) from error
    if not is_single:
        raise ConfigError.at(
            "--observation", f"expected one observation, got a batch of {len(next(iter(own.values())))}"
        )
    legal = game.legal_by(role, own)
    if legal is None:
        message = "expected --board, or in Python predict(..., legal=FLAGS), as observations do not say what is legal"
        raise ConfigError.at("--observation", f"{message}, got an observation")
    keys = world_keys(base_key(0, "play"), 1, game.device)
    view = game.transformed(role, own)
    return advise(stored, Position(role, {"observation": view, "nothing": {}}, legal, keys), {}).lines
