"""Runs of four replicas of every kind: what the proofs go over that they come to the same bits.

Classes that a config names lie in `OWN_CLASSES`, which must be in the path of whoever trains.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from combinations import Combination, config_of
from leagues import LEARNERS, league

from palestra.config import load_yaml

Data = dict[str, Any]

NUM_REPLICAS = 4
OWN_CLASSES = Path(__file__).parents[1] / "docs" / "examples"


def case(name: str) -> Data:
    """Return the config of a case."""
    return CASES[name]() | {"num_replicas": NUM_REPLICAS}


def _combined(algorithm: str, combination: Combination, **changes: Any) -> Data:
    """Make a run of tests/combinations.py. changes: to the algorithm of the first player."""
    config = config_of(algorithm, combination)
    next(iter(config["players"].values()))["algorithm"] |= changes
    return config


def _dqn() -> Data:
    learner = {"value": "expected", "replay": "prioritized", "transitions": "3 steps", "dueling": "yes"}
    return _combined("dqn", {"game": "nim", "actions": "discrete", "observations": "normalized"} | learner)


def _sac() -> Data:
    learner = {"entropy": "automatic", "replay": "prioritized", "transitions": "3 steps"}
    return _combined("sac", {"game": "classic control", "actions": "box", "observations": "normalized"} | learner)


def _td3() -> Data:
    learner = {"policy_interval": "2", "replay": "uniform", "transitions": "one step"}
    return _combined("td3", _environments("gymnasium", "box", "next_step") | learner)


def _ppo() -> Data:
    """Some turns end after their first pass."""
    learner = {"objective": "clip", "body": "two recurrent"}
    return _combined("ppo", _environments("gymnasium", "discrete", "next_step") | learner, target_kl=1e-5)


def _whole_games() -> Data:
    """A replica has one world, so in some turns no game of it ends."""
    learner = {"loss": "whole games", "body": "separate"}
    game = {"game": "nim", "actions": "discrete", "observations": "as they are"}
    return _combined("on_policy", game | learner, rollout_length=1) | {"num_worlds": 1}


def _images() -> Data:
    learner = {"replay": "uniform", "transitions": "one step", "interval": "3", "loss": "its own"}
    return _combined("off_policy", _environments("images", "discrete", "same_step") | learner)


def _torchrl() -> Data:
    learner = {"replay": "prioritized", "transitions": "one step", "interval": "1", "loss": "its own"}
    game = {"game": "classic control", "actions": "box", "observations": "as they are"}
    return _combined("off_policy", game | learner)


def _frozen(trainer: str) -> Data:
    """Host and agent learn by different algorithms; each stands still now and then."""
    learner = {"value": "c51", "replay": "uniform", "transitions": "one step", "dueling": "no"}
    game = {"game": "polyhedra", "actions": "discrete", "trainer": trainer, "observations": "normalized"}
    config = _combined("dqn", game | learner)
    for phase, player in enumerate(config["players"].values()):
        player["updates"] = {"name": "alternating_periodic", "period": 2, "phase": phase}
    return config


def _dialogue() -> Data:
    """The protocol and the scenario are a user's own, too."""
    config = _example("telegram", num_worlds=4)
    for player in config["players"].values():
        player["algorithm"]["num_passes"] = 1
    return config


def _own_parts() -> Data:
    """An algorithm, a trainer and a callback of a user's own."""
    config = _example("alternating", num_worlds=4)
    a2c = load_yaml(OWN_CLASSES / "a2c.yml")["players"]["agent"]["algorithm"]
    for player in config["players"].values():
        player["algorithm"] = a2c | {"rollout_length": 3}
    trainer = {"name": "alternating:Alternating", "num_turns": 2}
    return config | {"trainer": trainer, "callbacks": [{"name": "visits:Visits"}]}


def _own_opt_steps() -> Data:
    """A trainer of a user's own that makes roll-outs and opt steps, too."""
    config = _example("double", num_worlds=4)
    for player in config["players"].values():
        player["algorithm"] |= {"warmup_env_steps": 64, "updates_per_turn": 2, "batch_size": 8}
    return config


def _environments(game: str, actions: str, autoreset: str) -> Combination:
    return {"game": game, "actions": actions, "vectorization": "sync", "autoreset": autoreset}


def _example(name: str, num_worlds: int) -> Data:
    """A run of docs/examples, as small and as often stored as those of tests/combinations.py."""
    config, tiny = load_yaml(OWN_CLASSES / f"{name}.yml"), _dqn()
    config["evaluations"][0] |= {"interval": {"every": 6, "unit": "opt_steps"}, "num_games": 4, "final_num_games": 5}
    return config | {"num_worlds": num_worlds} | {key: tiny[key] for key in ("stop", "execution", "output")}


CASES: dict[str, Callable[[], Data]] = {
    "DQN, prioritized, 3 steps, batch norm": _dqn,
    "SAC": _sac,
    "TD3, environments, normalised": _td3,
    "PPO, recurrent, target_kl, environments": _ppo,
    "on_policy, whole games": _whole_games,
    "off_policy, images": _images,
    "off_policy, a loss of TorchRL": _torchrl,
    "two roles in turn, frozen now and then": lambda: _frozen("in_turn"),
    "two roles together, frozen now and then": lambda: _frozen("together"),
    "a league with past selves": lambda: league(LEARNERS["recurrent"], normalized=True, explores=True),
    "a dialogue": _dialogue,
    "algorithm, trainer and callback of one's own": _own_parts,
    "a trainer of one's own that makes opt steps": _own_opt_steps,
}
