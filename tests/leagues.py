"""Runs in which players meet others and past selves: what the proofs of seating go over."""

import copy
from typing import Any

from combinations import GAMES, OBSERVATIONS, PPO, RECURRENT, SAC
from conftest import TINY

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
