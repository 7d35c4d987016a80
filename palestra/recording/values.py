"""What a record may hold besides numbers: histograms of arrays, images, videos, texts and date-times.

In records.jsonl they are told by their one key: {"histogram": {"edges", "counts"}}, {"text": ...}, {"datetime": ...},
{"image": "media/...png"}, {"video": "media/...gif"}.
"""

import io
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from palestra.storage.disk import Folder

NAME = re.compile(r"\w[\w. -]*(/\w[\w. -]*)*")  # of what may become a file somewhere
NUM_BINS = 64  # at most one more where the numbers begin within a bin
MOST_FPS = 50  # viewers of GIFs slow down what is faster
LARGEST = 1e300  # what is farther from 0 counts as infinite
PRECISION = 40  # bits of the largest number that a bin's width does not fall below
LEAST_EXPONENT = -1000

# ---- what a user gives -------------------------------------------------------------------------------


class Image:
    """A picture. pixels: uint8, (height, width) in grey or (height, width, 3) in red, green and blue; copied."""

    kind, suffix = "image", ".png"

    def __init__(self, pixels: np.ndarray | Tensor) -> None:
        self.pixels = _pixels(pixels, "pixels", 2)

    def to_bytes(self) -> bytes:
        """Encode the picture as PNG."""
        import PIL.Image

        file = io.BytesIO()
        PIL.Image.fromarray(self.pixels).save(file, "PNG")
        return file.getvalue()


class Video:
    """A film.

    frames: uint8, (frames, height, width) in grey or (frames, height, width, 3) in red, green and blue; copied. fps:
    frames per second, at most 50; a frame lasts whole hundredths of a second.
    """

    kind, suffix = "video", ".gif"

    def __init__(self, frames: np.ndarray | Tensor, fps: float) -> None:
        if not 0 < fps <= MOST_FPS:
            raise ValueError(f"fps: expected a number > 0 and <= {MOST_FPS}, got {fps}")
        self.frames, self.fps = _pixels(frames, "frames", 3), float(fps)

    def to_bytes(self) -> bytes:
        """Encode the film as GIF."""
        import PIL.Image

        file = io.BytesIO()
        first, *rest = map(PIL.Image.fromarray, self.frames)
        first.save(file, "GIF", save_all=True, append_images=rest, duration=round(100 / self.fps) * 10, loop=0)
        return file.getvalue()


Single = Image | Video | str | datetime
Recordable = Tensor | np.ndarray | float | Single


def _pixels(values: np.ndarray | Tensor, what: str, num_dimensions: int) -> np.ndarray:
    array = np.array(values.detach().cpu().numpy() if isinstance(values, Tensor) else values)
    is_colour = array.ndim == num_dimensions + 1 and array.shape[-1] == 3
    if array.dtype != np.uint8 or not (is_colour or array.ndim == num_dimensions) or array.size == 0:
        axes = ("frames, " if num_dimensions == 3 else "") + "height, width"
        raise ValueError(f"{what}: expected uint8 ({axes}) or ({axes}, 3), got {array.dtype} of shape {array.shape}")
    return array


def require_name(name: str) -> None:
    """Raise ValueError for a name that makes no file."""
    if not NAME.fullmatch(name):
        expected = "letters, digits and '_. -', in parts between slashes that begin with a letter or digit"
        raise ValueError(f"expected a name of {expected}, got {name!r}")


def require_single(name: str, value: Any) -> Single:
    """Return a value that can be recorded.

    Raises TypeError for what cannot be recorded, ValueError for a name that makes no file.
    """
    if not isinstance(value, Single):
        expected = "a number, an array, a str, a datetime, an Image or a Video"
        raise TypeError(f"expected {expected} as {name!r}, got a {type(value).__name__}")
    require_name(name)
    return value


# ---- histograms --------------------------------------------------------------------------------------


