"""Callbacks: objects that override hooks of the trainer; some by name, others of the user's own."""

from typing import Annotated

from palestra.callbacks.callback import Callback, CallbackConfig
from palestra.callbacks.change_schedule import ChangeScheduleConfig
from palestra.callbacks.freeze import FreezeConfig
from palestra.callbacks.plateau import EarlyStoppingConfig, ReduceOnPlateauConfig
from palestra.config import ByName, UserConfig, load_class

AnyCallbackConfig = Annotated[
    EarlyStoppingConfig | ReduceOnPlateauConfig | ChangeScheduleConfig | FreezeConfig | UserConfig,
    ByName(user_class=Callback),
]


def make_callback(config: CallbackConfig | UserConfig) -> Callback:
    return config.build() if isinstance(config, CallbackConfig) else load_class(config.name, Callback)(config)


__all__ = ["AnyCallbackConfig", "Callback", "make_callback"]
