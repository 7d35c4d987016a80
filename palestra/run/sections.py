"""The sections of a run's config that follow the experiment: how it is computed, and what is shown and stored of it."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from palestra.config import (
    Config,
    ConfigError,
    ConfigErrorItem,
    NonEmptyStr,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from palestra.games import GameConfig
from palestra.recording import RecorderConfig, check_recorders
from palestra.recording.aggregates import Statistic
from palestra.run.mirror import MirrorConfig
from palestra.runtime.intervals import Interval


def _check_device(name: str) -> str:
    if re.fullmatch(r"(cpu|cuda|mps|xpu)(:[0-9]+)?", name):
        return name
    hint = "; GPUs of Nvidia and AMD are cuda, those of Apple mps, those of Intel xpu" if "gpu" in name.lower() else ""
    raise ValueError(f"expected cpu, cuda, mps or xpu, or one of several as cuda:1, got {name!r}{hint}")


class MachineConfig(Config):
    """What a run of any kind uses of its machine."""

    device: Annotated[str, AfterValidator(_check_device)]
    """cpu, cuda, cuda:1, ..."""
    num_threads: Annotated[int, Field(ge=1, le=1024)]
    """threads on a CPU, of PyTorch and of BLAS"""


class ProcessesConfig(MachineConfig):
    """The keys that spread the replicas of a run over processes; they change no bit."""

    usual: ClassVar[Any] = {"num_processes": 1, "timeout_s": 600.0, "max_restarts": 0}
    bitless: ClassVar[tuple[str, ...]] = ("num_processes", "timeout_s", "max_restarts")

    num_processes: PositiveInt
    """processes among which the replicas are divided, as many to each; under torchrun, its processes count"""
    timeout_s: PositiveFloat
    """seconds that one of several processes may be later than the others, before the run ends and names it; and that
    actors in a process may take for a roll-out"""
    max_restarts: NonNegativeInt
    """how often the processes are started again, from the last checkpoint, after one of them was lost; a process of
    actors goes on where it was"""


class PlayExecutionConfig(MachineConfig):
    """The keys that say how games are computed. Training has further ones."""

    kernel: Literal["numba", "torch"]
    """how the polyhedra game, dialogues and classic control are computed; numba: fast on a CPU; torch: on any device;
    the results are the same"""
    step_within_s: PositiveFloat | None
    """seconds that a step or a reset of an environment may take, else the run ends with an error; only of environments
    in processes of their own (vectorization async); null: any time; it changes no bit"""

    def step_errors(self, games: Mapping[str, GameConfig]) -> Iterator[ConfigErrorItem]:
        """A fault if `step_within_s` cannot be kept in one of a config's games, which are given by their paths."""
        if self.step_within_s is None:
            return
        environments = {path: game for path, game in games.items() if game.environment_id() is not None}
        why = None if environments else "no game here is an environment"
        for path, game in environments.items():
            if not game.can_end_steps():
                other = f"{path}.vectorization.name=async does not"
                why = f"{path} steps its environments in the process that trains ({other})"
        if why is not None:
            message = f"expected null, because {why}, got {self.step_within_s:g}"
            yield ConfigErrorItem("execution.step_within_s", message)


class ExecutionConfig(PlayExecutionConfig, ProcessesConfig):
    usual: ClassVar[Any] = {
        **ProcessesConfig.usual,
        "device": "cpu",
        "num_threads": 1,
        "kernel": "numba",
        "gradients": "by_hand",
        "compile": False,
        "actor_processes": 0,
    }

    gradients: Literal["by_hand", "autograd"]
    """by_hand: on a CPU, the gradients of plain mlps and of the stock losses come from kernels, which are several times
    as fast; where a loss was changed, torch's autograd runs all the same; autograd: always"""
    compile: bool
    """compile the update (torch.compile): half a minute at the start, then faster; plain mlps on a CPU need none"""
    actor_processes: NonNegativeInt
    """processes among which the actors of each replica are divided, as many to each; 0: they play in the process that
    trains, one after the other; it changes no bit"""


class RunOutputConfig(Config):
    """What a run of any kind shows and stores."""

    usual: ClassVar[Any] = {
        "display": "auto",
        "record": {"every": 500, "unit": "opt_steps"},
        "statistics": ["mean"],
        "recorders": ["tensorboard"],
        "save": {"every": 5000, "unit": "opt_steps"},
        "keep_last": 2,
        "stop_within_s": 30.0,
    }

    display: Literal["auto", "plain", "quiet"]
    """auto: a live display on a terminal and in a notebook, plain lines elsewhere; plain: plain lines; quiet: only
    errors"""
    record: Interval | None
    """when the metrics of training are recorded; null: only at the end"""
    statistics: Annotated[list[Statistic], Field(min_length=1)]
    """the statistics of a record of the numbers since the last record; the mean has the bare name, the others as
    loss/std"""
    recorders: Annotated[list[RecorderConfig], AfterValidator(check_recorders)]
    """where the records go besides records.jsonl; []: nowhere"""
    save: Interval | None
    """when checkpoints are saved, besides the start and the end; null: never, the run cannot be resumed"""
    keep_last: PositiveInt
    """how many of the latest checkpoints are kept"""
    keep_every: PositiveInt | None
    """every n-th checkpoint is kept for good; null: none is"""
    checkpoint_folder: Annotated[str, Field(pattern="^/")] | None
    """an absolute path, for instance on another disk: checkpoints and replay rows lie there, in a folder named for the
    run and its id; null: in the run's own folder"""
    stop_within_s: PositiveFloat
    """seconds from SIGINT or SIGTERM to the end of the process; a run that has not saved by then ends without saving,
    and a resume trains the lost steps again"""
    mirror: MirrorConfig | None
    """a copy of the checkpoints elsewhere, from which the run can be resumed; null: none"""

    @model_validator(mode="after")
    def _check_mirror(self) -> Self:
        if self.mirror is not None and self.save is None:
            raise ConfigError.at("mirror", "expected null, because `save` is null, got a mapping")
        return self


class OutputConfig(RunOutputConfig):
    usual: ClassVar[Any] = {"layer_norms": False, "info": [], "replay_in_checkpoints": "all"}

    layer_norms: bool
    """record the norms of each layer's weights and gradients, at every opt step"""
    info: list[NonEmptyStr]
    """fields of the environments' info that are recorded, in training and in evaluations, inner ones as episode/r; only
    of Gymnasium environments"""
    replay_in_checkpoints: Literal["all", "resumable", "none"]
    """which checkpoints hold the rows of replay buffers; resumable: all but the last one of a finished run; none: a run
    that is resumed begins with empty buffers, and equal bits are not promised"""
