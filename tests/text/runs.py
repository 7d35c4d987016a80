"""Tiny runs of players that talk in words: every algorithm, with and without `imitate`, on whole weights and adapters.

Whoever adds an algorithm of text players adds a run of it here, which is all that the proofs of resuming ask.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import torch

from palestra.randomness import base_key
from palestra.text.algorithms import AnyTextAlgorithm
from palestra.text.algorithms.algorithm import UserAlgorithmConfig
from palestra.text.models.sources import NewConfig
from tests.text.games import text_config
from tests.text.rows import JOB

Data = dict[str, Any]

MODEL: Data = {
    "name": "new",
    "num_layers": 1,
    "width": 16,
    "num_heads": 2,
    "mlp_width": 16,
    "context": 192,
    "init_std": 0.1,
}
SUPERVISED: Data = {"name": "supervised", "scripted": "honest", **JOB, "begin_from": "base"}
EXPERT: Data = {
    "name": "expert_iteration",
    "select": {"name": "threshold", "reward": -1.0},
    "labels": "as_they_come",
    "epochs": "all",
    "truth": {"name": "linear", "initial": 0.0, "final": 1.0, "num_steps": 2},
    **JOB,
}
DRAWN: Data = {"name": "weighted", "num_dialogues": 10, "floor": -2.0, "replacement": True}
GRADIENT: Data = {
    "name": "policy_gradient",
    "advantage": "question",
    **JOB,
    "loss": {"name": "policy_gradient", "per": "token", "clip_range": 0.2, "kl_coefficient": 0.1, "kl_to": "imitated"},
    "tuning": JOB["tuning"] | {"num_passes": 2, "num_microbatches": 2},
}
MALT: Data = {
    "name": "malt",
    "num_continuations": 2,
    "most_answers": 100,
    **JOB,
    "loss": {"name": "preference", "beta": 0.5},
}
PLAYER: Data = {
    "model": MODEL,
    "sampling": {"temperature": 0.8, "top_p": None, "top_k": None, "max_tokens": 4},
    "num_retries": 1,
    "warm_start": None,
    "imitate": {"scripted": "random", "num_questions": 10, **JOB},
    "algorithm": EXPERT,
    "updates": {"name": "constant"},
}
IMITATED = JOB["tuning"] | {
    "groups": [JOB["tuning"]["groups"][0] | {"learning_rate": {"name": "constant", "value": 0.02}}]
}
JUDGING: Data = PLAYER | {
    "imitate": {"scripted": "random", "num_questions": 64, **JOB, "tuning": IMITATED},
    "sampling": PLAYER["sampling"] | {"max_tokens": 1},
}
FIXED: Data = PLAYER | {"algorithm": None, "imitate": None}
ADAPTER: Data = {"rank": 2, "alpha": 4.0, "targets": "all_linear"}


def made_folder(place: Path) -> Path:
    """A model's folder, as transformers saves it."""
    config = NewConfig(**MODEL)
    config.build(base_key(1, "folder"), torch.device("cpu")).export(place / "base")
    return place / "base"


def adapted(folder: Path) -> Data:
    return {"name": "folder", "path": str(folder), "adapter": ADAPTER, "dtype": "float32"}


def text_run(protocol: str, players: Data, roles: dict[str, str] | None = None, **changed: Any) -> Data:
    """The config of two epochs, which saves now and then."""
    game = text_config(protocol)
    seats = roles or {role: role for role in game.declared_roles()}
    evaluation = {
        "name": "main",
        "interval": {"every": 1, "unit": "epochs"},
        "at_start": True,
        "num_games": 3,
        "final_num_games": 4,
        "seed": None,
        "pairings": [seats, dict.fromkeys(seats, "random") | {"verifier": seats["verifier"]}],
    }
    run: Data = {
        "seed": 0,
        "trainer": {"name": "text"},
        "game": game.model_dump(),
        "num_questions": 3,
        "num_rollouts": 2,
        "answers_at_once": 4,
        "roles": seats,
        "players": players,
        "evaluations": [evaluation],
        "best": {"evaluation": "main", "pairing": 0, "measure": "return/verifier", "goal": "max"},
        "evaluators": None,
        "stop": {"after": 2, "unit": "epochs"},
        "budget": None,
        "callbacks": [],
        "execution": {"device": "cpu", "num_threads": 1},
        "output": {
            "display": "quiet",
            "record": {"every": 1, "unit": "opt_steps"},
            "statistics": ["mean"],
            "recorders": [],
            "save": {"every": 3, "unit": "opt_steps"},
            "keep_last": 2,
            "keep_every": None,
            "checkpoint_folder": None,
            "stop_within_s": 30.0,
            "mirror": None,
            "transcripts": "prompts",
        },
    }
    return copy.deepcopy(run | changed)


# By name, with the folder of a model.
RUNS: dict[str, Callable[[Path], Data]] = {
    "supervised, in nip": lambda folder: text_run(
        "nip", {"prover": FIXED, "verifier": PLAYER | {"algorithm": SUPERVISED}}
    ),
    "expert_iteration, of one player in both roles": lambda folder: text_run(
        "adp, side drawn",
        {"both": PLAYER | {"algorithm": EXPERT | {"select": DRAWN, "labels": "equal", "begin_from": "base"}}},
        {"prover": "both", "verifier": "both"},
    ),
    "expert_iteration and policy_gradient, of two adapters on one folder": lambda folder: text_run(
        "nip, prover first",
        {
            "prover": PLAYER | {"model": adapted(folder), "algorithm": GRADIENT, "num_retries": 0},
            "verifier": PLAYER | {"model": adapted(folder), "imitate": None},
        },
    ),
    "policy_gradient, of a whole folder and a new model, in debate": lambda folder: text_run(
        "debate",
        {
            "true": {"scripted": "honest"},
            "prover": PLAYER | {"algorithm": GRADIENT | {"advantage": "normalized"}, "num_retries": 0},
            "judge": PLAYER
            | {
                "model": adapted(folder) | {"adapter": None},
                "algorithm": GRADIENT | {"advantage": "batch", "loss": GRADIENT["loss"] | {"kl_to": "base"}},
                "num_retries": 0,
                "updates": {"name": "alternating_periodic", "period": 1, "phase": 1},
            },
        },
        {"prover0": "prover", "prover1": "true", "verifier": "judge"},
    ),
    "malt, of an adapter from the base and of a whole folder, in debate": lambda folder: text_run(
        "debate",
        {
            "true": {"scripted": "honest"},
            "prover": JUDGING | {"model": adapted(folder), "algorithm": MALT | {"begin_from": "base"}},
            "judge": JUDGING
            | {
                "model": adapted(folder) | {"adapter": None},
                "algorithm": MALT | {"tuning": JOB["tuning"] | {"num_passes": 3, "batch_size": 2}},
            },
        },
        {"prover0": "prover", "prover1": "true", "verifier": "judge"},
        game=text_config("debate", grammar={"accept": "y", "reject": "n"}).model_dump(),
        num_rollouts=1,
    ),
}


def registered_text_algorithms() -> set[str]:
    """The names of all algorithms of text players that a config can ask for."""
    members = get_args(get_args(AnyTextAlgorithm)[0])
    ours = [member for member in members if not issubclass(member, UserAlgorithmConfig)]
    return {name for member in ours for name in get_args(member.model_fields["name"].annotation)}
