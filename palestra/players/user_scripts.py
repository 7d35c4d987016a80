"""Scripted players of a user's own: every choice is checked, and they are tried before anybody plays with them.

Letters: B worlds.
"""

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from palestra.config import ConfigError, failure, running_own
from palestra.games.game import Game, IllegalMove, TensorGame, is_legal
from palestra.games.policy import Decision, Memory, Policy, told_probabilities
from palestra.games.spaces import ActionSpace, Box
from palestra.games.tryout import random_action
from palestra.games.tryout_calls import are_same
from palestra.players.scripted import ScriptedPlayerConfig, ScriptedPolicy
from palestra.randomness import base_key, fold, restored_global_states, world_keys

NUM_TRIED_WORLDS = 5
MOST_TRIED_ROUNDS = 20  # until the role decides somewhere


class CheckedScript:
    """A scripted player of a user's own, whose errors name it. policy: an object of the user's class."""

    kind = "scripted"

    def __init__(self, policy: ScriptedPolicy, role: str) -> None:
        self.policy, self.role, self.name = policy, role, policy.config.scripted
        self.observes, self.config = policy.observes, policy.config

    @classmethod
    def build(cls, own: type[ScriptedPolicy], config: ScriptedPlayerConfig, game: Game, role: str) -> Self:
        """Make the player for a role of a game, and try it once.

        Raises ConfigError for one that fails, chooses something else than legal actions, or chooses otherwise when it
        is asked again.
        """
        if (fault := fault_of_class(own, config.scripted)) is not None:
            raise ConfigError.at("", fault)
        with running_own("", f"{config.scripted!r} cannot be made for {role!r}"):
            made = cls(own(config, game, role), role)
        try_policy(made, made.name, game, role)
        return made

    def for_seat(self, game: Game, role: str) -> Self:
        return self.build(type(self.policy), self.policy.config, game, role)

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        """Decide as the policy does.

        Raises IllegalMove for choices that are no actions, or illegal ones where there are legal ones.
        """
        decision = self.policy.act(view, legal, keys, memory)
        require_actions(decision.action, self.policy.space, legal, self.role, repr(self.name))
        return decision

    def probabilities(self, view: Mapping[str, Tensor], legal: Tensor) -> Tensor | None:
        return told_probabilities(self.policy, view, legal)


def fault_of_class(own: type[ScriptedPolicy], name: str) -> str | None:
    """Say what is wrong with the attributes of a user's class, or return None."""
    if own.choose is ScriptedPolicy.choose and own.act is ScriptedPolicy.act:
        return f"expected a method `choose` of {name!r}, got none"
    kinds = ("observation", "state", "nothing")
    if own.observes not in kinds:
        return f"expected one of {', '.join(map(repr, kinds))} as `observes` of {name!r}, got {own.observes!r}"
    for attribute, kind in (("roles", str), ("action_spaces", type)):
        value: Any = getattr(own, attribute)
        is_absent = value is None and attribute == "roles"
        if not (is_absent or (isinstance(value, tuple) and all(isinstance(item, kind) for item in value))):
            what = "names" if kind is str else "kinds of action spaces"
            return f"expected a tuple of {what} as `{attribute}` of {name!r}, got {value!r}"
    return None


def require_actions(action: Any, space: ActionSpace, legal: Tensor, role: str, source: str) -> None:
    """Raise IllegalMove for what is no action, and for one that is illegal in some world.

    legal: bool (B, flags of the action space); where it has none, any action will do. source: of the actions, in words.
    """
    wanted = (len(legal), *space.shape)
    if not isinstance(action, Tensor) or action.shape != wanted or action.dtype != space.dtype:
        expected = f"actions, {str(space.dtype).removeprefix('torch.')} of shape {wanted}"
        raise IllegalMove(f"expected {expected} of {role!r} from {source}, got {kind_of(action)}")
    wrong = ~is_legal(action, space, legal)
    if not isinstance(space, Box):
        wrong &= torch.stack([flags.any(dim=1) for flags in space.split(legal)]).all(dim=0)
    if not bool(wrong.any()):
        return
    world = int(wrong.nonzero()[0, 0])
    if isinstance(space, Box):
        there = f"between {space.low} and {space.high}"
    else:
        there = f"flags {legal[world].nonzero().flatten().tolist()} in world {world}"
    raise IllegalMove(f"expected a legal action ({there}) of {role!r} from {source}, got {action[world].tolist()}")


def kind_of(value: Any) -> str:
    """Say what a value is: a tensor by its dtype and shape, anything else by its type."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"


# ---- the try-out -------------------------------------------------------------------------------------------


def try_policy(policy: Policy, name: str, game: Game, role: str) -> None:
    """Ask a policy twice for its choices at a first decision of a role.

    Raises ConfigError if it fails, or if it draws random numbers that do not come from its keys. The global random
    state is restored.
    """
    try:
        with restored_global_states(), torch.no_grad():
            view, legal = _first_decision(policy, game, role)
            keys = world_keys(base_key(0, "script try-out"), len(legal), game.device)
            first, again = (policy.act(dict(view), legal.clone(), keys.clone(), {}) for _ in range(2))
    except IllegalMove as error:
        raise ConfigError.at("", str(error)) from None
    except Exception as error:
        message = f"{name!r} fails at the first decision of {role!r}: {failure(error)}"
        raise ConfigError.at("", message) from error
    if not are_same((first.action, first.memory), (again.action, again.memory)):
        expected = f"expected the same choices of {name!r} for the same view, legal actions and keys"
        message = f"{expected}, got others when it was asked again; random numbers come from palestra.randomness"
        raise ConfigError.at("", message)


def _first_decision(policy: Policy, game: Game, role: str) -> tuple[Mapping[str, Tensor], Tensor]:
    """Return what the policy observes at a first decision of the role, and the legal actions.

    In an environment, which is not made for that, these are zeros and every action.
    """
    if not isinstance(game, TensorGame):
        zeros = {
            name: torch.zeros(NUM_TRIED_WORLDS, *space.shape, dtype=space.dtype, device=game.device)
            for name, space in game.spaces[role].items()
        }
        legal = torch.ones(NUM_TRIED_WORLDS, game.action_spaces[role].num_flags, dtype=torch.bool, device=game.device)
        return zeros if policy.observes == "observation" else {}, legal
    keys = world_keys(base_key(0, "script try-out game"), NUM_TRIED_WORLDS, game.device)
    state, column = game.reset(fold(keys, 0)), game.roles.index(role)
    for number in range(MOST_TRIED_ROUNDS * len(game.moves)):
        move, move_keys = game.moves[number % len(game.moves)], fold(keys, number + 1)
        if role in move and bool(game.deciding(state)[:, column].any()):
            break
        actions = {
            other: random_action(game.action_spaces[other], game.legal(state, other), move_keys + at + 1)
            for at, other in enumerate(game.roles)
            if other in move
        }
        state = game.transition(state, actions, move_keys + len(game.roles) + 1)[0]
    return game.view(state, role, policy.observes), game.legal(state, role)
