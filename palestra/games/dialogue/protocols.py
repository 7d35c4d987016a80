"""The protocols by name. To register one, add its config to AnyProtocolConfig."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import model_validator

from palestra.config import ByName, ConfigError, PositiveInt, UserConfig
from palestra.games.dialogue.protocol import ACCEPT, REJECT, Protocol, ProtocolConfig

TWO, THREE = ("prover", "verifier"), ("prover0", "prover1", "verifier")
Channels = Mapping[str, tuple[str, ...]]
ONE_CHANNEL: Channels = {"main": TWO}
ONE_CHANNEL_FOR_THREE: Channels = {"main": THREE}
PUBLIC_CHANNELS: Channels = {"prover0": THREE, "prover1": THREE}
PRIVATE_CHANNELS: Channels = {"prover0": ("prover0", "verifier"), "prover1": ("prover1", "verifier")}
ACCEPTING = {"prover": ACCEPT}
DRAWN = {"prover": (REJECT, ACCEPT)}  # by variant
OPPOSED = {"prover0": REJECT, "prover1": ACCEPT}
BOTH_ACCEPTING = {"prover0": ACCEPT, "prover1": ACCEPT}
NONE: Mapping[str, Any] = {}

# ---- a prover and a verifier -------------------------------------------------------------------------------


class LoneProver(Protocol):
    """Base of the protocols with one prover, who argues for accepting, or for a side that a coin draws."""

    roles = TWO
    verifiers = ("verifier",)
    channels = ONE_CHANNEL
    sides: Mapping[str, int | tuple[int, ...]] = ACCEPTING

    def __init__(self, config: "LoneProverConfig", min_rounds: int, max_rounds: int) -> None:
        super().__init__(config, min_rounds, max_rounds)
        if config.stance == "drawn":
            self.sides, self.num_variants = DRAWN, len(DRAWN["prover"])


class LoneProverConfig(ProtocolConfig):
    usual: ClassVar[Any] = {"stance": "accept"}

    stance: Literal["accept", "drawn"]
    """for which verdict the prover argues: accept; drawn: for every game a fair coin says which, and the prover sees it
    as `side`"""


class Nip(LoneProver):
    """A prover and a verifier take turns (Hammond & Adam-Day 2025)."""

    def __init__(self, config: "NipConfig") -> None:
        super().__init__(config, config.min_rounds, config.max_rounds)

    def speaks(self, role: str, channel: str, round: int, variant: int) -> bool:
        return (role == self.config.first) == (round % 2 == 0)


class NipConfig(LoneProverConfig):
    made = Nip
    usual: ClassVar[Any] = {"first": "verifier", "min_rounds": 1, "max_rounds": 8}

    name: Literal["nip"]
    """a prover and a verifier take turns"""
    first: Literal["verifier", "prover"]
    """who speaks in the first round"""
    min_rounds: PositiveInt
    """the verifier cannot decide before so many rounds"""
    max_rounds: PositiveInt
    """the dialogue is over after so many rounds, with or without a decision"""


class Adp(LoneProver):
    """The prover sends one message, the verifier decides (Anil et al. 2021)."""

    def __init__(self, config: "AdpConfig") -> None:
        super().__init__(config, min_rounds=1, max_rounds=2)

    def speaks(self, role: str, channel: str, round: int, variant: int) -> bool:
        return role == self.roles[round]


class AdpConfig(LoneProverConfig):
    made = Adp

    name: Literal["adp"]
    """the prover sends one message, then the verifier decides"""


# ---- two provers and a verifier ----------------------------------------------------------------------------


class MerlinArthur(Protocol):
    """A hidden coin picks one of two provers, it sends one message, the verifier decides (Waeldchen et al. 2022)."""

    roles = THREE
    verifiers = ("verifier",)
    channels = ONE_CHANNEL_FOR_THREE
    sides = OPPOSED
    num_variants = 2

    def __init__(self, config: "MerlinArthurConfig") -> None:
        super().__init__(config, min_rounds=1, max_rounds=2)

    def speaks(self, role: str, channel: str, round: int, variant: int) -> bool:
        return role == (self.roles[variant] if round == 0 else "verifier")


class MerlinArthurConfig(ProtocolConfig):
    made = MerlinArthur

    name: Literal["merlin_arthur"]
    """one of two provers, who argue for opposite sides, sends one message; the verifier does not know which, and
    decides"""


class Debate(Protocol):
    """Two provers argue for opposite sides, and all see all messages (Irving et al. 2018)."""

    roles = THREE
    verifiers = ("verifier",)
    channels = PUBLIC_CHANNELS
    sides = OPPOSED

    def __init__(self, config: "TwoProversConfig") -> None:
        super().__init__(config, config.min_rounds, config.max_rounds)

    def speaks(self, role: str, channel: str, round: int, variant: int) -> bool:
        return role in ("verifier", channel) and self._has_turn(role, round)

    def _has_turn(self, role: str, round: int) -> bool:
        verifier_first = self.config.first == "verifier"
        if self.config.order == "at_once":
            return (role == "verifier") == (round % 2 == (0 if verifier_first else 1))
        provers = ["prover0", "prover1"] if self.config.first_prover == "prover0" else ["prover1", "prover0"]
        cycle = ["verifier", *provers] if verifier_first else [*provers, "verifier"]
        return role == cycle[round % 3]


class TwoProversConfig(ProtocolConfig):
    usual: ClassVar = {"order": "at_once", "first": "verifier", "min_rounds": 1, "max_rounds": 8}

    order: Literal["at_once", "in_sequence"]
    """at_once: both provers speak in the same rounds; in_sequence: one after the other"""
    first: Literal["verifier", "provers"]
    """who speaks in the first round"""
    first_prover: Literal["prover0", "prover1"] | None
    """which prover speaks before the other; null with the order at_once"""
    min_rounds: PositiveInt
    """the verifier cannot decide before so many rounds"""
    max_rounds: PositiveInt
    """the dialogue is over after so many rounds, with or without a decision"""

    @model_validator(mode="after")
    def _check_first_prover(self) -> Self:
        if (self.order == "at_once") != (self.first_prover is None):
            expected = "null, because both speak at once" if self.order == "at_once" else "prover0 or prover1"
            got = "null" if self.first_prover is None else repr(self.first_prover)
            raise ConfigError.at("first_prover", f"expected {expected}, got {got}")
        return self


class DebateConfig(TwoProversConfig):
    made = Debate

    name: Literal["debate"]
    """two provers argue for opposite sides, each in a channel of its own that all see; the verifier decides"""


class Mnip(Debate):
    """Two provers, neither of whom sees what the other says, both want the verifier to accept."""

    channels = PRIVATE_CHANNELS
    sides = BOTH_ACCEPTING


class MnipConfig(TwoProversConfig):
    made = Mnip

    name: Literal["mnip"]
    """two provers, neither of whom sees what the other says, both want the verifier to accept"""


# ---- a verifier alone --------------------------------------------------------------------------------------


class SoloVerifier(Protocol):
    """The verifier decides at once, and nobody speaks."""

    roles = ("verifier",)
    verifiers = ("verifier",)
    channels = NONE
    sides = NONE

    def __init__(self, config: "SoloVerifierConfig") -> None:
        super().__init__(config, min_rounds=1, max_rounds=1)

    def speaks(self, role: str, channel: str, round: int, variant: int) -> bool:
        return False

    def is_active(self, verifier: str, round: int, variant: int) -> bool:
        return True


class SoloVerifierConfig(ProtocolConfig):
    made = SoloVerifier

    name: Literal["solo_verifier"]
    """a verifier decides at once, alone"""


AnyProtocolConfig = Annotated[
    NipConfig | AdpConfig | DebateConfig | MnipConfig | MerlinArthurConfig | SoloVerifierConfig | UserConfig,
    ByName(user_class=Protocol),
]
