"""How one player learns: the base of all algorithms, and what they ask of the trainer."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from palestra.config import Config, ConfigErrorItem
from palestra.games.policy import Policy
from palestra.players.player import Metrics, Player
from palestra.rollouts.transitions import Transitions


class Deterministic(nn.Module):
    """How a player acts without chance: a network, and how its outputs and the legal actions become actions. What
    every choice is worth are the first `num_flags` outputs."""

    def __init__(self, net: nn.Module, choose: Callable[[Tensor, Tensor], Tensor], num_flags: int) -> None:
        super().__init__()
        self.net, self.choose, self.num_flags = net, choose, num_flags
        self.eval()

    def forward(self, observation: dict[str, Tensor], legal: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.net(observation)
        return self.choose(outputs, legal), outputs[:, : self.num_flags]


class Turn(Protocol):
    """What an algorithm asks of the trainer while its player has its turn."""

    def collect(self, num_rounds: int) -> Transitions:
        """Play the player's worlds on; all learning players explore. Counts env steps."""

    def before_step(self) -> None:
        """Call before every opt step, or group of them."""

    def after_step(self, metrics: Metrics, num_opt_steps: int = 1) -> None:
        """Call after every opt step, or group of them whose means the metrics are, when all state lies in objects: it
        counts, and is a safe point."""

    def safe_point(self) -> None:
        """Call anywhere else where all state lies in objects (after a roll-out): evaluation, records, saves and the
        end."""


@dataclass(frozen=True)
class Seat:
    """How often a learning player decides in a round of its worlds. num_turns: the turns in which it may; num_roles:
    the roles in which it sits."""

    num_worlds: int
    num_turns: int
    num_roles: int


class AlgorithmConfig(Config):
    """Base of the configs of algorithms, which stand beside their algorithm and build it."""

    name: str

    def seat_errors(self, seat: Seat) -> list[ConfigErrorItem]:
        """What does not go with the size of the player's roll-outs, with paths below this config."""
        return []

    def build(self, player: Player) -> "Algorithm":
        raise NotImplementedError


def capacity_errors(capacity: int, num_transitions: int) -> list[ConfigErrorItem]:
    """Whether a replay buffer can hold what one roll-out brings, with the path below the algorithm's config."""
    if capacity >= num_transitions:
        return []
    message = (
        f"{capacity} is too small: a roll-out brings up to {num_transitions} transitions; expected at least as many"
    )
    return [ConfigErrorItem("replay_buffer.capacity", message)]


class Algorithm(ABC):
    """How one player learns.

    Must be implemented: `policy`, `learn`, `state_dict`, `load_state_dict`; may be: `module`. `__init__` fills the
    player's `nets`, `optimizers`, `lr_schedule`, `er_schedule`, `replay_buffer`.
    """

    def __init__(self, config: Any, player: Player) -> None:
        self.config = config
        self.player = player

    @abstractmethod
    def policy(self, explore: bool) -> Policy:
        """How the player acts with its present weights; without exploration, its networks are all that counts."""

    def module(self) -> Deterministic:
        """How the player acts without exploration, for `palestra export`: observation (dict of (B, ...)), legal actions
        (B, flags) -> action, and float32 (B, flags), what every choice is worth. NotImplementedError says why not."""
        raise NotImplementedError(f"{type(self).__name__} has no `module`, so its players cannot be exported")

    @abstractmethod
    def learn(self, turn: Turn) -> None:
        """One turn of the player: roll out, sample, update. Re-entrant: a run resumed at any safe point goes on right
        there."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What must be remembered between safe points, beside the player's parts."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
