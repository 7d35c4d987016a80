"""Recorded play: lets the players of a stored run play, and keeps what one role decided as columns of a file.

Letters: B worlds, M moves of the role, N rows.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palestra.buffers.data_set import DataSetReplayConfig
from palestra.config import ConfigError, check
from palestra.data.columns import read_columns
from palestra.games import make_game
from palestra.games.game import Game
from palestra.games.normalization import UNCHANGED
from palestra.games.policy import Decision, Memory, Policy
from palestra.games.spaces_game import find_spaces
from palestra.kinds.games.play import seat
from palestra.kinds.games.recorded import OF_COLUMNS, find_columns, read_play
from palestra.kinds.games.stored import StoredGames
from palestra.players.people import check_roles
from palestra.rollouts import fuse
from palestra.rollouts.transitions import Transitions
from palestra.run.stored import failures_filed
from palestra.runtime.limits import memory_needed
from palestra.runtime.threads import limited_threads
from palestra.storage.disk import write_file

FEWEST, MOST = 8, 256  # rounds that are played at once
PATIENCE = 10  # times the rounds that usual games take, until it is said that episodes do not end


class Transforming:
    """A policy in a game that shows observations as they are; it gets them as in `game`, where they are transformed."""

    def __init__(self, policy: Policy, game: Game, role: str) -> None:
        self.policy, self.game, self.role, self.observes = policy, game, role, policy.observes

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        if self.observes in ("observation", "with_critics"):
            view = self.game.transformed(self.role, dict(view))
        return self.policy.act(view, legal, keys, memory)


def collect_play(
    stored: StoredGames, pairing: Mapping[str, str], role: str | None, num_rows: int, seed: int | None
) -> dict[str, np.ndarray]:
    """Let players of the loaded checkpoint play, and return at least `num_rows` decisions of a role, as columns.

    The worlds are as many as the player in that role has in training. Each plays its share of the rows, and its last
    episode to the end; their episodes follow each other, world by world, up to the end of the one that has the last
    row. Observations and rewards are those of the rules, neither normalised nor clipped.

    pairing: role -> player, in place of those of the run. role: None if the game has one. seed: None: the run's. Raises
    ConfigError for players that do not fit, and where episodes do not end; EvaluationFailed if an environment fails.
    """
    config, game = stored.config, stored.game
    if role is None and len(game.roles) > 1:
        raise ConfigError.at("--role", f"expected the role whose rows are kept ({', '.join(game.roles)}), got none")
    role = role or game.roles[0]
    check_roles(game, "--role", [role])
    check_roles(game, "--pairing", pairing)
    names, plain = {**config.roles, **pairing}, game.untransformed()
    seats: dict[str, Policy] = {each: seat(stored, names[each], each, stored.explores).policy for each in game.roles}
    if plain is not game:
        seats = {each: Transforming(policy, game, each) for each, policy in seats.items()}
    sitter = names[role]
    num_worlds = min(config.worlds_of(sitter) if sitter in config.learners() else config.most_worlds(), num_rows)
    share = -(-num_rows // num_worlds)
    fused: Any = fuse(plain)
    fused.policies = seats
    with failures_filed(stored.results), limited_threads(config.execution.num_threads), memory_needed("--rows"):
        try:
            worlds = fused.new_worlds(num_worlds, config.seed if seed is None else seed, f"player/{sitter}/play")
            rows = _play(fused, worlds, role, share, PATIENCE * (share + config.game.usual_rounds()))
            return _columns(rows, game, role, *_order(rows, num_worlds, share, num_rows))
        finally:
            plain.close()


def _play(fused: Any, worlds: Any, role: str, share: int, most_rounds: int) -> Transitions:
    """Play until each world has ended an episode with its share of the rows; return the roll-outs one after another."""
    num_rounds, parts = 0, []
    counts = torch.zeros_like(worlds.keys)
    are_done = torch.zeros_like(counts, dtype=torch.bool)
    while not are_done.all():
        if num_rounds >= most_rounds:
            message = f"expected episodes that end, and in which {role!r} decides, got others in {num_rounds} rounds"
            raise ConfigError.at("--rows", message)
        num = min(max(share - int(counts.min()), FEWEST), MOST)
        parts.append(rows := fused.collect(worlds, (role,), num)[role])
        valid, ended = _by_move(rows, len(counts))
        totals = counts + valid.cumsum(0)
        are_done |= (ended & (totals >= share)).any(dim=0)
        counts, num_rounds = totals[-1], num_rounds + num
    return Transitions.concatenate(parts)


def _by_move(rows: Transitions, num_worlds: int) -> tuple[Tensor, Tensor]:
    """Return which rows count, and which of these end an episode: bool (M, B)."""
    ended = (rows.terminated | rows.truncated) & rows.valid
    return rows.valid.view(-1, num_worlds), ended.view(-1, num_worlds)


def _order(rows: Transitions, num_worlds: int, share: int, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return which rows are kept, int64 (N,), world by world; and the numbers of their episodes, int64 (N,)."""
    valid, ended = _by_move(rows, num_worlds)
    is_last = ended & (valid.cumsum(0) >= share)
    kept = valid & (is_last.cumsum(0) - is_last.long() == 0)
    places = torch.arange(valid.numel(), device=valid.device).view(-1, num_worlds).T[kept.T]
    ended = ended.T[kept.T]
    num = num_rows + int(ended[num_rows - 1 :].int().argmax())  # to the end of the episode with the last row
    return places[:num], (ended.cumsum(0) - ended.long())[:num]


