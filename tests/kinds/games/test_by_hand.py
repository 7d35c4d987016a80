"""What a `_train` of one's own may call, and what it may not do."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from combinations import LEARNERS, Data, config_of
from conftest import MakeConfig

from palestra.kinds.games.trainer import Trainer
from palestra.players.player import Player
from palestra.training.checks import TrainingFailed


@pytest.mark.parametrize(
    ("of", "counter", "call"),
    [
        ("trainer", "opt_steps", "after_step(player, metrics)"),
        ("trainer", "env_steps", "roll_out(role, num_rounds)"),
        ("trainer", "epochs", "fit"),
        ("trainer", "episodes", "record"),
        ("player", "opt_steps", "after_step(player, metrics) of the trainer"),
        ("player", "env_steps", "roll_out(role, num_rounds) of the trainer"),
    ],
)
def test_a_counter_is_assigned_by_nobody_else_and_the_error_names_the_call_that_counts(
    of: str, counter: str, call: str, make_config: MakeConfig
) -> None:
    trainer = Trainer(make_config())
    owner: Any = trainer if of == "trainer" else trainer.players["host"]
    with pytest.raises(AttributeError, match=f"^{counter}: .*because {re.escape(call)} counts"):
        setattr(owner, counter, getattr(owner, counter) + 1)
    assert getattr(owner, counter) == 0


@pytest.mark.parametrize("game", ["games of several roles", "games of one role"])
def test_who_plays_before_there_are_policies_is_told_which_call_sets_them(game: str, make_config: MakeConfig) -> None:
    trainer = Trainer(make_config() if game == "games of several roles" else pendulum("td3"))
    role, player = trainer.game.roles[0], trainer.learners[0]
    with pytest.raises(ValueError, match=f"got none for {role!r}; roll_out\\(role, num_rounds\\) of a trainer"):
        trainer.fused_game.collect(player.worlds, player.roles, 1)
    assert trainer.roll_out(role, 1).valid.shape == (player.num_worlds * len(player.moves),)
    assert trainer.fused_game.collect(player.worlds, player.roles, 1).keys() == set(player.roles)


# ---- optimizers ---------------------------------------------------------------------------------------------


def learn_by_hand(player: Player, net: str, optimizer: str) -> None:
    """An opt step on the sum of all weights, as whoever knows torch writes it."""
    player.optimizers[optimizer].zero_grad()
    torch.cat([weight.flatten() for weight in player.nets[net].parameters()]).sum().backward()
    player.optimizers[optimizer].step()


def test_an_optimizer_by_hand_steps_at_the_rate_that_the_schedule_gives_by_then(make_config: MakeConfig) -> None:
    learning_rate = {"name": "linear", "initial": 0.1, "final": 0.0, "num_steps": 10}
    sgd = {"name": "sgd", "momentum": 0.0, "weight_decay": 0.0}
    algorithm = "players.host.algorithm"
    trainer = Trainer(make_config({f"{algorithm}.learning_rate": learning_rate, f"{algorithm}.optimizer": sgd}))
    player, before = trainer.players["host"], [weight.clone() for weight in trainer.host_net.parameters()]
    assert trainer.host_optimizer.learning_rate.item() == pytest.approx(0.1)
    for _ in range(5):
        trainer.before_step(player)
        learn_by_hand(player, "q", "q")
        trainer.after_step(player, {"loss": 0.0})
    assert (trainer.opt_steps, player.opt_steps) == (5, 5)
    for weight, was in zip(trainer.host_net.parameters(), before, strict=True):
        torch.testing.assert_close(was - weight, torch.full_like(was, 0.1 + 0.09 + 0.08 + 0.07 + 0.06))


def pendulum(algorithm: str) -> Data:
    choices = {factor: next(iter(levels)) for factor, levels in LEARNERS[algorithm].choices.items()}
    return config_of(algorithm, {"game": "classic control", "actions": "box", **choices})


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_each_optimizer_by_hand_has_the_schedule_of_its_own_key(algorithm: str) -> None:
    config = pendulum(algorithm)
    [entry] = config["players"].values()
    for name, value in (("policy", 0.25), ("critic", 0.5)):
        entry["algorithm"][f"{name}_learning_rate"] = {"name": "constant", "value": value}
    player = Trainer(config).learners[0]
    for name, rate in (("policy", 0.25), ("critics", 0.5)):
        learn_by_hand(player, name, name)
        assert player.optimizers[name].learning_rate.item() == rate
    assert all(each.learning_rate.item() > 0.0 for each in player.optimizers.values())


def test_opt_steps_that_nobody_counts_are_told(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palestra.optimizers.optimizer.MOST_STEPS_UNCOUNTED", 3)
    trainer = Trainer(make_config())
    player = trainer.players["host"]
    for _ in range(3):  # several steps may make one opt step
        learn_by_hand(player, "q", "q")
    trainer.after_step(player, {"loss": 0.0})
    for _ in range(3):
        learn_by_hand(player, "q", "q")
    before = [weight.clone() for weight in trainer.host_net.parameters()]
    with pytest.raises(
        RuntimeError, match=r"^expected after_step\(player, metrics\) after each opt step, which counts"
    ):
        learn_by_hand(player, "q", "q")
    assert all(map(torch.equal, before, trainer.host_net.parameters()))


def test_a_train_that_yields_is_told_and_not_played_for_ever(make_config: MakeConfig, in_tmp_path: Path) -> None:
    class Yielding(Trainer):
        def _train(self) -> Any:  # type: ignore[override]
            yield self.give_turn(self.learners[0])

    with pytest.raises(
        TypeError, match=r"^expected nothing from _train, which calls safe_point\(\) itself, got <gener"
    ):
        Yielding(make_config()).fit()


def test_a_train_that_does_nothing_is_told_and_not_called_for_ever(make_config: MakeConfig, in_tmp_path: Path) -> None:
    class Idle(Trainer):
        num = 0

        def _train(self) -> None:
            self.num += 1
            if self.num == 3 and self.config.stop.unit == "epochs":
                self.end_run("enough")

    told = r"^Idle._train: expected it to count opt_steps, as `stop` does, or to call end_run, got 1000 epochs"
    with pytest.raises(TrainingFailed, match=told):
        Idle(make_config({"evaluations": [], "best": None})).fit()
    by_epochs = Idle(make_config({"evaluations": [], "best": None, "stop": {"after": 9, "unit": "epochs"}}))
    by_epochs.fit()
    assert (by_epochs.num, by_epochs.end_reason) == (3, "enough")
