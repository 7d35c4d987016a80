"""Scripted players of dialogues.

Letters: B worlds, N bits.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from palestra.config import ConfigError
from palestra.games.dialogue.game import DialogueConfig, DialogueGame
from palestra.games.dialogue.protocol import ACCEPT, GO_ON, REJECT
from palestra.games.dialogue.scenario import INSTANCE
from palestra.games.dialogue.witness import Witness
from palestra.games.game import Game
from palestra.games.spaces import Discrete, MultiDiscrete
from palestra.players.scripted import ScriptedPlayerConfig, ScriptedPolicy


class WitnessOptimal(ScriptedPolicy):
    """Plays the scenario `witness` optimally, as a prover and as a verifier.

    A prover points at a bit that speaks for its side, if there is one; a verifier accepts when it sees a 1, and rejects
    at its last chance.
    """

    game_config = DialogueConfig
    action_spaces = (Discrete, MultiDiscrete)
    observes = "state"
    game: DialogueGame

    def __init__(self, config: ScriptedPlayerConfig, game: Game, role: str) -> None:
        super().__init__(config, game, role)
        if not isinstance(self.game.scenario, Witness):
            message = f"expected the scenario 'witness' for the player {config.scripted!r}, got another one"
            raise ConfigError.at("", message)

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        game, role = self.game, self.role
        bits = view[f"{INSTANCE}bits"]
        is_verifier = role in game.protocol.verifiers
        sides = [1 if is_verifier else game.protocol.side(role, k) for k in range(game.protocol.num_variants)]
        wanted = bits == torch.tensor(sides, device=bits.device)[view["variant"]].unsqueeze(1)
        token = wanted.to(torch.int8).argmax(dim=1)  # the first; bit 0 where there is none
        if is_verifier:
            token = torch.zeros_like(token)  # it must say something, and tells nothing
        num_says = len(game.spoken_channels[role])
        width = game.scenario.num_tokens + 1
        may_speak = legal[:, : num_says * width].view(len(legal), num_says, width)[:, :, 0]
        choices = [torch.where(may, token, width - 1) for may in may_speak.unbind(1)]
        if is_verifier:
            chances = game.rules.decides[:, :, game.protocol.verifiers.index(role)].any(dim=1).nonzero()
            sees_one = game.observe(dict(view), role)["bits"][:, :, 1].any(dim=1)
            decision = torch.where(sees_one, ACCEPT, torch.where(view["round"] == chances.max(), REJECT, GO_ON))
            choices.append(torch.where(legal[:, -3], decision, GO_ON))
        return choices[0] if isinstance(self.space, Discrete) else torch.stack(choices, dim=1)
