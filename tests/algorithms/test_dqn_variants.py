"""DQN's variants: games whose values are known, exploration and masks, priorities, export of none but legal actions."""

from typing import Any

import pytest
import torch
from probes import Kind
from probing import best_action, learn, make_probe, seat, seen

from palestra.algorithms.dqn import DQNConfig
from palestra.config import check

CPU = torch.device("cpu")
EXPECTED = {"name": "expected", "huber_delta": 1.0}
C51 = {"name": "c51", "num_atoms": 41, "low": -2.0, "high": 6.0}
QUANTILE = {"name": "quantile", "num_quantiles": 8, "huber_delta": 1.0}
IMPLICIT = {
    "name": "implicit_quantile",
    "num_quantiles": 8,
    "num_target_quantiles": 8,
    "num_acting_quantiles": 16,
    "num_cosines": 16,
    "embedding_dim": 32,
    "huber_delta": 1.0,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dueling": {"dueling": True},
    "n-step": {"transitions": {"name": "n_step", "steps": 3}},
    "c51": {"value": C51},
    "quantile": {"value": QUANTILE},
    "implicit quantile": {"value": IMPLICIT},
    "dueling c51, n-step": {"dueling": True, "value": C51, "transitions": {"name": "n_step", "steps": 2}},
    "dueling implicit quantile": {"dueling": True, "value": IMPLICIT, "double": False},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def variant_config(variant: str, **changes: Any) -> DQNConfig:
    data = {
        "name": "dqn",
        "gamma": 0.8,
        "double": True,
        "dueling": False,
        "value": EXPECTED,
        "transitions": {"name": "one_step"},
        "rollout_length": 2,
        "updates_per_turn": 4,
        "warmup_env_steps": 200,
        "batch_size": 32,
        "target": {"name": "polyak", "tau": 0.2},
        "max_grad_norm": None,
        "net": {"name": "mlp", "net_arch": [32, 32], "activation": "relu"},
        "optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
        "learning_rate": {"name": "linear", "initial": 1e-2, "final": 1e-5, "num_steps": 500},
        "exploration": {"name": "epsilon_greedy", "epsilon": {"name": "constant", "value": 0.5}},
        "replay_buffer": {"name": "uniform", "capacity": 5000},
    }
    return check(data | VARIANTS[variant] | changes, DQNConfig)


# ---- games whose values are known --------------------------------------------------------------------------

KNOWN: dict[Kind, dict[tuple[float, float], float]] = {
    "delayed": {(1.0, 0.0): 0.8, (1.0, 1.0): 1.0},
    "both": {(1.0, 0.0): 1.0, (-1.0, 0.0): 1.0},
    "endless": {(1.0, 0.0): 5.0, (-1.0, 0.0): 5.0},
}


@pytest.mark.parametrize("kind", KNOWN)
@every_variant
def test_probe_games_are_learnt(variant: str, kind: Kind) -> None:
    probe = make_probe(kind, continuous=False)
    dqn = seat(variant_config(variant), probe.spaces["agent"], probe.action_spaces["agent"])
    learn(dqn, probe, 500)
    for place, value in KNOWN[kind].items():
        with torch.no_grad():
            assert float(dqn.values(seen(*place)).max()) == pytest.approx(value, abs=1e-2)
        if kind == "both":
            assert best_action(dqn, *place) == (place[0] > 0)
