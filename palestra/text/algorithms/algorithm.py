"""What an algorithm of a text player is: it chooses from roll-outs what the player learns from."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import model_validator
from torch import Tensor

from palestra.config import Config, ConfigError, UserConfig
from palestra.config.errors import listed
from palestra.config.variants import Variants
from palestra.games.dialogue.protocol import Protocol
from palestra.text.models.local import TuningConfig
from palestra.text.models.losses import AnyTextLoss
from palestra.text.rollouts import DecisionRow, Rollouts
from palestra.text.servers.config import ServerTuningConfig


@dataclass(frozen=True)
class ByServerKey(Variants):
    """Chooses how a server tunes by any key that only this has, such as `poll_s`."""

    def choose(self, members: tuple[type[Config], ...], value: dict[str, Any]) -> type[Config]:
        local, server = members
        return server if (server.model_fields.keys() - local.model_fields.keys()) & value.keys() else local

    def describe(self, members: tuple[type[Config], ...]) -> str:
        return "a mapping"


AnyTuningConfig = Annotated[TuningConfig | ServerTuningConfig, ByServerKey()]


class JobConfig(Config):
    """The keys by which an algorithm's examples are learned; those of a class of your own have them, too.

    losses: by which the examples can be learned.
    """

    losses: ClassVar[tuple[str, ...]] = ("supervised", "policy_gradient", "preference")
    usual: ClassVar[dict[str, Any]] = {"loss": "supervised", "begin_from": "before", "tuning": {}}

    loss: AnyTextLoss
    """what is made small"""
    begin_from: Literal["before", "base"]
    """the weights that a job begins with: those of the job before it, or those with which the run began"""
    tuning: AnyTuningConfig
    """the opt steps of a job; of a model behind a server: how the server makes them, and how long it may take"""

    @model_validator(mode="after")
    def _check_loss(self) -> Self:
        if self.loss.name not in self.losses:
            message = f"expected {listed(self.losses)}, by which its examples can be learned, got {self.loss.name!r}"
            raise ConfigError.at("loss.name", message)
        return self

    def most_dialogues(self, num: int) -> int:
        """Return from how many dialogues it learns at most, each as a whole, if there are so many."""
        return num

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for name in JobConfig.__pydantic_fields__:  # behind those of the subclass
            cls.__pydantic_fields__[name] = cls.__pydantic_fields__.pop(name)


class UserAlgorithmConfig(UserConfig, JobConfig):
    """The base of the `Config` of an algorithm of your own."""


class Example(NamedTuple):
    """A decision that a player learns from.

    weight: how much the answer or the pair counts (supervised, preference), or the answer's advantage (policy
    gradient). answer: one that it should have given; None: the one that it gave, by the tokens that were sampled.
    worse: a decision with the same prompt whose answer was less good (preference).
    """

    row: DecisionRow
    weight: float
    answer: str | None = None
    worse: DecisionRow | None = None


class Seat(NamedTuple):
    """What an algorithm knows of its player and of the dialogues.

    player: its name. protocol: that of the dialogues. verdict_words: the answers by which a verifier rejects, and by
    which it accepts.
    """

    player: str
    protocol: Protocol
    verdict_words: tuple[str, str]


class AlgorithmFailed(Exception):
    """An algorithm, or a trainer of the user's own, raises or gives what nobody can learn from."""


class TextAlgorithm(ABC):
    """Chooses from roll-outs what one player learns from.

    Must be implemented: `examples`. May be set: `all_epochs`, whether `examples` gets the roll-outs of every epoch so
    far, or those of this epoch alone; `teacher`, the name of a scripted player, whose answers in the place of the
    player `examples` finds in the roll-outs as `taught`.

    An algorithm of your own carries its keys as `Config`, a UserAlgorithmConfig. `__init__` is called with the config
    and a Seat.
    """

    all_epochs: bool = False
    teacher: str | None = None

    def __init__(self, config: Any, seat: Seat) -> None:
        self.config, self.seat = config, seat

    @abstractmethod
    def examples(self, rollouts: Rollouts, keys: Tensor) -> list[Example]:
        """Return what the player learns from; [] if there is nothing.

        keys: int64 (1,), from which all randomness comes.
        """
