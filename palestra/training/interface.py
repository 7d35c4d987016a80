"""What the parts of a training that save, show and evaluate it may use of it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from palestra.buffers.replay import ReplayBuffer
from palestra.callbacks import Callback
from palestra.callbacks.training import Training
from palestra.recording.results import Stage
from palestra.runs.output import RunOutput
from palestra.runtime.clock import Mark, TrainingClock
from palestra.runtime.timing import TimeLog
from palestra.storage.run_folder import RunFolder
from palestra.training.evaluating import Evaluating


class TrainingEnds(Exception):
    """Raised by a safe point to leave the loops: the run is done, or a signal asked to leave."""


class Watcher(Protocol):
    """An observer that is called at every safe point and is no part of the run, as in `palestra verify` and `profile`.
    Both methods may raise TrainingEnds."""

    def before_safe_point(self) -> None: ...

    def after_safe_point(self) -> None: ...


class RunningTraining(Training, Protocol):
    """A training, with more than what callbacks may use."""

    name: str
    config: Any
    output: RunOutput | None
    run: str | Path | RunFolder | None
    origin: Path | None
    resumed: bool
    finished: bool
    end_reason: str | None
    clock: TrainingClock
    time_log: TimeLog
    device: torch.device
    callbacks: list[Callback]
    evaluating: Evaluating
    stage: Literal["train", "test"]

    @classmethod
    def train_stage(cls, config: Any) -> Stage: ...

    @classmethod
    def test_stage(cls, config: Any) -> Stage: ...

    def opened_output(self) -> RunOutput: ...

    def counts(self) -> dict[str, int]: ...

    def mark(self) -> Mark: ...

    def begin_rates(self) -> None: ...

    def require_finite(self, with_parameters: bool) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def state_of_branch(self, state: dict[str, Any]) -> dict[str, Any]: ...

    def without_rows(self, state: dict[str, Any]) -> dict[str, Any]: ...

    def differences(self, state: Mapping[str, Any]) -> Iterable[str]: ...

    def buffers(self) -> dict[str, ReplayBuffer]: ...

    def shown_metrics(self) -> Mapping[str, Mapping[str, float]]: ...

    def after_save(self, checkpoint: Path) -> None: ...
