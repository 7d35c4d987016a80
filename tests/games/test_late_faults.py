"""A game of one's own that goes wrong long after its try-out ends with one line, before a kernel gets its tensors."""

from collections.abc import Callable, Mapping
from contextlib import closing
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor

from palestra.evaluation.episodes import play_episodes
from palestra.evaluation.evaluator import play_games
from palestra.games.game import Game, Moved, Observation, State, TensorGame
from palestra.games.policy import Decision, Memory, Observes
from palestra.games.spaces import Box, Discrete, Space
from palestra.games.world import EnvironmentFailed
from palestra.rollouts import fuse
from tests.games.gym_worlds import gym_game

B = 6
LATE = 12  # rounds: more than a try-out plays


class Late(TensorGame):
    """All roles choose at once, for 20 rounds. change: by method, what replaces its result from round LATE on."""

    lockstep = True

    def __init__(self, roles: tuple[str, ...] = ("one", "other"), **change: Callable[..., Any]) -> None:
        self.roles, self.moves, self.change, self.device = roles, (roles,), change, torch.device("cpu")
        self.spaces = {role: {"seen": Space((2,), torch.float32, padded=False)} for role in roles}
        self.critic_spaces = {role: {"all": Space((1,), torch.float32, padded=False)} for role in roles}
        self.action_spaces = dict.fromkeys(roles, Discrete(3))

    def now(self, method: str, state: State, found: Any) -> Any:
        is_late = bool((state["round"] >= LATE).any())
        return self.change[method](found) if is_late and method in self.change else found

    def reset(self, keys: Tensor) -> State:
        return {"round": torch.zeros_like(keys), "last": torch.zeros_like(keys)}

    def deciding(self, state: State) -> Tensor:
        return self.now("deciding", state, (state["round"] < 20).unsqueeze(1).expand(-1, len(self.roles)))

    def observe(self, state: State, role: str) -> Observation:
        return self.now("observe", state, {"seen": torch.stack([state["round"], state["last"]], dim=1).float()})

    def observe_for_critics(self, state: State, role: str) -> Observation:
        return self.now("observe_for_critics", state, {"all": state["last"].float().unsqueeze(1)})

    def legal(self, state: State, role: str) -> Tensor:
        return self.now("legal", state, torch.ones(len(state["round"]), 3, dtype=torch.bool))

    def transition(self, state: State, actions: dict[str, Tensor], keys: Tensor) -> Moved:
        runs = state["round"] < 20
        new = {"round": state["round"] + runs, "last": actions[self.roles[0]]}
        over = (new["round"] == 20).unsqueeze(1).expand(-1, len(self.roles))
        rewards = (runs.float() * new["last"]).unsqueeze(1).repeat(1, len(self.roles))
        return self.now("transition", new, (new, rewards, over, torch.zeros_like(runs)))


