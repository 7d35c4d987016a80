"""Runs with a player behind a server, for tests of calls and of jobs."""

from typing import Any

from palestra.text.servers.config import ServerConfig
from tests.text.runs import EXPERT, FIXED, PLAYER, SUPERVISED, Data, text_run


def at_server(url: str, **changed: Any) -> Data:
    """The keys of a model there."""
    usual = {**ServerConfig.usual, "url": url, "timeout_s": 10.0, "num_attempts": 3, "max_concurrent": 4}
    return {"name": "server", **usual, **changed}


def all_at_server(url: str, **changed: Any) -> Data:
    """The config of a run in which all are behind a server, and nobody finds anything to learn from."""
    config = server_run(url, **changed)
    tuning = {
        "num_passes": 1,
        "batch_size": "auto",
        "learning_rate_multiplier": "auto",
        "poll_s": 1.0,
        "timeout_s": 9.0,
    }
    never = EXPERT | {"select": {"name": "threshold", "reward": 99.0}, "tuning": tuning}
    config["players"]["verifier"] |= {"model": at_server(url), "algorithm": never}
    return config


def server_run(url: str, model: Data | None = None, **changed: Any) -> Data:
    """The config of a run in which a fixed prover is behind a server, and a verifier here learns once."""
    prover = FIXED | {"model": at_server(url, **(model or {}))}
    verifier = PLAYER | {"algorithm": SUPERVISED, "imitate": None, "num_retries": 0}
    keys = {"num_questions": 3, "num_rollouts": 3, "best": None, "stop": {"after": 1, "unit": "epochs"}, **changed}
    return text_run("nip", {"prover": prover, "verifier": verifier}, **keys)


TUNING = {"num_passes": 1, "batch_size": 4, "learning_rate_multiplier": 1.0, "poll_s": 0.2, "timeout_s": 600.0}


def tuned_run(url: str, model: Data, tuning: Data | None = None, **changed: Any) -> Data:
    """The config of a run in which both are models behind a server, where the verifier is tuned."""
    there = {"model": at_server(url, **model)}
    expert = EXPERT | {"epochs": "this", "tuning": TUNING | (tuning or {})}
    players = {"prover": FIXED | there, "verifier": PLAYER | there | {"algorithm": expert, "imitate": None}}
    return text_run("nip", players, **{"num_questions": 4, "num_rollouts": 2, **changed})
