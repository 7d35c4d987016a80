"""`follows_up`: does a verifier's message take up the answer before it? A model is asked."""

from typing import Literal

from palestra.games.dialogue.protocol import Protocol
from palestra.text.analyses.analysis import Dialogue
from palestra.text.analyses.asking import AskingAnalysis, AskingConfig
from palestra.text.rollouts import DecisionRow


class FollowsUpConfig(AskingConfig):
    name: Literal["follows_up"]
    """does a verifier's next message take up the answer before it; a model says"""

    def build(self, protocol: Protocol) -> "FollowsUp":
        return FollowsUp(self, protocol)


class FollowsUp(AskingAnalysis):
    """1: the message takes up what somebody has answered since the verifier's last one; 0: it does not.

    A verifier's first message is judged only if somebody has spoken before.
    """

    def question(self, row: DecisionRow, dialogue: Dialogue) -> str | None:
        own = max((each.round for each in dialogue if each.role == row.role and each.round < row.round), default=-1)
        heard = [each for each in dialogue if each.role != row.role and own <= each.round < row.round]
        if self.kind(row.role) != "verifier" or not any(each.verdict is None for each in heard):
            return None
        return (
            f"{row.role} is a verifier, who questions others. Does the message take up what {row.role} was told last: "
            "does it ask further about that, doubt it, or check it?"
        )
