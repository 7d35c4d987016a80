"""Callbacks: objects whose hooks a training calls; some have a name in config files, others are the user's own."""

from typing import Annotated, Any

from palestra.callbacks.callback import Callback, CallbackConfig
from palestra.callbacks.change_schedule import ChangeScheduleConfig
from palestra.callbacks.freeze import FreezeConfig
from palestra.callbacks.plateau import EarlyStoppingConfig, ReduceOnPlateauConfig
from palestra.config import ByName, Config, UserConfig, check, cut

AnyCallbackConfig = Annotated[
    EarlyStoppingConfig | ReduceOnPlateauConfig | ChangeScheduleConfig | FreezeConfig | UserConfig,
    ByName(user_class=Callback),
]


class _Holder(Config):
    callback: AnyCallbackConfig
    """one callback"""


def make_callback(config: CallbackConfig | UserConfig | dict[str, Any]) -> Callback:
    """A callback, from its config or from the mapping that a file would hold. Raises ConfigError."""
    if isinstance(config, dict):
        config = check({"callback": config}, _Holder).callback
    callback: Callback = config.build()
    return callback


def required_callbacks(given: object) -> list[Callback]:
    """The callbacks that a program gives. Raises TypeError for anything but a list of Callback objects."""
    wrong = [each for each in given if not isinstance(each, Callback)] if isinstance(given, list | tuple) else [given]
    if wrong:
        expected = "expected a list of objects of classes that derive from palestra.Callback"
        raise TypeError(f"callbacks: {expected}, got {cut(repr(wrong[0]))}")
    return list(given)  # type: ignore[call-overload]
