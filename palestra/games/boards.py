"""Boards that people type: what a game reads of them is a state of one world."""

import json
import re
from contextlib import suppress
from typing import Any

from palestra.games.game import TensorGame
from palestra.games.tryout_calls import CannotGoOn, CheckedCalls, described
from palestra.randomness import world_keys


def fault_of_board(game: TensorGame, state: Any) -> tuple[str, str] | None:
    """Say what was expected of what `read_board` gave, and what is there; None if it is a state of one world."""
    like = {name: described(value) for name, value in game.reset(world_keys(0, 1, game.device)).items()}
    found = {name: described(value) for name, value in state.items()} if isinstance(state, dict) else described(state)
    return None if found == like else (f"a state of one world, {like}", str(found))


def check_board(calls: CheckedCalls, game: TensorGame) -> None:
    """Try the example that the error of `read_board` names for what is no board, if the game reads boards."""
    if type(game).read_board is TensorGame.read_board:
        return
    try:
        calls.attempt("read_board", "no board")
        return
    except CannotGoOn as failed:
        if not isinstance(failed.__cause__, ValueError):
            return
        del calls.faults["read_board", "raises"]
        example = re.search(r"such as (.+?)(, got|$)", str(failed.__cause__))
    if example is None:
        return
    text: Any = example[1]
    with suppress(ValueError):
        text = json.loads(text)
    if (fault := fault_of_board(game, calls.attempt("read_board", text))) is not None:
        calls.fault("read_board", *fault)
