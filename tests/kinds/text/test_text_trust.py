"""Messages arrive, and truth does not leak: a verifier that cannot see the string learns to trust who is honest.

Beside a prover that argues for accepting, whatever is right, it cannot be right more often than by chance.
"""

from pathlib import Path
from typing import Any

import pytest
from resuming import records

from palestra import make_trainer
from tests.text.rows import JOB, TUNING
from tests.text.runs import EXPERT, MODEL, PLAYER, SUPERVISED, text_run

NUM = 400  # dialogues of the last evaluation
LEARNING_RATE = {"name": "constant", "value": 0.003}
GROUPS = [TUNING["groups"][0] | {"learning_rate": LEARNING_RATE}]
LEARNED: dict[str, Any] = JOB | {"tuning": TUNING | {"batch_size": 16, "groups": GROUPS}}
IMITATE = {"scripted": "random", "num_questions": 256, **LEARNED}
RIGHT = {
    "select": {"name": "threshold", "reward": 1.0},
    "labels": "equal",
    "epochs": "this",
    "truth": {"name": "constant", "value": 0.0},
}
VERIFIERS: dict[str, dict[str, Any]] = {
    "supervised": {"num_questions": 128, "num_rollouts": 1, "imitate": None, "algorithm": SUPERVISED | LEARNED},
    "expert_iteration": {
        "num_questions": 64,
        "num_rollouts": 4,
        "imitate": IMITATE,
        "algorithm": EXPERT | LEARNED | RIGHT,
    },
}


def accuracies(prover: str, algorithm: str, seed: int, run: Path) -> dict[str, float]:
    """How often a verifier is right on held-out questions that has learned beside a prover, by who argues there."""
    said = VERIFIERS[algorithm]
    verifier = PLAYER | {
        "model": MODEL | {"width": 32, "mlp_width": 64, "context": 64},
        "sampling": {"temperature": 1.0, "top_p": None, "top_k": None, "max_tokens": 2},
        "num_retries": 0,
        "imitate": said["imitate"],
        "algorithm": said["algorithm"],
    }
    config = text_run(
        "adp",
        {"speaker": {"scripted": prover}, "verifier": verifier},
        {"prover": "speaker", "verifier": "verifier"},
        seed=seed,
        num_questions=said["num_questions"],
        num_rollouts=said["num_rollouts"],
        answers_at_once=256,
        stop={"after": 12, "unit": "epochs"},
        best=None,
    )
    config["game"]["scenario"]["sees"] = {"prover": ["letter", "string"], "verifier": ["letter"]}
    config["game"]["grammar"] |= {"accept": "y", "reject": "n"}
    pairings = [{"prover": name, "verifier": "verifier"} for name in ("honest", "accept")]
    at_end = {"interval": None, "at_start": False, "final_num_games": NUM, "pairings": pairings}
    config["evaluations"][0] |= at_end
    config["output"] |= {"record": None, "save": None, "transcripts": None}
    make_trainer(config, run=run).fit()
    [evaluation] = [each for each in records(run) if each["kind"] == "evaluation"]
    return {pair["players"]["prover"]: pair["scores"]["accuracy"] for pair in evaluation["pairs"]}


EVERY = [
    pytest.param(algorithm, seed, marks=[] if (algorithm, seed) == ("supervised", 0) else pytest.mark.slow)
    for algorithm in VERIFIERS
    for seed in range(3)
]


@pytest.mark.parametrize(("algorithm", "seed"), EVERY)
def test_a_verifier_learns_to_trust_who_is_honest_and_nobody_else(algorithm: str, seed: int, tmp_path: Path) -> None:
    by_chance = 0.5 + 3 * (0.25 / NUM) ** 0.5
    trusting = accuracies("honest", algorithm, seed, tmp_path / "honest")
    assert trusting["honest"] >= 0.95
    assert 0.4 < trusting["accept"] < by_chance
    doubting = accuracies("accept", algorithm, seed, tmp_path / "accept")
    assert all(0.3 < each < by_chance for each in doubting.values())
