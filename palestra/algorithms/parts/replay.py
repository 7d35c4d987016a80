"""What algorithms that learn from a replay buffer share: the keys of their memory and of their target networks."""

from typing import Annotated, Literal

from palestra.algorithms.algorithm import Seat
from palestra.buffers.prioritized import PrioritizedReplayConfig
from palestra.buffers.replay import ReplayBuffer, UniformReplayConfig, UserReplayConfig
from palestra.config import ByName, Config, ConfigErrorItem, Fraction, PositiveInt
from palestra.players.player import Player
from palestra.rollouts.n_step import AnyTransitionsConfig, NStepConfig, TransitionBuilder

AnyReplayConfig = Annotated[
    UniformReplayConfig | PrioritizedReplayConfig | UserReplayConfig, ByName(user_class=ReplayBuffer)
]


class PolyakConfig(Config):
    name: Literal["polyak"]
    """target networks move to the networks that learn at every interval"""
    tau: Fraction
    """share of the way; 1.0: a copy"""
    interval: PositiveInt
    """opt steps between moves"""


TargetConfig = Annotated[PolyakConfig, ByName()]


def make_buffer(config: AnyReplayConfig, player: Player) -> ReplayBuffer:
    """The memory of a player."""
    buffer: ReplayBuffer = config.build(player.device, player.seed, f"player/{player.name}/replay")
    return buffer


def make_transition_builder(
    config: AnyTransitionsConfig, gamma: float, rollout_length: int, player: Player
) -> TransitionBuilder:
    """What turns a player's roll-outs into rows of its memory."""
    builder: TransitionBuilder = config.build(gamma, rollout_length, player.moves, player.device)
    return builder


def replay_errors(
    memory: AnyReplayConfig, transitions: AnyTransitionsConfig, rollout_length: int, seat: Seat
) -> list[ConfigErrorItem]:
    """What does not go with the memory of a player whose roll-outs bring more than it holds, with the path below the
    algorithm's config."""
    num_waiting = transitions.steps - 1 if isinstance(transitions, NStepConfig) else 0
    num = seat.num_worlds * (rollout_length * seat.num_moves + num_waiting * seat.num_roles)
    if memory.capacity >= num:
        return []
    message = f"expected at least {num} (a roll-out brings up to so many transitions), got {memory.capacity}"
    return [ConfigErrorItem("replay_buffer.capacity", message)]
