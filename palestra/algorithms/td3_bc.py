"""TD3+BC (Fujimoto and Gu 2021): TD3 whose policy also stays near the actions taken, for recorded play.

Left out on purpose: the normalisation of observations, which is a key of the game.
"""

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from palestra.algorithms.td3 import TD3, TD3Config
from palestra.config import PositiveFloat
from palestra.games.spaces import RoleSpaces
from palestra.players.player import Player
from palestra.rollouts.transitions import Transitions


class TD3BCConfig(TD3Config):
    """Every key of `algorithm: {name: td3_bc}`: those of TD3, and `alpha`. No defaults."""

    @classmethod
    def usual(cls, said: Mapping[str, Any], spaces: RoleSpaces) -> dict[str, Any]:
        return {"policy_learning_rate": 3e-4, "critic_learning_rate": 3e-4, "alpha": 2.5}

    name: Literal["td3_bc"]  # type: ignore[assignment]
    """TD3 whose policy also stays near the actions taken, for recorded play with actions of a Box"""
    alpha: PositiveFloat
    """weight of the value against the distance to the actions taken; 2.5 in the paper"""

    def build(self, player: Player) -> "TD3BC":
        return TD3BC(self, player)


class TD3BC(TD3):
    config: TD3BCConfig

    def policy_loss(self, q_values: Tensor, actions: Tensor, batch: Transitions) -> dict[str, Tensor]:
        """Return the terms of the policy's loss: TD3's, scaled, and the distance to the actions taken.

        See section 5 of the paper. The distance is the mean square in half-widths. The scale is alpha divided by the
        mean size of the values, so that alpha does not depend on rewards. actions: (B, n), in half-widths. q_values:
        (B,).
        """
        terms = super().policy_loss(q_values, actions, batch)
        scale = self.config.alpha / q_values.detach().abs().mean()
        distance = (actions - self.half_widths(batch.action)).square().mean()
        scaled = {"loss_policy": scale * terms["loss_policy"]}
        return terms | scaled | {"loss_distance": distance, "distance": distance}
