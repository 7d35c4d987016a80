"""Callbacks: objects that override hooks of the trainer."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from palestra.player import Metrics, Player

if TYPE_CHECKING:
    from palestra.trainer import Trainer


class Callback:
    """Override any hook. Each receives the trainer; `trainer.epoch_counts` says what the running epoch has done so far.

    A callback that keeps state gives it by `state_dict` and takes it back by `load_state_dict`.
    """

    def __init__(self, config: Any) -> None:
        self.config = config

    def before_train(self, trainer: "Trainer") -> None: ...

    def before_epoch(self, trainer: "Trainer") -> None: ...

    def before_step(self, trainer: "Trainer", player: Player) -> None: ...

    def after_step(self, trainer: "Trainer", player: Player, metrics: Metrics) -> None: ...

    def after_evaluation(self, trainer: "Trainer", record: Mapping[str, Any]) -> None: ...

    def after_epoch(self, trainer: "Trainer") -> None: ...

    def after_train(self, trainer: "Trainer") -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
