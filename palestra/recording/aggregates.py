"""Named values that add up between two records, and what the record says of them."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from palestra.recording.values import Bins, Image, Recordable, Single, Video, require_name, require_single, to_record

Statistic = Literal["mean", "std", "min", "max", "median", "last", "count"]
MADE_OF_SUMS = ("mean", "count")
Number = Tensor | float
NUMBERS = (float, int)  # a tuple is faster to ask than a union


class Aggregates:
    """Named values since the last record.

    Numbers become the statistics asked for: the mean under the bare name, the others as name/std (of the population,
    not of a sample) and so on. Counts add up. Arrays become one histogram. Of images, videos, texts and datetimes the
    last one counts.

    Numbers may be 0-d tensors on any device; `add` does not wait for the device.
    """

    def __init__(self, statistics: Sequence[Statistic]) -> None:
        self.statistics = tuple(statistics)
        self._tracked = [name for name in self.statistics if name not in MADE_OF_SUMS]
        self._taken: dict[str, float] = {}
        self._clear()

    def _clear(self) -> None:
        self._sums: dict[str, tuple[Number, int]] = {}
        # std: the sum of squared distances from the mean; median: all numbers
        self._tracks: dict[str, dict[str, Any]] = {}
        self._counts: dict[str, int] = {}
        self._bins: dict[str, Bins] = {}
        self._waiting: list[tuple[str, Tensor]] = []  # arrays on a GPU
        self._singles: dict[str, Single] = {}

    # ---- adding ----------------------------------------------------------------------------------------

    def add(self, values: Mapping[str, Recordable]) -> None:
        """Add one value per name. Raises TypeError or ValueError for values that cannot be recorded."""
        for name, value in values.items():
            if isinstance(value, Tensor):
                if value.ndim:
                    self._add_array(name, value)
                    continue
                if value.is_cpu:
                    value = value.item()  # there is nothing to wait for, and numbers add up faster
            elif not isinstance(value, NUMBERS):
                self._add_other(name, value)
                continue
            total, num = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + value, num + 1)
            if self._tracked:
                alone = {"std": 0.0, "min": value, "max": value, "last": value, "median": [value]}
                self._track(name, total, num, value, 1, alone)

    def add_numbers(self, name: str, values: np.ndarray) -> None:
        """Add many numbers of one name, as `add` would one after the other. values: (n,), n > 0."""
        values = values.astype(np.float64)
        total, num = self._sums.get(name, (0.0, 0))
        more = float(values.sum())
        self._sums[name] = (total + more, num + len(values))
        if self._tracked:
            spread = float(np.square(values - values.mean()).sum())
            ends = {"min": float(values.min()), "max": float(values.max()), "last": float(values[-1])}
            self._track(name, total, num, more, len(values), ends | {"std": spread, "median": values.tolist()})

    def add_count(self, name: str, num: int) -> None:
        """Count `num` more of something."""
        self._counts[name] = self._counts.get(name, 0) + num

    def join(self, other: "Aggregates") -> None:
        """Add all values that others have gathered for the same statistics, as if they had come after these."""
        other._fetch_arrays()
        for name, (more, num_more) in other._sums.items():
            total, num = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + more, num + num_more)
            if self._tracked:
                self._track(name, total, num, more, num_more, other._tracks[name])
        for name, number in other._counts.items():
            self.add_count(name, number)
        for name, bins in other._bins.items():
            self._bins.setdefault(name, Bins()).join(bins)
        self._singles |= other._singles

    def _track(self, name: str, total: Number, num: int, more: Number, num_more: int, new: dict[str, Any]) -> None:
        """Merge the statistics of new numbers into those of earlier ones.

        total, num: the sum and the number of the earlier numbers. more, num_more: those of the new ones. new: the
        statistics of the new ones.
        """
        old = self._tracks.setdefault(name, {})
        for statistic in self._tracked:
            if not num or statistic == "last":
                old[statistic] = new[statistic]
            elif statistic == "std":  # Chan, Golub and LeVeque 1979
                apart = num * more - num_more * total
                between = apart * apart / (num * num_more * (num + num_more))
                old[statistic] = old[statistic] + new[statistic] + between
            elif statistic == "median":
                old[statistic] += new[statistic]
            else:
                old[statistic] = _extreme(statistic, old[statistic], new[statistic])

    def _add_array(self, name: str, values: Tensor) -> None:
        require_name(name)
        if values.is_cpu:
            self._bins.setdefault(name, Bins()).add(values.detach().double().numpy())
        else:
            self._waiting.append((name, values.detach().clone()))

    def _add_other(self, name: str, value: Any) -> None:
        match value:
            case np.generic() if value.dtype.kind in "biuf":
                self.add({name: float(value)})
            case np.ndarray() if value.dtype.kind in "biuf":
                self.add({name: torch.tensor(value)})
            case _:
                self._singles[name] = require_single(name, value)

    def _fetch_arrays(self) -> None:
        """Wait for the device, and count the arrays that lie there."""
        for name, values in self._waiting:
            self._add_array(name, values.cpu())
        self._waiting = []

    # ---- results ---------------------------------------------------------------------------------------

    def means(self) -> dict[str, float]:
        """Return the means of all numbers so far, by name."""
        return {name: float(total) / num for name, (total, num) in self._sums.items()}

    def total(self, name: str) -> float:
        """Return the sum of one metric so far, 0 if there is none; a nan or infinity that went in stays."""
        return float(self._sums.get(name, (0.0, 0))[0])

    def take(self) -> dict[str, Any]:
        """Return the entries of a record for all values since the last call, by name; then start anew."""
        self._fetch_arrays()
        self._taken = self.means()
        taken: dict[str, Any] = {
            name if statistic == "mean" else f"{name}/{statistic}": self._number(name, statistic)
            for name in self._sums
            for statistic in self.statistics
        }
        taken |= self._counts
        taken |= {name: bins.to_record() for name, bins in self._bins.items()}
        taken |= {name: to_record(value) for name, value in self._singles.items()}
        self._clear()
        return taken

    def _number(self, name: str, statistic: Statistic) -> float:
        match statistic:
            case "mean":
                return self._taken[name]
            case "count":
                return self._sums[name][1]
            case "std":
                return math.sqrt(float(self._tracks[name]["std"]) / self._sums[name][1])
            case "median":  # nan if one of all is nan
                with np.errstate(invalid="ignore"):
                    return float(np.median(_floats(self._tracks[name]["median"]).numpy()))
        return float(self._tracks[name][statistic])

    def shown(self) -> dict[str, float]:
        """Return the means so far or, if nothing was added since the last record, the means of that record."""
        return self.means() or self._taken

    # ---- state -----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state; names stand in lists, which keep their order."""
        self._fetch_arrays()
        return {
            "statistics": list(self.statistics),
            "sums": [(name, total, num, self._track_state(name)) for name, (total, num) in self._sums.items()],
            "counts": list(self._counts.items()),
            "bins": [(name, vars(bins) | {"counts": torch.tensor(bins.counts)}) for name, bins in self._bins.items()],
            "singles": [(name, _single_state(value)) for name, value in self._singles.items()],
        }

    def _track_state(self, name: str) -> dict[str, Any]:
        tracks = dict(self._tracks.get(name, {}))
        return tracks | {"median": _floats(tracks["median"])} if "median" in tracks else tracks

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Take over a state that `state_dict` has returned.

        Values that were added up for other statistics are dropped, because a branch may ask for others.
        """
        self._clear()
        if state["statistics"] != list(self.statistics):
            return
        for name, total, num, tracks in state["sums"]:
            self._sums[name] = (_moved(total, device), num)
            if tracks:
                self._tracks[name] = {statistic: _moved(value, device) for statistic, value in tracks.items()}
                if "median" in tracks:
                    self._tracks[name]["median"] = tracks["median"].tolist()
        self._counts = dict(state["counts"])
        for name, entries in state["bins"]:
            self._bins[name] = Bins()
            vars(self._bins[name]).update(entries | {"counts": entries["counts"].numpy().copy()})
        self._singles = {name: _single_of(entries) for name, entries in state["singles"]}


def _extreme(statistic: str, one: Number, other: Number) -> Number:
    """Return the smaller or the larger of two numbers; nan if one of them is nan."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        two = torch.as_tensor(one), torch.as_tensor(other)
        return torch.minimum(*two) if statistic == "min" else torch.maximum(*two)
    is_beyond = other < one if statistic == "min" else other > one
    return other if is_beyond or math.isnan(other) else one


def _floats(numbers: list[Number]) -> Tensor:
    """Return the numbers as float64 (n,), on the CPU."""
    if all(isinstance(number, Tensor) for number in numbers):
        return torch.stack(numbers).double().cpu()  # type: ignore[arg-type]
    return torch.tensor([float(number) for number in numbers], dtype=torch.float64)


def _moved(value: Number, device: torch.device) -> Number:
    return value.to(device) if isinstance(value, Tensor) else value


def _single_state(value: Single) -> dict[str, Any]:
    if isinstance(value, Video):
        return {"frames": torch.from_numpy(value.frames), "fps": value.fps}
    return {"pixels": torch.from_numpy(value.pixels)} if isinstance(value, Image) else to_record(value)


def _single_of(state: Mapping[str, Any]) -> Single:
    match state:
        case {"pixels": pixels}:
            return Image(pixels)
        case {"frames": frames, "fps": fps}:
            return Video(frames, fps)
        case {"datetime": text}:
            return datetime.fromisoformat(text)
    return state["text"]
