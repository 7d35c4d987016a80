"""Images on disk, every plane of pixels once: in a stack of frames each frame recurs in up to eight places, as one of
this row's frames, of the next observation's, and so in the rows after.

A stored image's name begins with "#" and the size of its planes, as "#84x84.observation.observation"; the planes of
that size are "#84x84". Letters: N rows, C planes of an image, U different planes.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def share_planes(rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rows as they are stored: for every image, uint8 (N, C, H, W), which planes it is made of, int32 (N, C); and the
    planes of each size, uint8 (U, H, W). Whatever else there is stays as it is."""
    stored: dict[str, Tensor] = {}
    known: dict[tuple[int, int], dict[bytes, int]] = {}
    for name, value in sorted(rows.items()):  # in one order: equal rows give equal bytes, also those of a resumed run
        if value.dtype != torch.uint8 or value.dim() != 4:
            stored[name] = value
            continue
        height, width = value.shape[2:]
        planes = known.setdefault((height, width), {})
        which = [planes.setdefault(plane.tobytes(), len(planes)) for plane in value.cpu().flatten(0, 1).numpy()]
        stored[f"#{height}x{width}.{name}"] = torch.tensor(which, dtype=torch.int32).view(value.shape[:2])
    for (height, width), planes in known.items():
        pixels = np.frombuffer(bytearray().join(planes), dtype=np.uint8)
        stored[f"#{height}x{width}"] = torch.from_numpy(pixels).view(len(planes), height, width)
    return stored


def part_planes(stored: Mapping[str, Tensor], start: int) -> dict[str, Tensor]:
    """The rows of `share_planes`, from row `start` on."""
    rows: dict[str, Tensor] = {}
    for name, value in stored.items():
        size, _, image = name.partition(".")
        if not name.startswith("#"):
            rows[name] = value[start:]
        elif image:
            rows[image] = stored[size][value[start:].long()]
    return rows
