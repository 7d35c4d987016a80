"""A game recorded move by move, and its positions as pictures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Choice:
    """A decision of a role, and the state of its world before it: tensors without the axis of worlds."""

    role: str
    state: dict[str, Tensor]
    action: Tensor


@dataclass(frozen=True)
class Trace:
    """A game from its start on.

    choices: in order. end: the last state. length: rounds played. is_finished: whether it ended by the rules. returns:
    by role.
    """

    choices: tuple[Choice, ...]
    end: dict[str, Tensor]
    length: int
    is_finished: bool
    returns: dict[str, float]


@dataclass(frozen=True)
class PictureStyle:
    """How to draw: colours as matplotlib takes them.

    ink: of texts and thin lines; series: of data, one colour per series.
    """

    ink: str
    series: Sequence[str]
    font_size: float


@dataclass(frozen=True)
class Scene:
    """A position of a game as a picture.

    description: text for readers who cannot see it. paint: draws it into a matplotlib Figure.
    """

    title: str
    caption: str
    description: str
    paint: Callable[[Any, PictureStyle], None]


@dataclass(frozen=True)
class Storyboard:
    """A game as pictures, from its first position to its last. legend: what the pictures show, in a sentence."""

    legend: str
    scenes: Sequence[Scene]


@dataclass(frozen=True)
class Utterance:
    """What a role says or decides in a round.

    channel: where it says it; empty where there is only one, and of a decision. is_decision: whether it ends something.
    detail: what else is told of it. read: what the role has read before.
    """

    round: int
    role: str
    channel: str
    text: str
    is_decision: bool
    detail: str = ""
    read: str = ""


@dataclass(frozen=True)
class Transcript:
    """A game as people read it.

    title: what it is about. kind: a report shows some games of each kind, for instance of each label. roles: of the
    game. deciders: those of them whose utterances a page shows on the other side. end: how it has ended.
    """

    title: str
    kind: str
    roles: tuple[str, ...]
    deciders: tuple[str, ...]
    utterances: tuple[Utterance, ...]
    end: str


@dataclass(frozen=True)
class ShareTable:
    """Shares, 0..1, in rows and columns. shares: a list per row; None where nothing is known."""

    title: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    shares: tuple[tuple[float | None, ...], ...]
