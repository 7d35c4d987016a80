"""The base of algorithms that learn from a replay buffer, and the configs of buffers and target networks.

Letters: N decisions.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from palestra.algorithms.algorithm import Algorithm, Seat
from palestra.algorithms.turn import Turn
from palestra.buffers.data_set import DataSetReplay, DataSetReplayConfig
from palestra.buffers.prioritized import PrioritizedReplay, PrioritizedReplayConfig
from palestra.buffers.replay import ReplayBuffer, UniformReplayConfig, UserReplayConfig
from palestra.config import ByName, Config, ConfigErrorItem, InBranch, PositiveInt
from palestra.players.player import Player
from palestra.rollouts.n_step import NStepConfig, TransitionBuilder
from palestra.rollouts.transitions import Transitions, by_tensor

MOST_HELD_OUT = 4096  # rows by which the loss on held-out episodes is told

AnyReplayConfig = Annotated[
    UniformReplayConfig | PrioritizedReplayConfig | DataSetReplayConfig | UserReplayConfig,
    ByName(user_class=ReplayBuffer, usual="uniform"),
    InBranch.FIXED,
]


class PolyakConfig(Config):
    usual: ClassVar = {"tau": 0.005, "interval": 1}

    name: Literal["polyak"]
    """target networks move to the networks that learn at every interval"""
    tau: Annotated[float, Field(gt=0, le=1)]
    """share of the way; 1.0: a copy"""
    interval: PositiveInt
    """opt steps between moves"""


TargetConfig = Annotated[PolyakConfig, ByName(usual="polyak")]


def replay_errors(config: Any, seat: Seat) -> list[ConfigErrorItem]:
    """Return the errors, at paths below the algorithm's config, of a replay buffer that is smaller than a roll-out.

    Of an algorithm that does not play: of a buffer that only play fills, and of env steps before the first opt step.
    """
    if config.rollout_length is None:
        faults, buffer = {}, config.replay_buffer
        if not isinstance(buffer, DataSetReplayConfig):
            faults["rollout_length"] = f"expected an integer >= 1 (only play fills a {buffer.name!r} buffer), got null"
        if config.warmup_env_steps:
            got = f"got {config.warmup_env_steps}"
            faults["warmup_env_steps"] = f"expected 0, because the player does not play (rollout_length: null), {got}"
        return [ConfigErrorItem(key, message) for key, message in faults.items()]
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
        before = player.replay_buffer  # of the algorithm in whose place this one comes
        self.buffer: ReplayBuffer = config.replay_buffer.build(player.device, player.seed, player.own_stream("replay"))
        if isinstance(before, DataSetReplay) and isinstance(self.buffer, DataSetReplay):
            self.buffer.data, self.buffer.held_out = before.data, before.held_out
        self.transition_builder: TransitionBuilder = config.transitions.build(
            config.gamma, config.rollout_length or 1, player.moves, player.device
        )
        player.replay_buffer = self.buffer

    @torch.no_grad()
    def take_data(self, recorded: Transitions, held_out: Tensor) -> None:
        """Take recorded decisions of the player, in the order of time, as a buffer with a data set wants them.

        They are on the CPU. held_out: bool (N,), those from which nothing is learned, all of an episode or none. Raises
        ConfigError, at paths below the algorithm's config, for decisions that do not fit, such as the player's own.
        """
        assert isinstance(self.buffer, DataSetReplay)
        parts = (recorded if each.all() else recorded.at(each.nonzero()[:, 0]) for each in (~held_out, held_out))
        learned, others = map(self._made_of, parts)
        num = len(others["reward"])
        spread = torch.linspace(0, num - 1, min(num, MOST_HELD_OUT), dtype=torch.float64).long()
        self.buffer.take(learned, {name: value[spread] for name, value in others.items()} if len(spread) else None)
        if self.config.rollout_length is not None and (policy := self.policy(explore=True)).observes == "observation":
            zeros, device = torch.zeros(self.player.num_worlds, dtype=torch.int64), self.player.device
            rows = Transitions(**by_tensor(lambda each: each[zeros].to(device), vars(recorded)))
            extras = policy.act(rows.observation, rows.legal, zeros.to(device), {}).extras
            self.buffer.require_fit(self._made_of(replace(rows, extras=extras)))

    def _made_of(self, recorded: Transitions) -> dict[str, Tensor]:
        """Return the rows that the transitions of the config make of recorded decisions: one sequence of a role."""
        num, config, made = len(recorded.valid), self.config, recorded
        if num:
            made = config.transitions.build(config.gamma, num, self.player.moves[:1], recorded.valid.device)(recorded)
        return {name: value if made.valid.all() else value[made.valid] for name, value in made.rows().items()}

    def roll_out(self, turn: Turn) -> None:
        """Play, and add the roll-out to the buffer, unless the player learns from recorded play alone."""
        if self.config.rollout_length is not None:
            for _ in turn.once("roll_out"):
                self.remember(turn.collect(self.config.rollout_length))

    def terms_of_data(self) -> dict[str, float]:
        """Return what a record says of recorded play from which the player learns: {} where there is none."""
        num = 1 if self.player.replica is None else self.player.replica.num  # each draws as many rows
        return {"data_passes": num * self.buffer.passes} if isinstance(self.buffer, DataSetReplay) else {}

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
