"""The images in rows, every plane of pixels once: how a buffer that shares frames stores them, and how all buffers give
their rows to storage.

A row's image, uint8 (N, C, H, W), is C planes. As `PlaneStores` hold them, rows carry slots instead, int32 (N, C).
Packed, as files hold them, they carry places in the list of planes beside them: the image "observation.frames" is
"#84x84.observation.frames", int32 (N, C), and the planes of that size are "#84x84", uint8 (U, H, W), in the order in
which they first appear. What is packed does not depend on how the buffer stores its rows. Letters: N rows, C planes of
an image, U different planes.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from palestra.buffers.frames import FrameStore

Size = tuple[int, int]
Rows = dict[str, Tensor]


def is_image(value: Tensor) -> bool:
    return value.dtype == torch.uint8 and value.dim() == 4


class PlaneStores:
    """The planes of the images in at most `num_rows` rows, in one FrameStore for each size.

    rows: what rows look like, of any number.
    """

    def __init__(self, rows: Mapping[str, Tensor], num_rows: int, folder: Path | None) -> None:
        self.images = {name: tuple(value.shape[1:]) for name, value in rows.items() if is_image(value)}
        planes: dict[Size, int] = {}
        for channels, height, width in self.images.values():
            planes[height, width] = planes.get((height, width), 0) + channels
        self.stores = {size: FrameStore(num_rows * num, size[0] * size[1], folder) for size, num in planes.items()}

    def store_of(self, image: str) -> FrameStore:
        _, height, width = self.images[image]
        return self.stores[height, width]

    def hold(self, rows: Mapping[str, Tensor], valid: Tensor) -> Rows:
        """The rows with slots for images; of those that are not valid nothing is held."""
        held = dict(rows)
        for name, (channels, height, width) in self.images.items():
            planes = rows[name].reshape(-1, height * width)
            each = valid.repeat_interleave(channels).numpy()
            held[name] = self.store_of(name).hold(planes, each).view(-1, channels)
        return held

    def release(self, rows: Mapping[str, Tensor]) -> None:
        """Forget rows with slots."""
        for name in self.images:
            self.store_of(name).release(rows[name].flatten())

    def room(self, num: int) -> Rows:
        """Images of that many rows, still black."""
        return {name: torch.zeros(num, *shape, dtype=torch.uint8) for name, shape in self.images.items()}

    def show(self, image: str, slots: Tensor, out: Tensor) -> None:
        """Write the image of every row into `out`: uint8 (N, C, H, W)."""
        store = self.store_of(image)
        torch.index_select(store.frames, 0, slots.flatten(), out=out.view(-1, store.num_bytes))

    def pack(self, rows: Mapping[str, Tensor]) -> Rows:
        """Rows with slots, as files hold them."""
        packed = {name: value for name, value in rows.items() if name not in self.images}
        for size, store in self.stores.items():
            names = [name for name, shape in self.images.items() if shape[1:] == size]
            slots = torch.cat([rows[name] for name in names], dim=1).numpy()
            found, first, which = np.unique(slots.ravel(), return_index=True, return_inverse=True)
            order = np.argsort(first)
            places = np.empty(len(order), dtype=np.int32)
            places[order] = np.arange(len(order), dtype=np.int32)
            parts = np.split(places[which].reshape(slots.shape), np.cumsum([self.images[name][0] for name in names]), 1)
            packed[_name(size)] = store.frames[torch.from_numpy(found[order])].view(-1, *size)
            for name, part in zip(names, parts, strict=False):  # the last part is empty
                packed[f"{_name(size)}.{name}"] = torch.from_numpy(np.ascontiguousarray(part))
        return packed

    def unpack(self, packed: Mapping[str, Tensor]) -> Rows:
        """The inverse of `pack`: the rows with slots, held."""
        rows = {name: value for name, value in packed.items() if not name.startswith("#")}
        for size, store in self.stores.items():
            of_size = {name: packed[f"{_name(size)}.{name}"] for name in self.images if self.images[name][1:] == size}
            used = torch.cat([which.flatten() for which in of_size.values()]).unique()
            planes = packed[_name(size)]
            slots = torch.zeros(len(planes), dtype=torch.int32)
            slots[used] = store.hold(planes[used].flatten(1), np.ones(len(used), dtype=np.bool_))
            for name, which in of_size.items():
                rows[name] = slots[which]
                store.hold_again(rows[name].flatten())
            store.release(slots[used])
        return rows


# ---- packed rows ---------------------------------------------------------------------------------------


def _name(size: Size) -> str:
    return f"#{size[0]}x{size[1]}"


def is_planes(name: str) -> bool:
    """Whether an entry of packed rows is a list of planes, and has no row's axis."""
    return name.startswith("#") and "." not in name


def num_rows(packed: Mapping[str, Tensor]) -> int:
    return next(len(value) for name, value in packed.items() if not is_planes(name))


def part(packed: Mapping[str, Tensor], start: int, stop: int) -> Rows:
    """Rows start to stop - 1 of packed rows, packed."""
    return {name: value if is_planes(name) else value[start:stop] for name, value in packed.items()}


def whole(packed: Mapping[str, Tensor]) -> Rows:
    """Packed rows with their images."""
    rows: Rows = {}
    for name, value in packed.items():
        size, _, image = name.partition(".")
        if not name.startswith("#"):
            rows[name] = value
        elif image:
            rows[image] = packed[size][value.long()]
    return rows
