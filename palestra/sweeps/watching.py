"""A run of a trial as it grows: its records, read as far as they have come."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palestra.evaluation.measures import Measure
from palestra.runtime.intervals import Limit
from palestra.storage.disk import open_plain
from palestra.sweeps.config import ObjectiveConfig

COUNTERS = ("env_steps", "opt_steps", "epochs")


class Growing:
    """The records of a run, read as far as they have come. counters: the largest so far. share: of its `stop`.

    After a kill the records are cut back to a checkpoint and come again, equal to the bit, so what was read stays true.
    """

    def __init__(self, run: Path, stop: Limit) -> None:
        self.path, self.stop = run / "records.jsonl", stop
        self.counters: dict[str, float] = dict.fromkeys(COUNTERS, 0)
        self.minutes = 0.0
        self._offset = 0

    @property
    def share(self) -> float:
        return self.stop.share({**self.counters, "minutes": self.minutes})

    def look(self) -> None:
        """Read what is new."""
        try:
            file = open_plain(self.path)
        except OSError:
            return
        try:
            if file.size < self._offset:
                self._offset = 0
            content = os.pread(file.descriptor, file.size - self._offset, self._offset)
        finally:
            file.close()
        whole, newline, _ = content.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        for line in whole.splitlines():
            try:
                self._take(json.loads(line))
            except ValueError:
                self._offset = 0  # it was cut back, and has grown since: read it again the next time
                return

    def _take(self, record: Mapping[str, Any]) -> None:
        for name in COUNTERS:
            self.counters[name] = max(self.counters[name], record.get(name) or 0)
        self.minutes = max(self.minutes, (record.get("clock") or {}).get("train_seconds", 0.0) / 60)


Moment = tuple[int, ...]  # of a run: its COUNTERS


class Watched(Growing):
    """A run of a trial. evaluations: the objective at each of them. first: by step that evaluation whose value counts
    there, the first one in this interval. Steps are in the unit of the evaluation's interval, rounded down to a
    multiple of it, so that runs that count differently have the same steps. fault: why the objective cannot be said."""

    def __init__(self, run: Path, config: Any, objective: ObjectiveConfig) -> None:
        super().__init__(run, config.stop)
        self.objective = objective
        self.measure = Measure(objective, config.evaluations, config.measures_of_games())
        [evaluation] = [each for each in config.evaluations if each.name == objective.evaluation]
        self.interval = evaluation.interval
        self.evaluations: dict[Moment, float] = {}
        self.first: dict[int, Moment] = {}
        self.fault: str | None = None

    def _take(self, record: Mapping[str, Any]) -> None:
        super()._take(record)
        if record.get("kind") == "evaluation" and (value := self._value(record)) is not None:
            moment = tuple(int(record.get(name) or 0) for name in COUNTERS)
            self.evaluations[moment] = value
            self.first.setdefault(self._step(record), moment)

    def _value(self, record: Mapping[str, Any]) -> float | None:
        try:
            return self.measure.of(record)
        except Exception as error:  # of the user's own function
            self.fault = f"{self.objective.measure} raised {type(error).__name__}: {error}"
            return None

    def _step(self, record: Mapping[str, Any]) -> int:
        if self.interval is None or self.interval.unit == "minutes":
            return int(record.get("opt_steps") or 0)
        return int((record.get(self.interval.unit) or 0) // self.interval.every * self.interval.every)

    @property
    def latest(self) -> float | None:
        """The objective at the last evaluation so far."""
        return self.evaluations[max(self.evaluations)] if self.evaluations else None

    def env_steps_at(self, step: int) -> int:
        return self.first[step][COUNTERS.index("env_steps")]

    def value_at(self, step: int) -> float:
        """The objective as it stood at a step that the run has. It does not depend on how much has come since."""
        return self._objective([moment for moment in self.evaluations if moment <= self.first[step]])

    def final(self) -> float:
        """The objective at the run's end; nan if there is no evaluation."""
        return self._objective(list(self.evaluations)) if self.evaluations else math.nan

    def _objective(self, moments: Sequence[Moment]) -> float:
        """The last of some evaluations, or the best of them."""
        if self.objective.of == "last":
            return self.evaluations[max(moments)]
        finite = [value for moment in moments if not math.isnan(value := self.evaluations[moment])]
        best = max if self.objective.goal == "max" else min
        return best(finite, default=math.nan)
