"""Games by name."""

from typing import Annotated

import torch

from palestra.config import ByName, Config
from palestra.games.game import TensorGame
from palestra.games.newton import Kernel
from palestra.games.nim import NimConfig, NimGame
from palestra.games.polyhedra import PolyhedraConfig, PolyhedraGame

GameConfig = Annotated[PolyhedraConfig | NimConfig, ByName()]

GAMES: dict[str, type[TensorGame]] = {"polyhedra": PolyhedraGame, "nim": NimGame}


def make_game(config: Config, device: torch.device, kernel: Kernel) -> TensorGame:
    """The rules that a config names. kernel: of the polyhedra game; changes speed, never a result."""
    match config:
        case PolyhedraConfig():
            return PolyhedraGame(config, device, kernel)
        case NimConfig():
            return NimGame(config, device)
    raise TypeError(f"{type(config).__name__} is no config of a game")
