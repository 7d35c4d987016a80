"""Data sets whose items lie in tensors, of which a batch is read at once."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

LABEL = "label"  # the entry of an item that is to be predicted


class TensorItems(Dataset[dict[str, Tensor]]):
    """Items that are rows of tensors.

    entries: (N, ...) by name. label: int64 (N,) of classes, float32 (N,) or (N, numbers) of numbers;
    None: they have none.

    num_classes: of the labels; None where they are numbers.
    """

    num_classes: int | None = None

    def __init__(self, entries: Mapping[str, Tensor], label: Tensor | None) -> None:
        self.entries = {**entries, **({} if label is None else {LABEL: label})}

    def __len__(self) -> int:
        return len(next(iter(self.entries.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[index] for name, value in self.entries.items()}

    def batch(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """Return the batch of some items, equal to what `torch.utils.data.default_collate` makes of them."""
        rows = torch.tensor(indices)
        return {name: value[rows] for name, value in self.entries.items()}
