from typing import Any, ClassVar

import torch

from palestra.config import PositiveInt, UserConfig
from palestra.games.dialogue.protocol import ACCEPT, Protocol, RewardsConfig
from palestra.games.dialogue.scenario import Scenario
from palestra.games.spaces import Space
from palestra.randomness import fold, random_integers


class Telegram(Protocol):
    """A prover sends some messages one after the other, then the verifier decides without a word."""

    class Config(UserConfig):
        usual: ClassVar[Any] = {"num_words": 2, "rewards": {"shared": True}}
        num_words: PositiveInt
        """how many messages the prover sends"""
        rewards: RewardsConfig
        """what verifiers and provers get"""

    roles = ("prover", "verifier")
    verifiers = ("verifier",)
    channels: ClassVar[Any] = {"wire": roles}
    sides: ClassVar[Any] = {"prover": ACCEPT}

    def __init__(self, config):
        super().__init__(config, min_rounds=config.num_words + 1, max_rounds=config.num_words + 1)

    def speaks(self, role, channel, round, variant):
        return role == "prover" and round < self.config.num_words

    def is_active(self, verifier, round, variant):
        return round == self.config.num_words


class Cups(Scenario):
    """Under one of some cups lies a ball; is it red? A message lifts a cup for the verifier."""

    class Config(UserConfig):
        usual: ClassVar[Any] = {"num_cups": 6}
        num_cups: PositiveInt
        """how many cups"""

    def __init__(self, config, protocol, device):
        super().__init__(config, protocol, device)
        self.num_tokens = config.num_cups

    def spaces(self, role):
        return {"cups": Space((self.config.num_cups,), torch.float32, padded=False)}

    def draw(self, keys, held_out):
        is_red = random_integers(fold(keys, 0), 1, 2).squeeze(1)
        cup = random_integers(fold(keys, 1), 1, self.config.num_cups).squeeze(1)
        ball = torch.nn.functional.one_hot(cup, self.config.num_cups)
        return {"cups": ball * (2 * is_red - 1).unsqueeze(1)}, is_red  # 1: a red ball, -1: a blue one

    def view(self, instances, role, messages):
        cups = instances["cups"].float()
        if role not in self.protocol.verifiers:
            return {"cups": cups}
        said = torch.nn.functional.one_hot(messages.flatten(1) + 1, self.num_tokens + 1)[:, :, 1:]
        return {"cups": cups * (said.sum(dim=1) > 0)}