def _columns(rows: Transitions, game: Game, role: str, places: Tensor, episode: Tensor) -> dict[str, np.ndarray]:
    """Return rows as columns: those of `Transitions.rows`, with actions as the game takes them, and episodes."""
    columns = {}
    for name, every in rows.rows().items():
        part, _, entry = name.partition(".")
        value = every.index_select(0, places)
        if part in ("observation", "next_observation"):
            if (space := game.spaces[role].get(entry)) is None:  # what critics alone observe
                continue
            value = value.to(space.dtype)
        if name != "next_legal" or not rows.always_legal:
            columns[name] = game.own_actions(value) if name == "action" else value.cpu().numpy()
    return columns | {"episode": episode.cpu().numpy()}


def write_columns(file: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Write columns as `np.savez` does. Equal columns give equal bytes. Raises RunFolderError."""
    np.savez(content := io.BytesIO(), allow_pickle=False, **columns)
    write_file(file, content.getvalue())


# ---- what a file holds ---------------------------------------------------------------------------------

ROLE = "player"


def describe_play(path: str, overrides: Sequence[str] = ()) -> list[str]:
    """Return lines on the recorded play in a file: rows, episodes, their lengths and returns, columns, SHA-256.

    overrides: of columns, where they have names of their own. Raises ConfigError for a file that holds none.
    """
    if others := [word for word in overrides if OF_COLUMNS.fullmatch(word) is None]:
        raise ConfigError.at(others[0], "expected replay_buffer.columns.KEY=VALUE, got other words")
    file, columns = read_columns(path), find_columns(path, None, ROLE, overrides)
    spaces = find_spaces(replace(file, action=None), columns, ROLE)  # as the rows show them
    game = make_game(spaces | {"observation": UNCHANGED.model_dump()})
    keys = {"name": "data_set", "file": path, "columns": columns, "held_out": None, "share_of_data": 1.0}
    keys |= {"capacity": 1, "layout": "whole", "scratch_folder": None}
    play = read_play(check(keys, DataSetReplayConfig), game, ROLE)
    num_ended = int(play.rows.terminated.sum())
    return [
        f"{len(play.episode):,} rows in {len(play.lengths):,} episodes, of which {num_ended:,} terminated",
        f"lengths: {_spread(play.lengths.double())}",
        f"returns: {_spread(play.returns.double())}",
        f"left out, because the file lacks what follows: {play.num_left_out:,} rows",
        f"columns: {', '.join(file.names)}",
        f"SHA-256: {file.sha256}",
    ]


def _spread(values: Tensor) -> str:
    return f"mean {values.mean():.6g}, from {values.min():.6g} to {values.max():.6g}"
