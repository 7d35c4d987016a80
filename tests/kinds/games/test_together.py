"""One roll-out for all: shared worlds, the weights of the epoch's start, the same bits after any stop."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from combinations import PPO
from conftest import LEARNER
from resuming import assert_same_bits, at_call, fit, stopping_at
from torch import Tensor

import palestra
from palestra import make_trainer
from palestra.callbacks import Callback
from palestra.config import ConfigError
from palestra.kinds.games.together import Together
from palestra.kinds.games.trainer import Trainer
from palestra.players.player import Player
from palestra.rollouts.transitions import Transitions
from palestra.runtime.intervals import set_counts
from palestra.storage.records_file import read_records

Data = dict[str, Any]
MakeConfig = Callable[..., Data]


HOST: Data = {"algorithm": PPO, "warm_start": None, "updates": {"name": "constant"}, "meets": None}
AGENT: Data = {
    "algorithm": LEARNER["algorithm"] | {"rollout_length": 3},
    "warm_start": None,
    "updates": {"name": "constant"},
    "meets": None,
}
TOGETHER: Data = {"trainer": {"name": "together"}, "players": {"host": HOST, "agent": AGENT}}
ONE_PIECE = """
from palestra.algorithms.dqn import DQN, DQNConfig
from palestra.config import UserConfig

class OnePiece(DQN):
    '''DQN whose turn has no safe points.'''

    class Config(UserConfig, DQNConfig):
        pass

    def learn(self, turn):
        rows = self.transition_builder(turn.collect(self.config.rollout_length))
        self.buffer.add(rows.rows(), rows.valid)
        if not self.is_warming_up():
            turn.before_step()
            turn.after_step(self.opt_step(self.buffer.sample(self.config.batch_size)))

class Greedy(OnePiece):
    '''Asks for two roll-outs.'''

    class Config(UserConfig, DQNConfig):
        pass

    def learn(self, turn):
        for _ in turn.times("roll_outs", 2):
            super().learn(turn)
