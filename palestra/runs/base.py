"""The keys of every run, whatever it trains.

There are several kinds of run; the class of the trainer says which kind it trains (palestra.runs.kinds). Each kind is a
BaseRunConfig with further keys.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import model_validator

from palestra.callbacks import AnyCallbackConfig
from palestra.config import ByName, Config, ConfigError, ConfigErrorItem, InBranch, NonNegativeInt, UserConfig, walk
from palestra.config.errors import listed
from palestra.evaluation.config import Delay
from palestra.evaluation.measures import GameMeasures, Measure, MeasureKeys, measure_errors
from palestra.runs.sections import MachineConfig, RunOutputConfig
from palestra.runtime.intervals import Interval, Limit


class TrainerBase:
    """The base of the classes that `trainer` may name: `palestra.training.training.Training` derives from it.

    run_config: the kind of run that it trains. A class of your own carries its keys as `Config`, a UserConfig.
    """

    run_config: ClassVar[type["BaseRunConfig"]]


class BaseRunConfig(Config):
    """The keys of every run, whatever it trains. The keys that a kind of run adds stand between `trainer` and `stop`.

    Class variables and the methods below the keys say what else differs between kinds: commands, evaluators, sweeps,
    reports and callbacks ask for these, and not for the kind.

    units: the units that intervals and limits of this kind of run may have. counters: what it counts, in the order in
    which records have it. axes: those over which its curves go, the usual one first. in_words: what it is, for a user
    who expected another kind. is_played: whether players play in it, whom one can ask and play against.
    bitless: keys of `execution` that change no bit, so that a run may be resumed with others. changeable: keys that may
    be others where a stored run of a training is evaluated, or what has learned there is used.
    """

    units: ClassVar[tuple[str, ...]] = ("opt_steps", "epochs", "minutes")
    counters: ClassVar[tuple[str, ...]] = ("opt_steps", "epochs")
    axes: ClassVar[tuple[str, ...]] = ("opt_steps",)
    in_words: ClassVar[str] = "a run in which nobody plays"
    is_played: ClassVar[bool] = False
    bitless: ClassVar[tuple[str, ...]] = ()
    changeable: ClassVar[tuple[str, ...]] = ()
    usual: ClassVar[Any] = {
        "seed": 0,
        "stop": {"after": 50_000, "unit": "opt_steps"},
        "callbacks": [],
    }

    seed: NonNegativeInt
    """all random numbers of the run are derived from it"""
    trainer: Annotated[UserConfig, ByName(user_class=TrainerBase), InBranch.SAME_PART]
    """who learns when: a class of your own"""
    stop: Limit
    """when the run is done"""
    callbacks: Annotated[list[AnyCallbackConfig], InBranch.SAME_PART]
    """what is done at the hooks of the training besides training: by name, or classes of your own"""
    execution: MachineConfig
    """where and how the run is computed; equal bits are promised only while it is unchanged"""
    output: RunOutputConfig
    """what is shown and stored; it changes no bit of the results"""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        for name in ("stop", "callbacks", "execution", "output"):  # last, wherever the keys of the kind were added
            cls.__pydantic_fields__[name] = cls.__pydantic_fields__.pop(name)

    @model_validator(mode="after")
    def _check_units(self) -> Self:
        counting = ((keys, value) for keys, value in walk(self) if isinstance(value, Interval | Limit | Delay))
        errors = [
            ConfigErrorItem(".".join((*keys, "unit")), f"expected one of {listed(known)}, got {value.unit!r}")
            for keys, value in counting
            if value.unit not in (known := self.steps() if isinstance(value, Delay) else self.units)
        ]
        ConfigError.require_none(errors)
        return self

    # ---- what a kind of run answers ------------------------------------------------------------------------

    @classmethod
    def steps(cls) -> tuple[str, ...]:
        """Return the counters that tell two moments of a run apart: those that may be units."""
        return tuple(name for name in cls.counters if name in cls.units)

    @classmethod
    def subject(cls, data: Mapping[str, Any]) -> str:
        """Say what a run is about, as the name of a game; "" if that is not known. data: its config as plain data."""
        return ""

    @classmethod
    def learns_by(cls, data: Mapping[str, Any]) -> list[str]:
        """Name what learns in a run, as algorithms. data: its config as plain data."""
        return []

    def kept(self) -> Mapping[str, str]:
        """Return the keys below the changeable ones that stay as they are, each with the reason."""
        return {}

    def judged_by(self, evaluation: str) -> Sequence[Config]:
        """Return the sections by which an evaluation is made; one by other sections has another result."""
        return []

    def measured(self) -> Sequence[Any]:
        """Return the evaluations of the run, as whoever measures by them knows them."""
        return []

    def measured_roles(self) -> Sequence[str]:
        """Return the roles whose returns an evaluation may measure."""
        return []

    def measures_of_games(self) -> Mapping[str, GameMeasures]:
        """Return the measures that games add to the record of each evaluation, by its name."""
        return {}

    def learners(self) -> list[str]:
        """Return the names of the players that learn."""
        return []

    def learning_keys(self) -> list[str]:
        """Return where the hyperparameters stand by which it learns, as dotted keys."""
        return []

    def plan(self) -> list[str]:
        """Return lines that say what the run does, besides its stages."""
        return []

    def limit_note(self) -> str | None:
        """Return a line for the user if it may be that nothing ends what is played; else None."""
        return None

    def environments(self) -> list[str]:
        """Return the ids of the environments that are stepped, each once."""
        return []

    def measure(self, keys: MeasureKeys) -> Measure:
        """Return what reads a measure out of the records of evaluations."""
        return Measure(keys, self.measured(), self.measures_of_games())

    def measure_errors(self, keys: MeasureKeys) -> list[ConfigErrorItem]:
        """Find the errors in what is to be measured, with paths relative to it."""
        of_games = self.measures_of_games()
        return measure_errors(keys, self.measured(), self.measured_roles(), of_games, self.learners())
