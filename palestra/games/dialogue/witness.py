"""`witness`: is any of n bits 1? The prover sees all bits, the verifier few. A message points at one bit.

Letters: B worlds, N bits.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from palestra.config import Config, ConfigError, NonNegativeInt
from palestra.games.dialogue.protocol import Protocol
from palestra.games.dialogue.scenario import Instances, Scenario
from palestra.games.spaces import Space
from palestra.randomness import random_bits

MOST_BITS = 30


class WitnessConfig(Config):
    usual: ClassVar[dict[str, Any]] = {"num_bits": 8, "num_seen": 2}

    name: Literal["witness"]
    """is any of n bits 1? A message points at one bit, which a verifier then sees"""
    num_bits: Annotated[int, Field(ge=1, le=MOST_BITS)]
    """n, the number of bits, at most 30"""
    num_seen: NonNegativeInt
    """k, how many of them verifiers see from the start: the first ones"""

    @model_validator(mode="after")
    def _check_seen(self) -> Self:
        if self.num_seen > self.num_bits:
            raise ConfigError.at("num_seen", f"expected at most num_bits ({self.num_bits}), got {self.num_seen}")
        return self

    def build(self, protocol: Protocol, device: torch.device) -> "Witness":
        return Witness(self, protocol, device)


class Witness(Scenario):
    """Instances of N bits, whose label says whether any of them is 1.

    Half of the instances, with label 0, have no bit that is 1; the others are uniform among those that have one. A
    token is the index of a bit. Provers see all bits; verifiers see the first `num_seen`, and every bit at which a
    message in a channel that they see has pointed, whoever sent it.
    """

    def __init__(self, config: WitnessConfig, protocol: Protocol, device: torch.device) -> None:
        super().__init__(config, protocol, device)
        self.num_tokens = config.num_bits
        self.places = torch.arange(config.num_bits, device=device)

    def spaces(self, role: str) -> dict[str, Space]:
        """Return the space of `bits`.

        That of a prover is (N,), 0 or 1; that of a verifier (N, 2), whether it sees a 0 and whether it sees a 1 there.
        """
        N = self.config.num_bits
        return {"bits": Space((N, 2) if role in self.protocol.verifiers else (N,), torch.float32, padded=False)}

    def draw(self, keys: Tensor, held_out: bool) -> tuple[Instances, Tensor]:
        N = self.config.num_bits
        drawn = random_bits(keys, 2) & (2**62 - 1)
        label = drawn[:, 0] & 1
        number = (drawn[:, 1] % (2**N - 1) + 1) * label  # a bias below 2**-32
        return {"bits": (number.unsqueeze(1) >> self.places) & 1}, label

    def view(self, instances: Instances, role: str, messages: Tensor) -> dict[str, Tensor]:
        bits = instances["bits"]
        if role not in self.protocol.verifiers:
            return {"bits": bits.float()}
        pointed = (messages.flatten(1).unsqueeze(2) == self.places).any(dim=1)
        seen = pointed | (self.places < self.config.num_seen)
        return {"bits": torch.stack([seen & (bits == 0), seen & (bits == 1)], dim=2).float()}

    def describe_token(self, token: int) -> str:
        return f"bit {token}"

    def describe_view(self, instances: Instances, role: str, messages: Tensor) -> str:
        bits = self.view(instances, role, messages)["bits"][0]
        if role not in self.protocol.verifiers:
            return "bits " + "".join(str(int(bit)) for bit in bits)
        return "bits " + "".join("0" if is_0 else "1" if is_1 else "?" for is_0, is_1 in bits.tolist())

    def describe(self, instance: Mapping[str, Tensor]) -> str:
        return "bits " + "".join(str(int(bit)) for bit in instance["bits"])
