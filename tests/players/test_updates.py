"""Who learns when: schedules of updates, frozen players to the bit, what a player forgets when it thaws."""

import copy
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from combinations import PPO
from conftest import LEARNER
from hypothesis import given
from hypothesis import strategies as st
from resuming import assert_same_bits, at_call, fit, stopping_at
from torch import Tensor

from palestra import make_trainer
from palestra.callbacks import Callback
from palestra.config import ConfigError
from palestra.kinds.games.trainer import Trainer
from palestra.players.player import Player
from palestra.players.updates import (
    AlternatingPeriodicUpdatesConfig,
    ConstantUpdatesConfig,
    ContiguousPeriodicUpdatesConfig,
    UpdatesConfig,
    idle_epoch,
)
from palestra.rollouts.transitions import Transitions
from palestra.run.kinds import read_config
from palestra.storage.records_file import read_records

Data = dict[str, Any]
MakeConfig = Callable[..., Data]


N_STEP: Data = {"transitions": {"name": "n_step", "steps": 3}, "warmup_env_steps": 0}
FIRST_TWO_OF_THREE: Data = {"name": "contiguous_periodic", "period": 3, "first": 0, "last": 2}
LAST_TWO_OF_THREE: Data = {"name": "contiguous_periodic", "period": 3, "first": 1, "last": 3}


def players(host: Data, agent: Data) -> Data:
    """A host that learns by PPO, an agent that learns by DQN from sums of three rewards. host, agent: their updates."""
    dqn = LEARNER["algorithm"] | N_STEP | {"rollout_length": 3}
    return {
        "host": {"algorithm": PPO, "warm_start": None, "updates": host, "meets": None},
        "agent": {"algorithm": copy.deepcopy(dqn), "warm_start": None, "updates": agent, "meets": None},
    }


class Seen(Callback):
    """After every epoch a copy of what each player has; the rows that each was given, by epoch."""

    def __init__(self) -> None:
        super().__init__(None)
        self.states: list[dict[str, Data]] = []
        self.roll_outs: dict[tuple[str, int], Mapping[str, Transitions]] = {}
        self.waiting: list[int] = []

    def before_epoch(self, training: Any) -> None:
        if not self.states:
            self.states.append(states_of(training))
        waiting = training.players["agent"].algorithm.transition_builder.waiting
        self.waiting.append(-1 if waiting is None else int(waiting["valid"].sum()))

    def after_roll_out(self, training: Any, player: Player, by_role: Mapping[str, Transitions]) -> None:
        self.roll_outs[player.name, training.epochs] = by_role

    def after_epoch(self, training: Any) -> None:
        self.states.append(states_of(training))


def states_of(training: Any) -> dict[str, Data]:
    return {player.name: copy.deepcopy(player.state_dict()) for player in training.learners}


def tensors(state: Data) -> list[Tensor]:
    found: list[Tensor] = []
    for value in state.values():
        found += tensors(value) if isinstance(value, dict) else [value] if isinstance(value, Tensor) else []
    return found


# ---- when ------------------------------------------------------------------------------------------------


def test_a_period_says_in_which_epochs_a_player_learns() -> None:
    some = ContiguousPeriodicUpdatesConfig(name="contiguous_periodic", period=5, first=1, last=3)
    assert [epoch for epoch in range(12) if some.learns(epoch)] == [1, 2, 6, 7, 11]
    second = AlternatingPeriodicUpdatesConfig(name="alternating_periodic", period=3, phase=1)
    assert [epoch for epoch in range(14) if second.learns(epoch)] == [3, 4, 5, 9, 10, 11]
    always = ConstantUpdatesConfig(name="constant")
    assert all(always.learns(epoch) for epoch in range(9))
    assert always.in_words() == "in every epoch"


@st.composite
def updates(draw: st.DrawFn) -> UpdatesConfig:
    period = draw(st.integers(1, 6))
    if draw(st.booleans()):
        return AlternatingPeriodicUpdatesConfig(
            name="alternating_periodic", period=period, phase=draw(st.integers(0, 1))
        )
    first = draw(st.integers(0, period - 1))
    last = draw(st.integers(first + 1, period))
    return ContiguousPeriodicUpdatesConfig(name="contiguous_periodic", period=period, first=first, last=last)


