"""Actors: who plays, here or in how many processes, changes no bit; and what they play by is exactly as old as said."""

import json
import os
import random
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from combinations import LEARNERS, combinations_of, config_of, pairwise
from replica_cases import CASES, OWN_CLASSES
from resuming import ask_to_leave, assert_same_bits, at_call, fit, pointed_at, records

from palestra import make_trainer
from palestra.algorithms.dqn import DQN
from palestra.callbacks import Callback
from palestra.config import ConfigError
from palestra.kinds.games.trainer import Trainer
from palestra.rollouts.transitions import Transitions
from palestra.scaling.states import equal
from palestra.schedules import read_schedule
from palestra.storage.records_file import read_records
from palestra.training.checks import TrainingFailed
from palestra.training.training import Training
from tests.forked import Forked, living
from tests.games.gym_worlds import gym_data
from tests.test_gym_training import NORMALIZE, how, lone_agent
from tests.training.test_processes import train_in_ranks

Data = dict[str, Any]
ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.usefixtures("forked_evaluators")


def acted(config: Data, num: int, lag: int, processes: int = 0, **execution: Any) -> Data:
    """A config with actors, as many as its worlds allow."""
    num = min(num, config["num_worlds"])
    execution = config["execution"] | {"actor_processes": min(processes, num)} | execution
    return config | {"actors": {"num": num, "lag": lag}, "execution": execution}


def go_on(run: Path, processes: int, stop_at: int | None = None) -> Trainer:
    """Resume a run with actors in so many processes, to its end or until it is asked to leave."""
    trainer: Trainer = Trainer.load(run, overrides=[f"execution.actor_processes={processes}"])
    with at_call(Training, "safe_point", stop_at or 10_000, ask_to_leave):
        trainer.fit()
    return trainer


def assert_who_plays_changes_no_bit(config: Data, lag: int, folder: Path) -> None:
    fit(folder / "whole", acted(config, 4, lag))
    num = min(4, config["num_worlds"])
    with at_call(Training, "safe_point", 5, ask_to_leave):
        fit(folder / "run", acted(config, 4, lag, processes=min(2, num)))
    go_on(folder / "run", 0, stop_at=4)
    go_on(folder / "run", num)
    assert_same_bits(folder / "run", folder / "whole")