"""


class Seen(Callback):
    """Keeps the parts of the last roll-out and the weights at the beginning of its epoch."""

    def __init__(self) -> None:
        super().__init__(None)
        self.roll_outs: dict[str, Mapping[str, Transitions]] = {}
        self.weights: dict[str, Tensor] = {}
        self.worlds: Data = {}

    def before_epoch(self, training: Any) -> None:
        self.weights = {player.name: weights_of(player) for player in training.learners}
        (worlds,) = training.worlds.values()
        self.worlds = copy.deepcopy(worlds.state_dict())

    def after_roll_out(self, training: Any, player: Player, by_role: Mapping[str, Transitions]) -> None:
        self.roll_outs[player.name] = by_role


def weights_of(player: Player) -> Tensor:
    return torch.cat([weight.detach().flatten() for net in player.nets.values() for weight in net.parameters()])


def test_all_learn_from_the_same_games_with_the_weights_of_the_epochs_start(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """Both parts are what FusedGame collects with the players of then, in the worlds of then."""
    config, seen = make_config(TOGETHER | {"stop": {"after": 6, "unit": "epochs"}}), Seen()
    trainer = make_trainer(config, run=tmp_path / "run", callbacks=[seen])
    assert type(trainer) is Together
    trainer.fit()
    moved = [
        name for name, before in seen.weights.items() if not torch.equal(before, weights_of(trainer.players[name]))
    ]
    assert moved == ["host", "agent"]

    then = make_trainer(config, run=tmp_path / "then")
    for player in then.learners:
        for weight, part in zip(
            (weight for net in player.nets.values() for weight in net.parameters()),
            seen.weights[player.name].split([w.numel() for net in player.nets.values() for w in net.parameters()]),
            strict=True,
        ):
            weight.data.copy_(part.view_as(weight))
        opt_steps = trainer.players[player.name].opt_steps - (4 if player.name == "host" else 2)
        set_counts(player, opt_steps=opt_steps)
    (worlds,) = then.worlds.values()
    worlds.load_state_dict(seen.worlds)
    again = then._play(then.learners, 3)
    for player in trainer.learners:
        got = seen.roll_outs[player.name]
        assert set(got) == set(player.roles)
        for role, rows in got.items():
            assert_equal(vars(rows), vars(again[role]))


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_equal(value, other[key])
    elif isinstance(one, Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


def test_env_steps_and_games_count_once(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(TOGETHER | {"stop": {"after": 5, "unit": "epochs"}})
    trainer = make_trainer(config, run=tmp_path / "run")
    trainer.fit()
    assert trainer.env_steps == 5 * 3 * 8
    assert [player.env_steps for player in trainer.learners] == [120, 120]
    records = [record for record in read_records(tmp_path / "run" / "records.jsonl") if record["kind"] == "training"]
    assert sum(record["players"]["host"]["episodes"]["number"] for record in records) == trainer.episodes > 0
    for record in records:
        assert record["players"]["host"]["episodes"] == record["players"]["agent"]["episodes"]
    assert trainer.recent_returns("host") == [-value for value in trainer.recent_returns("agent")]


# ---- stops -----------------------------------------------------------------------------------------------


def test_a_stop_at_any_safe_point_changes_no_bit(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(TOGETHER | {"stop": {"after": 16, "unit": "opt_steps"}})
    with at_call(Trainer, "safe_point", 0, lambda *_: None) as calls:
        fit(tmp_path / "alone", config)
    assert len(calls) > 15
    for number in calls[:-1]:
        run = tmp_path / f"stopped-{number}"
        with stopping_at(number):
            fit(run, config)
        fit(run)
        assert_same_bits(run, tmp_path / "alone")


@pytest.fixture
def own(in_tmp_path: Path) -> Path:
    (in_tmp_path / "one_piece.py").write_text(ONE_PIECE)
    return in_tmp_path


def test_turns_without_safe_points_are_given_once(make_config: MakeConfig, own: Path) -> None:
    agent = {
        "algorithm": AGENT["algorithm"] | {"name": "one_piece:OnePiece"},
        "warm_start": None,
        "updates": {"name": "constant"},
        "meets": None,
    }
    both = TOGETHER | {"players": {"host": agent, "agent": copy.deepcopy(agent)}}
    config = make_config(both | {"stop": {"after": 9, "unit": "epochs"}})
    alone = fit(Path("alone"), config)
    assert alone.env_steps == 9 * 3 * 8
    assert [player.opt_steps for player in alone.learners] == [9, 9]  # 24 env steps are more than the warm-up
    for number in (2, 5, 8):
        with stopping_at(number):
            fit(Path(f"run-{number}"), config)
        fit(Path(f"run-{number}"))
        assert_same_bits(Path(f"run-{number}"), Path("alone"))


def test_a_branch_with_a_frozen_player_goes_on_in_the_same_worlds(make_config: MakeConfig, tmp_path: Path) -> None:
    """Stopped while both have a turn to finish."""
    config = make_config(TOGETHER | {"stop": {"after": 5, "unit": "epochs"}})
    trainer = make_trainer(config, run=tmp_path / "run")
    original, stopped = trainer.safe_point, []

    def stop_between() -> None:
        if trainer.epochs == 3 and trainer.waiting == ["host", "agent"] and not stopped:
            stopped.append(copy.deepcopy(trainer.worlds["together"].state_dict()["keys"]))
            trainer.run.signals.received = 15
        original()

    trainer.safe_point = stop_between
    trainer.fit()
    branch = Trainer.branch(
        tmp_path / "run" / "checkpoints" / "latest", ["best.pairing=1"], run=tmp_path / "branch", freeze=["host"]
    )
    assert [player.name for player in branch.learners] == ["agent"]
    branch.fit()
    assert branch.epochs == 5
    assert branch.env_steps == 5 * 3 * 8  # the fourth roll-out was made before
    assert torch.equal(branch.worlds["together"].state_dict()["keys"], stopped[0])


# ---- bad input -------------------------------------------------------------------------------------------


def faults(config: Data) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        palestra.load_config(write(config))
    return [f"{error.path}: {error.message}" for error in caught.value.errors]


def write(config: Data) -> Path:
    path = Path("run.yml")
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


@pytest.mark.usefixtures("in_tmp_path")
def test_roll_outs_of_other_lengths_and_worlds_of_ones_own_are_refused(make_config: MakeConfig) -> None:
    other = {
        "algorithm": AGENT["algorithm"] | {"rollout_length": 2},
        "warm_start": None,
        "updates": {"name": "constant"},
        "meets": None,
    }
    changes = {"players": {"host": HOST, "agent": other}, "num_worlds": {"host": 8, "agent": 8}}
    assert faults(make_config(TOGETHER | changes)) == [
        "num_worlds: expected one number with trainer 'together', whose players share their worlds, got a mapping",
        "players.agent.algorithm.rollout_length: expected 3, as of 'host', with trainer 'together' ('in_turn' allows "
        "any), got 2",
    ]


def test_a_second_roll_out_in_a_turn_is_refused(make_config: MakeConfig, own: Path) -> None:
    agent = {
        "algorithm": AGENT["algorithm"] | {"name": "one_piece:Greedy"},
        "warm_start": None,
        "updates": {"name": "constant"},
        "meets": None,
    }
    trainer = make_trainer(make_config(TOGETHER | {"players": {"host": HOST, "agent": agent}}), run="run")
    with pytest.raises(
        RuntimeError, match="expected one roll-out per turn with 'together', got another one of 'agent'"
    ):
        trainer.fit()