def of_move(number: int, change: Callable[[Tensor], Tensor]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    return lambda found: (*found[:number], change(found[number]), *found[number + 1 :])


def of_seen(change: Callable[[Tensor], Any]) -> Callable[[Observation], dict[str, Any]]:
    return lambda found: {name: change(value) for name, value in found.items()}


# by method: what it gives late, and what is told of it
FAULTS: list[tuple[str, Callable[..., Any], str]] = [
    (
        "observe",
        of_seen(lambda seen: seen[:1]),
        "seen float32 (6, 2) for 'one', got seen float32 (1, 2) on cpu",
    ),
    ("observe", of_seen(Tensor.double), "seen float32 (6, 2) for 'one', got seen float64 (6, 2) on cpu"),
    ("observe", of_seen(Tensor.numpy), "seen float32 (6, 2) for 'one', got seen a ndarray"),
    (
        "observe",
        lambda seen: seen | {"more": seen["seen"]},
        "seen float32 (6, 2) for 'one', got seen float32 (6, 2) on cpu, more float32 (6, 2)",
    ),
    ("legal", lambda legal: legal[:1], "legal bool (6, 3) for 'one', got legal bool (1, 3) on cpu"),
    ("legal", Tensor.float, "legal bool (6, 3) for 'one', got legal float32 (6, 3) on cpu"),
    ("legal", torch.zeros_like, "a legal action for 'one' wherever it decides, got none"),
    ("transition", of_move(1, lambda rewards: rewards[:1]), "got rewards float32 (1, "),
    ("transition", of_move(1, lambda rewards: rewards.repeat(1, 2)), "got rewards float32 (6, "),
    ("transition", of_move(1, Tensor.double), "got rewards float64 (6, "),
    ("transition", of_move(2, Tensor.float), "on cpu, terminated float32 (6, "),
    (
        "transition",
        of_move(3, lambda truncated: truncated[:1]),
        "truncated bool (1,) on cpu",
    ),
    ("observe", of_seen(lambda seen: seen / 0.0), "finite numbers for 'one', got nan or inf"),
    ("transition", of_move(1, lambda rewards: rewards + torch.nan), "finite numbers for 'one', got nan or inf"),
    ("observe", lambda seen: None, "seen float32 (6, 2) for 'one', got observe None"),
    ("transition", lambda found: found[:3], "truncated bool (6,), got rewards float32 (6, "),
]


@pytest.mark.parametrize("roles", [("one",), ("one", "other")])
@pytest.mark.parametrize(("method", "change", "told"), FAULTS)
def test_what_is_wrong_late_is_told_before_a_kernel_gets_it(
    method: str, change: Callable[..., Any], told: str, roles: tuple[str, ...]
) -> None:
    game = Late(roles, **{method: change})
    plays: list[Callable[[Late], Any]] = [roll_out]
    if "finite" not in told and "legal action" not in told:  # values are looked at once per roll-out
        plays.append(lambda game: play_games(game, random_policies(game), B, 20, 0))
    for play in plays:
        with pytest.raises(EnvironmentFailed) as failed:
            play(game)
        assert str(failed.value).startswith(f"Late.{method}: expected ")
        assert told in str(failed.value)


class Draws:
    """Draws legal actions."""

    observes: Observes = "observation"

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        return Decision(Discrete(3).draw(keys, legal), {}, memory)


def random_policies(game: Game) -> dict[str, Any]:
    return {role: Draws() for role in game.roles}


def roll_out(game: Game, **policies: Any) -> None:
    """Play so long that the fault shows."""
    fused: Any = fuse(game)
    fused.policies = random_policies(game) | policies
    fused.collect(fused.new_worlds(B, 0, "late"), game.roles, LATE + 2)


@pytest.mark.parametrize(
    ("change", "got"), [(Tensor.long, "int64 (6, 2)"), (lambda found: found[:, :1], "bool (6, 1)")]
)
def test_a_mask_of_who_decides_is_told(change: Callable[[Tensor], Tensor], got: str) -> None:
    with pytest.raises(
        EnvironmentFailed, match=r"^Late\.deciding: expected deciding bool \(6, 2\), got deciding "
    ) as failed:
        roll_out(Late(deciding=change))
    assert got in str(failed.value)


@pytest.mark.parametrize("roles", [("one",), ("one", "other")])
def test_what_critics_observe_is_told(roles: tuple[str, ...]) -> None:
    critic = Draws()
    critic.observes = "with_critics"
    roll_out(Late(roles, observe=MappingProxyType), one=critic)  # any mapping will do
    with pytest.raises(EnvironmentFailed, match=r"^Late\.observe_for_critics: expected all float32 "):
        roll_out(Late(roles, observe_for_critics=of_seen(Tensor.double)), one=critic)


# ---- numbers that are none: who gives them first ----------------------------------------------------------


class Diverges(Draws):
    """Acts with numbers; they are others `after` so many decisions."""

    def __init__(self, last: float = torch.nan, after: int = 2) -> None:
        self.num, self.last, self.after = 0, last, after

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        self.num += 1
        return Decision(torch.full((len(keys), 1), self.last if self.num > self.after else 0.0), {}, memory)


class Floats(Late):
    """The same with numbers as actions, of which rewards are made."""

    always_legal = True

    def __init__(self, roles: tuple[str, ...], **change: Callable[..., Any]) -> None:
        super().__init__(roles, **change)
        self.action_spaces = dict.fromkeys(roles, Box((-1.0,), (1.0,)))

    def reset(self, keys: Tensor) -> State:
        return super().reset(keys) | {"last": torch.zeros(len(keys))}

    def legal(self, state: State, role: str) -> Tensor:
        return torch.ones(len(state["round"]), 0, dtype=torch.bool)

    def transition(self, state: State, actions: dict[str, Tensor], keys: Tensor) -> Moved:
        return super().transition(state, {role: action[:, 0] for role, action in actions.items()}, keys)


@pytest.mark.parametrize("roles", [("one",), ("one", "other")])
def test_a_player_that_has_diverged_is_blamed_and_not_the_game(roles: tuple[str, ...]) -> None:
    policies = {role: Diverges() for role in roles}
    told = r"^the player in 'one': expected finite numbers as its action, got \[nan\] \(it has diverged\)$"
    with pytest.raises(EnvironmentFailed, match=told):
        roll_out(Floats(roles), **policies)
    with pytest.raises(EnvironmentFailed, match=r"\(it observes nan or inf\)$"):
        roll_out(Floats(roles, observe=of_seen(torch.log)), **{role: Diverges(after=LATE) for role in roles})
    roll_out(Floats(roles), **{role: Diverges(3e38) for role in roles})  # whose sum is no finite number


def test_a_player_that_diverges_in_an_environment_is_blamed() -> None:
    game = gym_game(id="Pendulum-v1", arguments={"g": 10.0, "max_episode_steps": 200})
    told = r"^the player in 'agent': expected finite numbers as its action, got \[nan\] \(it has diverged\)$"
    with closing(game), pytest.raises(EnvironmentFailed, match=told):
        roll_out(game, agent=Diverges())
    with pytest.raises(EnvironmentFailed, match=told):
        play_episodes(game, Diverges(), 1, 1, 20, 0)