@given(st.lists(updates(), min_size=1, max_size=3), st.integers(1, 200))
def test_the_first_epoch_without_a_learner_is_found(several: list[UpdatesConfig], num_epochs: int) -> None:
    idle = [epoch for epoch in range(num_epochs) if not any(each.learns(epoch) for each in several)]
    assert idle_epoch({str(i): each for i, each in enumerate(several)}, num_epochs) == (idle[0] if idle else None)


@given(updates())
def test_the_epochs_in_words_are_those_in_which_a_player_learns(of_player: UpdatesConfig) -> None:
    words = of_player.in_words()
    told = re.fullmatch(r"in (?:every epoch|epochs? (\d+)(?: to (\d+))? of every (\d+))", words)
    assert told is not None, words
    first, last, cycle = (int(told[1]), int(told[2] or told[1]), int(told[3])) if told[1] else (0, 0, 1)
    assert [of_player.learns(epoch) for epoch in range(40)] == [first <= e % cycle <= last for e in range(40)]


# ---- what is frozen --------------------------------------------------------------------------------------


@pytest.mark.parametrize("trainer", ["in_turn", "together"])
def test_a_frozen_player_stays_as_it_is_to_the_bit(make_config: MakeConfig, trainer: str, tmp_path: Path) -> None:
    changes = {"trainer": {"name": trainer}, "players": players(FIRST_TWO_OF_THREE, LAST_TWO_OF_THREE)}
    changes |= {"stop": {"after": 9, "unit": "epochs"}, "output.record": {"every": 1, "unit": "epochs"}}
    seen = Seen()
    make_trainer(make_config(changes), run=tmp_path / "run", callbacks=[seen]).fit()
    for epoch, (before, after) in enumerate(pairwise(seen.states)):
        for name, is_frozen in (("host", epoch % 3 == 2), ("agent", epoch % 3 == 0)):
            assert after[name]["frozen"] is is_frozen
            assert ((name, epoch) in seen.roll_outs) is not is_frozen
            same = all(map(torch.equal, tensors(before[name]["nets"]), tensors(after[name]["nets"])))
            same &= all(map(torch.equal, tensors(before[name]["optimizers"]), tensors(after[name]["optimizers"])))
            counts = [(state[name]["opt_steps"], state[name]["env_steps"]) for state in (before, after)]
            assert (same, counts[0] == counts[1]) == (is_frozen, is_frozen)
    shown = [
        [record["players"][name]["learns"] for name in ("host", "agent")]
        for record in read_records(tmp_path / "run" / "records.jsonl")
        if record["kind"] == "training"
    ]
    assert shown[:6] == [[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]] * 2


@pytest.mark.parametrize("trainer", ["in_turn", "together"])
def test_who_thaws_learns_from_no_decision_of_before(make_config: MakeConfig, trainer: str, tmp_path: Path) -> None:
    """The first rows after a frozen epoch close no decision, so that those of the first round count for nothing; the
    agent's sums of three rewards begin anew, and its replay memory stays."""
    changes = {"trainer": {"name": trainer}, "players": players(FIRST_TWO_OF_THREE, LAST_TWO_OF_THREE)}
    seen = Seen()
    config = make_config(changes | {"stop": {"after": 9, "unit": "epochs"}})
    make_trainer(config, run=tmp_path / "run", callbacks=[seen]).fit()
    num_valid = {
        (name, epoch): int(rows.valid[:8].sum())  # of the first round in 8 worlds
        for (name, epoch), by_role in seen.roll_outs.items()
        for rows in by_role.values()
    }
    assert {epoch for (name, epoch), number in num_valid.items() if name == "host" and number == 0} == {0, 3, 6}
    assert {epoch for (name, epoch), number in num_valid.items() if name == "agent" and number == 0} == {1, 4, 7}
    assert [number > 0 for number in seen.waiting] == [False, False, True, True, False, True, True, False, True]
    stored = [state["agent"]["replay_buffer"]["num_added"] for state in seen.states]
    assert all(later >= earlier for earlier, later in pairwise(stored))
    assert stored[3] == stored[4] > 0


