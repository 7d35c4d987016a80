"""The returns of the last games that have finished in a batch of worlds, in the order in which they have.

Letters: M games that may have ended; R roles.
"""

import torch
from torch import Tensor

NUM_RECENT = 100


def no_recent(num_roles: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The ring of returns, float32 (NUM_RECENT + 1, R), whose last row is for what is not to be kept; and how many
    games have ever finished, int64 ()."""
    return torch.zeros(NUM_RECENT + 1, num_roles, device=device), torch.zeros((), dtype=torch.int64, device=device)


def remember(recent: Tensor, num_finished: Tensor, ended: Tensor, returns: Tensor) -> tuple[Tensor, Tensor]:
    """Ring and count after the games of which `ended`, bool (M,), says so, in their order. returns: (M, R). Does not
    wait for a GPU."""
    numbers = num_finished + ended.cumsum(0) - 1
    num_finished = num_finished + ended.sum()
    is_kept = ended & (numbers >= num_finished - NUM_RECENT)
    places = torch.where(is_kept, numbers % NUM_RECENT, NUM_RECENT)
    return recent.index_copy(0, places, returns * is_kept.unsqueeze(1)), num_finished


def in_order(recent: Tensor, num_finished: Tensor) -> Tensor:
    """The returns, oldest first: float32 (at most NUM_RECENT, R). Waits for the device."""
    num = int(num_finished)
    return recent[:num] if num <= NUM_RECENT else recent[:-1].roll(-(num % NUM_RECENT), 0)
