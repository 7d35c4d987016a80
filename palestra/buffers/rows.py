"""RowLayout: the tensors of a row lie side by side in memory, so that the row is read and written at once."""

from collections.abc import Mapping

import torch
from torch import Tensor

BYTES_PER_WORD = 8


class RowLayout:
    """A row of several tensors as one vector of int64 words. Widest types come first, so that each tensor is aligned.

    rows: example rows, every tensor (num, ...), with any num.
    """

    def __init__(self, rows: Mapping[str, Tensor]) -> None:
        self.fields: dict[str, tuple[slice, torch.dtype, torch.Size]] = {}
        start = 0
        for name, value in sorted(rows.items(), key=lambda item: -item[1].dtype.itemsize):
            stop = start + value.shape[1:].numel() * value.dtype.itemsize
            self.fields[name] = (slice(start, stop), value.dtype, value.shape[1:])
            start = stop
        self.num_words = -(-start // BYTES_PER_WORD)

    def views(self, words: Tensor) -> dict[str, Tensor]:
        """Return the tensors by name, as views of words: int64 (num, num_words)."""
        octets = words.view(torch.uint8)
        return {
            name: octets[:, where].view(dtype).view(len(words), *shape)
            for name, (where, dtype, shape) in self.fields.items()
        }
