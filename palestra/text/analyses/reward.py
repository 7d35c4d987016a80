"""`reward`: what did each role get in a dialogue? No model is asked."""

from typing import Literal

from palestra.config import Config
from palestra.games.dialogue.protocol import Protocol
from palestra.text.analyses.analysis import Analysis, Dialogue, Judgement

WORDS = {None: "no verdict", 0: "reject", 1: "accept"}


class RewardConfig(Config):
    name: Literal["reward"]
    """what each role got in a dialogue, with the verdict of a verifier"""

    def build(self, protocol: Protocol) -> "Reward":
        return Reward(self, protocol)


class Reward(Analysis):
    """The reward of each role, at its last decision in the dialogue; of a verifier the words are its verdict."""

    def judge(self, dialogue: Dialogue) -> list[Judgement]:
        last = {row.role: row for row in dialogue}.values()
        return [
            Judgement(row, row.reward, WORDS[row.verdict] if self.kind(row.role) == "verifier" else None)
            for row in sorted(last, key=lambda row: row.node)
        ]
