"""What a scenario of text is: labelled questions, what each role sees of them, and what speaks for a verdict."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from palestra.games.dialogue.protocol import DECISIONS, Protocol
from palestra.text.dialogue import Question


class Drawn(NamedTuple):
    """A question that was drawn: texts by name, and the label, 0 or 1."""

    fields: Mapping[str, str]
    label: int


class TextScenario(ABC):
    """Draws labelled questions, which the roles of a protocol talk about.

    Must be set: `fields`, the names of the texts of a question; `sees`, by role those that it sees. May be set:
    `files`, the SHA-256 of each file that questions come from, by its path: a run is not resumed once one of them has
    changed. Must be implemented: `draw`; may be: `argue`, `describe`. `__init__` is called with the config and the
    protocol. A scenario of your own carries its keys as `Config`, a UserConfig.
    """

    fields: Sequence[str]
    sees: Mapping[str, Sequence[str]]
    files: Mapping[str, str] = {}

    def __init__(self, config: Any, protocol: Protocol) -> None:
        self.config, self.protocol = config, protocol

    @abstractmethod
    def draw(self, keys: Tensor, held_out: bool) -> list[Drawn]:
        """Draw one question per key.

        keys: int64 (B,), on the CPU, from which all randomness comes (palestra.randomness). held_out: those that
        training never draws, for evaluations; a scenario whose training may draw any question need not tell them apart.
        """

    def argue(self, question: Question, verdict: int) -> str:
        """Return what scripted players say for a verdict; it must not tell which verdict is right.

        An honest player argues for the label.
        """
        return f"The right answer is to {DECISIONS[verdict]}."

    def describe(self, question: Question) -> str:
        """Describe a question as people read it in one line."""
        return "; ".join(f"{name}: {' '.join(text.split())}" for name, text in question.fields.items())

    def questions(self, keys: Tensor, held_out: bool, first: int = 0) -> list[Question]:
        """Draw questions, numbered from `first` on. keys: as for `draw`."""
        drawn = self.draw(keys, held_out)
        return [Question(number, fields, label) for number, (fields, label) in enumerate(drawn, start=first)]
