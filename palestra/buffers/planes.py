"""PlaneStores: stores images of rows, every plane of pixels once. Letters: N rows, C planes of an image."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from palestra.buffers.frames import FrameStore
from palestra.buffers.packed import Rows, Size, is_image, list_name


class PlaneStores:
    """Stores the planes of the images in at most `num_rows` rows, in one FrameStore per size.

    Stored rows have slots instead of images: int32 (N, C). Names are sorted, so that equal rows are packed into equal
    bytes, also after a resume.

    rows: example rows, of any number.
    """

    def __init__(self, rows: Mapping[str, Tensor], num_rows: int, folder: Path | None) -> None:
        self.images = {name: tuple(value.shape[1:]) for name, value in sorted(rows.items()) if is_image(value)}
        planes: dict[Size, int] = {}
        for channels, height, width in self.images.values():
            planes[height, width] = planes.get((height, width), 0) + channels
        self.stores = {size: FrameStore(num_rows * num, size[0] * size[1], folder) for size, num in planes.items()}

    def store_of(self, image: str) -> FrameStore:
        _, height, width = self.images[image]
        return self.stores[height, width]

    def hold(self, rows: Mapping[str, Tensor], valid: Tensor) -> Rows:
        """Store the images of the valid rows, and return all rows with slots instead of images."""
        held = dict(rows)
        for name, (channels, height, width) in self.images.items():
            planes = rows[name].reshape(-1, height * width)
            each = valid.repeat_interleave(channels).numpy()
            held[name] = self.store_of(name).hold(planes, each).view(-1, channels)
        return held

    def release(self, rows: Mapping[str, Tensor]) -> None:
        """Release the planes of rows with slots."""
        for name in self.images:
            self.store_of(name).release(rows[name].flatten())

    def empty_images(self, num: int) -> Rows:
        """Allocate tensors for the images of `num` rows."""
        return {name: torch.empty(num, *shape, dtype=torch.uint8) for name, shape in self.images.items()}

    def with_images(self, rows: Rows, images: Rows) -> Rows:
        """Return rows with images in place of slots; the images are written into `images`."""
        for name, image in images.items():
            store = self.store_of(name)
            torch.index_select(store.frames, 0, rows[name].flatten(), out=image.view(-1, store.num_bytes))
        return rows | images

    def pack(self, rows: Mapping[str, Tensor]) -> Rows:
        """Pack rows with slots. The result does not depend on the numbers of the slots."""
        packed = {name: value for name, value in rows.items() if name not in self.images}
        for size, store in self.stores.items():
            names = self._names(size)
            slots = torch.cat([rows[name] for name in names], dim=1)
            found, first, which = np.unique(slots.flatten().numpy(), return_index=True, return_inverse=True)
            order = np.argsort(first)
            places = np.empty(len(order), dtype=np.int32)
            places[order] = np.arange(len(order), dtype=np.int32)
            packed[list_name(size)] = store.frames[torch.from_numpy(found[order])].view(-1, *size)
            parts = torch.from_numpy(places[which]).view(slots.shape).split([self.images[name][0] for name in names], 1)
            packed |= {f"{list_name(size)}.{name}": part for name, part in zip(names, parts, strict=True)}
        return packed

    def unpack(self, packed: Mapping[str, Tensor]) -> Rows:
        """Store the images of packed rows, and return the rows with slots."""
        rows = {name: value for name, value in packed.items() if not name.startswith("#")}
        for size, store in self.stores.items():
            places = {name: packed[f"{list_name(size)}.{name}"] for name in self._names(size)}
            used = torch.cat([part.flatten() for part in places.values()]).unique()
            planes = packed[list_name(size)][used]
            slots = torch.zeros(len(packed[list_name(size)]), dtype=torch.int32)
            slots[used] = store.hold(planes.flatten(1), np.ones(len(used), dtype=np.bool_))
            for name, part in places.items():
                rows[name] = slots[part]
                store.hold_again(rows[name].flatten())
            store.release(slots[used])
        return rows

    def _names(self, size: Size) -> list[str]:
        """Name the images with planes of that size."""
        return [name for name, (_, *its_size) in self.images.items() if tuple(its_size) == size]
