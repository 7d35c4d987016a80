"""Rows that may be drawn of a labelled file, by label. Letters: B keys, N rows of the file."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from palestra.config import ConfigError
from palestra.randomness import fold, random_integers


class Split(NamedTuple):
    """Rows that may be drawn. rows: int64, those with label 0 first. starts, counts: int64 (2,), by label."""

    rows: Tensor
    starts: Tensor
    counts: Tensor

    def draw(self, keys: Tensor, balanced: bool) -> Tensor:
        """Draw a row per key, int64 (B,). balanced: both labels are equally likely, not as often as the rows have them.

        keys: int64 (B,).
        """
        if balanced:
            label = random_integers(fold(keys, 0), 1, 2).squeeze(1)
            of_label = random_integers(fold(keys, 1), 1, self.counts[label].unsqueeze(1)).squeeze(1)
            return self.rows[self.starts[label] + of_label]
        return self.rows[random_integers(fold(keys, 1), 1, len(self.rows)).squeeze(1)]


def split_rows(label: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], what: str, device: torch.device) -> Split:
    """Return the wanted rows. label: 0 or 1 (N,). wanted: bool (N,). what: they are, for messages.

    Raises ConfigError, at `held_out`, if they do not have both labels.
    """
    rows = [np.flatnonzero(wanted & (label == each)) for each in (0, 1)]
    counts = [len(each) for each in rows]
    if not all(counts):
        got = f"{counts[0]} with label 0 and {counts[1]} with label 1"
        raise ConfigError.at("held_out", f"expected {what} rows with both labels, got {got}; choose other ones")
    starts = torch.tensor([0, counts[0]], device=device)
    return Split(torch.from_numpy(np.concatenate(rows)).to(device), starts, torch.tensor(counts, device=device))
