"""The returns of the last games that have finished in a batch of worlds, in the order in which they finished.

Letters: M games that may have ended; R roles.
"""

import torch
from torch import Tensor

NUM_RECENT = 100  # in a ring buffer float32 (NUM_RECENT + 1, R), whose last row takes returns that are not stored


def remember(recent: Tensor, num_finished: Tensor, ended: Tensor, returns: Tensor) -> tuple[Tensor, Tensor]:
    """Add the games that have `ended`, bool (M,), in their order; return the new ring buffer and number.

    returns: (M, R). Does not wait for a GPU.
    """
    numbers = num_finished + ended.cumsum(0) - 1
    num_finished = num_finished + ended.sum()
    is_kept = ended & (numbers >= num_finished - NUM_RECENT)
    places = torch.where(is_kept, numbers % NUM_RECENT, NUM_RECENT)
    return recent.index_copy(0, places, returns * is_kept.unsqueeze(1)), num_finished


def in_order(recent: Tensor, num_finished: Tensor) -> Tensor:
    """Give the returns, oldest first: float32 (at most NUM_RECENT, R). Waits for the device."""
    num = int(num_finished)
    return recent[:num] if num <= NUM_RECENT else recent[:-1].roll(-(num % NUM_RECENT), 0)
