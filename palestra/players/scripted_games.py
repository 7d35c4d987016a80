"""Scripted players of Nim and of games on a board.

Letters: B worlds, A actions, H heaps, M most stones of a heap.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from palestra.games.boards import BoardGame, ConnectFourConfig
from palestra.games.nim import NimConfig, NimGame
from palestra.players.scripted import ScriptedPolicy
from palestra.randomness import random_choice


class NimOptimal(ScriptedPolicy):
    """Plays Nim optimally: leaves heaps whose exclusive or is zero (Bouton 1901).

    If no move does, it chooses the first legal one.
    """

    game_config = NimConfig
    observes = "state"
    game: NimGame

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        heaps = view["heaps"]
        balance = torch.zeros_like(keys)
        for heap in heaps.unbind(1):
            balance = balance ^ heap
        left = heaps.unsqueeze(2) - self.game.stones  # (B, H, M): what a move leaves in its heap
        wins = ((heaps ^ balance.unsqueeze(1)).unsqueeze(2) == left).flatten(1) & legal
        return torch.where(wins.any(1, keepdim=True), wins, legal).to(torch.int8).argmax(dim=1)


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
