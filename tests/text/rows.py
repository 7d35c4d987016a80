"""Rows of roll-outs for tests, without dialogues and models."""

from typing import Any

from palestra.games.dialogue.protocol import RewardsConfig
from palestra.games.dialogue.protocols import NipConfig
from palestra.text.algorithms.algorithm import Seat
from palestra.text.models.model import Message
from palestra.text.rollouts import DecisionRow

REWARDS = RewardsConfig(right=1.0, wrong=-1.0, out_of_time=-1.0, go_on=0.0, prover=1.0, shared=False)
WORDS = ("no", "yes")

ADAM = {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
TUNING: dict[str, Any] = {
    "num_passes": 1,
    "batch_size": 8,
    "num_microbatches": 1,
    "groups": [{"weights": "*", "learning_rate": {"name": "constant", "value": 0.01}, "optimizer": ADAM}],
    "max_grad_norm": 1.0,
    "precision": "float32",
}
JOB = {"loss": {"name": "supervised", "per": "token"}, "begin_from": "before", "tuning": TUNING}


def seat(player: str = "verifier") -> Seat:
    config = {
        "name": "nip",
        "stance": "accept",
        "first": "prover",
        "min_rounds": 1,
        "max_rounds": 2,
        "rewards": REWARDS.model_dump(),
    }
    return Seat(player, NipConfig.model_validate(config).build(), WORDS)


def row(**changed: Any) -> DecisionRow:
    usual: dict[str, Any] = {
        "epoch": 0,
        "question": 0,
        "about": "k in qwkr",
        "rollout": 0,
        "variant": 0,
        "node": 0,
        "parent": None,
        "round": 0,
        "role": "verifier",
        "player": "verifier",
        "prompt": (Message("system", "k in {{ qwkr }}?"), Message("user", "é")),
        "answer": "yes",
        "prompt_ids": (3, 4),
        "answer_ids": (5, 0),
        "log_probs": (-0.5, -0.25),
        "stop": "stop",
        "attempts": 1,
        "verdict": 1,
        "label": 1,
        "reward": 1.0,
        "taught": None,
        "returns": None,
    }
    return DecisionRow(**{**usual, **changed})


def dialogue(question: int, verdict: int, label: int, rollout: int = 0, epoch: int = 0) -> list[DecisionRow]:
    """A prover's message, and the verdict of a verifier."""
    where = {"question": question, "rollout": rollout, "label": label, "epoch": epoch}
    accepts = float(verdict == 1)
    return [
        row(**where, role="prover", player="prover", answer="k", verdict=None, reward=accepts),
        row(
            **where,
            node=1,
            parent=0,
            round=1,
            verdict=verdict,
            answer=WORDS[verdict],
            reward=2.0 * (verdict == label) - 1,
        ),
    ]
