"""What an analysis is: it judges decisions of stored dialogues, each by a number."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from palestra.games.dialogue.protocol import Protocol
from palestra.storage.disk import Folder
from palestra.text.rollouts import DecisionRow

Dialogue = Sequence[DecisionRow]


@dataclass(frozen=True)
class Judgement:
    """What an analysis says of a decision.

    value: a number, of which means are taken; None: it cannot say. words: what it has to say besides, for people; the
    whole answer of a model that was asked.
    """

    row: DecisionRow
    value: float | None
    words: str | None = None


class Analysis(ABC):
    """Judges the decisions of stored dialogues. It is made with its config and the protocol of the run.

    Must be implemented: `judge`. An analysis of your own carries its keys as `Config`, a UserConfig.
    """

    def __init__(self, config: Any, protocol: Protocol) -> None:
        self.config, self.protocol = config, protocol

    @abstractmethod
    def judge(self, dialogue: Dialogue) -> list[Judgement]:
        """Judge decisions of one dialogue: those about which there is something to say. They are ordered by `node`."""

    def judge_all(self, dialogues: Sequence[Dialogue]) -> list[list[Judgement]]:
        """Judge several dialogues, which is quicker where a model is asked."""
        return [self.judge(each) for each in dialogues]

    def judged_by(self) -> dict[str, Any]:
        """Return the keys of the config on which judgements depend: what others have judged does not mix with them."""
        return self.config.model_dump(mode="json")

    def base(self) -> str | None:
        """Return the SHA-256 of what judges besides the config, such as the weights of a model; None: nothing does."""
        return None

    def working(self, calls: Folder, name: str) -> AbstractContextManager[None]:
        """Return a context in which the analysis judges. Raises ConfigError, RunFolderError.

        calls: the folder in which its calls to a server are kept, if it makes any. name: of the file there.
        """
        return nullcontext()

    def costs(self) -> str | None:
        """Say what it has cost so far; None: nothing."""
        return None

    def kind(self, role: str) -> str:
        """Return what a role is: prover or verifier."""
        return "verifier" if role in self.protocol.verifiers else "prover"


def messages_of(dialogue: Dialogue) -> list[DecisionRow]:
    """Return the decisions of a dialogue that are messages, not verdicts."""
    return [row for row in dialogue if row.verdict is None]
