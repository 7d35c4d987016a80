"""Packed rows: the form in which storage writes rows, with every plane of an image once.

An image of rows, uint8 (N, C, H, W), consists of C planes per row. In packed rows the image "observation.frames" is
"#84x84.observation.frames", int32 (N, C): indices into the list of planes of that size, "#84x84", uint8 (U, H, W), in
order of first appearance. Tensors that are no images stay as they are. Letters: N rows, C planes of an image, U
different planes.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

Rows = dict[str, Tensor]


def is_image(value: Tensor) -> bool:
    return value.dtype == torch.uint8 and value.dim() == 4


def list_name(size: tuple[int, ...]) -> str:
    """Return the name of the list of planes of a size."""
    return f"#{size[0]}x{size[1]}"


def is_planes(name: str) -> bool:
    """Return whether an entry of packed rows is a list of planes, which has no axis of rows."""
    return name.startswith("#") and "." not in name


def num_rows(packed: Mapping[str, Tensor]) -> int:
    return next(len(value) for name, value in packed.items() if not is_planes(name))


def part(packed: Mapping[str, Tensor], start: int, stop: int) -> Rows:
    """Return rows start to stop - 1 of packed rows, packed."""
    return {name: value if is_planes(name) else value[start:stop] for name, value in packed.items()}


def whole(packed: Mapping[str, Tensor]) -> Rows:
    """Unpack rows: return them with their images."""
    rows: Rows = {}
    for name, value in packed.items():
        size, _, image = name.partition(".")
        if not name.startswith("#"):
            rows[name] = value
        elif image:
            rows[image] = packed[size][value.long()]
    return rows
