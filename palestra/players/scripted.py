"""Scripted players: they follow a rule, do not learn, and draw what chance they need from the keys they are given.

Letters: B worlds, N points, n dimension, A actions.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from palestra.config import ConfigError, ConfigErrorItem
from palestra.games.game import Game
from palestra.games.nim import NimGame
from palestra.games.policy import Decision, Memory, Sees
from palestra.games.polyhedra.game import PolyhedraGame
from palestra.games.polyhedra.newton import blow_up, measure
from palestra.games.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from palestra.randomness import fold, random_choice, random_floats


class ScriptedPolicy:
    """Base: `choose` gives an action per world. `game_class` and `roles` say where the player may sit; None: anywhere.

    action_spaces: the kinds of actions that it chooses. Raises ConfigError for a role whose actions are of another.
    """

    name: ClassVar[str]
    game_class: ClassVar[type[Game] | None] = None
    roles: ClassVar[tuple[str, ...] | None] = None
    action_spaces: ClassVar[tuple[type[ActionSpace], ...]] = (Discrete,)
    sees: Sees = "nothing"

    def __init__(self, game: Game, role: str) -> None:
        self.game, self.space = game, game.action_spaces[role]
        if not isinstance(self.space, self.action_spaces):
            can = " or ".join(kind.__name__ for kind in self.action_spaces)
            raise ConfigError(
                [ConfigErrorItem("", f"{self.name!r} chooses {can} actions; those of {role!r} are {self.space}")]
            )

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        """(B, ...) as the action space says: a legal action wherever there is one."""
        raise NotImplementedError

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        return Decision(self.choose(view, legal, keys), {}, memory)


class RandomPolicy(ScriptedPolicy):
    """Any legal action, each with the same probability; numbers uniformly within their bounds."""

    name = "random"
    action_spaces = (Discrete, MultiDiscrete, Box)

    def __init__(self, game: Game, role: str) -> None:
        super().__init__(game, role)
        if isinstance(self.space, Box):
            self.low, self.high = (torch.tensor(x, device=game.device) for x in (self.space.low, self.space.high))
            if not (self.high - self.low).isfinite().all():
                message = f"'random' draws numbers within bounds; not all actions of {role!r} have them: {self.space}"
                raise ConfigError([ConfigErrorItem("", message)])

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        match self.space:
            case Discrete():
                return random_choice(keys, legal)
            case MultiDiscrete(nums=nums):
                choices = enumerate(legal.split(list(nums), dim=1))
                return torch.stack([random_choice(fold(keys, k), flags) for k, flags in choices], dim=1)
            case Box(low=low):
                return self.low + (self.high - self.low) * random_floats(keys, len(low))


class ChooseFirstPolicy(ScriptedPolicy):
    """The first legal action; as an agent of the polyhedra game: the first coordinate of the host's choice."""

    name = "choose_first"

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        return legal.to(torch.int8).argmax(dim=1)


class ChooseLastPolicy(ScriptedPolicy):
    """The last legal action; as an agent of the polyhedra game: the last coordinate of the host's choice."""

    name = "choose_last"

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        return legal.shape[1] - 1 - legal.flip(1).to(torch.int8).argmax(dim=1)


class PolyhedraPolicy(ScriptedPolicy):
    """Base of those who look at the exact points of the polyhedra game, whatever the observations are scaled to."""

    game_class = PolyhedraGame
    sees: Sees = "state"
    game: PolyhedraGame

    def points_left(self, points: Tensor, subset: Tensor, axis: int) -> Tensor:
        """How many points remain after the agent's answer `axis` to the host's choice `subset`: int64 (B,)."""
        axes = torch.full_like(subset, axis)
        after, _ = blow_up(points, subset, axes, self.game.config.reduction, self.game.kernel)
        return measure(after, self.game.kernel)[0]


class AllCoordinatesHost(PolyhedraPolicy):
    """Host: always all coordinates."""

    name = "all_coordinates"
    roles = ("host",)
    sees = "nothing"

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        return torch.full_like(keys, legal.shape[1] - 1)


class ZeillingerHost(PolyhedraPolicy):
    """Host: Zeillinger's strategy, which wins from every start (Zeillinger 2006, "A short solution to Hironaka's
    polyhedra game").

    Of all pairs of points, the first whose difference v has the lexicographically least (max v - min v, number of
    entries equal to the maximum or the minimum) decides; the choice is a coordinate where v is least and one where it
    is largest.
    """

    name = "zeillinger"
    roles = ("host",)

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        points = view["points"]
        present = points[..., 0] >= 0
        if points.device.type == "cpu":  # present rows come first: do not pay for places that are empty everywhere
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
    """Host: the choice that leaves the fewest points on average over the agent's answers; the first on ties."""

    name = "look_ahead"
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
    """Agent: the coordinate that keeps most points; the first on ties."""

    name = "greedy"
    roles = ("agent",)

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        kept = [self.points_left(view["points"], view["subset"], axis) for axis in range(legal.shape[1])]
        return torch.stack(kept, dim=1).masked_fill(~legal, -1).argmax(dim=1)


class NimOptimal(ScriptedPolicy):
    """Nim, solved: leave heaps whose exclusive or is zero (Bouton 1901); the first legal move where that cannot be."""

    name = "nim_optimal"
    game_class = NimGame
    sees = "state"
    game: NimGame

    def choose(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        heaps = view["heaps"]
        balance = torch.zeros_like(keys)
        for heap in heaps.unbind(1):
            balance = balance ^ heap
        left = heaps.unsqueeze(2) - self.game.stones  # (B, H, M): what a move leaves in its heap
        wins = ((heaps ^ balance.unsqueeze(1)).unsqueeze(2) == left).flatten(1) & legal
        return torch.where(wins.any(1, keepdim=True), wins, legal).to(torch.int8).argmax(dim=1)


SCRIPTED: dict[str, type[ScriptedPolicy]] = {
    policy.name: policy
    for policy in (
        RandomPolicy,
        ChooseFirstPolicy,
        ChooseLastPolicy,
        AllCoordinatesHost,
        ZeillingerHost,
        LookAheadHost,
        GreedyAgent,
        NimOptimal,
    )
}
