"""`check_algorithm`: algorithms that go on from every safe point to the same bits pass, others are named.

Covers palestra.testing.algorithms.
"""

import os
import random
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from combinations import CLIPPED, DQN, PPO, SAC, TD3
from pydantic import Field
from torch import nn

from palestra.algorithms import dqn, ppo, sac, td3
from palestra.algorithms.algorithm import Algorithm
from palestra.config import ConfigError, PositiveFloat, PositiveInt, UserConfig
from palestra.games.policy import Decision
from palestra.nets import NetConfig, make_net
from palestra.nets.weights import flat_gradient, flatten_weights
from palestra.optimizers import OptimizerConfig
from palestra.randomness import base_key, fold, random_choice, random_floats
from palestra.testing import check_algorithm
from palestra.testing.algorithms import CARTPOLE, NIM, PENDULUM


class Sound(Algorithm):
    """Two updates a turn on rows drawn from the roll-out, which it keeps; the step size falls."""

    class Config(UserConfig):
        rollout_length: PositiveInt
        learning_rate: PositiveFloat
        net: NetConfig
        optimizer: OptimizerConfig

    def __init__(self, config: Any, player: Any) -> None:
        super().__init__(config, player)
        key = base_key(player.seed, "net")
        self.net = make_net(config.net, player.spaces, player.action_space.num_flags, key).to(player.device)
        self.optimizer = config.optimizer.build(flatten_weights(self.net))
        player.nets, player.optimizers = {"policy": self.net}, {"policy": self.optimizer}
        self.updates_left, self.size, self.rows = 0, 1.0, {}
        self.has_rolled_out = False

    observes = "observation"

    def policy(self, explore: bool) -> Any:
        return self

    def act(self, view: Any, legal: Any, keys: Any, memory: Any) -> Decision:
        return Decision(random_choice(keys, legal), {}, memory)

    def learn(self, turn: Any) -> None:
        if not self.has_rolled_out:
            batch = turn.collect(self.config.rollout_length)
            self.rows = {"action": batch.action, **{f"seen.{name}": v for name, v in batch.observation.items()}}
            self.updates_left, self.has_rolled_out = 2, True
            turn.safe_point()
        while self.updates_left:
            turn.before_step()
            self.updates_left -= 1
            metrics = self.opt_step()
            turn.after_step(metrics)
            turn.safe_point()
        self.has_rolled_out = False

    def mean(self, gradient: Any) -> Any:
        return self.player.mean_over_replicas(gradient, {})[0]

    def opt_step(self) -> Any:
        key = torch.tensor([base_key(self.player.seed, "rows")])
        chosen = self.draw(fold(key, self.player.opt_steps))
        seen = {name[5:]: value[chosen] for name, value in self.rows.items() if name.startswith("seen.")}
        scores = self.net(seen).gather(1, self.rows["action"][chosen].unsqueeze(1))
        self.size *= 0.9
        self.optimizer.learning_rate.fill_(self.config.learning_rate * self.size)
        gradient = flat_gradient(scores.square().mean(), list(self.net.parameters()))
        self.optimizer.step(self.mean(gradient))
        return {"loss": scores.mean().detach()}

    def draw(self, key: Any) -> Any:
        return (random_floats(key, 3)[0] * len(self.rows["action"])).long()

    def state_dict(self) -> dict[str, Any]:
        names = ("updates_left", "has_rolled_out", "size", "rows")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


class Dropping(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))


class Drawing:
    observes = "observation"

    def act(self, view: Any, legal: Any, keys: Any, memory: Any) -> Decision:
        return Decision(torch.multinomial(legal.float(), 1)[:, 0], {}, memory)


class ByTorchsChance(Sound):
    """Explores and learns by draws from torch's global generator, seeded for each roll-out and before each opt step."""

    def policy(self, explore: bool) -> Any:
        return Drawing() if explore else self

    def draw(self, key: Any) -> torch.Tensor:
        return torch.randint(len(self.rows["action"]), (3,))


