"""Games by name."""

from typing import Annotated

import torch

from palestra.config import ByName, Config
from palestra.games.fused import FusedGame
from palestra.games.game import TensorGame
from palestra.games.newton import Kernel
from palestra.games.nim import NimConfig, NimGame
from palestra.games.polyhedra import PolyhedraConfig, PolyhedraGame
from palestra.games.solo import SoloGame
from palestra.games.world import TensorWorld

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


def fuse(game: TensorGame) -> FusedGame | SoloGame:
    """What plays a game: one role is played in a leaner loop. The policies are to be put in."""
    if len(game.roles) > 1:
        return FusedGame(game, {})
    return SoloGame(game, {}, lambda num_worlds, seed, keys: TensorWorld(game, keys))
