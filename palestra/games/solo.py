"""SoloGame: a game of one role and the player in its seat. Every step of a world is a decision, and closes at once.

Letters: B worlds, T rounds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palestra.games.fused import Memory, Policy, Transitions
from palestra.games.game import Game
from palestra.games.world import Outcome, TensorWorld, World
from palestra.randomness import base_key, fold, world_keys


@dataclass
class SoloWorlds:
    """A batch of running games: the world, and the counters around it. Belongs to one roll-out loop.

    totals: float64, sums over finished games, in the order of `SoloGame.total_names`.
    """

    keys: Tensor
    num_turns: int
    world: World
    lengths: Tensor
    returns: Tensor
    totals: Tensor
    memory: Memory = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._plain()} | {"world": self.world.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.keys.device
        for name in self._plain():
            setattr(self, name, _moved(state[name], device))
        self.world.load_state_dict(state["world"])

    def _plain(self) -> list[str]:
        return [name for name in self.__dataclass_fields__ if name != "world"]


class SoloGame:
    """Plays a game of one role with a policy in its seat, as FusedGame does for games of several.

    make_world: fresh worlds from their number, a seed, and keys int64 (B,) that differ from world to world.
    """

    def __init__(
        self, game: Game, policies: dict[str, Policy], make_world: Callable[[int, int, Tensor], World]
    ) -> None:
        (self.role,) = game.roles
        self.game, self.policies, self.make_world = game, policies, make_world
        self.total_names = ("episodes", "terminated", "truncated", "length", f"return/{self.role}", *game.tallies)

    def new_worlds(self, num_worlds: int, seed: int, stream: str) -> SoloWorlds:
        """Fresh worlds whose randomness is that of (seed, stream)."""
        key, device = base_key(seed, stream), self.game.device
        keys = world_keys(key, num_worlds, device)
        zeros = torch.zeros(num_worlds, device=device)
        return SoloWorlds(
            keys=keys,
            num_turns=1,
            world=self.make_world(num_worlds, key, fold(keys, 0)),
            lengths=zeros.int(),
            returns=zeros,
            totals=torch.zeros(len(self.total_names), dtype=torch.float64, device=device),
        )

    @torch.no_grad()
    def collect(self, worlds: SoloWorlds, roles: tuple[str, ...], num_rounds: int) -> Transitions:
        """Play `num_rounds` steps in every world and give what the role has experienced: T * B rows, round by round."""
        world, policy = worlds.world, self.policies[self.role]
        counters = torch.arange(worlds.num_turns, worlds.num_turns + num_rounds, device=worlds.keys.device)
        worlds.num_turns += num_rounds
        parts = []
        for keys in fold(worlds.keys, counters.unsqueeze(1)).unbind():
            observation, legal = world.observation, world.legal
            decision = policy.act(self._view(worlds, policy), legal, keys + 1, worlds.memory)
            outcome = world.step(decision.action, keys + 2)
            parts.append(
                Transitions(
                    observation=observation,
                    action=decision.action,
                    reward=outcome.reward,
                    next_observation=outcome.observation,
                    next_legal=outcome.legal,
                    terminated=outcome.terminated,
                    truncated=outcome.truncated,
                    valid=outcome.valid,
                    extras=decision.extras,
                )
            )
            worlds.memory = decision.memory
            self._count(worlds, outcome)
        return parts[0] if num_rounds == 1 else Transitions.concatenate(parts)

    def take_totals(self, worlds: SoloWorlds) -> dict[str, float]:
        """The sums over the games that have finished since the last call, by `total_names`. Waits for the device."""
        values = dict(zip(self.total_names, worlds.totals.tolist(), strict=True))
        worlds.totals = torch.zeros_like(worlds.totals)
        return values

    def _view(self, worlds: SoloWorlds, policy: Policy) -> Mapping[str, Tensor]:
        if policy.sees == "state":
            assert isinstance(worlds.world, TensorWorld)
            return worlds.world.state
        return worlds.world.observation

    def _count(self, worlds: SoloWorlds, outcome: Outcome) -> None:
        worlds.lengths = worlds.lengths + outcome.valid
        worlds.returns = worlds.returns + outcome.raw_reward
        ended = outcome.terminated | outcome.truncated
        forgetting = ended | ~outcome.valid  # who has decided while a game only began has seen nothing of it
        if ended.device.type == "cpu" and not forgetting.any():
            return
        columns = (ended, outcome.terminated, outcome.truncated, worlds.lengths, worlds.returns, *outcome.tallies)
        worlds.totals = worlds.totals + torch.stack([(column * ended).double().sum() for column in columns])
        worlds.lengths = worlds.lengths.masked_fill(ended, 0)
        worlds.returns = worlds.returns.masked_fill(ended, 0.0)
        worlds.memory = {
            name: value * ~forgetting.view(-1, *([1] * (value.dim() - 1))) for name, value in worlds.memory.items()
        }


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, dict):
        return {name: _moved(item, device) for name, item in value.items()}
    return value.to(device) if isinstance(value, Tensor) else value
