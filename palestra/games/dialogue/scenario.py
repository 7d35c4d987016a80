"""What a scenario is: labelled instances, the tokens of which messages are made, and what each role sees.

Letters: B worlds, T rounds, C channels.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from palestra.games.dialogue.protocol import Protocol
from palestra.games.game import value_text
from palestra.games.spaces import Space

Instances = dict[str, Tensor]
OWN_ENTRIES = ("messages", "round", "side")  # which the game adds to what a role sees
INSTANCE = "instance."  # before the name of an instance's tensor in a state of the game


def instance_of(state: Mapping[str, Tensor]) -> Instances:
    """Return the tensors of the scenario in a state of the game, by the scenario's names."""
    return {name[len(INSTANCE) :]: value for name, value in state.items() if name.startswith(INSTANCE)}


class Scenario(ABC):
    """Draws labelled instances, which the roles of a protocol talk about.

    Must be set: `num_tokens`, of how many tokens a message is one. May be set: `files`, the SHA-256 of each file that
    instances come from, by its path: a run is not resumed once one of them has changed. Must be implemented: `spaces`,
    `draw`, `view`; may be: `describe_token`, `describe`, `describe_view`. `__init__` is called with the config, the
    protocol and the device. A scenario of your own carries its keys as `Config`, a UserConfig.
    """

    num_tokens: int
    files: Mapping[str, str] = {}

    def __init__(self, config: Any, protocol: Protocol, device: torch.device) -> None:
        self.config, self.protocol, self.device = config, protocol, device

    @abstractmethod
    def spaces(self, role: str) -> dict[str, Space]:
        """Return the spaces of what `view` gives a role, by name; {} if it sees nothing of an instance."""

    @abstractmethod
    def draw(self, keys: Tensor, held_out: bool) -> tuple[Instances, Tensor]:
        """Draw one instance per key: tensors (B, ...) by name, and labels, int64 (B,), 0 or 1.

        keys: int64 (B,), from which all randomness comes (palestra.randomness). held_out: those that training never
        draws, for evaluations; a scenario whose training may draw any instance need not tell them apart.
        """

    @abstractmethod
    def view(self, instances: Instances, role: str, messages: Tensor) -> dict[str, Tensor]:
        """Return what a role sees of the instances, new tensors (B, *space.shape).

        messages: int64 (B, T, C), the tokens in the channels that the role sees, in the order of the protocol; -1 where
        nothing was said.
        """

    def describe_token(self, token: int) -> str:
        """Describe a token as people read it."""
        return str(token)

    def describe(self, instance: Mapping[str, Tensor]) -> str:
        """Describe an instance, tensors without the axis of worlds, as people read it in one line."""
        return "; ".join(f"{name} {value.tolist()}" for name, value in instance.items())

    def describe_view(self, instances: Instances, role: str, messages: Tensor) -> str:
        """Describe what `view` shows a role in one line, for people; of one world, whose axis the tensors have."""
        seen = self.view(instances, role, messages)
        return "; ".join(f"{name} {value_text(value[0])}" for name, value in seen.items()) or "nothing of the instance"
