"""Scripted players of the polyhedra game.

Letters: B worlds, N points, n dimension, A actions.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from palestra.games.policy import Observes
from palestra.games.polyhedra.game import PolyhedraConfig, PolyhedraGame
from palestra.games.polyhedra.newton import blow_up, measure
from palestra.players.scripted import ScriptedPolicy


class PolyhedraPolicy(ScriptedPolicy):
    """Base of players that use the exact points of the polyhedra game, which observations may rescale."""

    game_config = PolyhedraConfig
    observes: Observes = "state"
    game: PolyhedraGame

    def points_left(self, points: Tensor, subset: Tensor, axis: int) -> Tensor:
        """Count the points that remain after the agent's answer `axis` to the host's choice `subset`: int64 (B,)."""
        after, _ = blow_up(points, subset, torch.full_like(subset, axis), self.game.config.reduction, self.game.kernel)
        return measure(after, self.game.kernel)[0]


class AllCoordinatesHost(PolyhedraPolicy):
    """A host that always names all coordinates."""

    roles = ("host",)
    observes = "nothing"

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        return torch.full_like(keys, legal.shape[1] - 1)


class ZeillingerHost(PolyhedraPolicy):
    """A host that follows Zeillinger's strategy, which wins from every start.

    Zeillinger 2006, "A short solution to Hironaka's polyhedra game". Of all pairs of points, the first whose difference
    v has the lexicographically least (max v - min v, number of entries equal to the maximum or the minimum) decides;
    the choice is a coordinate where v is least and one where it is largest.
    """

    roles = ("host",)

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        points = view["points"]
        present = points[..., 0] >= 0
        if points.device.type == "cpu":  # present rows come first: skip the places that are empty on every board
            most = max(int(present.sum(1).max()), 2)
            points, present = points[:, :most], present[:, :most]
        N, n = points.shape[1:]
        i, j = torch.triu_indices(N, N, offset=1, device=points.device)
        differences = [points[:, i, k] - points[:, j, k] for k in range(n)]  # n times (B, pairs)
        largest, least = differences[0], differences[0]
        for difference in differences[1:]:
            largest, least = torch.maximum(largest, difference), torch.minimum(least, difference)
        extremes = sum(
            ((d == largest).int() + (d == least).int() for d in differences), torch.zeros_like(i, dtype=torch.int32)
        )
        spread = ((largest - least) * (2 * n + 1) + extremes).masked_fill(~(present[:, i] & present[:, j]), torch.inf)
        pair = spread.argmin(dim=1, keepdim=True)
        v = torch.cat([difference.gather(1, pair) for difference in differences], dim=1)
        low, high = v.argmin(dim=1), v.argmax(dim=1)
        high = torch.where(low == high, (low == 0).long(), high)  # no such pair: the game is over, any choice will do
        return self.game.action_of_mask[(1 << low) | (1 << high)]


class LookAheadHost(PolyhedraPolicy):
    """A host whose choice leaves the fewest points on average over the agent's answers; the first on ties."""

    roles = ("host",)

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        n, points = self.game.config.dimension, view["points"]
        scores = []
        for mask in self.game.masks.tolist():
            subset = torch.full_like(keys, mask)
            answers = [axis for axis in range(n) if mask >> axis & 1]
            left = sum((self.points_left(points, subset, axis) for axis in answers), torch.zeros_like(keys))
            scores.append(left * 840 // len(answers))  # 840 is divisible by 1..8: means of equal sums tie exactly
        return torch.stack(scores, dim=1).argmin(dim=1)


class GreedyAgent(PolyhedraPolicy):
    """An agent that picks the coordinate that leaves the most points; the first on ties."""

    roles = ("agent",)

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        left = [self.points_left(view["points"], view["subset"], axis) for axis in range(legal.shape[1])]
        return torch.stack(left, dim=1).masked_fill(~legal, -1).argmax(dim=1)
