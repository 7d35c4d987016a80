"""Converts Gymnasium's observations and actions to ours, and back.

Observations become flat dicts of tensors:

| Gymnasium | ours |
|---|---|
| Box | float32 of the same shape; of shape (1,) where it was () |
| Box that is an image: bytes, two to four axes | uint8 (C, H, W); see `_image` |
| Discrete(n) | one-hot float32 (n,) |
| MultiDiscrete | the one-hots of all choices in a row, float32 |
| MultiBinary | float32 of the same shape |
| Dict, Tuple | their entries, named by key or index; what is nested as "a/b" |

An observation that is no Dict or Tuple has the one entry "observation". Actions: Discrete, MultiDiscrete, MultiBinary
(as MultiDiscrete of twos) and Box, of any shape, flattened. Letters: B worlds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium.vector.utils import concatenate, create_empty_array

from palestra.games.spaces import ActionSpace, Box, Discrete, MultiDiscrete, Space

Arrays = dict[str, np.ndarray]
Read = Callable[[np.ndarray], np.ndarray]
Channels = Literal["first", "last"]
MASK = "palestra.action_mask"  # the name under which a mask of legal actions travels with an observation
WHOLE = "observation"  # the name of the one entry of an observation that is no Dict or Tuple


class UnknownChannels(ValueError):
    """The shape of an image does not tell which axis is that of its channels; the message says which image."""


class UnknownSpace(ValueError):
    """An environment has a space of observations or actions that palestra does not support; the message says which."""


@dataclass(frozen=True)
class Entry:
    """One entry of an observation.

    path: its keys in Gymnasium's observation. read: converts a batch of it to a new array (B, *space.shape).

    is_number: whether it holds measured numbers, which may be normalised. has_channels: whether it is an image with an
    axis of channels. own_dtype: of what `read` gives of numbers where it keeps their precision; else float32.
    """

    name: str
    path: tuple[Any, ...]
    space: Space
    read: Read
    is_number: bool
    has_channels: bool
    own_dtype: np.dtype


class ObservationReader:
    """Converts batches of Gymnasium's observations.

    entries: in the order of the space. read_whole: converts an observation that is no Dict or Tuple; None for those
    that are. keeps_precision: whether numbers that float32 cannot hold are read as float64 or integers of 64 bits, as
    those that are to be normalised. channels: where the channels of images are; None: where their shapes tell.
    has_channels: whether there is an image that has an axis of them. mask: the name of the entry that is none of
    `entries`, but read as MASK, bool (B, flags): the legal actions. Raises UnknownSpace for a space that palestra does
    not support, and UnknownChannels.
    """

    def __init__(
        self, space: gymnasium.Space, channels: Channels | None, keeps_precision: bool = False, mask: str | None = None
    ) -> None:
        self.gym_space = space
        entries = list(_entries(space, (), channels, keeps_precision))
        self.entries = [entry for entry in entries if entry.name != mask]
        self.mask = next((entry for entry in entries if entry.name == mask), None)
        self.has_channels = any(entry.has_channels for entry in self.entries)
        if not (names := [entry.name for entry in self.entries]):
            raise UnknownSpace("expected an observation with at least one entry, got an empty space")
        for entry in self.entries:
            if names.count(entry.name) > 1:
                raise UnknownSpace(
                    f"expected different names for the entries of the observation, got {entry.name!r} twice"
                )
            if 0 in entry.space.shape:
                raise UnknownSpace(f"expected numbers in observation {entry.name!r}, got shape {entry.space.shape}")
        self.read_whole = self.entries[0].read if self.entries[0].path == () else None

    def read(self, observations: Any) -> Arrays:
        """Convert observations of a vector environment to new arrays (B, *space.shape) by entry."""
        if self.read_whole is not None:
            return {WHOLE: self.read_whole(observations)}
        found = {entry.name: entry.read(part_of(observations, entry)) for entry in self.entries}
        if self.mask is not None:
            found[MASK] = np.array(part_of(observations, self.mask)) != 0
        return found

    def is_single(self, observation: Any) -> bool:
        """Tell one observation from a batch of them. Raises ValueError for what has the shape of neither."""
        singles = [self._is_single(entry, observation) for entry in self.entries]
        if len({*singles}) > 1:
            names = ", ".join(repr(entry.name) for entry, single in zip(self.entries, singles, strict=True) if single)
            raise ValueError(
                f"expected an observation or a batch of them, got a batch in which {names} has no batch axis"
            )
        return singles[0]

    def _is_single(self, entry: Entry, observation: Any) -> bool:
        expected = f"expected an observation of {self.gym_space}, or a batch of them, got"
        part, space = observation, self.gym_space
        try:
            for key in entry.path:
                part, space = part[key], space[key]  # type: ignore[index]
            got = np.shape(part)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            without = f" without {entry.name!r}" if entry.path else ""
            hint = "; env.reset() gives (observation, info)" if isinstance(observation, tuple) else ""
            raise ValueError(f"{expected} a {type(observation).__name__}{without}{hint}") from error
        shape = space.shape or ()
        if len(got) not in (len(shape), len(shape) + 1) or got[len(got) - len(shape) :] != shape:
            which = "one" if entry.path == () else repr(entry.name)
            raise ValueError(f"{expected} {which} of shape {got}")
        return len(got) == len(shape)

    def read_list(self, observations: Sequence[Any]) -> Arrays:
        """Convert a list of single observations as `read` does."""
        if self.read_whole is not None:
            return {WHOLE: self.read_whole(np.asarray(observations))}
        batch: Any = create_empty_array(self.gym_space, len(observations), np.empty)
        return self.read(concatenate(self.gym_space, observations, batch))


def part_of(observations: Any, entry: Entry) -> Any:
    for key in entry.path:
        observations = observations[key]
    return observations


def _entries(
    space: gymnasium.Space, path: tuple[Any, ...], channels: Channels | None, keeps_precision: bool
) -> Iterator[Entry]:
    if isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        for key, below in space.items() if isinstance(space, gymnasium.spaces.Dict) else enumerate(space):
            yield from _entries(below, (*path, key), channels, keeps_precision)
        return
    name = "/".join(map(str, path)) or WHOLE
    shape, dtype, is_number, read = _leaf(space, name, channels)
    has_channels = dtype == torch.uint8 and len(space.shape or ()) > 2
    own_dtype = _own_dtype(space) if keeps_precision and is_number else np.dtype(np.float32)
    if is_number:
        read = partial(_numbers if space.shape else _scalars, dtype=own_dtype)
    yield Entry(name, path, Space(shape, dtype, padded=False), read, is_number, has_channels, own_dtype)


def _own_dtype(space: gymnasium.Space) -> np.dtype:
    """Return the smallest of float32, float64 and, if both are too short, the space's own that holds its numbers."""
    own = np.dtype(space.dtype)
    if own in (np.int64, np.uint64):
        return own
    return np.dtype(np.float32) if np.can_cast(own, np.float32) else np.dtype(np.float64)