class Looped(Sound):
    """The same, in loops that know what is done."""

    def learn(self, turn: Any) -> None:
        for _ in turn.once("roll_out"):
            batch = turn.collect(self.config.rollout_length)
            self.rows = {"action": batch.action, **{f"seen.{name}": v for name, v in batch.observation.items()}}
        for _ in turn.times("updates", 2):
            turn.before_step()
            turn.after_step(self.opt_step())

    def state_dict(self) -> dict[str, Any]:
        return {"size": self.size, "rows": self.rows}


def left_out(name: str) -> Any:
    return lambda self: {key: value for key, value in Sound.state_dict(self).items() if key != name}


@pytest.mark.parametrize(
    ("cls", "config", "game"),
    [
        (dqn.DQN, DQN, NIM),
        (ppo.PPO, PPO, NIM),
        (ppo.PPO, PPO | CLIPPED, PENDULUM),
        (sac.SAC, SAC, PENDULUM),
        (td3.TD3, TD3, PENDULUM),
        (Sound, {}, None),
        (Looped, {}, None),
        (ByTorchsChance, {}, CARTPOLE),
        (dqn.DQN, {"net": {"name": f"{__name__}:Dropping"}}, CARTPOLE),
    ],
)
def test_our_algorithms_pass(cls: type[Algorithm], config: dict[str, Any], game: dict[str, Any] | None) -> None:
    check_algorithm(cls, config, game)


