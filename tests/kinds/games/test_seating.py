"""Who meets whom in worlds: pairings in blocks, past selves, results; stopped and resumed, with replicas and actors."""

import copy
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from combinations import GAMES, OBSERVATIONS, PPO, RECURRENT, SAC, config_of
from conftest import TINY
from resuming import Killed, assert_same_bits, at_call, fit, kill, stopping_at

import palestra
from palestra import ConfigError, make_trainer
from palestra.kinds.games.trainer import Trainer
from palestra.run.branching import tree_differences

Data = dict[str, Any]
NIM = ("first", "second")


def league(learner: Data, normalized: bool = False, explores: bool = False, **changes: Any) -> Data:
    """Nim: `main` meets itself and its past selves, `exploiter` meets `main`, and sits in no seat of `roles`."""
    game = GAMES["nim"]["discrete"] | {"observation": OBSERVATIONS["normalized" if normalized else "as they are"]}
    player = {"algorithm": learner, "warm_start": None, "updates": {"name": "constant"}}
    meets = [
        {"share": 0.25, "pairing": {"first": "main", "second": "main"}},
        {"share": 0.375, "pairing": {"first": "main", "second": "past"}},
        {"share": 0.375, "pairing": {"first": "past", "second": "main"}},
    ]
    choice = {"name": "prioritized", "power": 2.0, "prior_games": 4.0}
    past = {"past_of": "main", "interval": 3, "num_kept": 3, "num_seated": 2, "explores": explores, "choice": choice}
    own = [{"share": 0.5, "pairing": dict(zip(each, ("exploiter", "main"), strict=True))} for each in (NIM, NIM[::-1])]
    players = {"main": player | {"meets": meets}, "exploiter": player | {"meets": own}, "past": past}
    config = copy.deepcopy(TINY) | {"game": game, "num_worlds": 8, "roles": dict.fromkeys(NIM, "main")}
    config |= {"players": players, "stop": {"after": 24, "unit": "opt_steps"}}
    config["evaluations"][0] |= {"pairings": [{"first": "main", "second": "past"}], "at_start": True}
    config["best"] |= {"pairing": 0, "measure": "return/first"}
    return copy.deepcopy(config) | changes


REPLAY: Data = {"name": "uniform", "capacity": 100, "layout": "whole", "scratch_folder": None}
OFTEN: Data = {"rollout_length": 3, "replay_buffer": REPLAY}
DQN = TINY["players"]["host"]["algorithm"] | OFTEN | {"transitions": {"name": "n_step", "steps": 2}}
LEARNERS: dict[str, Data] = {
    "dqn": DQN,
    "ppo": PPO,
    "recurrent": PPO | {"body": {"name": "shared", "net": RECURRENT}},
    "sac": SAC | OFTEN | {"log_std": None},
}


def nets_of(trainer: Any) -> Data:
    return {name: player.weights()["nets"] for name, player in trainer.players.items() if player.learning}


@pytest.mark.parametrize("learner", LEARNERS)
def test_one_pairing_as_in_roles_has_the_bits_of_null(learner: str, tmp_path: Path) -> None:
    config = league(LEARNERS[learner], normalized=True)
    player = config["players"]["main"]
    config |= {"players": {"main": player}}
    config["evaluations"][0]["pairings"] = [config["roles"]]
    with_null = fit(tmp_path / "null", config | {"players": {"main": player | {"meets": None}}})
    player["meets"] = [{"share": 1.0, "pairing": config["roles"]}]
    with_meets = fit(tmp_path / "meets", config | {"players": {"main": player}})
    assert list(tree_differences(nets_of(with_null), nets_of(with_meets))) == []
    assert list(tree_differences(with_null.game.state_dict(), with_meets.game.state_dict())) == []


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_run_stopped_and_killed_in_every_phase_ends_in_the_same_bits(learner: str, tmp_path: Path) -> None:
    config = league(LEARNERS[learner], normalized=learner != "sac", explores=learner != "ppo")
    uninterrupted, run, rng = fit(tmp_path / "uninterrupted", config), tmp_path / "run", random.Random(learner)
    stops = [stopping_at(2), at_call(Trainer, "_play", 2, kill), stopping_at(rng.randint(2, 5))]
    num_stops = 0
    for stop in [*stops, at_call(Trainer, "_play", rng.randint(1, 2), kill)]:
        with stop:
            try:
                num_stops += not fit(run, None if run.exists() else config).finished
            except Killed:
                num_stops += 1
    assert num_stops >= 2
    trainer = fit(run)
    assert list(tree_differences(uninterrupted.state_dict(), trainer.state_dict())) == []
    assert_same_bits(run, tmp_path / "uninterrupted")
    assert sorted(each.name for each in (run / "past").iterdir()) == sorted(
        each.name for each in (tmp_path / "uninterrupted" / "past").iterdir()
    )