class Bins:
    """Counts of numbers in bins whose width is a power of two: the least that lets about NUM_BINS hold all of them.

    The bins do not depend on the batches in which the numbers come. NaN and infinities are left out.
    """

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf
        self.exponent, self.first = LEAST_EXPONENT, 0  # of the width; the first bin begins at first * width
        self.counts = np.zeros(0, dtype=np.int64)

    def add(self, values: np.ndarray) -> None:
        values = values.astype(np.float64).ravel()
        values = values[np.abs(values) < LARGEST]
        if not len(values):
            return
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        self._coarsen(self._exponent())
        scaled = np.ldexp(values, -self.exponent)
        is_rounded_to_0 = (scaled == 0) & (values < 0)  # such numbers lie in the bin below 0
        places = np.floor(scaled).astype(np.int64) - is_rounded_to_0
        first = int(places.min())
        self._merge(first, np.bincount(places - first))

    def join(self, other: "Bins") -> None:
        """Add the numbers that others have counted."""
        if not len(other.counts):
            return
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self._coarsen(self._exponent())
        theirs = Bins()
        vars(theirs).update(vars(other))
        theirs._coarsen(self.exponent)
        self._merge(theirs.first, theirs.counts)

    def _merge(self, first: int, counts: np.ndarray) -> None:
        """Add counts of bins as wide as these, of which the first one begins at first * width."""
        if not len(self.counts):
            self.first = first
        low, end = min(first, self.first), max(first + len(counts), self.first + len(self.counts))
        merged = np.zeros(end - low, dtype=np.int64)
        for start, each in ((first, counts), (self.first, self.counts)):
            merged[start - low :][: len(each)] += each
        self.first, self.counts = low, merged

    def _exponent(self) -> int:
        """Return the exponent of the width that the numbers so far need. It never falls while numbers are added."""
        exponents = [LEAST_EXPONENT]
        if self.high > self.low:
            exponents.append(math.frexp((self.high - self.low) / NUM_BINS)[1])
        if largest := max(abs(self.low), abs(self.high)):
            exponents.append(math.frexp(largest)[1] - PRECISION)
        return max(exponents)

    def _coarsen(self, exponent: int) -> None:
        if len(self.counts):
            places = np.arange(self.first, self.first + len(self.counts)) >> (exponent - self.exponent)
            self.first = int(places[0])
            self.counts = np.bincount(places - self.first, weights=self.counts).astype(np.int64)
        self.exponent = exponent

    def to_record(self) -> dict[str, Any] | None:
        """Return the histogram as it stands in a record; None if there was no number."""
        if not len(self.counts):
            return None
        edges = np.ldexp(np.arange(self.first, self.first + len(self.counts) + 1, dtype=np.float64), self.exponent)
        return {"histogram": {"edges": edges.tolist(), "counts": self.counts.tolist()}}


# ---- in records --------------------------------------------------------------------------------------


def to_record(value: Single) -> Any:
    """Return a value as it stands in a record; images and videos have yet to be filed."""
    if isinstance(value, datetime):
        return {"datetime": value.isoformat()}
    return {"text": value} if isinstance(value, str) else value


@dataclass(frozen=True)
class Histogram:
    """A histogram: counts[i] numbers lie in edges[i] <= x < edges[i + 1]."""

    edges: list[float]
    counts: list[int]


@dataclass(frozen=True)
class Media:
    """The file of an image (PNG) or a video (GIF). name: its path in the run's folder."""

    is_video: bool
    folder: Path
    name: str

    @property
    def path(self) -> Path:
        return self.folder / self.name


def values_of(value: Any, folder: Path, name: str = "") -> Iterator[tuple[str, Histogram | Media | str]]:
    """Yield what a record holds besides numbers, by name: keys joined by slashes.

    Date-times come as texts. A file that does not lie in the run's folder `media` is left out, also where a link there
    leads elsewhere.
    """
    match value:
        case {"histogram": {"edges": list(edges), "counts": list(counts)}}:
            yield name, Histogram(edges, counts)
        case {"text": str(text)} | {"datetime": str(text)}:
            yield name, text
        case {"image": str(file)} | {"video": str(file)}:
            if _is_own(folder, file):
                yield name, Media("video" in value, folder, file)
        case Mapping():
            for key, item in value.items():
                yield from values_of(item, folder, f"{name}/{key}" if name else str(key))


def _is_own(folder: Path, file: str) -> bool:
    """Return whether a record, which may be forged, names a regular file of the run's media/."""
    *folders, last = file.split("/")
    try:
        return folders[:1] == ["media"] and Folder(folder, *folders).kind(last) == "file"
    except OSError:
        return False
