"""The callback by which `palestra train` leaves when its first opt step is done (benchmarks/peers/start.py)."""

import os

from palestra.callbacks import Callback
from palestra.config import UserConfig
from palestra.players.player import Metrics, Player


class Leave(Callback):
    class Config(UserConfig): ...

    def after_step(self, trainer: object, player: Player, metrics: Metrics) -> None:
        os.write(1, b"first opt step\n")
        os._exit(0)