LONG = ("off_policy, a loss of TorchRL", "a trainer of one's own that makes opt steps")


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] if each in LONG else []) for each in CASES]
)
def test_runs_of_every_kind_have_the_same_bits_wherever_actors_play(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(OWN_CLASSES)
    assert_who_plays_changes_no_bit(CASES[name](), 2, tmp_path)


def cases() -> list[Any]:
    found = []
    for algorithm in LEARNERS:
        for number, each in enumerate(pairwise(combinations_of(algorithm))):
            label = f"{algorithm}: {', '.join(each.values())}"
            found.append(
                pytest.param(algorithm, each, number % 3, id=label, marks=[pytest.mark.slow] if number else [])
            )
    return found


@pytest.mark.parametrize(("algorithm", "combination", "lag"), cases())
def test_who_plays_changes_no_bit(algorithm: str, combination: Data, lag: int, tmp_path: Path) -> None:
    assert_who_plays_changes_no_bit(config_of(algorithm, combination), lag, tmp_path)


@pytest.mark.parametrize("lag", [0, 2])
def test_replicas_have_actors_each(lag: int, tmp_path: Path) -> None:
    config = acted(CASES["DQN, prioritized, 3 steps, batch norm"]() | {"num_replicas": 2}, 2, lag)
    fit(tmp_path / "whole", config)
    config["execution"] |= {"actor_processes": 1}
    train_in_ranks(2, tmp_path / "run", config, stop_at=5)
    with at_call(Training, "safe_point", 8, ask_to_leave):
        fit(tmp_path / "run")
    go_on(tmp_path / "run", 2)
    assert_same_bits(tmp_path / "run", tmp_path / "whole")
    last = read_records(tmp_path / "run" / "records.jsonl")[-1]
    assert [*last["clock"]["actors"]] == ["0", "1", "2", "3"]
    assert sorted(path.name for path in (tmp_path / "run" / "actors").iterdir()) == [f"{n}.log" for n in range(4)]


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_environments_of_actors_are_normalised_and_tell_fields_of_info(
    mode: str, make_config: Any, tmp_path: Path
) -> None:
    output = {"output.info": ["age", "pair", "missing"], "output.statistics": ["mean", "std", "median", "count"]}
    output["output.save"] = output["output.record"] = {"every": 3, "unit": "opt_steps"}
    game = gym_data(id="tests.gym_probes:Telling-v0", vectorization=how("sync", mode), **NORMALIZE)
    config = lone_agent(make_config, game, output | {"stop.after": 16})
    assert_who_plays_changes_no_bit(config, 1, tmp_path)
    told = [record["players"]["agent"] for record in records(tmp_path / "run") if record["kind"] == "training"]
    assert sum(each["info/age/count"] for each in told if "info/age/count" in each) > 16
    assert all(each["final_info/age"] == each["episodes"]["length"] for each in told if "final_info/age" in each)


# ---- what they play by -----------------------------------------------------------------------------------


def test_one_actor_without_a_lag_plays_as_the_training_itself(make_config: Any, tmp_path: Path) -> None:
    config = make_config()
    alone, acting = fit(tmp_path / "alone", config), fit(tmp_path / "acted", acted(config, 1, 0))
    players = [each.state_dict()["players"] for each in (alone, acting)]
    assert equal(*players)
    assert [without_age(record) for record in records(tmp_path / "acted")] == records(tmp_path / "alone")
    assert alone.recent_returns("host") == acting.recent_returns("host")


def without_age(record: Data) -> Data:
    for player in record.get("players", {}).values():
        assert player.pop("weights_age") == 0
    return record


class FirstRows(Callback):
    """Keeps the first roll-out of each player."""

    def __init__(self, config: Any = None) -> None:
        self.rows: dict[str, dict[str, Transitions]] = {}

    def after_roll_out(self, trainer: Any, player: Any, by_role: Any) -> None:
        self.rows.setdefault(player.name, by_role)


@pytest.mark.parametrize("name", ["DQN, prioritized, 3 steps, batch norm", "SAC"])
def test_a_share_of_the_worlds_gives_the_rows_and_statistics_that_it_gives_among_all(name: str, tmp_path: Path) -> None:
    """In a game of two roles, and in one of one, until the first opt step: then the networks differ by rounding."""
    config = CASES[name]()
    config["stop"], told = {"after": 1, "unit": "epochs"}, []
    config |= {"evaluations": [], "best": None}
    for player in config["players"].values():
        player["algorithm"]["rollout_length"] = 3
    for run, each in (("alone", config), ("acted", acted(config, 4, 0))):
        first = FirstRows()
        trainer = make_trainer(each, run=tmp_path / run, callbacks=[first])
        trainer.fit()
        told.append((first.rows, [int(statistics.count) for statistics in trainer.game.statistics()]))
    assert told[0][1] == told[1][1] != []
    for player, by_role in told[0][0].items():
        for role, rows in by_role.items():
            others = told[1][0][player][role]
            assert torch.equal(rows.valid, others.valid)
            assert torch.allclose(rows.action, others.action)
            assert torch.equal(rows.terminated[rows.valid], others.terminated[rows.valid])


class Ages(Callback):
    """Notes at each roll-out how many opt steps old the networks were that have played it."""

    def __init__(self, config: Any = None) -> None:
        self.turns: list[tuple[int, str, int, int]] = []

    def after_roll_out(self, trainer: Any, player: Any, by_role: Any) -> None:
        played = trainer.fused_game.played_by["players"][player.name]["opt_steps"]
        self.turns.append((trainer.epochs, player.name, player.opt_steps, played))


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("trainer", ["in_turn", "together"])
def test_a_turn_is_played_by_the_networks_of_so_many_turns_before(
    trainer: str, processes: int, make_config: Any, tmp_path: Path
) -> None:
    """Host learns in all epochs, agent in the first four of every seven: across the change nothing is asked for."""
    now_and_then = {"name": "contiguous_periodic", "period": 7, "first": 0, "last": 4}
    config = make_config({"trainer": {"name": trainer}, "players.agent.updates": now_and_then, "stop.after": 60})
    ages = Ages()
    make_trainer(acted(config, 2, 2, processes), run=tmp_path / "run", callbacks=[ages]).fit()
    own = {name: [turn for turn in ages.turns if turn[1] == name] for name in ("host", "agent")}
    for turns in own.values():
        begins = {
            epoch: max(start for start in (7 * (epoch // 7), 7 * (epoch // 7) + 4) if start <= epoch)
            for epoch, *_ in turns
        }
        steps = {epoch: opt_steps for epoch, _, opt_steps, _ in turns}
        for epoch, _, _, played in turns:
            assert played == steps[max(epoch - 2, begins[epoch])]
    assert len({opt_steps - played for _, _, opt_steps, played in own["host"]}) == 3


def test_a_schedule_that_was_changed_reaches_the_roll_outs_of_its_time(make_config: Any, tmp_path: Path) -> None:
    """The host explores less after its second turn; the snapshots that are under way then explore as before."""

    class Changes(Callback):
        def after_roll_out(self, trainer: Any, player: Any, by_role: Any) -> None:
            if player.name == "host" and trainer.epochs == 2:
                player.change_schedule("exploration.epsilon", read_schedule({"name": "constant", "value": 0.01}))

    config = make_config({"stop.after": 20, "output.save": {"every": 2, "unit": "opt_steps"}})
    for processes in (0, 1):
        run = tmp_path / f"in-{processes}"
        make_trainer(acted(config, 2, 2, processes), run=run, callbacks=[Changes(None)]).fit()
    assert_same_bits(tmp_path / "in-1", tmp_path / "in-0")
    trainer = make_trainer(acted(config, 2, 2, 1), run=tmp_path / "run", callbacks=[Changes(None)])
    with at_call(Training, "safe_point", 9, ask_to_leave):
        trainer.fit()
    Trainer.load(tmp_path / "run", callbacks=[Changes(None)]).fit()
    assert_same_bits(tmp_path / "run", tmp_path / "in-0")


def test_a_branch_without_changes_takes_along_what_is_under_way(make_config: Any, tmp_path: Path) -> None:
    config = acted(make_config({"output.save": {"every": 4, "unit": "opt_steps"}, "output.keep_last": 9}), 2, 2)
    whole = fit(tmp_path / "run", config)
    branch = Trainer.branch(tmp_path / "run/checkpoints/00000002", ["execution.actor_processes=2"], run=tmp_path / "b")
    branch.fit()
    assert equal(branch.state_dict()["worlds"], whole.state_dict()["worlds"])
    assert equal(branch.players["host"].weights(), whole.players["host"].weights())


@pytest.mark.parametrize(
    "changes",
    [
        {"overrides": ["players.host.algorithm.rollout_length=2"]},
        {"overrides": ["players.agent.updates={name: alternating_periodic, period: 2, phase: 1}"]},
        {"overrides": [], "replace": {"agent": "random"}},
        {"overrides": [], "freeze": ["host"]},
    ],
)
def test_a_branch_with_other_roll_outs_asks_for_them_anew(changes: Data, make_config: Any, tmp_path: Path) -> None:
    config = make_config({"output.save": {"every": 1, "unit": "opt_steps"}, "output.keep_last": 9})
    fit(tmp_path / "run", acted(config, 2, 2))
    overrides = [*changes.pop("overrides"), "stop.after=40"]
    if changes:  # who sits in the evaluation's seats learns no more
        overrides += ["evaluations=[]", "best=null"]
    branch = Trainer.branch(tmp_path / "run/checkpoints/latest", overrides, run=tmp_path / "branch", **changes)
    branch.fit()
    assert branch.finished


def test_a_turn_without_loops_may_be_together(make_config: Any, tmp_path: Path) -> None:
    def learn(self: DQN, turn: Any) -> None:
        self.remember(turn.collect(self.config.rollout_length))
        if not self.is_warming_up():
            turn.before_step()
            turn.after_step(self.opt_step(self.buffer.sample(self.config.batch_size)))

    config = make_config({"trainer": {"name": "together"}, "stop": {"after": 6, "unit": "epochs"}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DQN, "learn", learn)
        assert fit(tmp_path / "run", acted(config, 2, 1)).finished


def test_actors_are_said_before_they_begin(make_config: Any) -> None:
    told = Trainer.train_stage(Trainer(acted(make_config(), 2, 1, 2)).config).description
    assert told.endswith("; 2 actors play in 2 processes, 1 turn behind")
    told = Trainer.train_stage(Trainer(acted(make_config(), 1, 0)).config).description
    assert told.endswith("; 1 actor plays here, without a lag")


@pytest.mark.parametrize("processes", [0, 1])
def test_a_second_fit_asks_again_for_what_was_under_way(processes: int, make_config: Any, tmp_path: Path) -> None:
    config = acted(make_config(), 2, 2, processes)
    fit(tmp_path / "whole", config)
    trainer = make_trainer(config, run=tmp_path / "run")
    trainer.fit(9)
    trainer.evaluate(["main"])
    trainer.fit()
    assert pointed_at(tmp_path / "run", "latest")["files"] == pointed_at(tmp_path / "whole", "latest")["files"]  # type: ignore[index]


QUICK: Data = {"stop.after": 400, "num_worlds": 8, "output.save": None, "evaluations": [], "best": None}


def test_recent_returns_are_those_of_the_last_games_of_all_actors(make_config: Any, tmp_path: Path) -> None:
    trainer = fit(tmp_path / "run", acted(make_config(QUICK), 4, 1))
    found = trainer.recent_returns("host")
    own = [trainer.fused_game.alone.recent_returns(share)[:, 0] for share in trainer.worlds["host"].shares]
    assert len(found) == 100
    assert min(map(len, own)) >= 25
    assert found[-8:] == [float(returns[-n]) for n in (2, 1) for returns in reversed(own)]


def test_no_more_snapshots_live_than_a_lag_needs(make_config: Any, tmp_path: Path) -> None:
    trainer = make_trainer(acted(make_config(), 2, 3), run=tmp_path / "run")
    trainer.fit()
    for worlds in trainer.state_dict()["worlds"].values():
        assert sum(entry["num"] for entry in worlds["pending"]) == 3
        assert len(worlds["pending"]) == 3


# ---- what fails --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"actors": {"num": 3, "lag": 0}}, "actors.num: expected a divisor of num_worlds = 8, because .*, got 3"),
        ({"execution.actor_processes": 1}, "execution.actor_processes: expected 0, because `actors` is null, got 1"),
        (
            {"actors": {"num": 4, "lag": 0}, "execution.actor_processes": 3},
            "execution.actor_processes: expected 0 or a divisor of actors.num = 4, got 3",
        ),
        ({"actors": {"num": 4, "lag": -1}}, "actors.lag: expected an integer >= 0, got -1"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(changes: Data, told: str, make_config: Any) -> None:
    with pytest.raises(ConfigError, match=told):
        Trainer(make_config(changes))


def test_networks_that_are_handed_over_exclude_actors(make_config: Any) -> None:
    trainer = Trainer(acted(make_config(), 2, 1))
    with pytest.raises(ConfigError, match="actors: expected null, because other processes cannot build networks"):
        trainer.set_model("host", {"net": trainer.host_net})


def test_a_second_roll_out_in_a_turn_is_refused(make_config: Any, tmp_path: Path) -> None:
    def learn(self: DQN, turn: Any) -> None:
        turn.collect(1)
        turn.collect(1)

    trainer = Trainer(acted(make_config(), 2, 1), run=tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DQN, "learn", learn)
        with pytest.raises(RuntimeError, match="one roll-out per turn with `actors`, which play ahead, got another"):
            trainer.fit()


def test_roll_outs_of_several_lengths_are_refused(make_config: Any, tmp_path: Path) -> None:
    class Growing(Trainer):
        def _train(self) -> None:
            self.roll_out("host", 1 + self.epochs)

    with pytest.raises(RuntimeError, match="of one length with `actors`, 1 rounds of host as before, got 2 of host"):
        Growing(acted(make_config(), 2, 1), run=tmp_path / "run").fit()


@pytest.mark.parametrize("processes", [0, 1])
def test_an_environment_that_fails_is_named_with_its_world_and_step(
    processes: int, make_config: Any, tmp_path: Path
) -> None:
    config = lone_agent(make_config, gym_data(id="tests.gym_probes:Faulty-v0", arguments={"limit": 3}))
    config |= {"evaluations": [], "best": None}
    with pytest.raises(TrainingFailed) as alone:
        fit(tmp_path / "alone", config)
    with pytest.raises(TrainingFailed) as acting:
        fit(tmp_path / "run", acted(config, 2, 0, processes))
    told = r"Faulty-v0, world \d, step \d+ of episode \d+: ArithmeticError: the sum is too large"
    found = [re.search(told, str(error.value)) for error in (alone, acting)]
    assert [each and each[0] for each in found] == 2 * [found[0] and found[0][0]] != [None, None]


@pytest.mark.parametrize("deed", [signal.SIGKILL, signal.SIGSTOP])
def test_an_actor_that_dies_or_hangs_is_started_again(deed: int, make_config: Any, tmp_path: Path) -> None:
    config = make_config({"stop.after": 40})
    fit(tmp_path / "whole", acted(config, 2, 1))
    timeout = {"timeout_s": 600.0 if deed == signal.SIGKILL else 3.0}
    trainer = Trainer(acted(config, 2, 1, processes=2, max_restarts=2, **timeout), run=tmp_path / "run")

    def strike(trainer: Any, *_: Any) -> None:
        worker = trainer.fused_game.places[1].worker
        while worker.process is None:  # it is started again
            time.sleep(0.01)
        os.kill(worker.process._process.pid, deed)

    with at_call(Trainer, "roll_out_of", 7, strike), at_call(Trainer, "roll_out_of", 20, strike):
        trainer.fit()
    assert_same_bits(tmp_path / "run", tmp_path / "whole")
    found = [record for record in read_records(tmp_path / "run" / "records.jsonl") if record["kind"] == "training"]
    assert [each["restarts"] for each in found[-1]["clock"]["actors"].values()] == [0, 2]
    assert min(each["play_seconds"] for each in found[0]["clock"]["actors"].values()) > 0.0


def test_an_actor_that_is_lost_too_often_ends_the_run(make_config: Any, tmp_path: Path) -> None:
    def strike(trainer: Any, *_: Any) -> None:
        os.kill(trainer.fused_game.places[0].worker.process._process.pid, signal.SIGKILL)

    with (
        at_call(Trainer, "roll_out_of", 5, strike),
        pytest.raises(TrainingFailed, match=r"actors 0 to 1: its process ended with SIGKILL .*\(see .*/actors/0.log"),
    ):
        fit(tmp_path / "run", acted(make_config(), 2, 0, processes=1))
    go_on(tmp_path / "run", 1)
    fit(tmp_path / "whole", acted(make_config(), 2, 0))
    assert_same_bits(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
def test_fifty_kills_and_stops_of_actors_and_learner_change_no_bit(make_config: Any, tmp_path: Path) -> None:
    """Processes of their own, which are forked. A learner that was killed leaves none behind."""
    config = make_config({"stop.after": 6000, "output.save": {"every": 100, "unit": "opt_steps"}})
    config["output"] |= {"record": {"every": 500, "unit": "opt_steps"}, "recorders": []}
    config |= {"evaluations": [], "best": None}
    fit(tmp_path / "whole", acted(config, 2, 2))
    run, chance, num_strikes, num_learners = tmp_path / "run", random.Random(0), 0, 0
    (tmp_path / "config.json").write_text(json.dumps(acted(config, 2, 2, 2, timeout_s=2.0, max_restarts=1000)))
    others, code = {*living()}, None
    while code != 0:
        exists = (run / "run.json").exists()
        begin = ["resume", str(run)] if exists else ["train", str(tmp_path / "config.json"), "--run", str(run)]
        with Forked([sys.executable, "-m", "palestra", *begin, "--quiet"], cwd=ROOT) as learner:
            for _ in range(chance.randint(4, 8)):
                time.sleep(chance.uniform(0.3, 2.0))
                if num_strikes < 50 and (workers := {*living()} - others - {learner.pid}):
                    num_strikes += 1
                    os.kill(chance.choice(sorted(workers)), chance.choice([signal.SIGKILL, signal.SIGSTOP]))
            if num_strikes < 50 and learner.poll() is None:
                num_strikes, num_learners = num_strikes + 1, num_learners + 1
                learner.kill()
            code = learner.wait()
        give_up = time.monotonic() + 30.0
        while {*living()} - others:
            assert time.monotonic() < give_up, "actors outlive their learner"
            time.sleep(0.05)
    assert num_strikes == 50
    assert num_learners >= 3
    assert_same_bits(run, tmp_path / "whole")
