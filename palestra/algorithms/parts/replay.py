"""The base of algorithms that learn from a replay buffer, and the configs of buffers and target networks."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor

from palestra.algorithms.algorithm import Algorithm, Seat
from palestra.buffers.prioritized import PrioritizedReplay, PrioritizedReplayConfig
from palestra.buffers.replay import ReplayBuffer, UniformReplayConfig, UserReplayConfig
from palestra.config import ByName, Config, ConfigErrorItem, Fraction, InBranch, PositiveInt
from palestra.players.player import Player
from palestra.rollouts.n_step import NStepConfig, TransitionBuilder
from palestra.rollouts.transitions import Transitions

AnyReplayConfig = Annotated[
    UniformReplayConfig | PrioritizedReplayConfig | UserReplayConfig,
    ByName(user_class=ReplayBuffer, usual="uniform"),
    InBranch.FIXED,
]


class PolyakConfig(Config):
    usual: ClassVar = {"tau": 0.005, "interval": 1}

    name: Literal["polyak"]
    """target networks move to the networks that learn at every interval"""
    tau: Fraction
    """share of the way; 1.0: a copy"""
    interval: PositiveInt
    """opt steps between moves"""


TargetConfig = Annotated[PolyakConfig, ByName(usual="polyak")]


def replay_errors(config: Any, seat: Seat) -> list[ConfigErrorItem]:
    """Return the error of a replay buffer that is smaller than a roll-out, at its path below the algorithm's config."""
    steps, capacity = config.transitions, config.replay_buffer.capacity
    num_waiting = steps.steps - 1 if isinstance(steps, NStepConfig) else 0
    num = seat.num_worlds * (config.rollout_length * seat.num_moves + num_waiting * seat.num_roles)
    if capacity >= num:
        return []
    message = f"expected at least {num} (a roll-out brings up to so many transitions), got {capacity}"
    return [ConfigErrorItem("replay_buffer.capacity", message)]


class LearnsByReplay(Algorithm):
    """The base of algorithms that learn from rows of a replay buffer.

    `transition_builder` makes rows of roll-outs, and `buffer` holds them. The config of such an algorithm has the keys
    replay_buffer, transitions, gamma, rollout_length and warmup_env_steps.
    """

    def __init__(self, config: Any, player: Player) -> None:
        super().__init__(config, player)
        self.buffer: ReplayBuffer = config.replay_buffer.build(player.device, player.seed, player.own_stream("replay"))
        self.transition_builder: TransitionBuilder = config.transitions.build(
            config.gamma, config.rollout_length, player.moves, player.device
        )
        player.replay_buffer = self.buffer

    def remember(self, experience: Transitions) -> None:
        """Add the rows of a roll-out of the player to the buffer."""
        transitions = self.transition_builder(experience)
        self.buffer.add(transitions.rows(), transitions.valid)

    def is_warming_up(self) -> bool:
        return self.player.env_steps < self.config.warmup_env_steps or self.buffer.is_empty

    @property
    def is_prioritized(self) -> bool:
        """Whether the buffer draws rows by priority."""
        return isinstance(self.buffer, PrioritizedReplay)

    def weighted(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the rows of a sample, with their importance weights if they were drawn by priority."""
        if not isinstance(self.buffer, PrioritizedReplay):
            return dict(rows)
        return {**rows, "extras.weight": self.buffer.importance(self.player.opt_steps)}

    def update_priorities(self, priorities: Tensor | None) -> None:
        """Set the priorities of the rows of the last sample, if the buffer is prioritized."""
        if isinstance(self.buffer, PrioritizedReplay):
            assert priorities is not None
            self.buffer.update_priorities(priorities)

    def forget_waiting(self) -> None:
        self.transition_builder.forget_waiting()

    def state_dict(self) -> dict[str, Any]:
        return {"transition_builder": self.transition_builder.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.transition_builder.load_state_dict(state["transition_builder"])
