"""Recorded play: the rows of a file as transitions of a role, of which players learn where nobody plays.

Letters: N rows of the file, M rows that are used, E episodes, F flags of the action space.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palestra.buffers.data_set import Columns, ColumnsConfig, DataSetReplayConfig
from palestra.config import ConfigError, below, check, cut, walk
from palestra.config.files import apply_overrides
from palestra.data.columns import read_columns
from palestra.data.table import FLAGS, check_column, unknown_columns
from palestra.games.game import Game, Observation, is_legal
from palestra.games.spaces import Box
from palestra.rollouts.transitions import Transitions

KNOWN = {  # columns of our own files, of which Minari's sets have the names, too, and of D4RL's
    "observation": ("observation", "observations"),
    "action": ("action", "actions"),
    "reward": ("reward", "rewards"),
    "terminated": ("terminated", "terminals"),
    "truncated": ("truncated", "timeouts"),
    "episode": ("episode",),
    "next_observation": ("next_observation", "next_observations"),
    "legal": ("legal",),
    "next_legal": ("next_legal",),
}
AMBIGUOUS = ("done", "dones")  # columns that may also be true where a game was cut off
OF_COLUMNS = re.compile(  # an override of them: whose, and what it says
    r"(?:(?:players\.([^.=]+)\.)?(?:[^=]*\.)?replay_buffer\.)?(columns(?:\.[^=]*)?=.*)", re.DOTALL
)
ROUNDING = 1e-6
FINITE = "finite numbers of float32's range"
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class RecordedPlay:
    """What a file has recorded of a role.

    rows: M transitions in the order of time, on the CPU, each of them valid; the last one of an episode has terminated
    or is truncated. Observations are the game's own (`Game.transformed` makes of them what players get). episode: int64
    (M,), the number of each row's episode: 0, 1, ... num_left_out: rows of the file that are not used, because their
    next observation is lost. files: the SHA-256 of the file, by its path. returns, lengths: float64 and int64 (E,), the
    rewards and rows of each episode that the file has, with those that are left out.
    """

    rows: Transitions
    episode: Tensor
    num_left_out: int
    files: dict[str, str]
    returns: Tensor
    lengths: Tensor


def read_play(config: DataSetReplayConfig, game: Game, role: str) -> RecordedPlay:
    """Read recorded play of a role. Raises ConfigError, with paths from `replay_buffer` on, for what does not fit."""
    with below("replay_buffer"):
        return _Rows(config, game, role).play()


def find_columns(
    path: str, game: Game | None, role: str, overrides: Sequence[str] = (), player: str | None = None
) -> dict[str, Any]:
    """Return what a first file says as `columns`, by the names of the columns of a file.

    game: in which a role has decided; None: any. overrides: those of columns count, unless they name another player.
    Raises ConfigError, with paths from `replay_buffer` on, for a file whose columns have other names.
    """
    with below("replay_buffer.file"):
        names = read_columns(path).names

    def entries(name: str) -> dict[str, Columns] | None:
        stored = {each.removeprefix(f"{name}."): [each] for each in names if each.startswith(f"{name}.")}
        stored = stored or ({"observation": [whole]} if (whole := found[name]) else {})
        if game is None or len(game.spaces[role]) == len(stored) == 1:
            return stored if game is None else dict(zip(game.spaces[role], stored.values(), strict=True))
        return {name: stored[name] for name in game.spaces[role] if name in stored}

    mask = getattr(getattr(game, "config", None), "action_mask", None)  # as observation.NAME
    known_names = KNOWN | {"legal": ("legal", mask), "next_legal": ("next_legal", f"next_{mask}")}
    found = {key: next((each for each in known if each in names), None) for key, known in known_names.items()}
    lists = {key: None if (name := found[key]) is None else [name] for key in ("action", "legal", "next_legal")}
    lists["action"] = lists["action"] or [each for each in names if each.startswith("action.")]
    observations = {key: entries(key) or None for key in ("observation", "next_observation")}
    columns: Any = {**found, **lists, **observations, "extras": {}}  # own play need not have those of the file
    words = [each[2] for each in map(OF_COLUMNS.fullmatch, overrides) if each and each[1] in (None, player)]
    with below("replay_buffer"):
        columns = apply_overrides({"columns": columns}, words)["columns"]
    named = columns if isinstance(columns, dict) else {}
    missing = [key for key in ("observation", "action", "reward") if key in named and not named[key]]
    said = " ".join(words)
    if not any(found[key] or key in said for key in ("terminated", "truncated", "episode")):
        missing.append("terminated, truncated or episode (columns.episode=null: the file is one episode)")
    if missing:
        told = f"expected columns of {path} whose names tell {', '.join(missing)}, got {cut(', '.join(names), 300)}"
        seen = "{observation" if game is None else "{" + ": [NAME], ".join(game.spaces[role])
        hint = f"name them, as replay_buffer.columns.reward=NAME replay_buffer.columns.observation={seen}: [NAME]}}"
        raise ConfigError.at("replay_buffer.columns", f"{told}; {hint}")
    unclear = next((each for each in AMBIGUOUS if each in names and each not in said), None)
    if unclear is not None and not found["terminated"] and "terminated" not in said:
        told = f"expected to be told whether {unclear!r} of {path} means that a game ended by its rules, or was cut off"
        ways = " or ".join(f"replay_buffer.columns.{key}={unclear}" for key in ("terminated", "truncated"))
        either = "if it may mean either, make a column of the first alone"
        raise ConfigError.at("replay_buffer.columns.terminated", f"{told}; say {ways}; {either}")
    with below("replay_buffer.columns"):
        check(columns, ColumnsConfig)
    return columns


class _Rows:
    """The rows of a file. The functions raise ConfigError, with paths from `columns` on, for what does not fit.

    episode: int64 (N,), the number of each row's episode in the file, as soon as it is known.
    """

    def __init__(self, config: DataSetReplayConfig, game: Game, role: str) -> None:
        self.config, self.columns, self.game, self.role = config, config.columns, game, role
        self.space, self.outside = game.action_spaces[role], game.outside(role)
        with below("file"):
            self.file = read_columns(config.file)
        named = [(".".join(keys), name) for keys, name in walk(self.columns, ("columns",)) if isinstance(name, str)]
        ConfigError.require_none(unknown_columns(config.file, named, self.file))
        with below("columns.reward"):
            self.num = len(self.file.column(self.columns.reward))
        if self.num == 0:
            raise ConfigError.at("file", f"expected rows in {config.file!r}, got none")
        self.episode: Array | None = None

    def play(self) -> RecordedPlay:
        columns, num, spaces = self.columns, self.num, self.game.spaces[self.role]
        terminated, truncated, begins = self.flag("terminated"), self.flag("truncated"), np.ones(num, dtype=bool)
        begins[1:] = (terminated | truncated)[:-1] | self.changes()
        ends, self.episode = np.append(begins[1:], True), begins.cumsum() - 1
        legal, next_legal = self.legal("legal", None), self.legal("next_legal", terminated)
        needs_next_row = columns.next_observation is None or (legal is not None and next_legal is None)
        is_lost = ends & ~terminated & needs_next_row
        truncated = ends & ~terminated
        truncated[:-1] |= is_lost[1:] & ~terminated[:-1]  # the row before a lost one knows its own next observation
        rows = torch.from_numpy(np.flatnonzero(~is_lost))
        if len(rows) == 0:
            told = f"expected an episode in {self.config.file!r} with a row whose next observation is known, got none"
            raise ConfigError.at("file", f"{told} in {num} rows; name the columns of next_observation")
        after, over = (rows + 1).clamp(max=num - 1), torch.from_numpy(terminated)[rows]
        every = torch.ones((1, self.space.num_flags), dtype=torch.bool)
        reward = self.shaped(self.numbers([columns.reward], "columns.reward"), "columns.reward", ())
        found = {f"observation.{name}": value for name, value in self.observation("observation", None).items()}
        following = {name: found[f"observation.{name}"].index_select(0, after) for name in spaces if needs_next_row}
        for name, value in following.items():
            value[over] = spaces[name].empty
        if columns.next_observation is not None:
            following = self.observation("next_observation", terminated)
        found |= {f"next_observation.{name}": value for name, value in following.items()}
        for name, each in columns.extras.items():
            if name in ("discount", "weight"):  # that of the next value, and of rows that are drawn by priority
                raise ConfigError.at(f"columns.extras.{name}", f"expected a name not used by batches, got {name!r}")
            found[f"extras.{name}"] = torch.from_numpy(self.numbers(each, f"columns.extras.{name}"))
        found |= {"action": self.action(every.expand(num, -1) if legal is None else legal)}
        found |= {"reward": torch.from_numpy(reward), "truncated": torch.from_numpy(truncated), "terminated": over}
        found["next_legal"] = every.expand(len(rows), -1)
        if legal is not None:
            found |= {"legal": legal, "next_legal": legal.index_select(0, after) | over.unsqueeze(1)}
        if next_legal is not None:
            found["next_legal"] = next_legal
        found = {name: each if len(each) == len(rows) else each.index_select(0, rows) for name, each in found.items()}
        episode = self.episode[rows.numpy()]
        is_used = np.bincount(episode, minlength=self.episode[-1] + 1) > 0
        return RecordedPlay(
            rows=replace(Transitions.from_rows(found), always_legal=self.game.always_legal),
            episode=torch.from_numpy((is_used.cumsum() - 1)[episode]),
            num_left_out=num - len(rows),
            files={self.config.file: self.file.sha256},
            returns=torch.from_numpy(np.bincount(self.episode, reward)[is_used]),
            lengths=torch.from_numpy(np.bincount(self.episode)[is_used]),
        )

    # ---- what the columns say ----------------------------------------------------------------------------

    def changes(self) -> Array:
        """Tell which rows but the first differ from the one before in the column `episode`: bool (N - 1,)."""
        if (name := self.columns.episode) is None:
            return np.zeros(self.num - 1, dtype=bool)
        with below("columns.episode"):
            found = self.file.column(name)
        if found.shape != (self.num,):
            raise ConfigError.at("columns.episode", f"expected {self.num} values in {name!r}, got {found.shape}")
        lacks = found == "" if found.dtype == object else ~np.isfinite(found)
        self.require(~lacks, "columns.episode", "a number or text in every row", np.where(lacks, np.nan, 0.0))
        is_new: Array = found[1:] != found[:-1]
        return is_new

    def flag(self, part: str) -> Array:
        """Return one of the flags of each row: bool (N,)."""
        name, path = getattr(self.columns, part), f"columns.{part}"
        return np.zeros(self.num, dtype=bool) if name is None else self.shaped(self.flags([name], path), path, ())

    def legal(self, part: str, over: Array | None) -> Tensor | None:
        """Return the legal actions in each row, bool (N, F); None: all. over: rows where there is no decision."""
        names, path, space = getattr(self.columns, part), f"columns.{part}", self.space
        if names is None:
            return None
        if isinstance(space, Box):
            raise ConfigError.at(path, f"expected null (the actions are vectors of numbers), got {', '.join(names)}")
        found = self.shaped(self.flags(names, path, over), path, (space.num_flags,))
        flags, is_exempt = torch.from_numpy(found), False if over is None else over[:, None]
        if self.game.always_legal:
            self.require(found | is_exempt, path, "only 1 (every action of the game is legal)", found)
            return None
        can_choose = torch.stack([each.any(dim=1) for each in space.split(flags)], dim=1).numpy()
        self.require(can_choose | is_exempt, path, "a legal action for every choice", found)
        return flags

    def observation(self, part: str, over: Array | None) -> Observation:
        """Return the observations, the game's own, on the CPU. over: rows where there may be none."""
        spaces, named, path = self.game.spaces[self.role], getattr(self.columns, part), f"columns.{part}"
        if spaces.keys() != named.keys():
            expected = f"expected columns for the entries {', '.join(spaces)} of the observation"
            raise ConfigError.at(path, f"{expected}, got some for {', '.join(named) or 'none'}")
        return {name: self.entry(name, named[name], f"{path}.{name}", over) for name in spaces}

    def entry(self, name: str, names: Columns, path: str, over: Array | None) -> Tensor:
        outside, space = self.outside.entries[name], self.game.spaces[self.role][name]
        values = self.joined(names, path, over)
        if space.is_image and values.shape[1:] == (*space.shape[1:], space.shape[0]) != outside.shape:
            values = np.moveaxis(values, -1, 1)  # its channels came last
        values = self.shaped(values, path, outside.shape, space.shape)
        if values.shape[1:] == outside.shape:
            typed = self.typed(values, outside.dtype, path)
            try:
                found = self.game.read_entry(self.role, name, typed).cpu()
            except ValueError as error:
                raise ConfigError.at(path, str(error)) from error
        else:
            found = torch.from_numpy(self.typed(values, space.dtype, path)).to(space.dtype)
        self.require_finite(found.numpy(), path, values)
        return found

    def action(self, legal: Tensor) -> Tensor:
        """Return the actions. legal: bool (N, F)."""
        space, outside, path, device = self.space, self.outside, "columns.action", self.game.device
        shape = outside.act(torch.zeros((1, *space.shape), dtype=space.dtype, device=device)).shape[1:]
        values = self.joined(self.columns.action, path)
        if values[0].size == prod(shape):  # of any shape: the game's own may be a vector
            values = values.reshape(self.num, *shape)
        values = self.shaped(values, path, tuple(shape), space.shape)
        typed = torch.from_numpy(self.typed(values, space.dtype, path))
        found = outside.choose(typed.to(device)).to("cpu", space.dtype).view(self.num, *space.shape)
        what = "legal actions"
        if isinstance(space, Box):
            what = f"actions between {space.low} and {space.high}"
            low, high = (torch.tensor(each) for each in (space.low, space.high))
            bounded = found.clamp(low, high)  # what was scaled to the bounds may lie beyond them by a rounding
            found = torch.where((found - bounded).abs() <= ROUNDING * bounded.abs(), bounded, found)
        self.require(is_legal(found, space, legal).numpy(), path, what, values)
        return found

    def numbers(self, names: Columns, path: str) -> Array:
        """Return columns as float32 (N, ...)."""
        values = self.joined(names, path)
        with np.errstate(over="ignore"):
            found = values.astype(np.float32)
        self.require_finite(found, path, values)
        return found

    # ---- columns as arrays -------------------------------------------------------------------------------

    def joined(self, names: Columns, path: str, over: Array | None = None, words: Mapping[str, float] = {}) -> Array:
        """Return a column, or several as one vector (N, ...), of finite numbers.

        over: rows in which numbers may lack; they get zeros. words: which stand for numbers.
        """
        found = []
        if not names:
            raise ConfigError.at(path, "expected at least one column, got []")
        for name in names:
            with below(path):
                column = self.file.column(name)
                if column.dtype == object and column.ndim == 1 and words:
                    cells = [each.strip().lower() for each in column.tolist()]
                    if unknown := [row for row, each in enumerate(cells) if each not in words]:
                        got = f"{cut(repr(column[unknown[0]]))} in row {unknown[0]} (counted from 0)"
                        raise ConfigError.at("", f"expected true or false, or 1 or 0, in {name!r}, got {got}")
                    column = np.array([words[each] for each in cells])
                if column.dtype == object:
                    check_column(name, column, False, "recorded play consists of numbers")
                if len(column) != self.num:
                    raise ConfigError.at("", f"expected {self.num} rows in {name!r}, as in others, got {len(column)}")
            found.append(column)
        joined = np.concatenate([each.reshape(self.num, -1) for each in found], axis=1) if found[1:] else found[0]
        if over is not None and joined.dtype.kind == "f" and not np.isfinite(joined).all():
            lacks, joined = over & ~np.isfinite(joined).reshape(self.num, -1).all(axis=1), joined.copy()
            joined[lacks] = 0
        self.require_finite(joined, path, joined, "0 or 1 in every row" if words else FINITE)
        return np.require(joined, requirements=["C", "W"])

    def flags(self, names: Columns, path: str, over: Array | None = None) -> Array:
        """Return columns of zeros and ones: bool (N, ...)."""
        found = self.joined(names, path, over, FLAGS)
        if found.dtype != bool:
            self.require((found == 0) | (found == 1), path, "0 or 1 in every row", found)
        return found != 0

    def shaped(self, values: Array, path: str, *shapes: tuple[int, ...]) -> Array:
        """Return values in the first of some shapes (N, *shape) that they have, or have as a vector."""
        own = values.shape[1:]
        for shape in shapes:
            if own == shape or (len(own) < 2 and prod(own) == prod(shape)):
                return values.reshape(self.num, *shape)
        wanted = " or ".join(map(str, dict.fromkeys(shapes)))
        raise ConfigError.at(path, f"expected values of shape {wanted} in every row, got {own}")

    def typed(self, values: Array, dtype: torch.dtype, path: str) -> Array:
        """Return values in a type, if it is one of integers, else in one of floats that has their precision."""
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        if dtype.is_floating_point:
            return values if values.dtype in (np.float32, np.float64) else values.astype(np.float64)
        if values.dtype == kind:
            return values
        with np.errstate(invalid="ignore"):
            found = values.astype(kind)
        self.require(found == values, path, f"whole numbers ({kind})", values)
        return found

    def require_finite(self, values: Array, path: str, told: Array, what: str = FINITE) -> None:
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            self.require(np.isfinite(values), path, what, told)

    def require(self, is_sound: Array, path: str, what: str, values: Array) -> None:
        """Raise ConfigError for the first row that is not sound. is_sound: bool (N,) or (N, ...). values: (N, ...)."""
        if not is_sound.all():
            row = int(np.argmin(is_sound.reshape(self.num, -1).all(axis=1)))
            where = "" if self.episode is None else f" of episode {self.episode[row]}"
            got = f"{cut(str(values[row].tolist()))} in row {row}{where} (counted from 0)"
            raise ConfigError.at(path, f"expected {what}, got {got}")
