"""`spaces`: what each role observes and does, and no rules, for players that learn from recorded play alone."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from palestra.config import ByKey, Config, ConfigError, NonEmptyStr, PositiveInt, below, cut
from palestra.data.columns import Column, ColumnsFile
from palestra.games.config import TensorGameConfig
from palestra.games.game import Kernel, Moved, Observation, State, TensorGame
from palestra.games.gymnasium.game import GymnasiumGame
from palestra.games.gymnasium.spaces import told_channels
from palestra.games.spaces import ActionSpace, Box, Discrete, MultiDiscrete, Space
from palestra.randomness import fold, random_floats, world_keys

MOST_CHOICES = 1 << 20  # whole numbers beyond them are taken for quantities
(LONE_ROLE,) = GymnasiumGame.roles  # of a first file, because recorded play names none


class EntryConfig(Config):
    usual: ClassVar = {"padded": False}

    shape: list[PositiveInt]
    """its shape in one observation"""
    dtype: Literal["float32", "uint8"]
    """float32: numbers; uint8: pixels of an image (channels, height, width)"""
    padded: bool
    """whether the first axis lists the members of a set, of which those with a negative number are absent"""

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        if self.padded and (len(self.shape) != 2 or self.dtype != "float32"):
            message = "expected false, or float32 of shape [members, numbers], got true with"
            raise ConfigError.at("padded", f"{message} {self.dtype} of shape {self.shape}")
        return self

    def build(self) -> Space:
        return Space(tuple(self.shape), getattr(torch, self.dtype), self.padded)


class DiscreteConfig(Config):
    discrete: PositiveInt
    """one of so many actions: 0, 1, ..."""

    def build(self) -> ActionSpace:
        return Discrete(self.discrete)


class MultiDiscreteConfig(Config):
    multi_discrete: Annotated[list[PositiveInt], Field(min_length=1)]
    """several choices at once, each among so many"""

    def build(self) -> ActionSpace:
        return MultiDiscrete(tuple(self.multi_discrete))


class BoxConfig(Config):
    low: Annotated[list[float], Field(min_length=1)]
    """the lower bounds of a vector of numbers"""
    high: list[float]
    """its upper bounds"""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if len(self.high) != len(self.low):
            raise ConfigError.at("high", f"expected {len(self.low)} numbers, as many as low, got {len(self.high)}")
        for place, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if not low <= high:
                raise ConfigError.at(f"high.{place}", f"expected a number >= low.{place} = {low:g}, got {high:g}")
        return self

    def build(self) -> ActionSpace:
        return Box(tuple(self.low), tuple(self.high))


class RoleConfig(Config):
    observation: Annotated[dict[NonEmptyStr, EntryConfig], Field(min_length=1)]
    """what it observes, by name"""
    action: Annotated[DiscreteConfig | MultiDiscreteConfig | BoxConfig, ByKey()]
    """what it does"""


class SpacesConfig(TensorGameConfig):
    can_be_played: ClassVar = False
    usual: ClassVar = {"always_legal": True}

    name: Literal["spaces"]
    """roles and spaces alone, as recorded play shows them: players learn from it, and nobody can play"""
    roles: Annotated[dict[NonEmptyStr, RoleConfig], Field(min_length=1)]
    """what each role observes and does"""
    always_legal: bool
    """whether every action is always legal; false: recorded play says which are"""

    def make(self, device: torch.device, kernel: Kernel) -> "SpacesGame":
        return SpacesGame(self, device)


class SpacesGame(TensorGame):
    """Roles and spaces without rules. Whatever would begin to play raises ConfigError."""

    lockstep = True

    def __init__(self, config: SpacesConfig, device: torch.device) -> None:
        self.config, self.device, self.always_legal = config, device, config.always_legal
        self.roles = tuple(config.roles)
        self.moves = (self.roles,)
        self.spaces = {
            role: {name: entry.build() for name, entry in each.observation.items()}
            for role, each in config.roles.items()
        }
        self.action_spaces = {role: each.action.build() for role, each in config.roles.items()}

    def _refuse(self) -> NoReturn:
        message = "expected a game that can be played, got 'spaces', which says what roles observe and do, and no rules"
        raise ConfigError.at("game.name", message)

    def reset(self, keys: Tensor) -> State:
        self._refuse()

    def deciding(self, state: State) -> Tensor:
        self._refuse()

    def observe(self, state: State, role: str) -> Observation:
        self._refuse()

    def transition(self, state: State, actions: dict[str, Tensor], keys: Tensor) -> Moved:
        self._refuse()

    def read_board(self, board: Any) -> State:
        raise ValueError("expected --observation, because the game 'spaces' has no boards, got a board")

    def draw(self, role: str, num: int, key: int) -> Observation:
        """Draw observations of a role at random, (num, *space.shape): numbers from 0 to 1, pixels from 0 to 255.

        They stand in for those of a game where it matters only that they differ.
        """
        found = {}
        for number, (name, space) in enumerate(self.spaces[role].items()):
            drawn = random_floats(fold(world_keys(key, num, self.device), number), int(np.prod(space.shape)))
            drawn = drawn.view(-1, *space.shape)
            found[name] = (drawn * 256).to(space.dtype) if space.dtype == torch.uint8 else drawn
        return found


# ---- as a file shows it --------------------------------------------------------------------------------


def find_spaces(file: ColumnsFile, columns: Mapping[str, Any], role: str) -> dict[str, Any]:
    """Return the key `game` of a first file with the observations and actions of a role, as recorded play shows them.

    columns: which columns say what, as `replay_buffer.columns` has it. Whole numbers from 0 on are choices, of which
    the largest is taken to be the last. Other numbers are bounded by -1 and 1 if none lies outside, else by the
    smallest and the largest one; but a data set of Minari's says what its actions are. Raises ConfigError, with paths
    from `replay_buffer` on, for what is not there or no number.
    """
    observation = {}
    for name, names in columns["observation"].items():
        arrays = _arrays(file, f"observation.{name}", names)
        shape = list(arrays[0].shape[1:]) if len(arrays) == 1 else [_width(arrays)]
        is_image = len(shape) == 3 and arrays[0].dtype == np.uint8
        if is_image and told_channels(*shape) == "last":
            shape = [shape[-1], *shape[:-1]]
        observation[name] = {"shape": shape or [1], "dtype": "uint8" if is_image else "float32", "padded": False}
    actions = _arrays(file, "action", columns["action"])
    num_flags = _width(_arrays(file, "legal", columns["legal"])) if columns["legal"] else None
    action = file.action if columns["action"] == ["action"] else None
    return {
        "name": "spaces",
        "roles": {role: {"observation": observation, "action": action or _action_space(actions, num_flags)}},
        "always_legal": num_flags is None and not columns["next_legal"],
    }


def _action_space(arrays: Sequence[Column], num_flags: int | None) -> dict[str, Any]:
    """Return the action space of recorded actions. num_flags: of legal actions, if the file says which are."""
    numbers = np.concatenate([each.reshape(len(each), -1) for each in arrays], axis=1)
    low, high = numbers.min(axis=0).astype(float), numbers.max(axis=0).astype(float)
    may_be_choices = all(each.ndim == 1 or each.dtype.kind in "iub" for each in arrays)
    if may_be_choices and 0 <= low.min() <= high.max() < MOST_CHOICES and bool((numbers == np.floor(numbers)).all()):
        nums = [int(largest) + 1 for largest in high]
        is_one = len(arrays) == 1 and arrays[0].ndim == 1
        return {"discrete": num_flags or nums[0]} if is_one else {"multi_discrete": nums}
    if low.min() >= -1.0 and high.max() <= 1.0:
        low, high = np.full_like(low, -1.0), np.full_like(high, 1.0)
    return {"low": low.tolist(), "high": high.tolist()}


def _arrays(file: ColumnsFile, key: str, names: Sequence[str]) -> list[Column]:
    """Return columns of finite numbers. key: below `columns`, for errors."""
    found = []
    with below(f"replay_buffer.columns.{key}"):
        for name in names:
            if name not in file.names:
                raise ConfigError.at("", f"expected columns of the file ({', '.join(file.names)}), got {name!r}")
            found.append(column := file.column(name))
            if column.dtype.kind not in "biuf" or not column.size:
                raise ConfigError.at(
                    "", f"expected numbers in the column {name!r}, got {'texts' if column.size else 'none'}"
                )
            if len(column) != len(found[0]):
                told = f"expected {len(found[0])} rows in {name!r}, as in {names[0]!r}, got {len(column)}"
                raise ConfigError.at("", told)
            if not (is_sound := np.isfinite(column).reshape(len(column), -1).all(axis=1)).all():
                got = f"{cut(str(column[row := int(np.argmin(is_sound))]))} in row {row} (counted from 0)"
                raise ConfigError.at("", f"expected finite numbers in the column {name!r}, got {got}")
        if not found:
            raise ConfigError.at("", "expected at least one column, got []")
    return found


def _width(arrays: Sequence[Column]) -> int:
    return sum(int(np.prod(each.shape[1:])) for each in arrays)
