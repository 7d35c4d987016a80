"""Spaces of observations and actions: their shapes are without the axis of worlds.

Letters: B worlds, K choices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from palestra.randomness import fold, random_choice


@dataclass(frozen=True)
class Space:
    """One entry of an observation, with its shape in one world.

    `padded`: the entry is a set, its first axis lists the members, and rows with a negative entry are absent.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    padded: bool

    @property
    def empty(self) -> int:
        """The number that fills an observation after the end of a game: a set without members (-1), else zeros."""
        return -1 if self.padded else 0

    @property
    def is_image(self) -> bool:
        """Tell whether it holds pixels, uint8 (C, H, W), which networks divide by 255."""
        return self.dtype == torch.uint8 and len(self.shape) == 3 and not self.padded


def entries_in_words(spaces: Mapping[str, Space]) -> str:
    """Name the entries of an observation in their order, with types and shapes: points float32 (20, 3)."""
    kinds = {name: str(each.dtype).removeprefix("torch.") for name, each in spaces.items()}
    return ", ".join(f"{name} {kinds[name]} {each.shape}" for name, each in spaces.items())


class Choices:
    """Base of spaces of choices, the k-th among nums[k]. Masks of legal actions: bool (B, num_flags)."""

    nums: tuple[int, ...]

    dtype = torch.int64

    @property
    def num_flags(self) -> int:
        """The width of a mask of legal actions, which has those of one choice after the other."""
        return sum(self.nums)

    def split(self, flags: Tensor) -> tuple[Tensor, ...]:
        """Split masks, or other tensors of that width (B, num_flags), into those of each choice."""
        return flags.split(list(self.nums), dim=1)

    def join(self, choices: Sequence[Tensor]) -> Tensor:
        """Join the choices, (B,) each, to actions."""
        return torch.stack(list(choices), dim=1)

    def draw(self, keys: Tensor, legal: Tensor) -> Tensor:
        """Draw legal actions, each with the same probability. keys: int64 (B,). legal: bool (B, num_flags)."""
        return self.join([random_choice(fold(keys, k), flags) for k, flags in enumerate(self.split(legal))])


@dataclass(frozen=True)
class Discrete(Choices):
    """One of `num` actions: int64 (B,). Masks of legal actions: bool (B, num)."""

    num: int

    shape = ()

    @property
    def nums(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.num,)

    def join(self, choices: Sequence[Tensor]) -> Tensor:
        return choices[0]

    def draw(self, keys: Tensor, legal: Tensor) -> Tensor:
        return random_choice(keys, legal)


@dataclass(frozen=True)
class MultiDiscrete(Choices):
    """Several choices at once, the k-th among nums[k]: int64 (B, K).

    Masks: bool (B, sum(nums)), one choice after the other.
    """

    nums: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.nums),)


@dataclass(frozen=True)
class Box:
    """A vector of numbers within bounds: float32 (B, len(low)).

    A number whose bounds are equal is fixed. There is nothing to mask: bool (B, 0).
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    dtype = torch.float32
    num_flags = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.low),)

    @property
    def is_bounded(self) -> bool:
        """Tell whether each number is fixed, or the distance of its bounds is finite in float32."""
        low, high = (torch.tensor(bound, dtype=torch.float32) for bound in (self.low, self.high))
        return bool(((high >= low) & (high - low).isfinite()).all())


ActionSpace = Discrete | MultiDiscrete | Box


@dataclass(frozen=True)
class RoleSpaces:
    """The spaces of a role, by which parts choose the values that a first file gives them.

    critic: the entries that the game shows critics alone.
    """

    observation: dict[str, Space]
    action: ActionSpace
    critic: dict[str, Space]

    def with_entries(self, entries: dict[str, Space]) -> "RoleSpaces":
        """Return the spaces of a network that observes these entries, too."""
        return replace(self, observation=self.observation | entries)

    def with_action(self) -> "RoleSpaces":
        """Return the spaces of a critic, which observes the action, too, where that is a vector of numbers."""
        is_box = isinstance(self.action, Box)
        return self.with_entries({"action": Space(self.action.shape, torch.float32, padded=False)} if is_box else {})


def best_choice(values: Tensor, legal: Tensor) -> Tensor:
    """Return the legal choice that ranks highest, also where all legal ones have -inf: int64 (B,).

    values: float (B, K). legal: bool (B, K). Rows without a legal choice give 0.
    """
    return values.clamp(min=torch.finfo(values.dtype).min).masked_fill(~legal, -torch.inf).argmax(dim=1)