@pytest.mark.parametrize("trainer", ["in_turn", "together"])
def test_a_stop_at_any_safe_point_changes_no_bit(make_config: MakeConfig, trainer: str, tmp_path: Path) -> None:
    every_other = [{"name": "alternating_periodic", "period": 2, "phase": phase} for phase in (0, 1)]
    changes = {"trainer": {"name": trainer}, "players": players(every_other[0], every_other[1])}
    config = make_config(changes | {"stop": {"after": 6, "unit": "epochs"}})
    with at_call(Trainer, "safe_point", 0, lambda *_: None) as calls:
        fit(tmp_path / "alone", config)
    with stopping_at(2):
        run = fit(tmp_path / "run", config)
    stops = 1
    while not run.finished and stops < len(calls):
        with stopping_at(2):  # the first one is the one that it stopped at
            run = fit(tmp_path / "run")
        stops += 1
    assert stops >= len(calls) - 2
    assert_same_bits(tmp_path / "run", tmp_path / "alone")


def test_a_branch_may_learn_at_other_times(make_config: MakeConfig, tmp_path: Path) -> None:
    always = {"name": "constant"}
    config = make_config({"players": players(always, always), "stop": {"after": 3, "unit": "epochs"}})
    fit(tmp_path / "run", config)
    changes = ["stop.after=6", "players.agent.updates={name: alternating_periodic, period: 3, phase: 0}"]
    branch = Trainer.branch(tmp_path / "run" / "checkpoints" / "latest", changes, run=tmp_path / "branch")
    before = branch.players["host"].opt_steps, branch.players["agent"].opt_steps
    branch.fit()
    after = branch.players["host"].opt_steps, branch.players["agent"].opt_steps
    assert (branch.epochs, branch.players["agent"].frozen) == (6, True)
    assert after[0] > before[0]
    assert after[1] == fit(tmp_path / "run").players["agent"].opt_steps


def test_a_frozen_player_is_given_no_turn(make_config: MakeConfig, tmp_path: Path) -> None:
    trainer = make_trainer(
        make_config({"players": players(FIRST_TWO_OF_THREE, LAST_TWO_OF_THREE)}), run=tmp_path / "run"
    )
    trainer.before_epoch()
    with pytest.raises(ValueError, match="expected a player that learns, got 'agent', which is frozen in epoch 0"):
        trainer.give_turn(trainer.players["agent"])


# ---- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "agent", "message"),
    [
        (
            {"name": "alternating_periodic", "period": 4, "phase": 1},
            {"name": "alternating_periodic", "period": 4, "phase": 1},
            "players: expected `updates` by which somebody learns in every epoch, but in epoch 0 nobody does "
            "(host in epochs 4 to 7 of every 8, agent in epochs 4 to 7 of every 8); as {name: constant} somebody "
            "always does",
        ),
        (
            {"name": "contiguous_periodic", "period": 10, "first": 2, "last": 10},
            {"name": "contiguous_periodic", "period": 7, "first": 0, "last": 2},
            "players: expected `updates` by which somebody learns in every epoch, but in epoch 10 nobody does "
            "(host in epochs 2 to 9 of every 10, agent in epochs 0 to 1 of every 7); as {name: constant} somebody "
            "always does",
        ),
        (
            {"name": "contiguous_periodic", "period": 4, "first": 2, "last": 2},
            {"name": "constant"},
            "players.host.updates.last: expected more than first (2), got 2",
        ),
        (
            {"name": "contiguous_periodic", "period": 4, "first": 2, "last": 5},
            {"name": "constant"},
            "players.host.updates.last: expected at most the period (4), got 5",
        ),
    ],
)
def test_updates_that_cannot_be_are_named(make_config: MakeConfig, host: Data, agent: Data, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(make_config({"players": players(host, agent)}))
    assert [f"{error.path}: {error.message}" for error in caught.value.errors] == [message]


def test_epochs_after_the_end_need_no_learner(make_config: MakeConfig) -> None:
    host = {"name": "contiguous_periodic", "period": 10, "first": 0, "last": 5}
    config = make_config({"players": players(host, host), "stop": {"after": 5, "unit": "epochs"}})
    assert read_config(config).stop.after == 5
