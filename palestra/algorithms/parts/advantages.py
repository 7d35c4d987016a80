"""PPO's experience: the rows of a roll-out made ready for the passes over them, and their advantages (Schulman et al.
2016)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from palestra.games.policy import Memory
from palestra.rollouts.transitions import Transitions

# Letters: M rows of a roll-out; T decisions of each of W chains or sequences.

REMEMBERED = "memory."  # before the names of a memory, where it lies among the extras of a decision

# ---- rows ------------------------------------------------------------------------------------------------


class Experience(NamedTuple):
    """W sequences of T decisions that follow each other: row t * W + w is decision t of sequence w. To networks without
    a memory every row is a sequence of its own: T = 1.

    memory: before the first decisions, by name, (W, ...). fresh: bool (T, W), where an episode begins, and with it a
    memory of zeros. All others (T * W, ...). choice: what the policy drew, before a box clipped or squashed it.
    log_prob, value: at the roll-out. goal: what the value should have been. weight: of the row in a mean, 0.0 where it
    does not count.
    """

    observation: dict[str, Tensor]
    memory: Memory
    fresh: Tensor
    legal: Tensor
    choice: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    goal: Tensor
    weight: Tensor

    def part(self, index: Tensor) -> "Experience":
        """Some sequences, in the order of `index`."""
        observation, memory, fresh, *columns = self
        steps = torch.arange(len(fresh), device=index.device).unsqueeze(1)
        rows = (steps * fresh.shape[1] + index).flatten()
        return Experience(
            {name: entry.index_select(0, rows) for name, entry in observation.items()},
            {name: entry.index_select(0, index) for name, entry in memory.items()},
            fresh.index_select(1, index),
            *(column.index_select(0, rows) for column in columns),
        )

    def to(self, device: torch.device) -> "Experience":
        def moved(value: Any) -> Any:
            return {name: moved(item) for name, item in value.items()} if isinstance(value, dict) else value.to(device)

        return Experience(*map(moved, self))


class Pace(NamedTuple):
    """The numbers of an opt step that change while a run goes on, as tensors without axes."""

    entropy_coefficient: Tensor
    bound: Tensor  # epsilon of the clipped objective, or the price of divergence


def memory_in(extras: Mapping[str, Tensor]) -> Memory:
    """What a player remembered when it decided."""
    return {name.removeprefix(REMEMBERED): value for name, value in extras.items() if name.startswith(REMEMBERED)}


def in_sequences(experience: Experience, batch: Transitions, chains: list[Tensor]) -> Experience:
    """Rows that are sequences of their own, of a player whose networks remember, as the sequences in which they were
    decided.

    chains: numbers of rows that follow each other, (T, W) each. Rows between them that do not count go to the end.
    """
    longest = max(map(len, chains))
    rows, valid = (
        torch.cat([pad(column[chain], (0, 0, 0, longest - len(chain))) for chain in chains], dim=1)
        for column in (torch.arange(len(batch.valid), device=batch.valid.device), batch.valid)
    )
    order = (~valid).to(torch.uint8).argsort(dim=0, stable=True)
    rows, valid = rows.gather(0, order), valid.gather(0, order)
    ended = (batch.terminated | batch.truncated)[rows]
    fresh = torch.zeros_like(valid)
    fresh[1:] = ended[:-1] & valid[1:]
    observation, _, _, *columns = experience
    in_order = Experience(
        {name: entry[rows.flatten()] for name, entry in observation.items()},
        {name: entry[rows[0]] for name, entry in memory_in(batch.extras).items()},
        fresh,
        *(column[rows.flatten()] for column in columns),
    )
    return in_order._replace(weight=valid.flatten().to(torch.float32))  # what fills a shorter chain up does not count


# ---- advantages ----------------------------------------------------------------------------------------


class Chains(NamedTuple):
    """Decisions that follow each other, W chains of T, all (T, W). next_value: of the true next observation; looked at
    only where a game was truncated, and at the last valid row of a chain."""

    reward: Tensor
    value: Tensor
    next_value: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor


def generalized_advantages(chains: Chains, gamma: float, gae_lambda: float) -> Tensor:
    """GAE (Schulman et al. 2016, eq. 16): float32 (T, W).

    Nothing follows a terminated row, and the value of its next observation alone a truncated one: no advantage crosses
    a reset. Invalid rows are passed over, and have advantage 0.
    """
    if chains.valid.device.type == "cpu":
        arrays: Any = (column.numpy() for column in chains)
        return torch.from_numpy(_loop_over_rows(Chains(*arrays), gamma, gae_lambda))
    return _loop_over_steps(chains, gamma, gae_lambda)


def _loop_over_steps(chains: Chains, gamma: float, gae_lambda: float) -> Tensor:
    advantages = torch.zeros_like(chains.value)
    ahead, later = torch.zeros_like(chains.value[0]), torch.zeros_like(chains.value[0])
    is_last = torch.ones_like(chains.valid[0])
    for t in reversed(range(len(advantages))):
        reward, value, next_value, terminated, truncated, valid = (column[t] for column in chains)
        following = torch.where(truncated | is_last, next_value, later + gae_lambda * ahead)
        advantage = reward - value + gamma * torch.where(terminated, 0.0, following)
        advantages[t] = torch.where(valid, advantage, 0.0)
        ahead, later = torch.where(valid, advantage, ahead), torch.where(valid, value, later)
        is_last = is_last & ~valid
    return advantages


@numba.njit(cache=True, nogil=True)
def _loop_over_rows(chains: Any, gamma: float, gae_lambda: float) -> np.ndarray:
    """The same for a CPU, of a tuple of arrays."""
    num_steps, num_chains = chains.reward.shape
    advantages = np.zeros((num_steps, num_chains), dtype=np.float32)
    ahead, later = np.zeros(num_chains, dtype=np.float32), np.zeros(num_chains, dtype=np.float32)
    is_last = np.ones(num_chains, dtype=np.bool_)
    for t in range(num_steps - 1, -1, -1):
        for w in range(num_chains):
            if chains.valid[t, w]:
                advantage = chains.reward[t, w] - chains.value[t, w]
                if not chains.terminated[t, w]:
                    is_cut = chains.truncated[t, w] or is_last[w]
                    advantage += gamma * (chains.next_value[t, w] if is_cut else later[w] + gae_lambda * ahead[w])
                advantages[t, w] = advantage
                ahead[w], later[w], is_last[w] = advantage, chains.value[t, w], False
    return advantages
