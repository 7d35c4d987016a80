"""The smallest buffer that storage can keep: row i holds the number i, so that any mix-up shows."""

import torch
from torch import Tensor

from palestra.storage.records_file import Measure

NONE = Measure([b""]).then()  # no records


class Ring:
    """Rows 0, 1, 2, ... of which the last `capacity` are held; `seed` tells streams apart."""

    def __init__(self, capacity: int, seed: int = 0) -> None:
        self.capacity = capacity
        self.seed = seed
        self.num_added = 0
        self.row_bytes = 16
        self.held: dict[int, tuple[int, int]] = {}

    def add(self, num: int) -> None:
        for row in range(self.num_added, self.num_added + num):
            self.held[row] = (row, row * 7 + self.seed)
            self.held.pop(row - self.capacity, None)
        self.num_added += num

    def packed_rows(self, start: int, stop: int) -> dict[str, Tensor]:
        numbers = torch.tensor([self.held[row] for row in range(start, stop)])
        return {"row": numbers[:, 0], "nested/value.x": numbers[:, 1:].to(torch.float64)}

    def load_rows(self, start: int, rows: dict[str, Tensor]) -> None:
        assert not self.held or start == max(self.held) + 1, "rows come in ascending order, without gaps"
        for offset, (row, value) in enumerate(zip(rows["row"].tolist(), rows["nested/value.x"].tolist(), strict=True)):
            self.held[start + offset] = (row, int(value[0]))
        self.num_added = start + len(rows["row"])  # as the buffer's own state would say
