"""Scripted players of Nim.

Letters: B worlds, H heaps, M most stones of a heap.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from palestra.games.nim import NimConfig, NimGame
from palestra.players.scripted import ScriptedPolicy


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
