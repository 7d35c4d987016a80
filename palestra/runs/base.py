"""The keys of every run, whatever it trains.

There are several kinds of run; the class of the trainer says which kind it trains (palestra.runs.kinds). Each kind is a
BaseRunConfig with further keys.
"""

from typing import Annotated, Any, ClassVar, Self

from pydantic import model_validator

from palestra.callbacks import AnyCallbackConfig
from palestra.config import ByName, Config, ConfigError, ConfigErrorItem, InBranch, NonNegativeInt, UserConfig, walk
from palestra.config.errors import listed
from palestra.runs.sections import MachineConfig, RunOutputConfig
from palestra.runtime.intervals import Interval, Limit


class TrainerBase:
    """The base of the classes that `trainer` may name: `palestra.training.training.Training` derives from it.

    run_config: the kind of run that it trains. A class of your own carries its keys as `Config`, a UserConfig.
    """

    run_config: ClassVar[type["BaseRunConfig"]]


class BaseRunConfig(Config):
    """The keys of every run, whatever it trains. The keys that a kind of run adds stand between `trainer` and `stop`.

    units: the units that intervals and limits of this kind of run may have.
    """

    units: ClassVar[tuple[str, ...]] = ("opt_steps", "epochs", "minutes")
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
        expected = f"expected one of {listed(self.units)}"
        counting = ((keys, value) for keys, value in walk(self) if isinstance(value, Interval | Limit))
        errors = [
            ConfigErrorItem(".".join((*keys, "unit")), f"{expected}, got {value.unit!r}")
            for keys, value in counting
            if value.unit not in self.units
        ]
        ConfigError.require_none(errors)
        return self
