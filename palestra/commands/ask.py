"""Asks the players of a run what they would do: on a board that somebody has typed, or at an observation."""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from palestra.commands.match import Match, Position, advise, check_role
from palestra.config import ConfigError
from palestra.config.errors import shown
from palestra.games.boards import fault_of_board
from palestra.games.game import TensorGame, is_legal
from palestra.games.spaces import Box, Discrete, MultiDiscrete
from palestra.randomness import base_key, world_keys
from palestra.runs.stored import StoredRun


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


def begin_match(stored: StoredRun, board: str, seed: int) -> Match:
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


def ask_on_board(stored: StoredRun, board: str, moves: Sequence[str], role: str | None) -> list[str]:
    """Return lines on what the players do on a board: each role decides in turn, after those before it have moved.

    moves: what is played first, in order. role: ask this one alone; None: all. Raises ConfigError.
    """
    match = begin_match(stored, board, seed=0)
    if role is not None:
        check_role(match.game, "--role", role)
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
        actions = {position.role: read_legal_action(match.game, position, text, "--move") for position, text in pairs}
        match.play(actions)
        left = left[len(positions) :]
    if left:
        raise ConfigError.at("--move", f"expected no move after the end of the game, got {left[0]!r}")


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


def legal_moves(game: TensorGame, position: Position, most: int = 16) -> str:
    """List the legal moves for a message; if there are many, or no choices to list, give one of them as an example."""
    role, space, legal = position.role, game.action_spaces[position.role], position.legal[0]
    flags = legal.nonzero().flatten()
    if isinstance(space, Discrete) and len(flags) <= most:
        return "; ".join(game.describe_action(role, flag) for flag in flags)
    if isinstance(space, Box):
        first = torch.zeros(len(space.low)).clamp(torch.tensor(space.low), torch.tensor(space.high))
    else:
        nums = space.nums if isinstance(space, MultiDiscrete) else (space.num,)
        first = torch.stack([part.to(torch.int8).argmax() for part in legal.split(list(nums))]).view(space.shape)
    return f"such as {game.describe_action(role, first)}"


def ask_at_observation(stored: StoredRun, text: str, role: str | None) -> list[str]:
    """Return lines on what a role's player chooses at an observation.

    role: may be None where the game has one. Raises ConfigError.
    """
    game = stored.game
    if role is None and len(game.roles) > 1:
        raise ConfigError.at("--role", f"expected the role that observes this ({', '.join(game.roles)}), got none")
    role = role or game.roles[0]
    check_role(game, "--role", role)
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
        message = "expected a board (--board), because observations of this game do not say which actions are legal"
        raise ConfigError.at("--observation", f"{message}, got an observation")
    keys = world_keys(base_key(0, "play"), 1, game.device)
    view = game.transformed(role, own)
    return advise(stored, Position(role, {"observation": view, "nothing": {}}, legal, keys), {}).lines
