"""Advantages of a roll-out's decisions (Schulman et al. 2016), and the rows that an actor-critic learns from."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from palestra.games.policy import Memory
from palestra.nets.recurrent import NamedNet
from palestra.players.player import Player
from palestra.rollouts.transitions import Transitions
from palestra.runtime.device import moved

# Letters: M rows of a roll-out; T decisions of each of W sequences.

REMEMBERED = "memory."  # before the names of a memory, where it lies among the extras of a decision

# ---- rows ------------------------------------------------------------------------------------------------


class Experience(NamedTuple):
    """W sequences of T decisions that follow each other: row t * W + w is decision t of sequence w.

    For networks without a memory every row is a sequence of its own: T = 1.

    memory: before the first decisions, by name, (W, ...). episode_start: bool (T, W), where the memory is set to zeros.
    All others are (T * W, ...). action: as the policy drew it, before a box clipped or squashed it. log_prob, value:
    when the roll-out was collected. value_target: what the value should have been. weight: the row's weight in a mean,
    0.0 where it does not count. role: the role that decided, by its place among the player's roles, int64.
    """

    observation: dict[str, Tensor]
    memory: Memory
    episode_start: Tensor
    legal: Tensor
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    value_target: Tensor
    weight: Tensor
    role: Tensor

    def minibatch(self, index: Tensor) -> "Experience":
        """Return some sequences, in the order of `index`."""
        observation, memory, episode_start, *columns = self
        steps = torch.arange(len(episode_start), device=index.device).unsqueeze(1)
        rows = (steps * episode_start.shape[1] + index).flatten()
        return Experience(
            {name: entry.index_select(0, rows) for name, entry in observation.items()},
            {name: entry.index_select(0, index) for name, entry in memory.items()},
            episode_start.index_select(1, index),
            *(column.index_select(0, rows) for column in columns),
        )

    def weight_of(self, index: Tensor) -> Tensor:
        """Return the weights of the rows of some sequences, (T, their number)."""
        return self.weight.view(self.episode_start.shape).index_select(1, index)

    def by_role(self, roles: Sequence[str]) -> "dict[str, Experience]":
        """Return, by role of the player, all rows, of which only those of the role count."""
        if len(roles) == 1:
            return {roles[0]: self}
        return {
            role: self._replace(weight=self.weight * (self.role == place).to(self.weight.dtype))
            for place, role in enumerate(roles)
        }

    def normalized(self, normalize_advantages: bool) -> "Experience":
        """Scale the weights so that they sum to 1, and, if asked for, advantages to mean 0 and standard deviation 1."""
        batch = self._replace(weight=self.weight / self.weight.sum().clamp(min=1.0))
        if not normalize_advantages:
            return batch
        centered = batch.advantage - batch.mean(batch.advantage)
        return batch._replace(advantage=centered / (batch.mean(centered.square()).sqrt() + 1e-8))

    def mean(self, column: Tensor) -> Tensor:
        """Return the mean over the rows that count, if the weights sum to 1. column: float32 (M,)."""
        return torch.dot(self.weight, column)

    def explained_variance(self) -> Tensor:
        """Return the share of the value targets' variance that the values explain: 1 - Var(error) / Var(target)."""
        rows = self.normalized(normalize_advantages=False)
        error = rows.value_target - rows.value
        variances = [rows.mean((x - rows.mean(x)).square()) for x in (error, rows.value_target)]
        return 1.0 - variances[0] / variances[1].clamp(min=1e-12)

    def to(self, device: torch.device) -> "Experience":
        return Experience(*(moved(column, device) for column in self))


def memory_in(extras: Mapping[str, Tensor]) -> Memory:
    """Return a player's memory at the time of its decisions."""
    return {name.removeprefix(REMEMBERED): value for name, value in extras.items() if name.startswith(REMEMBERED)}


def rows_of_sequences(player: Player, rollout_length: int, num_rows: int) -> list[Tensor]:
    """Return, for every role of the player, the numbers of its rows in a roll-out, (T, W), a world in each column.

    The rows of a roll-out lie round by round, in a round move by move, in a move world by world.
    """
    rows = torch.arange(num_rows, device=player.device).view(rollout_length, len(player.moves), -1)
    places = [[number for number, role in enumerate(player.moves) if role == own] for own in player.roles]
    return [rows[:, place].flatten(0, 1) for place in places]