def _leaf(
    space: gymnasium.Space, name: str, channels: Channels | None
) -> tuple[tuple[int, ...], torch.dtype, bool, Read]:
    match space:
        case gymnasium.spaces.Box():
            if space.dtype == np.uint8 and 2 <= len(space.shape) <= 4:
                shape, read = _image(space.shape, name, channels)
                return shape, torch.uint8, False, read
            return (space.shape or (1,)), torch.float32, True, _numbers
        case gymnasium.spaces.Discrete():
            num, start = int(space.n), int(space.start)
            return (num,), torch.float32, False, partial(_one_hot, num=num, start=start)
        case gymnasium.spaces.MultiDiscrete():
            nums, starts = space.nvec.flatten(), space.start.flatten()
            return (int(nums.sum()),), torch.float32, False, partial(_one_hots, nums=nums, starts=starts)
        case gymnasium.spaces.MultiBinary():
            return space.shape, torch.float32, False, _numbers
    kinds = "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    raise UnknownSpace(f"expected {kinds} as observation {name!r}, got {type(space).__name__}")


def _numbers(batch: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
    return np.asarray(batch).astype(dtype, order="C")


def _scalars(batch: np.ndarray, dtype: Any) -> np.ndarray:
    return np.array(batch, dtype=dtype).reshape(-1, 1)


def _one_hot(batch: np.ndarray, num: int, start: int) -> np.ndarray:
    choices = np.asarray(batch) - start
    hot = np.zeros((len(choices), num), dtype=np.float32)
    hot[np.arange(len(choices)), choices] = 1.0
    return hot


def _one_hots(batch: np.ndarray, nums: np.ndarray, starts: np.ndarray) -> np.ndarray:
    choices = np.asarray(batch).reshape(len(batch), -1) - starts
    hot = np.zeros((len(choices), int(nums.sum())), dtype=np.float32)
    np.put_along_axis(hot, choices + (np.cumsum(nums) - nums), 1.0, axis=1)
    return hot


def _image(shape: tuple[int, ...], name: str, channels: Channels | None) -> tuple[tuple[int, ...], Read]:
    """Return the shape (C, H, W) of an image, and what converts a batch to it.

    (H, W) has one channel; of four axes the first is that of a stack, whose frames become further channels. Raises
    UnknownChannels.
    """
    if len(shape) == 2:
        return (1, *shape), partial(_channels_first, order=(0, 1, 2), shape=(1, *shape))
    *stack, a, b, c = shape
    if (told := channels or told_channels(a, b, c)) is None:
        raise UnknownChannels(
            f"expected first or last, because the shape {shape} of the image {name!r} does not tell which of its axes "
            "is that of the channels, got null"
        )
    is_last = told == "last"
    num, rest = (c, (a, b)) if is_last else (a, (b, c))
    axes = len(shape)
    order = (*range(axes - 2), axes, axes - 2, axes - 1) if is_last else tuple(range(axes + 1))
    new_shape = (num * (stack[0] if stack else 1), *rest)
    return new_shape, partial(_channels_first, order=order, shape=new_shape)


def told_channels(a: int, b: int, c: int) -> Channels | None:
    """Say where the axis of the channels of an image (a, b, c) is, if its shape tells; else None.

    It is shorter than both others, and either it has the length of grey, colours or colours with opacity, as the other
    end has not, or it is at most half as long as they are.
    """
    is_usual = [length in (1, 3, 4) for length in (a, c)]
    if (a < min(b, c)) and (is_usual == [True, False] or 2 * a <= min(b, c)):
        return "first"
    if (c < min(a, b)) and (is_usual == [False, True] or 2 * c <= min(a, b)):
        return "last"
    return None


def _channels_first(batch: np.ndarray, order: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    return np.array(np.asarray(batch).transpose(order), order="C").reshape(-1, *shape)


# ---- actions -----------------------------------------------------------------------------------------


def action_space(space: gymnasium.Space) -> tuple[ActionSpace, Callable[[np.ndarray], np.ndarray]]:
    """Return our action space for one of Gymnasium's, and what converts a batch of our actions (B, ...) to Gymnasium's.

    Raises UnknownSpace for a space that palestra does not support.
    """
    match space:
        case gymnasium.spaces.Discrete():
            start = int(space.start)
            return Discrete(int(space.n)), (lambda actions: actions + start) if start else _same
        case gymnasium.spaces.MultiDiscrete():
            nums = tuple(int(num) for num in space.nvec.flatten())
            return MultiDiscrete(nums), partial(_choices, start=space.start, shape=space.shape, dtype=space.dtype)
        case gymnasium.spaces.MultiBinary():
            nums = (2,) * int(np.prod(space.shape))
            return MultiDiscrete(nums), partial(_choices, start=np.int8(0), shape=space.shape, dtype=space.dtype)
        case gymnasium.spaces.Box() if np.issubdtype(space.dtype, np.floating):
            low, high = (tuple(float(v) for v in bound.flatten()) for bound in (space.low, space.high))
            if len(space.shape) == 1 and space.dtype == np.float32:
                return Box(low, high), _same
            return Box(low, high), partial(_reshaped, shape=space.shape, dtype=space.dtype)
    kinds = "Discrete, MultiDiscrete, MultiBinary or a Box of floats"
    raise UnknownSpace(f"expected {kinds} as actions, got {space}")


def _same(actions: np.ndarray) -> np.ndarray:
    return actions


def _choices(actions: np.ndarray, start: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return (actions.reshape(-1, *shape) + start).astype(dtype)


def _reshaped(actions: np.ndarray, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return actions.reshape(-1, *shape).astype(dtype)
