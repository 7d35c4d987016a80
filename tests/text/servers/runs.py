"""Runs with a player behind a server, for tests of calls and of jobs."""

from typing import Any

from palestra.text.servers.config import ServerConfig
from tests.text.runs import FIXED, PLAYER, SUPERVISED, Data, text_run


def at_server(url: str, **changed: Any) -> Data:
    """The keys of a model there."""
    usual = {**ServerConfig.usual, "url": url, "timeout_s": 10.0, "num_attempts": 3, "max_concurrent": 4}
    return {"name": "server", **usual, **changed}


def server_run(url: str, model: Data | None = None, **changed: Any) -> Data:
    """The config of a run in which a fixed prover is behind a server, and a verifier here learns once."""
    prover = FIXED | {"model": at_server(url, **(model or {}))}
    verifier = PLAYER | {"algorithm": SUPERVISED, "imitate": None, "num_retries": 0}
    keys = {"num_questions": 3, "num_rollouts": 3, "best": None, "stop": {"after": 1, "unit": "epochs"}, **changed}
    return text_run("nip", {"prover": prover, "verifier": verifier}, **keys)