def side_by_side(sequences: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Put sequences of row numbers, (T, W) each, side by side, with row 0 at the ends of shorter ones.

    Returns the numbers, and where they are not such fillings: (T, W) both.
    """
    longest = max(map(len, sequences))
    columns = [[pad(each, (0, 0, 0, longest - len(each))) for each in (own, torch.ones_like(own))] for own in sequences]
    numbers, exists = (torch.cat(parts, dim=1) for parts in zip(*columns, strict=True))
    return numbers, exists.bool()


def in_sequences(experience: Experience, batch: Transitions, sequences: list[Tensor]) -> Experience:
    """Arrange single rows as the sequences in which they were decided, for networks with a memory.

    sequences: numbers of rows that follow each other, (T, W) each. Rows between them that do not count go to the end.
    """
    rows, exists = side_by_side(sequences)
    valid = batch.valid[rows] & exists
    order = (~valid).to(torch.uint8).argsort(dim=0, stable=True)
    rows, valid = rows.gather(0, order), valid.gather(0, order)
    ended = (batch.terminated | batch.truncated)[rows]
    episode_start = torch.zeros_like(valid)
    episode_start[1:] = ended[:-1] & valid[1:]
    observation, _, _, *columns = experience
    in_order = Experience(
        {name: entry[rows.flatten()] for name, entry in observation.items()},
        {name: entry[rows[0]] for name, entry in memory_in(batch.extras).items()},
        episode_start,
        *(column[rows.flatten()] for column in columns),
    )
    return in_order._replace(weight=valid.flatten().to(torch.float32))  # rows that fill a shorter sequence up


# ---- values of what follows --------------------------------------------------------------------------------


class Sequences(NamedTuple):
    """Columns of decisions that follow each other, W sequences of T, all (T, W).

    next_value: the value of the true next observation; used only where a game was truncated, and at the last valid row
    of a sequence.
    """

    reward: Tensor
    value: Tensor
    next_value: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor

    @classmethod
    def of(cls, batch: Transitions, value: Tensor, critic: NamedNet | None, rows: Tensor) -> "Sequences":
        """Take the rows (T, W) of a roll-out.

        value: of its observations, (M,). critic: its last output is a value; None: all values are 0.
        """
        columns = (batch.reward, value, batch.terminated, batch.truncated, batch.valid)
        reward, value, terminated, truncated, valid = (column[rows] for column in columns)
        if critic is None:
            return cls(reward, value, torch.zeros_like(value), terminated, truncated, valid)
        is_last = valid & (valid.flip(0).cumsum(0).flip(0) == 1)
        is_needed = valid & ~terminated & (truncated | is_last)
        if rows.device.type == "cpu":
            next_value = torch.zeros(rows.shape)
            next_value[is_needed] = next_values(critic, batch, rows[is_needed])
        else:  # a GPU would have to wait to learn where they are needed
            next_value = next_values(critic, batch, rows.flatten()).view_as(rows)
        return cls(reward, value, next_value, terminated, truncated, valid)


def values(critic: NamedNet, observation: Mapping[str, Tensor], memory: Memory) -> Tensor:
    """Return the critic's last output: float32 (rows,)."""
    return critic.step(observation, memory)[0][:, -1]


def values_at_roll_out(critic: NamedNet | None, batch: Transitions) -> Tensor:
    """Return the values of a roll-out's observations, (M,): those that its player kept, else the critic's, else 0."""
    if critic is None:
        return torch.zeros_like(batch.reward)
    extras = batch.extras
    return extras["value"] if "value" in extras else values(critic, batch.observation, memory_in(extras))


def next_values(critic: NamedNet, batch: Transitions, rows: Tensor) -> Tensor:
    """Return the values of the next observations of some rows, by a memory of all observations up to the row."""
    memory: Memory = {}
    if critic.remembers:
        before = {name: value[rows] for name, value in memory_in(batch.extras).items()}
        _, memory = critic.step({name: value[rows] for name, value in batch.observation.items()}, before)
    return values(critic, {name: value[rows] for name, value in batch.next_observation.items()}, memory)


# ---- advantages ----------------------------------------------------------------------------------------


def generalized_advantages(sequences: Sequences, gamma: float, gae_lambda: float) -> Tensor:
    """Return generalized advantages (GAE; Schulman et al. 2016, eq. 16): float32 (T, W).

    Nothing follows a terminated row, and only the value of its next observation follows a truncated one: no advantage
    crosses a reset. Invalid rows are skipped, and have advantage 0.
    """
    advantages = torch.zeros_like(sequences.value)
    ahead, later = torch.zeros_like(sequences.value[0]), torch.zeros_like(sequences.value[0])
    is_last = torch.ones_like(sequences.valid[0])
    for t in reversed(range(len(advantages))):
        reward, value, next_value, terminated, truncated, valid = (column[t] for column in sequences)
        following = torch.where(truncated | is_last, next_value, later + gae_lambda * ahead)
        advantage = reward - value + gamma * torch.where(terminated, 0.0, following)
        advantages[t] = torch.where(valid, advantage, 0.0)
        ahead, later = torch.where(valid, advantage, ahead), torch.where(valid, value, later)
        is_last = is_last & ~valid
    return advantages