def counting(self: Any, key: Any) -> Any:
    self.calls = getattr(self, "calls", 0) + 1
    return Sound.draw(self, fold(key, self.calls // 5))


def early(self: Any, turn: Any) -> None:
    """The turn is counted after the safe point, not before it."""
    turn.collect(self.config.rollout_length)
    turn.before_step()
    self.rows = {"action": torch.zeros(4, dtype=torch.long), "seen.observation": torch.ones(4, 4)}
    turn.after_step(self.opt_step())
    turn.safe_point()


def in_a_local(self: Any, turn: Any) -> None:
    """What the roll-out has found is forgotten where the second loop goes on."""
    largest = torch.zeros(())
    for _ in turn.once("roll_out"):
        batch = turn.collect(self.config.rollout_length)
        self.rows = {"action": batch.action, **{f"seen.{name}": v for name, v in batch.observation.items()}}
        largest = 1.0 + batch.reward.abs().max()
    for _ in turn.times("updates", 2):
        turn.before_step()
        turn.after_step({**self.opt_step(), "largest": largest})


def between_loops(self: Any, turn: Any) -> None:
    """What stands outside the loops is done again by a resumed run."""
    self.size *= 0.5
    Looped.learn(self, turn)


ANY = r"\.(learn|load_state_dict): expected a fresh object to"
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "forgets where the turn was": ({"state_dict": left_out("has_rolled_out")}, ANY),
    "forgets how much is left": ({"state_dict": left_out("updates_left")}, ANY),
    "forgets its step size": ({"state_dict": left_out("size")}, ANY),
    "does not load": ({"load_state_dict": lambda self, state: None}, ANY),
    "ends its turn after the safe point": ({"learn": early}, ANY),
    "counts its calls": ({"draw": counting}, r"\.learn: expected a fresh object to go on from safe point \d+ as if"),
    "draws from Python": (
        {"draw": lambda self, key: torch.tensor([random.randrange(len(self.rows["action"]))])},
        r"\.learn: expected the same bits from the same seed: random numbers from keys alone, got safe point \d",
    ),
    "acts by numpy's chance": (
        {
            "act": lambda self, view, legal, keys, memory: Decision(
                torch.from_numpy(np.random.randint(legal.shape[1], size=len(legal))), {}, memory
            )
        },
        r"\.learn: expected the same bits from the same seed",
    ),
    "makes no step": (
        {"learn": lambda self, turn: turn.collect(1)},
        r"\.learn: expected an opt step \(turn.after_step\), got none in 4 turns",
    ),
    "raises": (
        {"opt_step": lambda self: 1 / 0},
        r"\.learn: raises ZeroDivisionError: division by zero \(test_check_algorithm.py, line \d+\)",
    ),
    "cannot be saved": (
        {"state_dict": lambda self: {"rows": {1, 2}}},
        r"raises .*expected tensors, numbers, .*, got set",
    ),
}


RAISES = r"\.learn: raises KeyError: .*; expected a fresh object to go on from safe point \d+ as if nothing had been"
LOOPED: dict[str, tuple[dict[str, Any], str]] = {
    "keeps in a local what the next loop needs": (
        {"learn": in_a_local},
        r"\.learn: expected the same records with stops",
    ),
    "does something between its loops": ({"learn": between_loops}, ANY),
    "forgets its rows": ({"state_dict": lambda self: {"size": self.size}}, RAISES),
    "does not say what it remembers": (
        {"state_dict": Algorithm.state_dict, "load_state_dict": Algorithm.load_state_dict},
        RAISES,
    ),
}


@pytest.mark.parametrize("name", LOOPED)
def test_a_turn_of_loops_that_forgets_is_named_with_its_method(name: str) -> None:
    members, line = LOOPED[name]
    with pytest.raises(ConfigError, match=line):
        check_algorithm(type("Broken", (Looped,), members), game=CARTPOLE)


@pytest.mark.parametrize("name", BROKEN)
def test_what_does_not_go_on_to_the_same_bits_is_named_with_its_method(name: str) -> None:
    members, line = BROKEN[name]
    with pytest.raises(ConfigError, match=line) as caught:
        check_algorithm(type("Broken", (Sound,), members), game=CARTPOLE)
    assert len(caught.value.errors) <= 2, str(caught.value)


def test_nothing_is_left_of_a_check(state_folder: Path) -> None:
    before = sorted(state_folder.rglob("*")), [path.read_bytes() for path in state_folder.rglob("trusted")]
    check_algorithm(type("Own", (Sound,), {}), game=CARTPOLE)
    assert (sorted(state_folder.rglob("*")), [path.read_bytes() for path in state_folder.rglob("trusted")]) == before
    assert os.environ["XDG_STATE_HOME"] == str(state_folder)


def test_a_class_without_a_config_of_its_own_is_told_what_it_lacks() -> None:
    with pytest.raises(
        ConfigError,
        match=r"expected Own to have a Config of its own, a subclass of UserConfig, got one that builds DQN",
    ):
        check_algorithm(type("Own", (dqn.DQN,), {}), game=CARTPOLE)


def test_a_key_that_cannot_be_made_up_is_asked_for() -> None:
    class Odd(Sound):
        class Config(Sound.Config):
            pair: Annotated[str, Field(pattern="^xy$")]

    with pytest.raises(
        ConfigError, match=r"Odd.Config: pair: expected a value in `config`, because none can be made up, got none"
    ):
        check_algorithm(Odd)
    check_algorithm(Odd, {"pair": "xy"}, CARTPOLE)


class Selfish(Sound):
    """Learns without the other replicas."""

    def mean(self, gradient: Any) -> Any:
        return gradient


def test_what_learns_without_the_other_replicas_is_shown_the_line_that_it_lacks() -> None:
    with pytest.raises(ConfigError) as raised:
        check_algorithm(Selfish)
    [error] = raised.value.errors[:1]
    assert "expected `gradient, metrics = self.player.mean_over_replicas(gradient, metrics)` between" in error.message
    assert error.message.endswith("with num_replicas: 2")


class Tiring(Looped):
    """Draws by another stream in each turn."""

    turns = 0

    def act(self, view: Any, legal: Any, keys: Any, memory: Any) -> Decision:
        return super().act(view, legal, keys + self.turns, memory)

    def learn(self, turn: Any) -> None:
        super().learn(turn)
        self.turns += 1

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"turns": self.turns}


class TellingActors(Tiring):
    def acting_state(self) -> dict[str, Any]:
        return {"turns": self.turns}

    def load_acting_state(self, state: dict[str, Any]) -> None:
        self.turns = state["turns"]


def test_what_a_player_explores_by_must_reach_its_actors() -> None:
    with pytest.raises(ConfigError) as told:
        check_algorithm(Tiring, game=NIM)
    (line,) = str(told.value).splitlines()
    assert line.startswith(
        "Tiring.acting_state: expected an actor to play to the same bits: from acting_state all that"
    )
    check_algorithm(TellingActors, game=NIM)
