"""What d3rlpy has learned, as a player of palestra's."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from palestra.games.game import Game
from palestra.games.spaces import Box
from palestra.players.scripted import ScriptedPlayerConfig, ScriptedPolicy


class ImportedConfig(ScriptedPlayerConfig):
    layers: str
    """an .npz file with weights and biases of the policy's network, by their numbers, as benchmarks.peers.d3rlpy leaves
    it"""


class Imported(ScriptedPolicy):
    """Plays the tanh of what a network with relu puts out."""

    Config = ImportedConfig
    action_spaces = (Box,)
    observes = "observation"

    def __init__(self, config: ImportedConfig, game: Game, role: str) -> None:
        super().__init__(config, game, role)
        with np.load(config.layers, allow_pickle=False) as stored:
            self.layers = [
                (torch.from_numpy(stored[f"{number}.weight"]), torch.from_numpy(stored[f"{number}.bias"]))
                for number in range(len(stored.files) // 2)
            ]

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        (outputs,) = view.values()
        outputs = outputs.float()
        for number, (weight, bias) in enumerate(self.layers):
            outputs = torch.nn.functional.linear(outputs.relu() if number else outputs, weight, bias)
        return torch.tanh(outputs)
