"""Scripted players of games on a board.

Letters: B worlds, A actions.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from palestra.games.boards import BoardGame, ConnectFourConfig
from palestra.players.scripted import ScriptedPolicy
from palestra.randomness import random_choice


class ConnectFourTactical(ScriptedPolicy):
    """Wins at once if it can; else keeps the other from winning at once; else chooses any legal action.

    Where several actions win, or several keep the other from winning, it chooses any of these.
    """

    game_config = ConnectFourConfig
    observes = "state"
    game: BoardGame

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        placed, is_first = self.game.placed(view["first"] | view["second"]), view["mover"] == 0
        own = torch.where(is_first, view["first"], view["second"])
        other = torch.where(is_first, view["second"], view["first"])
        wins, blocks = (self.game.has_line(stones.unsqueeze(1) | placed) & legal for stones in (own, other))
        good = torch.where(blocks.any(1, keepdim=True), blocks, legal)
        return random_choice(keys, torch.where(wins.any(1, keepdim=True), wins, good))
