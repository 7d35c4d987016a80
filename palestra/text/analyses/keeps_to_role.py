"""`keeps_to_role`: does a message keep to the role of who wrote it? A model is asked."""

from typing import Literal

from palestra.games.dialogue.protocol import Protocol
from palestra.text.analyses.analysis import Dialogue
from palestra.text.analyses.asking import AskingAnalysis, AskingConfig
from palestra.text.rollouts import DecisionRow

DUTIES = {
    "prover": "a prover: it gives reasons for one answer, replies to what it is asked, and leaves the decision to the "
    "verifier",
    "verifier": "a verifier: it asks for reasons, checks them, and decides in the end; it argues for no side, and does "
    "not answer its own questions",
}


class KeepsToRoleConfig(AskingConfig):
    name: Literal["keeps_to_role"]
    """does a message keep to the role: a prover does not decide, a verifier does not argue; a model says"""

    def build(self, protocol: Protocol) -> "KeepsToRole":
        return KeepsToRole(self, protocol)


class KeepsToRole(AskingAnalysis):
    """1: the message keeps to the role; 0: it does not."""

    def question(self, row: DecisionRow, dialogue: Dialogue) -> str:
        return f"{row.role} is {DUTIES[self.kind(row.role)]}. Does the message keep to this role?"
