"""Makes pictures for videos of what the `render` of environments gives."""

import math
from typing import Any

import numpy as np

from palestra.games.gymnasium.faults import described

NUMS_CHANNELS = (1, 3, 4)  # grey, colours, colours and opacity
ROUNDING = 1e-3  # by which brightness from 0 to 1 may lie outside
FRAMES_PER_SECOND = 30  # for environments whose metadata has no render_fps


class Pictures:
    """Makes pictures of what one environment's `render` gives.

    A picture is uint8 (height, width, 3), height and width even, as video encoders need them, in memory of its own.
    What was rendered may be grey, (H, W) or (H, W, 1), or have an opacity, (H, W, 4), which is left out; the channels
    may come first. Of a list of such pictures the last one counts. Bools and floating-point numbers are brightness from
    0 to 1; integers, and floats once one is larger than 1, from 0 to 255. Raises ValueError for anything else, and for
    a picture of another size than the first.
    """

    def __init__(self) -> None:
        self._shape: tuple[int, ...] | None = None
        self._float_max = 1.0

    def __call__(self, rendered: Any) -> np.ndarray:
        pixels = _with_channels(rendered)
        height, width = pixels.shape[0] // 2 * 2, pixels.shape[1] // 2 * 2
        self._shape = self._shape or pixels.shape
        if pixels.shape != self._shape or not (height and width):
            expected = "at least 2 x 2 pixels" if not (height and width) else f"shape {self._shape}, as before,"
            raise ValueError(f"expected {expected} from render, got shape {pixels.shape}")
        picture = self._as_bytes(pixels[:height, :width, :3])
        return np.repeat(picture, 3, axis=2) if picture.shape[2] == 1 else np.array(picture, order="C")

    def _as_bytes(self, pixels: np.ndarray) -> np.ndarray:
        low, high = float(pixels.min()), float(pixels.max())
        if pixels.dtype.kind == "f" and high > 1.0 + ROUNDING:
            self._float_max = 255.0
        top = {"b": 1.0, "f": self._float_max}.get(pixels.dtype.kind, 255.0)
        if not -ROUNDING <= low <= high <= top + ROUNDING or math.isnan(low + high):
            raise ValueError(f"expected numbers from 0 to 255, or from 0 to 1, from render, got some of {low}..{high}")
        if pixels.dtype == np.uint8:
            return pixels
        return np.rint(pixels * (255.0 / top)).clip(0.0, 255.0).astype(np.uint8)


def _with_channels(rendered: Any) -> np.ndarray:
    """Convert what was rendered to numbers (height, width, channels)."""
    try:
        pixels = np.asarray(rendered)
    except Exception:  # lists of unequal lengths, objects that refuse to be arrays
        pixels = np.empty(0, dtype=object)
    if pixels.ndim == 4 or (isinstance(rendered, list | tuple) and pixels.ndim == 3 and not _has_channels(pixels)):
        pixels = pixels[-1] if len(pixels) else pixels
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if not _has_channels(pixels) or pixels.dtype.kind not in "biuf" or not pixels.size:
        raise ValueError(f"expected a picture of shape (height, width, 3) from render, got {described(rendered)}")
    return pixels if pixels.shape[2] in NUMS_CHANNELS else pixels.transpose(1, 2, 0)


def _has_channels(pixels: np.ndarray) -> bool:
    return pixels.ndim == 3 and (pixels.shape[2] in NUMS_CHANNELS or pixels.shape[0] in NUMS_CHANNELS)


def frames_per_second(metadata: Any) -> float:
    """Return an environment's render_fps; FRAMES_PER_SECOND if that is no positive number."""
    fps = metadata.get("render_fps") if isinstance(metadata, dict) else None
    try:
        number = float(fps)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return FRAMES_PER_SECOND
    return number if 0.0 < number < math.inf else FRAMES_PER_SECOND
