"""A game told move by move, and its positions as pictures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Choice:
    """What a role chose, and in which state of its world: tensors without the axis of worlds."""

    role: str
    state: dict[str, Tensor]
    action: Tensor


@dataclass(frozen=True)
class Trace:
    """A game from its start on. choices: in order. end: the last state. is_finished: it ended by the rules."""

    choices: tuple[Choice, ...]
    end: dict[str, Tensor]
    length: int
    is_finished: bool


@dataclass(frozen=True)
class PictureStyle:
    """How to draw: colours as matplotlib takes them. ink: of texts and thin lines; series: of what is told apart."""

    ink: str
    series: Sequence[str]
    font_size: float


@dataclass(frozen=True)
class Scene:
    """A position of a game as a picture. description: what a reader is told who does not see it. paint: draws it into a
    matplotlib Figure."""

    title: str
    caption: str
    description: str
    paint: Callable[[Any, PictureStyle], None]


@dataclass(frozen=True)
class Storyboard:
    """A game as pictures, from its first position to its last. legend: what the pictures show, in a sentence."""

    legend: str
    scenes: Sequence[Scene]
